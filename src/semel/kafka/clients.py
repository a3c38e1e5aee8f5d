"""Configurations of Kafka clients: Java's names turned into librdkafka's, and checked."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import cimpl

from semel.config import CommonConfig, ConnectorConfig, SourceConnectorConfig, definitions, under
from semel.config.allowed import WORKERS
from semel.config.proxy import ProxyConfig
from semel.config.worker import SECURITY, SERVERS, WorkerConfig
from semel.core.errors import ConfigError, Problem, misconfigured, prefixed
from semel.kafka import security

QUIET = logging.getLogger("semel.kafka.librdkafka")
"""For librdkafka's own log messages, which are discarded: errors are reported where they matter."""
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False

# The Java client's name -> librdkafka's, where they differ; None: has no counterpart.
_JAVA_NAMES: dict[str, str | None] = {
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "max.request.size": "message.max.bytes",
    "buffer.memory": None,
    "max.block.ms": None,
    "key.serializer": None,
    "value.serializer": None,
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "max.poll.records": None,
    "auto.offset.reset": None,
    "bootstrap.servers": None,
    "metadata.broker.list": None,
    "key.deserializer": None,
    "value.deserializer": None,
    "default.api.timeout.ms": None,
    "exclude.internal.topics": None,
}

NETWORK = (
    "client.dns.lookup",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.ms",
)
"""Settings of the worker's own client that have no prefix."""
_UNLIMITED = ("receive.buffer.bytes", "send.buffer.bytes", "connections.max.idle.ms")
"""Settings for which Java's -1 is librdkafka's 0."""

_BACKOFF, _LONGEST = "reconnect.backoff.ms", "reconnect.backoff.max.ms"
_SHORT, _AT_MOST = 20, 1000
"""Milliseconds between two attempts to connect: a new client waits for half the shortest between
its first connection and its first question. The longest is Java's; librdkafka's is 10 s, so a
worker that was cut off would stay disconnected that long."""
_CONNECTS = 10_000
"""Milliseconds that a connection may take, as with Java's clients; librdkafka waits for 30 s."""
SESSION, HEARTBEAT = "session.timeout.ms", "heartbeat.interval.ms"
MEMBERSHIP: Mapping[str, int] = {
    # Short, because the ledger, not the session, keeps a zombie from doing harm.
    SESSION: 10_000,
    HEARTBEAT: 3_000,
}
"""The times of a task's membership in its group, in milliseconds."""
IDEMPOTENCE = "enable.idempotence"

RESERVED = ("group.id", "group.instance.id", "enable.auto.commit", "partition.assignment.strategy")
"""Consumer keys that the engine sets; overriding them would break the guarantee."""
_OK = 0
_MOST = 512
_POINTERS = ("_cb", "opaque", "default_topic_conf", "_conf")
_PAIRS = {
    "consumer": (
        ("session.timeout.ms", 45_000, "max.poll.interval.ms", 300_000),
        ("message.max.bytes", 1_000_000, "fetch.max.bytes", 52_428_800),
    ),
    "producer": (("linger.ms", 5, "message.timeout.ms", 300_000),),
}
"""Settings that must be no more than others, each with its default, by kind of client."""
_EVERY = (("reconnect.backoff.ms", 100, "reconnect.backoff.max.ms", 10_000),)
_IDEMPOTENT = {
    "max.in.flight.requests.per.connection": (range(1, 6), "must be set <= 5"),
    "retries": (range(1, 2**31), "must be set >= 1"),
    "acks": (("all", "-1"), "must be set to `all`"),
    "queuing.strategy": (("fifo",), "must be set to `fifo`"),
}
"""What these must be with ``enable.idempotence=true``."""
_NO_KERBEROS = "which this librdkafka was built without. Set another one, such as SCRAM-SHA-512"
_NAMES = {
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}
"""Two names of one setting."""


