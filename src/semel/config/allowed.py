"""What a worker lets its connectors use: folders of its machine, plugins, and settings of Kafka's
clients."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from semel.config.definition import refers, replaced
from semel.core.errors import Problem
from semel.core.redact import names_secret

PATHS = "semel.connectors.allowed.paths"
PLUGINS = "semel.connectors.allowed.plugins"
TRUSTED = "semel.connectors.trusted.keys"
"""The keys with references that a connector has from its worker."""

_NAMES = frozenset(
    {
        *("file", "file.pattern", "file.directory", "input.path", "finished.path", "error.path"),
        *(
            "path",
            "state.dir",
            "store.url",
            "delta.table.path",
            "schema.filename",
            "gcs.credentials.path",
        ),
        *("offset.storage.file.filename", "connection.sslrootcert", "connection.sslcert"),
        *("connection.sslkey", "connection.serverSslCert"),
        *("connection.serverCertificate", "iceberg.catalog.warehouse"),
    }
)
_NAMING = (".location", ".keytab", ".file")
"""Keys whose value is a path even if it does not look like one."""
_FREE = ("query", "doc", "documentation")
"""The last words of keys that hold text."""
_LOCAL = re.compile(
    r"(?i)(?:jdbc:)?\b(?:sqlite:file|sqlite|duckdb|file|local|viewfs|unix):"
    r"(?P<path>[^\s,;?\"'|]*)"
)
_DATABASE = re.compile(r"(?i)(?:jdbc:)?(?:sqlite|duckdb):(?:(?-i:file):)?(?P<path>[^?]*)")
"""The URL of a database's file, whose name may hold anything."""
_SETTING = re.compile(r";\s*[\w.]+\s*=")
"""Where the settings in a URL of DuckDB may begin."""
_BEFORE = r"[\s,;=&?|!@#^+*<>`\"'(){}\[\]]"
_ABSOLUTE = re.compile(
    rf"(?:(?:^|{_BEFORE}|(?<=\W):)/*|:)(?P<path>[/~][\w.~$-][^\s,;&?|<>`\"'(){{}}\[\]]*)"
)
_OF_URL = re.compile(
    r"(?i)[?&;](?:passfile|service(?:file)?|[\w.-]*(?:cert|certificate|ca|key|crl|crldir|keytab|file"
    r"|store(?:url|location)?))=(?P<path>[^&;\s]*)"
)
"""Parameters of URLs by which clients of databases name files."""
_NO_FILES = ("", "system", "true", "false")
_PEM, _JAAS = "-----BEGIN ", "sasl.jaas.config"
_UP = re.compile(r"(?<![\w.])\.\.(?=[/\\]|$|[\s,;&|:\"'])")
_FAR = re.compile(r"(?i)[a-z][a-z0-9+.-]+://")
_CLASSES = re.compile(
    r"connector\.class|(?:key|value|header)\.converter|(?:transforms|predicates)\.[^.]+\.type"
)


def is_below(path: str | Path, roots: Collection[str]) -> bool:
    """Whether a path is below one of the folders, whatever links lead there."""
    real = Path(os.path.realpath(Path(path).expanduser()))
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def roots_of(originals: Mapping[str, str]) -> tuple[str, ...] | None:
    """The folders that a connector may use, as its worker says; None for all."""
    folders = [part.strip() for part in originals.get(PATHS, "").split(",")]
    return tuple(filter(None, folders)) or None


def trusted(originals: Mapping[str, str]) -> set[str]:
    """The keys whose references a connector has from its worker."""
    return set(originals.get(TRUSTED, "").split(","))


def outside(
    connector: Mapping[str, str], roots: Sequence[str], names: Collection[str] | None = None
) -> Iterator[Problem]:
    """The keys that name something outside of the folders, or settings of Spark, which could load
    anything. ``names`` are the keys whose references have been resolved, if only they matter."""
    for name in connector if names is None else names:
        value = connector[name]
        if name.startswith("spark."):
            message = f"{name} is for the worker's configuration, because {PATHS} is set"
            yield Problem(name, message, value)
            continue
        why = _outside(name, value, connector, roots, is_resolved=names is not None)
        if why:
            message = f"{name}: {why}. The worker's {PATHS} allows {', '.join(roots)}"
            yield Problem(name, message, value)


