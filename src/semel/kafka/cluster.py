"""First contact with a Kafka cluster, and the few admin requests that semel makes to it."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from semel.config import ConnectorConfig
from semel.core.abandoned import BackgroundCall
from semel.core.errors import ConfigError, SemelError, ServiceError, TopicMissing, TransientError
from semel.core.ledger import LogId, TopicPartition
from semel.core.patterns import compiled
from semel.core.quoting import all_named, named
from semel.kafka.answers import (
    GONE,
    MAY_NOT_DESCRIBE,
    MAY_PASS,
    NO_LOGIN,
    NOT_AUTHORIZED,
    PendingRequest,
    all_silent,
    answer_of,
    answers_of,
    failure,
    known_cluster_id,
)
from semel.kafka.clients import QUIET

_TIMEOUT = 20.0
_AT_FIRST = 2.0
"""Seconds that a leader gets to answer at first. A client keeps waiting for a leader that has gone;
a new client asks the current one."""
_PAUSE, _LEADERS_PAUSE = 0.1, 0.5
_CREATES_FOR = 5.0
"""Seconds for which the creation of a topic is tried again after an error that may pass."""
_GONE_AFTER, _GONE_TIMES = 3.0, 3
"""How long, in seconds, and how often a broker must deny a partition before it is believed: it may
learn of a new one later than its clients."""

INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
_METADATA_IN, _CONNECTS_IN = 2.0, 1.0
"""The longest that metadata, and a connection, may take, in seconds."""
_LEAST = 0.1
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 4.0
_SAY_AFTER = 1.0
_SILENT = 20.0
"""Seconds to wait for a cluster that is silent: the network may be slow."""
_UNKNOWN_HOST = {KafkaError._RESOLVE, KafkaError._ALL_BROKERS_DOWN}
"""What librdkafka reports if no host has an address: the second only once it has tried all."""


class LoginRefused(ServiceError):
    """A broker has answered, and does not let this client in."""


class Cluster:
    """Asks a Kafka cluster about topics, offsets and groups.

    Every call may raise TransientError if no broker answers in time (which may be temporary), and
    ServiceError if one refuses.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._servers = config["bootstrap.servers"]
        self._config = config
        self._in_doubt = False
        """Whether the last request for offsets failed, perhaps because there was no leader."""

    @cached_property
    def _admin(self) -> AdminClient:
        # The first request connects: a plan makes none, and closing a client takes seconds if the
        # brokers' names do not resolve.
        return admin_client(self._config)

    @property
    def config(self) -> Mapping[str, Any]:
        """The client configuration that reaches its brokers."""
        return self._config

    def logs(self, topics: Collection[str]) -> dict[str, LogId]:
        """The log of each topic that exists."""
        try:
            return self.ask_logs(topics).answer()
        except KafkaException as error:
            raise self._failed(error) from None

    def ask_logs(self, topics: Collection[str]) -> PendingRequest:
        """The same question, without waiting for the answer."""
        return PendingRequest(self._admin, topics, _TIMEOUT)

    def ask_topics(self, topics: Collection[str]) -> PendingRequest:
        """The same without the cluster's id: one request."""
        return PendingRequest(self._admin, topics, _TIMEOUT, cluster=False)

    def reconnect(self) -> None:
        """Reconnect after a failed question: a client may never find its brokers again."""
        self._admin = admin_client(self._config)

    @property
    def is_connected(self) -> bool:
        """Whether there is a client, which may know its brokers by now."""
        return "_admin" in self.__dict__

    def disconnect(self) -> None:
        """Disconnect in the background: an idle client takes memory and CPU, and closing one takes
        seconds if its brokers' names do not resolve. The next question connects again."""
        clients = [self.__dict__.pop("_admin", None)]
        if clients[0] is not None:
            BackgroundCall("disconnecting from Kafka", clients.clear)

    def cluster_id(self) -> str:
        """The cluster's id, which does not depend on the names of its brokers."""
        if known := known_cluster_id(self._admin):
            return known
        try:
            return str(self._admin.list_topics(timeout=_TIMEOUT).cluster_id or "")
        except KafkaException as error:
            raise self._failed(error) from None

    def topics(self, timeout: float = _TIMEOUT) -> dict[str, int]:
        """Every topic with its number of partitions."""
        try:
            metadata = self._admin.list_topics(timeout=timeout)
        except KafkaException as error:
            raise self._failed(error) from None
        return {name: len(t.partitions) for name, t in metadata.topics.items() if t.error is None}

    def matching(self, connector: ConnectorConfig, timeout: float = _TIMEOUT) -> dict[str, int]:
        """The connector's topics with their numbers of partitions.

        ``topics.regex`` must match the whole name; Kafka's internal topics are left out.

        Raises:
            TopicMissing: topics named in ``topics`` do not exist; they are never created.
            ServiceError: this user may not see one of them.
        """
        topics = self.topics(timeout)
        if connector.topics_regex:
            fits = compiled(connector.topics_regex).matches(pa.array(list(topics), pa.string()))
            chosen = compress(topics, fits.to_pylist())
            return {name: topics[name] for name in chosen if name not in INTERNAL}
        missing = [t for t in connector.topics if t not in topics]
        if missing:
            self._check_visible(connector, missing)
            several = len(missing) > 1
            what = (
                f"topics {all_named(missing)} do" if several else f"topic {named(missing[0])} does"
            )
            raise TopicMissing(
                f"connector {connector.name}: {what} not exist in {self._servers}, and semel "
                f"creates no source topics. Create {'them' if several else 'it'}, or correct topics"
            )
        return {t: topics[t] for t in connector.topics}

    def _check_visible(self, connector: ConnectorConfig, topics: Collection[str]) -> None:
        """Brokers do not list topics that this user may not describe."""
        for topic in topics:
            try:
                self.ask_topics([topic]).answer()
            except KafkaException as error:
                if error.args[0].code() not in MAY_NOT_DESCRIBE:
                    raise self._failed(error) from None
                raise ServiceError(
                    f"connector {connector.name}: Kafka at {self._servers} does not let this user "
                    f"describe topic {named(topic)}, so semel cannot tell whether it exists. Grant "
                    "READ on it, or correct topics"
                ) from None

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def latest(
        self,
        partitions: Iterable[TopicPartition],
        *,
        committed: bool = True,
        timeout: float = _TIMEOUT,
    ) -> dict[TopicPartition, int]:
        """The offset after the last one that a ``read_committed`` consumer may read."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(partitions, OffsetSpec.latest(), level, timeout)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The offset after the last one, including open transactions, and the partition's leader
        epoch, -1 if the broker does not report it."""
        spec, level = OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED
        return self._listed(partitions, spec, level, _TIMEOUT)

    def _offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel,
        timeout: float = _TIMEOUT,
    ) -> dict[TopicPartition, int]:
        listed = self._listed(partitions, spec, level, timeout)
        return {tp: offset for tp, (offset, _) in listed.items()}

    def _listed(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel,
        timeout: float,
    ) -> dict[TopicPartition, tuple[int, int]]:
        request = {KafkaPartition(tp.topic, tp.partition): spec for tp in partitions}
        if not request:
            return {}
        asked, wait = time.monotonic(), _AT_FIRST
        gone: list[float] = []
        while True:
            if self._in_doubt:
                self._wait_for_leaders(request, asked + timeout)
            began = time.monotonic()
            try:
                admin, within = self._admin, min(wait, timeout)
                answers = admin.list_offsets(request, isolation_level=level, request_timeout=within)
                results = answers_of(admin, answers, within)
                offsets = {
                    TopicPartition(kp.topic, kp.partition): (r.offset, _epoch(r.leader_epoch))
                    for kp, r in results.items()
                }
                unknown = sorted(tp for tp, (offset, _) in offsets.items() if offset < 0)
                if not unknown:
                    self._in_doubt = False
                    return offsets
                # A partition whose leader does not answer in time has neither an offset nor an
                # error.
                reason = f"{unknown[0]} has no leader"
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason))
            except KafkaException as error:
                code = error.args[0].code()
                now = time.monotonic()
                if code in GONE:
                    gone.append(now)
                    longest = min(timeout, _GONE_AFTER)
                    over = len(gone) >= _GONE_TIMES and now - gone[0] > longest
                else:
                    over = code in NOT_AUTHORIZED or now - asked > timeout
                    self._in_doubt = code not in NOT_AUTHORIZED
                if over:
                    raise self._failed(error) from None
                # After a leader election librdkafka's ListOffsets asks with the old leader epoch,
                # and keeps doing so however often it is refused: only a new client does not.
                self.reconnect()
                if time.monotonic() - began >= wait:  # it may just take long
                    wait = min(2 * wait, _TIMEOUT)
                time.sleep(_PAUSE)

    def _wait_for_leaders(self, request: Collection[KafkaPartition], until: float) -> None:
        """Raises TransientError: one of them takes no connections by then."""
        while reason := unreachable(self._admin, request, until):
            if time.monotonic() > until:
                error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason)
                raise self._failed(KafkaException(error))
            time.sleep(_LEADERS_PAUSE)

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
        began = time.monotonic()
        while True:
            try:
                admin = self._admin
                answer = admin.create_topics(
                    [topic], operation_timeout=_TIMEOUT, request_timeout=_TIMEOUT
                )
                answer_of(admin, answer[name], _TIMEOUT)
                return
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                passes = cause.code() in MAY_PASS or all_silent(cause)
                if not passes or time.monotonic() - began > _CREATES_FOR:
                    failed = TransientError if passes else ServiceError
                    raise failed(
                        f"cannot create topic {named(name)} in Kafka at {self._servers}: "
                        f"{cause.str()}"
                    ) from None
                time.sleep(_PAUSE)

    def largest_batch(self, topic: str) -> int | None:
        """The largest batch, in bytes, that a topic accepts; None if this user may not ask."""
        config = self.topic_config(topic)
        return None if config is None else int(config["max.message.bytes"])

    def topic_config(self, topic: str) -> dict[str, str] | None:
        """A topic's configuration, including defaults; None if this user may not ask."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        asked = time.monotonic()
        while True:
            try:
                admin = self._admin
                answer = admin.describe_configs([resource], request_timeout=_TIMEOUT)
                config = answer_of(admin, answer[resource], _TIMEOUT)
                return {k: str(v.value) for k, v in config.items()}
            except KafkaException as error:
                # A broker may not know yet of a topic that was just created.
                gone = error.args[0].code() in GONE
                if gone and time.monotonic() - asked < _GONE_AFTER:
                    time.sleep(0.05)
                    continue
                translated = self._failed(error)
                if isinstance(translated, TransientError):
                    raise translated from None
                return None

    def creates_topics(self) -> bool | None:
        """Whether the brokers create a topic that a producer asks for; None if this user may not
        ask."""
        try:
            admin = self._admin
            metadata = admin.list_topics(timeout=_TIMEOUT)
            broker = ConfigResource(ConfigResource.Type.BROKER, str(min(metadata.brokers)))
            answer = admin.describe_configs([broker], request_timeout=_TIMEOUT)
            config = answer_of(admin, answer[broker], _TIMEOUT)
            return str(config["auto.create.topics.enable"].value) == "true"
        except KafkaException as error:
            translated = self._failed(error)
            if isinstance(translated, TransientError):
                raise translated from None
            return None

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """The topics among these in which a later record of a key may replace an earlier one."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, t) for t in topics]
        if not resources:
            return set()
        try:
            admin = self._admin
            answers = admin.describe_configs(resources, request_timeout=_TIMEOUT)
            configs = answers_of(admin, answers, _TIMEOUT)
            policies = {r.name: c["cleanup.policy"].value for r, c in configs.items()}
        except KafkaException as error:
            raise self._failed(error) from None
        return {topic for topic, policy in policies.items() if "compact" in str(policy)}

    def groups(self, prefix: str) -> list[str]:
        """The consumer groups whose name begins with ``prefix``."""
        try:
            admin = self._admin
            listed = answer_of(
                admin, admin.list_consumer_groups(request_timeout=_TIMEOUT), _TIMEOUT
            )
        except KafkaException as error:
            raise self._failed(error) from None
        if listed.errors:  # some brokers have not answered, so the list is incomplete
            raise self._failed(KafkaException(listed.errors[0]))
        return sorted(g.group_id for g in listed.valid if g.group_id.startswith(prefix))

    def _failed(self, error: KafkaException) -> SemelError:
        translated = failure(self._servers, error)
        if isinstance(translated, TransientError):
            self.reconnect()
        return translated


