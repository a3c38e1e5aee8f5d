"""Who may use the REST API: users with passwords, and bearer tokens."""

from __future__ import annotations

import base64
import hmac
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import javaproperties

from semel.config.rest import READERS, TOKENS, RestConfig
from semel.core.errors import ConfigError
from semel.worker.rest.tls import demand_certificates
from semel.worker.rest.token import worker_token

_ENTRY = "KafkaConnect"
_MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
_COMMENT = re.compile(r"/\*.*?\*/|(?m:^\s*(?://|#)[^\n]*$)", re.S)
_LOGIN = re.compile(
    r"""([\w.$]+)\s+(?:required|requisite|sufficient|optional)   # the class, and a flag
        ((?:\s+[\w.]+\s*=\s*(?:"[^"]*"|[^\s;"]+))*)\s*;      # its options""",
    re.I | re.X,
)
_FILE = re.compile(r"\bfile\s*=\s*(?:\"([^\"]*)\"|([^\s;\"]+))")
_NAME_SHOWN = 64
_OPTION = "-Djava.security.auth.login.config="


PEER = "another worker"
"""The user of a request that another worker of the cluster forwards with its own token."""


@dataclass(frozen=True)
class Users:
    """The credentials that requests are checked against. Without users, they need the
    ``default_token``; ``peer_token`` is that of the cluster's workers among themselves."""

    passwords: Mapping[str, str]
    tokens: Mapping[str, str]
    readers: frozenset[str]
    default_token: str = field(default="", repr=False)
    peer_token: Callable[[], str] = str
    have_certificates: bool = False

    @property
    def are_configured(self) -> bool:
        """Whether the configuration says who may send requests."""
        return bool(self.passwords or self.tokens)

    @property
    def are_asked(self) -> bool:
        """Whether a request must say who sends it."""
        return self.are_configured or bool(self.default_token)

    def strangers(self, names: Collection[str]) -> set[str]:
        """Those of the names whose requests could never be recognised."""
        known = {*self.passwords, *self.tokens}
        return set() if self.have_certificates else {*names} - known

    def of(self, authorization: str) -> str | None:
        """The user that an ``Authorization`` header authenticates, or None."""
        scheme, _, credentials = authorization.strip().partition(" ")
        basic = scheme.lower() == "basic"
        if not basic and scheme.lower() != "bearer":
            return None
        name, secret = _credentials(credentials) if basic else ("", credentials.strip())
        if self.default_token:  # with Basic it is the password, whatever the name
            return _matching({"token": self.default_token, PEER: self.peer_token()}, secret)
        if basic:  # browsers know no other: a token's name and the token are as good
            known = [each for each in (self.passwords, self.tokens) if name in each]
            return next((n for each in known if (n := _matching({name: each[name]}, secret))), None)
        return _matching(self.tokens, secret)

    def claimed_name(self, authorization: str) -> str:
        """Who an ``Authorization`` header says that it is, true or not."""
        scheme, _, credentials = authorization.strip().partition(" ")
        # Without users, somebody may have sent the token in place of the name.
        named = scheme.lower() == "basic" and self.are_configured
        name = _credentials(credentials)[0] if named else ""
        return repr(name[:_NAME_SHOWN]) if name else "a token" if scheme else "nobody"


def users(config: RestConfig, peer_token: Callable[[], str] = str) -> Users:
    """The users in the files that the configuration names, or the token that is the default.

    Raises:
        ConfigError: a file cannot be read or names nobody, or those who may only read would never
            be recognised.
    """
    passwords = _properties(_credentials_file(config)) if config.extensions else {}
    tokens = _properties(Path(config.tokens_file)) if config.tokens_file else {}
    by_token = not (passwords or tokens or demand_certificates(config))
    default = worker_token() if by_token and config.authentication == "token" else ""
    auth = [v for k, v in config.originals.items() if k.endswith("ssl.client.auth")]
    with_certificates = any(value.strip().lower() not in ("", "none") for value in auth)
    readers = frozenset(config.readers)
    known_users = Users(passwords, tokens, readers, default, peer_token, with_certificates)
    if unknown := known_users.strangers(readers):
        raise ConfigError(
            f"{READERS}={','.join(config.readers)}: {min(unknown)} is neither a user of "
            f"rest.extension.classes nor a name in {TOKENS}, so no request could be recognised as "
            "theirs"
        )
    return known_users


def _matching(secrets: Mapping[str, str], credential: str) -> str | None:
    """The name whose secret this is, compared in constant time."""
    sent, match = credential.encode(), None
    for name, secret in secrets.items():
        if secret and hmac.compare_digest(secret.encode(), sent):
            match = name
    return match


def _credentials(encoded: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:  # no base64, or no text
        return "", ""
    name, _, password = text.partition(":")
    return name, password


def _credentials_file(config: RestConfig) -> Path:
    """The file of user names and passwords that the JAAS entry names."""
    jaas = config.jaas_file or _of_java_options(os.environ.get("KAFKA_OPTS", ""))
    if not jaas:
        raise ConfigError(
            "rest.extension.classes asks for user names and passwords: set semel.rest.jaas.file, "
            f"or KAFKA_OPTS={_OPTION}FILE, to the JAAS file with the entry {_ENTRY}"
        )
    text = _COMMENT.sub("", _text(Path(jaas)))
    entry = re.search(rf"\b{_ENTRY}\s*\{{(.*?)\}}\s*;", text, re.S)
    modules = _LOGIN.findall(entry[1]) if entry is not None else []
    if not modules:
        raise ConfigError(f'{jaas} has no entry {_ENTRY} {{ {_MODULE} required file="..."; }};')
    (name, options), *more = modules
    if more or name != _MODULE:
        other = more[0][0] if name == _MODULE else name
        raise ConfigError(
            f"{jaas}: {_ENTRY} uses {other}, a Java class that cannot run here. Only {_MODULE} is "
            "supported; for other classes, put a proxy in front"
        )
    file = _FILE.search(options)
    if file is None:
        raise ConfigError(f'{jaas}: {_MODULE} has no option file="..."')
    return Path(file[1] or file[2])


def _of_java_options(options: str) -> str:
    try:
        words = shlex.split(options)
    except ValueError:
        return ""
    locations = [w.removeprefix(_OPTION).lstrip("=") for w in words if w.startswith(_OPTION)]
    return locations[-1] if locations else ""


def _properties(file: Path) -> dict[str, str]:
    try:
        properties = javaproperties.loads(_text(file))
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{file} is not a .properties file: {error}") from None
    empty = [name for name, secret in properties.items() if not secret]
    if empty or not properties:
        what = f"gives {empty[0]} no secret" if empty else "names nobody"
        raise ConfigError(f"{file} {what}: it would let anyone in. Write name=secret lines")
    return properties


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{file} cannot be read: {why}") from None