def _outside(
    name: str,
    value: str,
    connector: Mapping[str, str],
    roots: Sequence[str],
    *,
    is_resolved: bool,
) -> str:
    names_path = name in _NAMES or name.endswith(_NAMING)
    text = replaced(lambda _: "", value).strip()
    if refers(value) and (names_path or _LOCAL.match(text)):
        return "a reference cannot be judged: name the path itself"
    if name in ("file", "file.pattern"):
        text = os.path.join(connector.get("file.directory", ""), text)  # noqa: PTH118
    paths = [match["path"] for match in _LOCAL.finditer(text)]
    is_free = name.rpartition(".")[2] in _FREE
    if not is_free and (database := _DATABASE.match(text)):
        whole = database["path"].rstrip()
        paths += [whole, whole.removeprefix("//"), _SETTING.split(whole)[0].rstrip()]
    if names_path and text and not paths and not _FAR.match(text):
        paths = [text]
    elif _may_name(name, text, is_resolved=is_resolved):
        paths += [match["path"] for match in _ABSOLUTE.finditer(text)]
        if not names_path and (_UP.search(text) or _UP.search(unquote(text))):
            return f"{value!r} leads out of its folder"
        if "/" in text and not _FAR.match(text) and os.path.lexists(text):
            paths.append(text)
    if name.endswith((".url", ".uri")):
        url_paths = [match["path"] for match in _OF_URL.finditer(text)]
        paths += [path for path in url_paths if path not in _NO_FILES and not _FAR.match(path)]
    wrong = [
        path
        for path in filter(None, paths)
        if not all(is_below(_local(p), roots) for p in (path, unquote(path)))  # URLs may be escaped
    ]
    return f"{wrong[0]!r} is not an allowed folder" if wrong else ""


def _may_name(name: str, text: str, *, is_resolved: bool) -> bool:
    """Whether what looks like a path in a value is one: texts, and passwords that references stand
    for, may hold anything."""
    if name.rpartition(".")[2] in _FREE:
        return _ABSOLUTE.fullmatch(text) is not None
    is_secret = is_resolved and names_secret(name) and not name.endswith(_JAAS)
    return not is_secret and not text.startswith(_PEM)


def _local(path: str) -> str:
    """The path of a local URL's rest: ``///a``, ``//localhost/a`` or ``a``."""
    rest = path.removeprefix("//localhost") if path.startswith("//localhost/") else path
    return "/" + rest.lstrip("/") if rest.startswith("//") else rest


def unlisted(connector: Mapping[str, str], plugins: Sequence[str]) -> Iterator[Problem]:
    """The keys that name a class by a name which is not listed."""
    for name, value in connector.items():
        plugin = value.strip()
        names = {plugin, plugin.partition("$")[0]}
        if plugin and _CLASSES.fullmatch(name) and not names & {*plugins}:
            message = f"{name}={plugin} is not among the plugins that the worker's {PLUGINS} allows"
            yield Problem(name, message, value)


