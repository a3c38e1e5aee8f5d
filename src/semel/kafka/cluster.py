"""Kafka clients: configuration in Java's names, and the few admin calls that semel makes."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from semel import converters
from semel.config import ConnectorConfig, under
from semel.errors import ConfigError, Problem, SemelError, ServiceError, TransientError, Unavailable
from semel.kafka import security
from semel.kafka.logids import Asked
from semel.ledger import LogId, TopicPartition
from semel.records import DeadLetter

_TIMEOUT = 20.0
_AT_FIRST = 2.0
"""Seconds that a leader gets to answer at first: a client waits for one that it knew and that has
gone, a new client asks the one that leads now."""
_GONE_AFTER, _GONE_TIMES = 3.0, 3
"""Seconds for which, and how often, a broker says that it does not know a partition before it is
believed: it may hear of a new one later than its clients."""

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
    "key.deserializer": None,
    "value.deserializer": None,
    "default.api.timeout.ms": None,
    "exclude.internal.topics": None,
}

_INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
_MAY_PASS = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
)
_REFUSED = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

Header = tuple[str, bytes | None]
Headers = list[Header]

ERRORS = "__connect.errors."
"""What the names of a dead letter's context headers begin with."""

SESSION, HEARTBEAT = "session.timeout.ms", "heartbeat.interval.ms"
MEMBERSHIP: Mapping[str, int] = {
    # Short, because the ledger, not the session, keeps a zombie from doing harm.
    SESSION: 10_000,
    HEARTBEAT: 3_000,
}
"""Milliseconds, of a task's membership in its group."""
IDEMPOTENCE = "enable.idempotence"

SEEK_AGAIN = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""Errors after which the position must be looked up, and judged, again."""

RESERVED = ("group.id", "group.instance.id", "enable.auto.commit", "partition.assignment.strategy")
"""Consumer keys that the engine sets; overriding them would break the guarantee."""


def client_config(connector: ConnectorConfig, raw: Mapping[str, str], kind: str) -> dict[str, Any]:
    """librdkafka's configuration for a ``consumer``, ``producer`` or ``admin`` client.

    Raises:
        ConfigError: a key that the engine reserves is overridden.
    """
    overrides = under(raw, f"{kind}.override.")
    if kind != "consumer":  # security settings are usually given once
        consumer = under(raw, "consumer.override.")
        shared = ("security.", "sasl.", "ssl.")
        overrides = {k: v for k, v in consumer.items() if k.startswith(shared)} | overrides
    for name in RESERVED:
        if kind == "consumer" and name in overrides:
            raise ConfigError(
                f"connector {connector.name}: consumer.override.{name} is set by semel: the "
                "guarantee depends on it. Remove it"
            )
    isolation = overrides.get("isolation.level", "read_committed")
    if kind == "consumer" and isolation != "read_committed":
        raise ConfigError(
            f"connector {connector.name}: consumer.override.isolation.level={isolation}: semel "
            "reads committed records only; an aborted transaction's are none. Remove it"
        )
    config: dict[str, Any] = {
        "bootstrap.servers": connector.bootstrap_servers,
        # Once no broker has answered for a while, librdkafka (2.16) would give up all that it has
        # heard of and begin anew, and then wait for the group's coordinator for ever.
        "metadata.recovery.strategy": "none",
    }
    if kind == "consumer":  # Java's clients check them unless they are told not to
        config["check.crcs"] = True
    try:
        overrides = security.librdkafka(overrides)
    except ConfigError as error:
        raise ConfigError(f"connector {connector.name}: {kind}.override.{error}") from None
    for name, value in overrides.items():
        translated = _JAVA_NAMES.get(name, name)
        if translated is not None:
            config[translated] = value
    return config


def check_clients(connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
    """Let librdkafka judge the overrides, without connecting to anything.

    Raises:
        ConfigError: a setting that it does not know, or a value that it does not take.
    """
    found: list[Problem] = []
    for kind in ("consumer", "producer", "admin"):
        try:
            _check_client(connector, raw, kind)
        except ConfigError as error:
            # Security settings of the consumer are the others' too: what is wrong is told once.
            told = {p.message.replace("consumer.", f"{kind}.", 1) for p in found}
            found += [p for p in error.problems if p.message not in told]
    if found:
        raise ConfigError(*found)


def _check_client(connector: ConnectorConfig, raw: Mapping[str, str], kind: str) -> None:
    config = client_config(connector, raw, kind) | {"bootstrap.servers": "", "log_level": 0}
    problems = []
    if kind == "consumer":
        _check_heartbeat(connector.name, config)
    if kind == "producer" and connector.dead_letter_topic and not confirms_all(config):
        problems.append(
            f"connector {connector.name}: producer.override.acks={acks(config)} confirms dead "
            "letters that a broker may still lose. Set it to all, or remove it"
        )
    while True:  # librdkafka names one setting at a time
        try:
            if kind == "producer":
                Producer({IDEMPOTENCE: confirms_all(config), **config})
            else:
                Consumer({"group.id": connector.group_id, **config}).close()
            break
        except KafkaException as error:
            reason = error.args[0].str()
            named = next((n for n in _QUOTED.findall(reason) if n in config), "")
            problems.append(
                f"connector {connector.name}: {kind}.override.{_as_given(named) or '*'}: {reason}. "
                "The client is librdkafka, which lacks some settings of the Java client: remove or "
                "correct it"
            )
            if not named:
                break
            del config[named]
    if problems:
        raise ConfigError(*problems)


_QUOTED = re.compile(r'"([\w.]+)"')


def _as_given(name: str) -> str:
    """The Java client's name of a setting of librdkafka's, where they differ."""
    return next((java for java, own in _JAVA_NAMES.items() if own == name), name)


def _check_heartbeat(name: str, consumer: Mapping[str, Any]) -> None:
    """Java's client refuses it, too: the session would end between two heartbeats."""
    session, heartbeat = (str({**MEMBERSHIP, **consumer}[k]) for k in (SESSION, HEARTBEAT))
    if session.isdigit() and heartbeat.isdigit() and int(heartbeat) >= int(session):
        raise ConfigError(
            f"connector {name}: consumer.override.{HEARTBEAT}={heartbeat} must be less than "
            f"consumer.override.{SESSION}={session}, best a third of it"
        )


