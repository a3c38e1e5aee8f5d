"""PostgreSQL's URLs: JDBC's form turned into libpq's, and shown without credentials."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from semel.core.errors import ConfigError, misconfigured
from semel.databases.login import POSTGRESQL, Login

# pgjdbc's parameter -> libpq's; those that only tune the JDBC driver are left out.
_JDBC_PARAMETERS = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "connectTimeout": "connect_timeout",
    "loginTimeout": "connect_timeout",
    "options": "options",
    "gssEncMode": "gssencmode",
    "channelBinding": "channel_binding",
    "targetServerType": "target_session_attrs",
}

# A server that is gone without a word is noticed in half a minute, not in two hours.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]@]*)(:(\d*))?")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def libpq_uri(login: Login, application: str) -> str:
    """Turn a JDBC or libpq URL into a libpq URI.

    Raises:
        ConfigError: the URL is not PostgreSQL's.
    """
    url, more = login.url.strip(), login.parameters
    bare = url.removeprefix("jdbc:")
    scheme, _, rest = bare.partition(":")
    if scheme not in POSTGRESQL:
        shown = url[: len(url) - len(bare)] + re.split(r"\W", scheme)[0]
        raise misconfigured(  # not the URL itself: others keep the password anywhere in it
            "connection.url",
            f"connection.url={shown}... is not a PostgreSQL URL. "
            "Set jdbc:postgresql://host:port/database or postgresql://host:port/database",
        )
    if not rest.startswith("//"):  # jdbc:postgresql:database
        rest = f"//localhost/{rest.lstrip('/')}"
    rest = rest.replace("#", "%23")  # neither pgjdbc nor libpq takes it for a fragment's beginning
    try:
        parts = urlsplit(f"postgresql:{rest}")
    except ValueError:  # whose message may hold the password
        raise _malformed() from None
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if url.startswith("jdbc:"):
        parameters = _from_jdbc({**more, **parameters})
    else:
        parameters = {**_from_jdbc(more), **parameters}
    credentials, _, hosts = parts.netloc.rpartition("@")
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            raise _malformed()
        if match[3] and not 0 < int(match[3]) < 1 << 16:
            raise misconfigured(  # not the number itself: it may be half a password
                "connection.url",
                "connection.url: a port is between 1 and 65535. Is there a / in a password? Write "
                "it as %2F, or set connection.password",
            )
    of_url = "sslmode=" in parts.query
    _check_ssl_mode(parameters, "connection.url" if of_url else "connection.sslmode")
    own_user, _, own_password = credentials.partition(":")
    for name, value, own in (
        ("user", login.user, own_user),
        ("password", login.password, own_password),
    ):
        if value or own:
            parameters[name] = value or unquote(own)
    if "," in hosts:  # a standby may be the first that answers
        parameters.setdefault("target_session_attrs", "read-write")
    parameters = {**_DEFAULTS, "application_name": application, **parameters}
    host = hosts or ("" if "host" in parameters else "localhost")
    return f"postgresql://{host}{parts.path}?{urlencode(parameters, quote_via=quote)}"


def _check_ssl_mode(parameters: dict[str, str], key: str) -> None:
    mode = parameters.get("sslmode")
    if mode is None:
        return
    parameters["sslmode"] = mode.lower()  # as pgjdbc takes it
    if mode.lower() not in _SSL_MODES:
        raise misconfigured(
            key,
            f"sslmode={mode} (of connection.url, or connection.sslmode) must be one of "
            f"{', '.join(_SSL_MODES)}",
        )


def _malformed() -> ConfigError:
    return misconfigured(  # the @ comes first, so that the URL is not taken for one with a password
        "connection.url",
        "connection.url: are there characters such as / @ : ? in a user's name or password? Write "
        "them as %2F %40 %3A %3F, or set connection.user and connection.password. The URL is not "
        "of the form postgresql://host:port/database",
    )


def unnamed(uri: str) -> tuple[str, str]:
    """A URI of :func:`libpq_uri` without its ``application_name``, and that name."""
    parts = urlsplit(uri)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = parameters.pop("application_name", "")
    if not name:
        return uri, ""
    return parts._replace(query=urlencode(parameters, quote_via=quote)).geturl(), name


def shown(uri: str) -> str:
    """Host, port and database, without credentials."""
    parts = urlsplit(uri)
    host = parts.netloc.rsplit("@", maxsplit=1)[-1] or dict(parse_qsl(parts.query)).get("host", "")
    return f"PostgreSQL at {host}{unquote(parts.path)}"


def user_of(uri: str) -> str:
    """The user that logs in; libpq takes the one of this process if none is given."""
    parts = urlsplit(uri)
    user = unquote(parts.username or "") or dict(parse_qsl(parts.query)).get("user", "")
    return user or os.environ.get("PGUSER") or getpass.getuser()


def _from_jdbc(parameters: Mapping[str, str]) -> dict[str, str]:
    renamed = {_JDBC_PARAMETERS[k]: v for k, v in parameters.items() if k in _JDBC_PARAMETERS}
    if parameters.get("ssl") in ("true", ""):
        renamed.setdefault("sslmode", "verify-full")  # pgjdbc's meaning of ssl=true
    if "currentSchema" in parameters:
        path = parameters["currentSchema"].replace("\\", "\\\\").replace(" ", "\\ ")
        renamed["options"] = f"{renamed.get('options', '')} -csearch_path={path}".strip()
    target = renamed.get("target_session_attrs")
    if target:
        renamed["target_session_attrs"] = "any" if target.lower() == "any" else "read-write"
    return renamed
