"""Which settings of Kafka's clients connectors of a worker may set."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

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
FILES = frozenset(
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
    if setting in FILES:
        return is_below(value, allowed)
    if setting in _FORMS:
        return re.fullmatch(_FORMS[setting], value.strip()) is not None
    return setting in _PLAIN


def is_below(path: str, allowed: Collection[str]) -> bool:
    """Whether a path is absolute, and below one of these folders, links resolved."""
    location = Path(path.strip())
    if not location.is_absolute() or "${" in path:
        return False
    resolved = os.path.realpath(location)
    return any(Path(resolved).is_relative_to(os.path.realpath(root)) for root in allowed)