def acks(producer: Mapping[str, Any]) -> str:
    """Whose confirmation a producer waits for."""
    return str(producer.get("acks", producer.get("request.required.acks", "all")))


def confirms_all(producer: Mapping[str, Any]) -> bool:
    """Whether a producer's records are confirmed by all replicas that are in sync."""
    return acks(producer).lower() in ("all", "-1")


def is_idempotent(producer: Mapping[str, Any]) -> bool:
    """Whether a producer numbers its records, so that brokers drop what is sent twice: unless it is
    told otherwise, or ``acks`` rule it out."""
    return confirms_all(producer) and is_true(producer.get(IDEMPOTENCE, True))


def is_true(value: Any) -> bool:
    """Whether librdkafka takes a setting's value for true."""
    return str(value).lower() in ("true", "t", "1")


def error_headers(connector: ConnectorConfig, letter: DeadLetter, task: int) -> Headers:
    """The headers that Kafka Connect gives to a dead letter (KIP-298), if they are wanted."""
    if not connector.dead_letter_headers:
        return []
    context = {
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "connector.name": connector.name,
        "task.id": str(task),
        "stage": letter.stage,
        "class.name": _executing_class(connector, letter.stage),
        "exception.class.name": letter.exception,
        "exception.message": letter.message,
    }
    return [(f"{ERRORS}{k}", v.encode()) for k, v in context.items()]


def _executing_class(connector: ConnectorConfig, stage: str) -> str:
    """What has failed, as Kafka Connect names it; a sink's refusals are its SinkTask's there."""
    return {
        "KEY_CONVERTER": converters.full_name(connector.key_converter),
        "VALUE_CONVERTER": converters.full_name(connector.value_converter),
        "TRANSFORMATION": "transform",
    }.get(stage, "org.apache.kafka.connect.sink.SinkTask")


