"""The keys of the REST API, by Kafka Connect's names."""

from __future__ import annotations

import csv
import logging
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar
from urllib.parse import urlsplit

from semel.config.definition import LOW, Type, key
from semel.config.reading import whole
from semel.core.errors import ConfigError, Problem

BASIC_AUTH = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
TOKENS = "semel.rest.tokens.file"
READERS = "semel.rest.read.only.users"
AUTHENTICATION = "semel.rest.authentication"
HOSTS = "semel.rest.allowed.hosts"
_PORT = 8083
_GROUP = "REST"
_SCHEMES = ("http", "https")
_EVERYWHERE = (None, "", "0.0.0.0", "::")
_ELSEWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737), which is on no network."""
_ACTIONS = ("set", "add", "setdate", "adddate")
_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_LINE_ENDS = re.compile(r"[\r\n]+")
_FAR = 10**13
"""Milliseconds of some 300 years: a date has four digits for its year."""


@cache
def _this_machine() -> str:
    """This machine's address, from its host name, as in Kafka Connect. If that is a loopback
    address, as Debian sets it up, the address that other machines see."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "localhost"
    if not address.startswith(("127.", "localhost")):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_line, suppress(OSError):
        any_line.connect((_ELSEWHERE, 9))  # only consults the routing table, and sends nothing
        return str(any_line.getsockname()[0])
    return address


def well_formed(values: tuple[str, ...]) -> None:
    """Raises ValueError: one is malformed."""
    for value in values:
        parts = urlsplit(value)
        try:
            well_formed = parts.scheme.lower() in _SCHEMES and parts.port is not None
        except ValueError:
            well_formed = False
        if not well_formed:
            raise ValueError("must be http://host:port or https://host:port, separated by commas")


def some_listeners(values: tuple[str, ...]) -> None:
    """Raises ValueError: there is none, or one is malformed."""
    if not values:
        raise ValueError("names no listener")
    well_formed(values)


def _extensions(values: tuple[str, ...]) -> None:
    for value in values:
        if value != BASIC_AUTH:
            raise ValueError(
                f"has {value}, which is a Java class that cannot run here; {BASIC_AUTH} is "
                "understood. Remove it, or put a proxy in front that does the same"
            )


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """A header of every response. ``value`` of a date is the milliseconds from now."""

    name: str
    value: str
    adds: bool
    is_date: bool


def header_rules(text: str) -> list[HeaderRule]:
    """The rules of ``response.http.headers.config``.

    Raises:
        ValueError: a rule is malformed.
    """
    line = _LINE_ENDS.sub(" ", text)
    try:
        rules = next(csv.reader([line], skipinitialspace=True), []) if line.strip() else []
    except csv.Error as error:
        raise ValueError(f"cannot be read: {error}") from None
    return [_header_rule(rule.strip()) for rule in rules]


def _header_rule(text: str) -> HeaderRule:
    action, _, header = text.partition(" ")
    name, colon, value = (part.strip() for part in header.partition(":"))
    if action.lower() not in _ACTIONS:
        raise ValueError(f"has the action {action!r}, which is not set, add, setDate or addDate")
    if not colon or not value or ":" in value or not _HEADER.fullmatch(name):
        raise ValueError(f"has {text!r}, which is not '[action] [header name]:[header value]'")
    if max(value) > "\xff":
        raise ValueError(f"has {text!r}, whose value has a character that headers cannot have")
    is_date = action.lower().endswith("date")
    if is_date:
        try:
            whole(value, -_FAR, _FAR)
        except ValueError as error:
            why = f"whose value is not a number of milliseconds: it {error}"
            raise ValueError(f"has {text!r}, {why}") from None
    return HeaderRule(name, value, adds=action.lower().startswith("add"), is_date=is_date)


def _header_config(text: str) -> None:
    header_rules(text)