def client_config(
    connector: CommonConfig, kind: str, *, reads: bool = True, elsewhere: bool = False
) -> dict[str, Any]:
    """librdkafka's configuration for a ``consumer``, ``producer`` or ``admin`` client. Unless it
    ``reads``, certificates in Java's stores are left out. One that goes ``elsewhere``, to other
    brokers, does not log in as the others do.

    Raises:
        ConfigError: a key that the engine reserves is overridden.
    """
    overrides = under(connector.originals, f"{kind}.override.")
    main = "producer" if isinstance(connector, SourceConnectorConfig) else "consumer"
    inherited: set[str] = set()
    if kind != main and not elsewhere:  # security settings are usually given once
        main_overrides = under(connector.originals, f"{main}.override.")
        inherited = {k for k in main_overrides if k.startswith(SECURITY)} - overrides.keys()
        overrides = {k: main_overrides[k] for k in main_overrides if k in inherited} | overrides
    for name in RESERVED:
        if kind == "consumer" and name in overrides:
            raise misconfigured(
                f"consumer.override.{name}",
                f"connector {connector.name}: consumer.override.{name} is set by semel: the "
                "guarantee depends on it. Remove it",
            )
    isolation = overrides.get("isolation.level", "read_committed")
    if kind == "consumer" and isolation != "read_committed":
        raise misconfigured(
            "consumer.override.isolation.level",
            f"connector {connector.name}: consumer.override.isolation.level={isolation}: semel "
            "never reads records of aborted transactions. Remove it",
        )
    try:
        config = _translated(connector.bootstrap_servers, overrides, reads=reads)
    except ConfigError as error:  # it is about one setting
        origin = main if any(p.key in inherited for p in error.problems) else kind
        title = f"connector {connector.name}: "
        raise prefixed(error.problems, f"{origin}.override.", title=title) from None
    if kind == "consumer":  # Java's clients check them unless they are told not to
        config.setdefault("check.crcs", True)
    return config


def worker_client(worker: WorkerConfig) -> dict[str, Any]:
    """librdkafka's configuration for the worker's own client.

    Raises:
        ConfigError: a security setting that cannot be used.
    """
    originals = worker.originals
    own = {k: v for k, v in originals.items() if k.startswith(SECURITY) or k in NETWORK}
    admin = under(originals, "admin.").items()
    overrides = own | {k: v for k, v in admin if not k.startswith("listeners")}  # REST's
    return _translated(worker.bootstrap_servers, overrides)