class Cluster:
    """Questions to a Kafka cluster about topics, offsets and groups.

    Every question may raise TransientError when no broker answers in time (it may pass), and
    ServiceError when one refuses.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._servers = config["bootstrap.servers"]
        self._config = config
        self._admin = self._connected()

    def _connected(self) -> AdminClient:
        return admin_client(self._config)

    @property
    def config(self) -> Mapping[str, Any]:
        """How its brokers are reached."""
        return self._config

    def logs(self, topics: Collection[str]) -> dict[str, LogId]:
        """The log of each topic that exists."""
        try:
            return self.ask_logs(topics).answer()
        except KafkaException as error:
            raise self._failed(error) from None

    def ask_logs(self, topics: Collection[str]) -> Asked:
        """The same question, without waiting for the answer."""
        return Asked(self._admin, topics, _TIMEOUT)

    def ask_topics(self, topics: Collection[str]) -> Asked:
        """The same without the cluster's id: one request."""
        return Asked(self._admin, topics, _TIMEOUT, cluster=False)

    def connect_anew(self) -> None:
        """After a question that failed: a client may never find its brokers again."""
        self._admin = self._connected()

    def cluster_id(self) -> str:
        """What tells this cluster from others, whatever names its brokers have."""
        try:
            found = self._admin.describe_cluster(request_timeout=_TIMEOUT).result()
        except KafkaException as error:
            raise self._failed(error) from None
        return str(found.cluster_id)

    def topics(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        try:
            metadata = self._admin.list_topics(timeout=_TIMEOUT)
        except KafkaException as error:
            raise self._failed(error) from None
        return {name: len(t.partitions) for name, t in metadata.topics.items() if t.error is None}

    def matching(self, connector: ConnectorConfig) -> dict[str, int]:
        """The connector's topics with their numbers of partitions.

        ``topics.regex`` must match the whole name; Kafka's internal topics are left out.

        Raises:
            ConfigError: a topic named in ``topics`` does not exist; it is never created.
        """
        found = self.topics()
        if connector.topics_regex:
            pattern = re.compile(connector.topics_regex)
            chosen = {n: p for n, p in found.items() if pattern.fullmatch(n)}
            return {n: p for n, p in chosen.items() if n not in _INTERNAL}
        missing = [t for t in connector.topics if t not in found]
        if missing:
            raise ConfigError(
                f"connector {connector.name}: topic {missing[0]} does not exist in "
                f"{self._servers}, and semel creates no source topics. Create it, or correct topics"
            )
        return {t: found[t] for t in connector.topics}

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset still there."""
        return self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def latest(
        self,
        partitions: Iterable[TopicPartition],
        *,
        committed: bool = True,
        patience: float = _TIMEOUT,
    ) -> dict[TopicPartition, int]:
        """The offset after the last one that a ``read_committed`` consumer may read."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(partitions, OffsetSpec.latest(), level, patience)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The offset after the last one, transactions that are open included, and the partition's
        leader epoch; -1 if the broker does not tell."""
        spec, level = OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED
        return self._listed(partitions, spec, level, _TIMEOUT)

    def _offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel,
        patience: float = _TIMEOUT,
    ) -> dict[TopicPartition, int]:
        found = self._listed(partitions, spec, level, patience)
        return {tp: offset for tp, (offset, _) in found.items()}

    def _listed(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel,
        patience: float,
    ) -> dict[TopicPartition, tuple[int, int]]:
        request = {KafkaPartition(tp.topic, tp.partition): spec for tp in partitions}
        if not request:
            return {}
        asked, wait = time.monotonic(), _AT_FIRST
        gone: list[float] = []
        while True:
            began = time.monotonic()
            try:
                answers = self._admin.list_offsets(
                    request, isolation_level=level, request_timeout=min(wait, patience)
                )
                told = {tp: answer.result() for tp, answer in answers.items()}
                found = {
                    TopicPartition(kp.topic, kp.partition): (r.offset, _epoch(r.leader_epoch))
                    for kp, r in told.items()
                }
                unknown = sorted(tp for tp, (offset, _) in found.items() if offset < 0)
                if not unknown:
                    return found
                # What nobody answers in time has neither an offset nor an error.
                reason = f"{unknown[0]} has no leader"
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason))
            except KafkaException as error:
                code = error.args[0].code()
                now = time.monotonic()
                if code in _GONE:
                    gone.append(now)
                    longest = min(patience, _GONE_AFTER)
                    over = len(gone) >= _GONE_TIMES and now - gone[0] > longest
                else:
                    over = code in _REFUSED or now - asked > patience
                if over:
                    raise self._failed(error) from None
                # After a leader election librdkafka's ListOffsets asks with the old leader epoch,
                # and goes on to do so however often it is refused: only a new client asks anew.
                self._admin = self._connected()
                if time.monotonic() - began >= wait:  # it may just take long
                    wait = min(2 * wait, _TIMEOUT)
                time.sleep(0.1)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic unless it is there; -1 leaves the replication to the brokers.

        Raises:
            ServiceError: it cannot be created.
            TransientError: no answer has come; it may have been created.
        """
        if name in self.topics():
            return
        topic = NewTopic(name, partitions, replication, config=dict(config or {}))
        try:
            answer = self._admin.create_topics(
                [topic], operation_timeout=_TIMEOUT, request_timeout=_TIMEOUT
            )
            answer[name].result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            failed = TransientError if code in _MAY_PASS else ServiceError
            raise failed(
                f"cannot create topic {name} in Kafka at {self._servers}: {error.args[0].str()}"
            ) from None

    def largest_batch(self, topic: str) -> int | None:
        """How many bytes a topic takes at once; None where that may not be asked."""
        config = self.topic_config(topic)
        return None if config is None else int(config["max.message.bytes"])

    def topic_config(self, topic: str) -> dict[str, str] | None:
        """A topic's configuration, defaults included; None where that may not be asked."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        asked = time.monotonic()
        while True:
            try:
                answer = self._admin.describe_configs([resource], request_timeout=_TIMEOUT)
                return {k: str(v.value) for k, v in answer[resource].result().items()}
            except KafkaException as error:
                # A broker may not have heard yet of a topic that was just created.
                gone = error.args[0].code() in _GONE
                if gone and time.monotonic() - asked < _GONE_AFTER:
                    time.sleep(0.05)
                    continue
                found = self._failed(error)
                if isinstance(found, TransientError):
                    raise found from None
                return None

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Those of the topics in which a later record of a key may replace an earlier one."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, t) for t in topics]
        if not resources:
            return set()
        try:
            answers = self._admin.describe_configs(resources, request_timeout=_TIMEOUT)
            policies = {r.name: f.result()["cleanup.policy"].value for r, f in answers.items()}
        except KafkaException as error:
            raise self._failed(error) from None
        return {topic for topic, policy in policies.items() if "compact" in str(policy)}

    def groups(self, prefix: str) -> list[str]:
        """The consumer groups whose name begins with ``prefix``."""
        try:
            listed = self._admin.list_consumer_groups(request_timeout=_TIMEOUT).result()
        except KafkaException as error:
            raise self._failed(error) from None
        if listed.errors:  # of brokers that have not answered; what the others say is not all
            raise self._failed(KafkaException(listed.errors[0]))
        return sorted(g.group_id for g in listed.valid if g.group_id.startswith(prefix))

    def _failed(self, error: KafkaException) -> SemelError:
        found = failure(self._servers, error)
        if isinstance(found, TransientError):
            self.connect_anew()
        return found


def _epoch(told: int | None) -> int:
    return -1 if told is None else told


def failure(servers: str, error: KafkaException) -> SemelError:
    """What the error of a question to a cluster means."""
    cause = error.args[0]
    if cause.code() in _REFUSED:
        return ServiceError(f"Kafka at {servers} refuses: {cause.str()}")
    if cause.code() in _GONE:
        return ServiceError(
            f"Kafka at {servers}: {cause.str()}. Was a topic deleted, or created again with fewer "
            "partitions?"
        )
    if cause.code() == KafkaError.LEADER_NOT_AVAILABLE:
        return TransientError(f"Kafka at {servers}: {cause.str()}")
    return Unavailable(
        f"no Kafka broker answers at {servers}: {cause.str()}. Check bootstrap.servers and that "
        "the broker runs"
    )


def admin_client(config: Mapping[str, Any]) -> AdminClient:
    """An admin client that logs nothing."""
    return AdminClient({**config, "log_level": 0}, logger=_quiet())


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("semel.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