@dataclass(frozen=True)
class RestConfig:
    """Where the REST API listens, and who may use it."""

    listeners: tuple[str, ...] = key(
        "listeners",
        (f"http://localhost:{_PORT}",),
        "Where the REST API listens: http://host:port or https://host:port, separated by "
        "commas. http://:8083 listens on all addresses.",
        importance=LOW,
        group=_GROUP,
        validator=some_listeners,
    )
    admin_listeners: tuple[str, ...] | None = key(
        "admin.listeners",
        None,
        "Where /admin is served, if not on listeners; if empty, nowhere.",
        importance=LOW,
        validator=well_formed,
    )
    advertised_host: str = key(
        "rest.advertised.host.name",
        "",
        "The host by which other workers reach this one; by default that of the first listener, "
        "or this machine's address if that listens on all addresses.",
        importance=LOW,
    )
    advertised_port: int | None = key(
        "rest.advertised.port",
        None,
        "The port by which other workers reach this one; by default that of the first listener.",
        at_least=1,
        at_most=65535,
        type=Type.INT,
        importance=LOW,
    )
    advertised_listener: str = key(
        "rest.advertised.listener",
        "",
        "Which listener other workers use, http or https; by default http if there is one.",
        choices=("", *_SCHEMES),
        importance=LOW,
    )
    allowed_origin: str = key(
        "access.control.allow.origin",
        "",
        "Origins that browsers may call the REST API from (CORS), such as "
        "https://*.example.com; none by default.",
        importance=LOW,
    )
    allowed_methods: str = key(
        "access.control.allow.methods",
        "",
        "Methods that the origins of access.control.allow.origin may use; GET, POST and HEAD by "
        "default.",
        importance=LOW,
    )
    response_headers: str = key(
        "response.http.headers.config",
        "",
        "Headers of every response, [action] [header name]:[header value], separated by commas; "
        "an action is set, add, setDate or addDate.",
        importance=LOW,
        validator=_header_config,
    )
    extensions: tuple[str, ...] = key(
        "rest.extension.classes",
        (),
        f"{BASIC_AUTH} requires a user name and a password.",
        importance=LOW,
        validator=_extensions,
    )
    jaas_file: str = key(
        "semel.rest.jaas.file",
        "",
        "The JAAS file with the entry KafkaConnect; by default the one of "
        "-Djava.security.auth.login.config in KAFKA_OPTS.",
    )
    tokens_file: str = key(
        TOKENS,
        "",
        "A properties file of bearer tokens, name=token. Requests must then carry one, or a user "
        "name and a password.",
    )
    readers: tuple[str, ...] = key(
        READERS,
        (),
        "Users, names of tokens, or common names of client certificates that may only read, and "
        "validate configurations.",
    )
    authentication: str = key(
        AUTHENTICATION,
        "token",
        "What requests need if neither rest.extension.classes nor semel.rest.tokens.file is set: "
        "token, the one in $XDG_STATE_HOME/semel/worker-token or SEMEL_WORKER_TOKEN; or none.",
        choices=("token", "none"),
    )
    allowed_hosts: tuple[str, ...] = key(
        HOSTS,
        (),
        "Names that clients may call this worker by, besides its own and addresses; * for any. "
        "Only checked without a login, and with the default token on loopback addresses.",
        importance=LOW,
    )
    anonymous_paths: tuple[str, ...] = key(
        "semel.rest.anonymous.paths",
        (),
        "Paths that anyone may read without credentials, such as /health for probes.",
        importance=LOW,
    )
    max_request_bytes: int = key(
        "semel.rest.max.request.bytes",
        1024 * 1024,
        "The largest body of a request; larger ones are refused with 413.",
        at_least=1024,
        type=Type.INT,
        importance=LOW,
    )
    max_connections: int = key(
        "semel.rest.max.connections.per.address",
        128,
        "The connections that a listener keeps open for one address. For one more, it closes the "
        "oldest that waits for its client, or refuses the new one.",
        at_least=1,
        type=Type.INT,
        importance=LOW,
    )
    changes_logged_at: ClassVar[int] = logging.INFO
    """The level at which requests that change something are logged."""
    originals: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the user has written."""

    def __post_init__(self) -> None:
        scheme = self.advertised_listener
        if scheme and scheme not in self._schemes:
            message = f"rest.advertised.listener={scheme}, but listeners has no {scheme}:// address"
            raise ConfigError(Problem("rest.advertised.listener", message))

    @property
    def scheme(self) -> str:
        """How other workers reach this one, http or https."""
        return self.advertised_listener or ("http" if "http" in self._schemes else "https")

    @property
    def hosts(self) -> frozenset[str]:
        """The names that clients may call this worker by."""
        own = {urlsplit(url).hostname for url in (*self.listeners, *(self.admin_listeners or ()))}
        names = {*own, *self.allowed_hosts, self.advertised_host, "localhost", socket.gethostname()}
        return frozenset(name.lower() for name in names if name)

    @property
    def id(self) -> str:
        """The worker's name in statuses, ``host:port``."""
        first = urlsplit(self.listeners[self._schemes.index(self.scheme)])
        everywhere = first.hostname in _EVERYWHERE
        host = self.advertised_host or (_this_machine() if everywhere else first.hostname) or ""
        if ":" in host and not host.startswith("["):  # an IPv6 address, which URLs have in brackets
            host = f"[{host}]"
        return f"{host}:{self.advertised_port or first.port}"

    @property
    def _schemes(self) -> list[str]:
        return [urlsplit(url).scheme.lower() for url in self.listeners]