WORKERS = frozenset(
    {
        "interceptors",
        "internal.termination.signal",
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "sasl.oauthbearer.metadata.authentication.type",  # gives away the machine's own identity
        "ssl.engine.id",
        "ssl.engine.location",
        "ssl.providers",
    }
)
"""Settings that load or run something, or act on the process: only the worker's file may have them,
and none is tried to check a configuration."""
_FILES = frozenset(
    {
        "https.ca.location",
        "sasl.kerberos.keytab",
        *(f"sasl.oauthbearer.assertion.{n}file" for n in ("", "private.key.", "jwt.template.")),
        *(f"ssl.{n}.location" for n in ("ca", "certificate", "crl", "key", "keystore")),
        "ssl.truststore.location",
    }
)
"""Settings that name local files."""
_FORMS = {
    # Java's clients, which the micro-batch engine has, would load other classes, and read files by
    # URL; Kerberos passes the name to a shell.
    "sasl.jaas.config": r"(?s)\$\{[^}]*\}|org\.apache\.kafka\.common\.security\.(?:plain\.Plain"
    r"|scram\.Scram|oauthbearer\.OAuthBearer)LoginModule\s.*",
    "sasl.kerberos.principal": r"[A-Za-z0-9_./@-]+",
    "sasl.login.callback.handler.class": r"org\.apache\.kafka\.common\.security\.oauthbearer\.\w+"
    r"(\.\w+)?",
    "sasl.oauthbearer.token.endpoint.url": r"https?://\S+",
}
"""What the values of some settings may look like."""
_PLAIN = frozenset(
    {
        *("acks", "allow.auto.create.topics", "auto.offset.reset", "batch.num.messages"),
        *("batch.size", "bootstrap.servers", "broker.address.family", "broker.address.ttl"),
        *("buffer.memory", "check.crcs", "client.dns.lookup", "client.id", "client.rack"),
        *("compression.codec", "compression.level", "compression.type"),
        *("connections.max.idle.ms", "coordinator.query.interval.ms", "debug"),
        *("default.api.timeout.ms", "delivery.timeout.ms", "enable.auto.commit"),
        *("enable.auto.offset.store", "enable.gapless.guarantee", "enable.idempotence"),
        *("enable.metrics.push", "enable.partition.eof", "enable.random.seed"),
        *("enable.sasl.oauthbearer.unsecure.jwt", "enable.ssl.certificate.verification"),
        *("exclude.internal.topics", "fetch.error.backoff.ms", "fetch.max.bytes"),
        *("fetch.max.wait.ms", "fetch.message.max.bytes", "fetch.min.bytes"),
        *("fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id", "group.instance.id"),
        *("group.protocol", "group.protocol.type", "group.remote.assignor"),
        *("heartbeat.interval.ms", "https.ca.pem", "isolation.level", "key.deserializer"),
        *("key.serializer", "linger.ms", "log.connection.close", "log_level", "max.block.ms"),
        *("max.in.flight", "max.in.flight.requests.per.connection", "max.partition.fetch.bytes"),
        *("max.poll.interval.ms", "max.poll.records", "max.request.size"),
        *("message.copy.max.bytes", "message.max.bytes", "message.send.max.retries"),
        *("message.timeout.ms", "metadata.broker.list", "metadata.max.age.ms"),
        *("metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy"),
        *("partition.assignment.strategy", "partitioner"),
        *("queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes"),
        *("queue.buffering.max.messages", "queue.buffering.max.ms", "queued.max.messages.kbytes"),
        *("queued.min.messages", "queuing.strategy", "receive.buffer.bytes"),
        *("receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
        *("request.required.acks", "request.timeout.ms", "retries", "retry.backoff.max.ms"),
        *("retry.backoff.ms", "sasl.kerberos.min.time.before.relogin"),
        *("sasl.kerberos.service.name", "sasl.kerberos.ticket.renew.jitter"),
        *("sasl.kerberos.ticket.renew.window.factor", "sasl.login.connect.timeout.ms"),
        *("sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds"),
        *("sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor"),
        *("sasl.login.refresh.window.jitter", "sasl.login.retry.backoff.max.ms"),
        *("sasl.login.retry.backoff.ms", "sasl.mechanism", "sasl.mechanisms"),
        *("sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud"),
        *("sasl.oauthbearer.assertion.claim.exp.seconds", "sasl.oauthbearer.assertion.claim.iss"),
        *("sasl.oauthbearer.assertion.claim.jti.include",),
        *("sasl.oauthbearer.assertion.claim.nbf.seconds", "sasl.oauthbearer.assertion.claim.sub"),
        *("sasl.oauthbearer.assertion.private.key.passphrase",),
        *("sasl.oauthbearer.assertion.private.key.pem",),
        *("sasl.oauthbearer.client.credentials.client.id",),
        *("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.id"),
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.clock.skew.seconds"),
        *("sasl.oauthbearer.config", "sasl.oauthbearer.expected.audience"),
        *("sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.extensions"),
        *("sasl.oauthbearer.grant.type", "sasl.oauthbearer.header.urlencode"),
        *("sasl.oauthbearer.method", "sasl.oauthbearer.scope"),
        *("sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name"),
        *("sasl.password", "sasl.username", "security.protocol", "send.buffer.bytes"),
        *("session.timeout.ms", "socket.connection.setup.timeout.max.ms"),
        *("socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails"),
        *("socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes"),
        *("socket.timeout.ms", "ssl.ca.pem", "ssl.certificate.pem", "ssl.cipher.suites"),
        *("ssl.client.auth", "ssl.curves.list", "ssl.enabled.protocols"),
        *("ssl.endpoint.identification.algorithm", "ssl.key.password", "ssl.key.pem"),
        *("ssl.keymanager.algorithm", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
        *("ssl.keystore.password", "ssl.keystore.type", "ssl.protocol"),
        *("ssl.secure.random.implementation", "ssl.sigalgs.list", "ssl.trustmanager.algorithm"),
        *("ssl.truststore.certificates", "ssl.truststore.password", "ssl.truststore.type"),
        *("statistics.interval.ms", "sticky.partitioning.linger.ms", "topic.blacklist"),
        *("topic.metadata.propagation.max.ms", "topic.metadata.refresh.fast.interval.ms"),
        *("topic.metadata.refresh.interval.ms", "topic.metadata.refresh.sparse"),
        *("transaction.timeout.ms", "transactional.id", "value.deserializer", "value.serializer"),
    }
)
"""Settings of librdkafka, or of Java's clients, that do nothing but configure the client."""


def is_from_outside(setting: str, value: str, allowed: Collection[str]) -> bool:
    """Whether a connector of a worker may give a client this setting. Files must be below one of
    the folders that are ``allowed``."""
    if setting in _FILES:
        path = value.strip()
        return path.startswith("/") and "${" not in path and is_below(path, allowed)
    if setting in _FORMS:
        return re.fullmatch(_FORMS[setting], value.strip()) is not None
    return setting in _PLAIN