def _epoch(epoch: int | None) -> int:
    return -1 if epoch is None else epoch


def admin_client(config: Mapping[str, Any]) -> AdminClient:
    """An admin client that logs nothing.

    Raises:
        ConfigError: librdkafka refuses its settings.
    """
    try:
        return AdminClient({**config, "log_level": 0}, logger=QUIET)
    except KafkaException as error:
        refused = error.args[0]
        if refused.code() != KafkaError._INVALID_ARG:
            raise
        raise ConfigError(
            f"Kafka's client refuses its settings: {refused.str()}. Check security.protocol, "
            "sasl.* and ssl.* below consumer.override., producer.override. or admin.override."
        ) from None


def unreachable(
    admin: AdminClient, partitions: Collection[KafkaPartition], until: float
) -> str | None:
    """A leader that takes no connections; None if all of them do, or that is not known. Ends by
    ``until``, or a moment later.

    While a question about offsets waits for a leader that refuses connections, librdkafka's (2.16)
    admin client connects again without a pause, hundreds of times a second: it uses up a CPU core.
    """
    try:
        # For all topics: asking for one that is gone would create it.
        metadata = admin.list_topics(timeout=_left(until, _METADATA_IN))
    except KafkaException:
        return None
    leaders: dict[int, str] = {}
    for p in partitions:
        topic = metadata.topics.get(p.topic)
        partition_metadata = topic.partitions.get(p.partition) if topic is not None else None
        if partition_metadata is not None:
            leaders.setdefault(partition_metadata.leader, f"{p.topic}-{p.partition}")
    for number, partition in leaders.items():
        broker = metadata.brokers.get(number)
        if broker is None:
            return f"{partition} has no leader"
        try:
            address = str(broker.host), int(broker.port)
            socket.create_connection(address, _left(until, _CONNECTS_IN)).close()
        except OSError as error:
            where = f"{broker.host}:{broker.port}"
            return f"the leader of {partition} at {where} cannot be reached: {error}"
    return None