def proxy_client(
    proxy: ProxyConfig, kind: str, login: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """librdkafka's configuration for a ``consumer``, ``producer`` or ``admin`` client of the REST
    Proxy: what ``client.*`` says, and then what the keys of its own kind say. It logs in as the
    proxy, or with another ``login``.

    Raises:
        ConfigError: a setting that cannot be used.
    """
    originals = proxy.originals
    bare = (*NETWORK, "client.id")
    own = {k: v for k, v in originals.items() if k.startswith(SECURITY) or k in bare}
    taken = {*bare, *(d.name for d in definitions(type(proxy)))}
    for prefix in ("client.", f"{kind}."):
        own |= {
            name: value
            for name, value in under(originals, prefix).items()
            if prefix + name not in taken and not name.startswith("listen")  # REST's
        }
    own.pop(SERVERS, None)
    if login is not None:
        own = _logged_in(own, login)
    config = _translated(proxy.bootstrap_servers, own)
    with_defaults = {IDEMPOTENCE: confirms_all(config), **config} if kind == "producer" else config
    problems = [
        Problem(f"{kind}.{_as_given(name)}", f"{kind}.{_as_given(name)}: {reason}")
        for name, reason in judged(kind, with_defaults)
    ]
    if problems:
        raise ConfigError(*problems)
    return config


_MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
_CERTIFICATE = ("ssl.keystore.", "ssl.certificate.", "ssl.key.")


def _logged_in(own: Mapping[str, str], login: Mapping[str, str]) -> dict[str, str]:
    """Settings with another login: nothing is left of what says who the client was.

    Raises:
        ConfigError: it would still be the same, or nobody.
    """
    strange = next((name for name in login if not name.startswith(SECURITY)), "")
    if strange:
        message = f"{strange} is none of security.*, sasl.* and ssl.*, which a login consists of"
        raise misconfigured(strange, message)
    protocol = {**own, **login}.get("security.protocol", "PLAINTEXT").upper()
    if protocol == "PLAINTEXT":
        message = "security.protocol=PLAINTEXT has no login: set it to SASL_SSL, or to SSL"
        raise misconfigured("security.protocol", message)
    by_password = protocol.startswith("SASL_")
    identity = ("sasl.",) if by_password else _CERTIFICATE
    says = {name for name, value in login.items() if value.strip() and name not in _MECHANISM}
    if not any(name.startswith(identity) for name in says):
        missing = "sasl.jaas.config" if by_password else "ssl.keystore.location"
        message = f"{missing} is missing: security.protocol={protocol} logs in with it"
        raise misconfigured(missing, message)
    kept = {name: value for name, value in own.items() if not name.startswith(identity)}
    if not any(name in login for name in _MECHANISM):
        kept |= {name: own[name] for name in _MECHANISM if name in own}
    return kept | dict(login)


def _translated(
    servers: str, overrides: Mapping[str, str], *, reads: bool = True
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        # Once no broker has answered for a while, librdkafka (2.16) would discard all the metadata
        # that it has and start over, and then wait for the group's coordinator forever.
        "metadata.recovery.strategy": "none",
    }
    overrides = security.librdkafka(overrides, reads=reads)
    for name, value in overrides.items():
        translated = _JAVA_NAMES.get(name, name)
        if translated is not None:
            config[translated] = "0" if name in _UNLIMITED and value.strip() == "-1" else value
    config.setdefault("socket.connection.setup.timeout.ms", _CONNECTS)
    shortest, longest = _number(config.get(_BACKOFF)), _number(config.get(_LONGEST))
    if _LONGEST not in config:  # librdkafka wants it to be no less than the shortest
        config[_LONGEST] = longest = max(_AT_MOST, shortest)
    if longest:
        config.setdefault(_BACKOFF, min(_SHORT, longest))
    return config


def _number(value: Any) -> int:
    """A number, or 0 for a value that librdkafka will refuse."""
    text = str(value).strip()
    return int(text) if text.isdecimal() else 0


def check_clients(connector: CommonConfig, *, reads: bool = True) -> None:
    """Let librdkafka judge the overrides, without making a client. Unless it ``reads``, files are
    not looked at.

    Raises:
        ConfigError: a setting that it does not know, or a value that it does not take.
    """
    problems: list[Problem] = []
    main, *others = ("consumer", "producer", "admin")
    if isinstance(connector, SourceConnectorConfig):
        main, *others = ("producer", "consumer", "admin")
    for kind in (main, *others):
        try:
            _check_client(connector, kind, reads=reads)
        except ConfigError as error:
            # The first client's security settings apply to the others, too: report each problem
            # once.
            messages = {p.message for p in problems}
            reported = messages | {m.replace(f"{main}.", f"{kind}.", 1) for m in messages}
            problems += [p for p in error.problems if p.message not in reported]
    if problems:
        raise ConfigError(*problems)


def _check_client(connector: CommonConfig, kind: str, *, reads: bool) -> None:
    config = client_config(connector, kind, reads=reads)
    problems = []
    if kind == "consumer":
        _check_heartbeat(connector.name, config)
    dead_letters = isinstance(connector, ConnectorConfig) and connector.dead_letter_topic
    if kind == "producer" and dead_letters and not confirms_all(config):
        problems.append(
            Problem(
                "producer.override.acks",
                f"connector {connector.name}: producer.override.acks={acks(config)} confirms dead "
                "letters that a broker may still lose. Set it to all, or remove it",
            )
        )
    if kind == "producer":
        config = {IDEMPOTENCE: confirms_all(config), **config}
    names = {key.partition(".override.")[2] for key in connector.originals}
    for name, reason in judged(kind, config):
        named = name
        if not {name, _as_given(name)} & names:
            named = next((other for other in names if f"`{other}`" in reason), name)
        key = f"{kind}.override.{_as_given(named)}"
        problems.append(
            Problem(
                key,
                f"connector {connector.name}: {key}: {reason}. The client is librdkafka, "
                "which lacks some settings of the Java client: remove or correct it",
            )
        )
    if problems:
        raise ConfigError(*problems)


def _as_given(name: str) -> str:
    """The Java client's name of a setting of librdkafka's, where they differ."""
    return next((java for java, own in _JAVA_NAMES.items() if own == name), name)


def _check_heartbeat(name: str, consumer: Mapping[str, Any]) -> None:
    """Refuse a heartbeat interval that is not below the session timeout, as Java's client does: the
    session would end between two heartbeats."""
    session, heartbeat = (str({**MEMBERSHIP, **consumer}[k]) for k in (SESSION, HEARTBEAT))
    if session.isdecimal() and heartbeat.isdecimal() and int(heartbeat) >= int(session):
        raise misconfigured(
            f"consumer.override.{HEARTBEAT}",
            f"connector {name}: consumer.override.{HEARTBEAT}={heartbeat} must be less than "
            f"consumer.override.{SESSION}={session}, ideally a third of it",
        )


def acks(producer: Mapping[str, Any]) -> str:
    """Whose confirmation a producer waits for."""
    return str(producer.get("acks", producer.get("request.required.acks", "all")))


def confirms_all(producer: Mapping[str, Any]) -> bool:
    """Whether a producer's records are confirmed by all replicas that are in sync."""
    return acks(producer).lower() in ("all", "-1")


def is_idempotent(producer: Mapping[str, Any]) -> bool:
    """Whether a producer numbers its records, so that brokers drop what is sent twice: unless it is
    told otherwise, or ``acks`` rules it out."""
    return confirms_all(producer) and is_true(producer.get(IDEMPOTENCE, True))


def is_true(value: Any) -> bool:
    """Whether librdkafka takes a setting's value for true."""
    return str(value).lower() in ("true", "t", "1")


def judged(kind: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings of a ``consumer``, ``producer`` or ``admin`` client that librdkafka refuses, and
    why.

    A client would start threads, read files and load libraries. Setting a value in a configuration
    object of librdkafka's only parses it, except for the settings that are never tried here.
    """
    for name, value in config.items():
        if name in WORKERS:
            continue
        reason = _reason(name, "true" if value is True else str(value))
        if reason:
            yield name, reason
    yield from _conflicts(kind, {_NAMES.get(k, k): (k, v) for k, v in config.items()})


def _conflicts(kind: str, config: Mapping[str, tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for less, its_default, more, other_default in (*_PAIRS.get(kind, ()), *_EVERY):
        key = next((config[n][0] for n in (more, less) if n in config), None)
        smaller, larger = (
            _as_number(config[n][1] if n in config else default)
            for n, default in ((less, its_default), (more, other_default))
        )
        if key and smaller is not None and larger is not None and smaller > larger:
            yield key, f"`{more}` must be >= `{less}`"
    protocol, mechanism = (
        str(next((config[n][1] for n in names if n in config), default)).upper()
        for names, default in (
            (("security.protocol",), ""),
            (("sasl.mechanism", "sasl.mechanisms"), "GSSAPI"),
        )
    )
    if protocol.startswith("SASL_") and mechanism == "GSSAPI" and not _has_kerberos():
        yield "security.protocol", f"`sasl.mechanism` is GSSAPI, {_NO_KERBEROS}"
    if kind != "producer" or str(config["enable.idempotence"][1]).lower() not in ("true", "1", "t"):
        return
    for name, (allowed, wrong) in _IDEMPOTENT.items():
        if name not in config:
            continue
        key, value = config[name]
        parsed = _as_number(value) if isinstance(allowed, range) else str(value).strip().lower()
        if parsed is not None and parsed not in allowed:
            yield key, f"`{key}` {wrong} when `enable.idempotence` is true"


def _as_number(value: Any) -> int | None:
    """A number; None for a value that is refused as such."""
    text = str(value).strip()
    return int(text) if text.isdecimal() and len(text) < 12 else None


def _reason(name: str, value: str) -> str | None:
    """Why librdkafka refuses a value; None if it does not, or if it cannot be asked."""
    if name.endswith(_POINTERS) or "\0" in name + value:
        return f'No such configuration property: "{name}"'
    library = _library()
    if library is None:
        return None
    reason = ctypes.create_string_buffer(_MOST)
    conf = library.rd_kafka_conf_new()
    try:
        arguments = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        code = library.rd_kafka_conf_set(conf, *arguments, reason, _MOST)
    finally:
        library.rd_kafka_conf_destroy(conf)
    return None if code == _OK else reason.value.decode("utf-8", "replace").strip()


@functools.cache
def _has_kerberos() -> bool:
    library = _library()
    if library is None:
        return True
    features, size = ctypes.create_string_buffer(_MOST), ctypes.c_size_t(_MOST)
    conf = library.rd_kafka_conf_new()
    try:
        library.rd_kafka_conf_get(conf, b"builtin.features", features, ctypes.byref(size))
    finally:
        library.rd_kafka_conf_destroy(conf)
    return b"sasl_gssapi" in features.value


@functools.cache
def _library() -> Any:
    """The client's librdkafka; None if it is linked in another way."""
    try:
        librdkafka = ctypes.CDLL(cimpl.__file__)  # with the libraries that it is linked to
        librdkafka.rd_kafka_conf_new.restype = ctypes.c_void_p
        librdkafka.rd_kafka_conf_destroy.restype = None
        librdkafka.rd_kafka_conf_destroy.argtypes = [ctypes.c_void_p]
        librdkafka.rd_kafka_conf_get.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p),
        ]
        librdkafka.rd_kafka_conf_set.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
        ]
    except (AttributeError, OSError):
        return None
    return librdkafka
