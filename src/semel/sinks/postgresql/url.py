"""PostgreSQL's URLs: JDBC's form turned into libpq's, and shown without credentials."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from semel.errors import ConfigError

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


def libpq_uri(url: str, user: str, password: str, application: str) -> str:
    """Turn a JDBC or libpq URL into a libpq URI.

    Raises:
        ConfigError: the URL is not PostgreSQL's.
    """
    url = url.strip()
    bare = url.removeprefix("jdbc:")
    scheme, _, rest = bare.partition(":")
    if scheme not in ("postgresql", "postgres"):
        raise ConfigError(  # not the URL itself: others keep the password anywhere in it
            f"connection.url={url[: len(url) - len(rest)]}... is not a PostgreSQL URL. "
            "Set jdbc:postgresql://host:port/database or postgresql://host:port/database"
        )
    if not rest.startswith("//"):  # jdbc:postgresql:database
        rest = f"//localhost/{rest.lstrip('/')}"
    parts = urlsplit(f"postgresql:{rest}")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if url.startswith("jdbc:"):
        parameters = _from_jdbc(parameters)
    if user:
        parameters["user"] = user
    if password:
        parameters["password"] = password
    parameters = {**_DEFAULTS, "application_name": application, **parameters}
    host = parts.netloc or ("" if "host" in parameters else "localhost")
    return f"postgresql://{host}{parts.path}?{urlencode(parameters, quote_via=quote)}"


def shown(uri: str) -> str:
    """Host, port and database, without credentials."""
    parts = urlsplit(uri)
    host = parts.netloc.rsplit("@", maxsplit=1)[-1] or dict(parse_qsl(parts.query)).get("host", "")
    return f"PostgreSQL at {host}{unquote(parts.path)}"


def _from_jdbc(given: dict[str, str]) -> dict[str, str]:
    renamed = {_JDBC_PARAMETERS[k]: v for k, v in given.items() if k in _JDBC_PARAMETERS}
    if given.get("ssl") in ("true", ""):
        renamed.setdefault("sslmode", "verify-full")  # pgjdbc's meaning of ssl=true
    if "currentSchema" in given:
        path = given["currentSchema"].replace("\\", "\\\\").replace(" ", "\\ ")
        renamed["options"] = f"{renamed.get('options', '')} -csearch_path={path}".strip()
    target = renamed.get("target_session_attrs")
    if target:
        renamed["target_session_attrs"] = "any" if target.lower() == "any" else "read-write"
    return renamed