def _left(until: float, most: float) -> float:
    return max(_LEAST, min(most, until - time.monotonic()))


def wait_for_brokers(
    client: Mapping[str, Any],
    timeout: float = _SILENT,
    say: Callable[[str], None] = lambda _line: None,
    key: str = "bootstrap.servers",
) -> None:
    """Return once a broker answers: a mistake in the configuration is reported at once, while a
    cluster that is starting or unreachable is waited for.

    Args:
        client: librdkafka's configuration.
        timeout: seconds to wait for brokers that refuse connections; silent ones get at least 20.
        say: called once, with what it is waiting for.
        key: the configuration's key that names the brokers, for the message.

    Raises:
        LoginRefused: check the login.
        ServiceError: no host has an address, or nobody answers in time.
    """
    servers = client["bootstrap.servers"]
    heard: list[KafkaError] = []
    admin = admin_client({**client, "error_cb": heard.append})
    began, wait, announced = time.monotonic(), _FIRST_WAIT, False
    while True:
        try:
            admin.list_topics(timeout=wait)
            return
        except KafkaException as error:
            admin.poll(0)
            last = _reason([*heard, error.args[0]])
            refused = next((e for e in heard if e.code() in NO_LOGIN), None)
            if refused is not None:
                raise LoginRefused(
                    f"Kafka at {servers}: {_text(refused)}. Check user, password and the security "
                    "settings"
                ) from None
            if reason := _unknown_host(heard):
                raise ServiceError(f"Kafka at {servers}: {reason}. Check {key}") from None
            waited = time.monotonic() - began
            limit = timeout if heard else max(timeout, _SILENT)
            if waited > limit:
                raise ServiceError(
                    f"no Kafka broker answers at {servers}: {last}. Check {key}, the "
                    "security settings, and that the broker runs"
                ) from None
            if waited > _SAY_AFTER and not announced:
                announced = True
                say(f"no Kafka broker answers at {servers} yet: {last}. Retrying for {limit:.0f} s")
            wait = min(2 * wait, _LONGEST_WAIT, max(limit - waited, _FIRST_WAIT))


def _unknown_host(heard: Sequence[KafkaError]) -> str | None:
    """Why no broker can be found; None if that is not the mistake."""
    codes = {e.code() for e in heard}
    passing = any("Temporary failure" in e.str() for e in heard)
    return _reason(heard) if codes == _UNKNOWN_HOST and not passing else None


def _reason(heard: Sequence[KafkaError]) -> str:
    """The first error that is more specific than "all brokers down"."""
    telling = [e for e in heard if e.code() != KafkaError._ALL_BROKERS_DOWN]
    return _text(telling[0]) if telling else ""


def _text(error: KafkaError) -> str:
    """librdkafka's words without the broker's name before and the client's state after them."""
    text = re.sub(r"^\S+/(bootstrap|\d+): ", "", error.str())
    return re.sub(r" \(after \d+ms in state \w+.*?\)", "", text)
