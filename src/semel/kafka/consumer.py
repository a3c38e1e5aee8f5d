"""A task's Kafka consumer: its configuration, what it delivers, what its log says, and the meaning
of its errors."""

from __future__ import annotations

import gc
import logging
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from semel.config import ConnectorConfig
from semel.core.abandoned import Abandoned, within
from semel.core.errors import Displaced, SemelError, ServiceError
from semel.core.ledger import LogId, TopicPartition
from semel.kafka.answers import CONSUMER_FENCED, NOT_AUTHORIZED, SEEK_AGAIN, UNREADABLE
from semel.kafka.clients import MEMBERSHIP, client_config

if TYPE_CHECKING:
    from semel.kafka.dead_letters import Headers  # slow to import

log = logging.getLogger(__name__)

_NAMELESS = "\ufffd"
_EXACT = 1024
"""Up to this many records, each value is measured; beyond that, one in ``_STRIDE``."""
_STRIDE = 16
_FEW = 64
"""This many records may always be asked for, even if the size is known from fewer."""
METADATA_AGE = "topic.metadata.refresh.interval.ms"
_ENOUGH = 20
"""A task stops fetching once this many records are waiting to be polled."""
_FETCH, _FETCHES = 2 * 1024 * 1024, 32
"""The largest fetch of a partition, and how many fetches ``max.poll.bytes`` must have room for: a
fetch is decompressed as a whole, and may become many times as large."""
_MESSAGE = 1_000_000
"""librdkafka's ``message.max.bytes``."""
_WAIT = 500
"""Kafka's own ``fetch.max.wait.ms``."""
SHARES = 4
"""A commit holds at most 1/SHARES of max.poll.bytes, and as much again is read ahead: a record
exists in several forms at once on its way to the store."""
_MANY, _SOON, _AT_MOST = 1000, 0.05, 5.0
"""How many records of a fenced consumer are dropped at a time, the seconds that it may take until
the next ones come, and the seconds that all of it may take."""
_END = 10.0
"""Seconds that a consumer gets to close."""
_CHANGED = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)$")
_FATAL, _THREAD = "FATAL", "[thrd:main]: "
"""librdkafka's name for log lines on fatal errors, and what their text begins with."""
_DEBUG = "metadata"
"""The debug context that has the line; about one line per partition at each refresh of metadata."""
_LEVELS = (logging.CRITICAL,) * 3 + (
    logging.ERROR,
    logging.WARNING,
    logging.INFO,
    logging.INFO,
    logging.DEBUG,
)
"""Python's names of the levels of ``log_level``, as confluent-kafka translates them."""


def headers_of(message: Message) -> Headers | None:
    """A record's headers; None if it has none. See :func:`headers_of_all`."""
    (headers,) = headers_of_all([message])
    return headers


def headers_of_all(messages: Sequence[Message]) -> list[Headers | None]:
    """The headers of each record; None if it has none. The client fails on a name that is no UTF-8,
    which any producer but Java's may send; such a name becomes U+FFFD."""
    try:
        return list(map(_headers, messages))
    except SystemError as error:  # the client returns a list although it has failed
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
    return list(map(_repaired, messages))


def _repaired(message: Message) -> Headers | None:
    with suppress(SystemError):
        _headers(message)
    headers = _headers(message)  # the client has kept the list
    if headers:  # a pair has no first element where there was such a name
        headers[:] = [h if len(gc.get_referents(h)) > 1 else (_NAMELESS, h[1]) for h in headers]
    return headers


_headers: Callable[[Message], Headers | None] = operator.methodcaller("headers")
"""Notices such a failure at once; a call from Python may do so only later, anywhere."""


def size_of(messages: Sequence[Message]) -> int:
    """The approximate size of their keys and values, in bytes; headers are not counted."""
    step = 1 if len(messages) <= _EXACT else _STRIDE
    rarer = 1 if len(messages) <= _FEW else _STRIDE  # asking for a key takes longer
    keys = filter(None, map(operator.methodcaller("key"), messages[::rarer]))
    return step * sum(map(len, messages[::step])) + rarer * sum(map(len, keys))


class Sizes:
    """The size of the records that came last, as one consumer knows it.

    librdkafka takes a number of records, not of bytes. So it is asked for as many records as would
    fit a limit of bytes if they were as large as the last ones.
    """

    def __init__(self) -> None:
        self._record = 0
        self._sampled = 0

    def fitting(self, room: int) -> int:
        """How many such records fit; 0 until the first ones have come."""
        return room // self._record if self._record else 0

    def note(self, messages: Sequence[Message]) -> int:
        """Learn from records; returns their bytes."""
        size = size_of(messages)
        if messages:
            self._record = max(1, size // len(messages))
            self._sampled = len(messages)
        return size

    def gather(
        self,
        consume: Callable[[int, float], list[Message]],
        into: list[Message],
        *,
        most: int,
        room: int,
        wait: float,
    ) -> list[Message]:
        """Add what comes within ``wait`` seconds, until there are ``most`` or they hold ``room``
        bytes; returns what was added. One record is always taken, however large."""
        size, before = size_of(into), len(into)
        deadline = time.monotonic() + wait
        while len(into) < most:
            asked = min(most - len(into), self.fitting(room - size) or int(not into))
            # A few small records are not representative.
            asked = min(asked, max(_FEW, 2 * self._sampled))
            if asked <= 0:
                break
            came = consume(asked, max(0.0, deadline - time.monotonic()))
            size += self.note(came)
            into += came
            if len(came) < asked:
                break
        self._sampled = max(self._sampled, len(into) - before)
        return into[before:]


def consumer_config(connector: ConnectorConfig, index: int, wait: int = _WAIT) -> dict[str, Any]:
    """librdkafka's configuration of one task. The keys at its end cannot be overridden. Brokers
    hold a fetch that finds nothing for ``wait`` milliseconds, unless the user wants fetches of a
    certain size."""
    fetch = max(1024, min(_FETCH, connector.max_poll_bytes // _FETCHES))
    client = client_config(connector, "consumer")
    return {
        # librdkafka would fetch again for every record that comes during a commit, which at some
        # thousands a second costs the broker more than anything else. So little is read ahead, in
        # fetches large enough that converting one hides the latency of the next.
        "queued.min.messages": _ENOUGH,
        "fetch.queue.backoff.ms": 5,
        **({} if "fetch.min.bytes" in client else {"fetch.wait.max.ms": wait}),
        "max.partition.fetch.bytes": fetch,
        # librdkafka wants it to be no less than the largest message that it expects.
        "fetch.max.bytes": max(2 * fetch, int(client.get("message.max.bytes", _MESSAGE))),
        **MEMBERSHIP,
        METADATA_AGE: 30_000,
        "log_level": 0,
        **client,
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": max(1, connector.max_poll_bytes // SHARES // 1024),
        "group.id": connector.group_id,
        "group.instance.id": instance_id(connector, index),
        "client.id": f"semel-{connector.name}-{index}",
        # Kafka Connect's consumers use range, and may join while members of tasks that have just
        # ended are still listed: a group whose members have no strategy in common refuses every new
        # member for good. With range, partitions of one number go together, as topologies need.
        "partition.assignment.strategy": (
            "range,roundrobin" if connector.topology else "roundrobin,range"
        ),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


def instance_id(connector: ConnectorConfig, index: int) -> str:
    """A task's name in the consumer group."""
    return f"{connector.group_id}-{index}"


def fenced(connector: ConnectorConfig, index: int, reason: str) -> Displaced:
    """The error for a task whose place in the group another one has taken."""
    return Displaced(
        f"connector {connector.name}: task {index} was fenced: another run of this connector has "
        f"taken its place in consumer group {connector.group_id} ({reason}). This one has stopped; "
        "nothing was written twice"
    )


def translated(connector: ConnectorConfig, index: int, error: KafkaError) -> SemelError | None:
    """The connector's error for a consumer's error; None if it passes by itself."""
    code = error.code()
    if code in CONSUMER_FENCED or error.fatal():
        return fenced(connector, index, error.str())
    if code in NOT_AUTHORIZED:
        return ServiceError(f"connector {connector.name}: {error.str()}")
    return None


def raised(connector: ConnectorConfig, index: int, error: KafkaException) -> SemelError:
    """The same for an error that a call to the consumer has raised."""
    cause = error.args[0]
    return translated(connector, index, cause) or ServiceError(
        f"connector {connector.name}: Kafka: {cause.str()}"
    )


class OutOfOrder(Exception):
    """Records of a partition that was revoked or repositioned meanwhile: drop them and seek
    again."""

    def __init__(self, reason: str, topic_partition: TopicPartition | None = None) -> None:
        super().__init__(reason)
        self.topic_partition = topic_partition


class Poll:
    """Gathers records for one commit until they fill a share of ``max.poll.bytes``.
    :func:`without_events` removes the messages that are not records."""

    def __init__(
        self, connector: ConnectorConfig, index: int, sizes: Sizes, consumer_log: ConsumerLog
    ) -> None:
        self._connector = connector
        self._index = index
        self._sizes = sizes
        self._log = consumer_log
        self._room = connector.max_poll_bytes // SHARES
        self.messages: list[Message] = []
        self.has_events = False

    def take(self, consumer: Consumer, most: int, wait: float) -> None:
        """Add what comes within ``wait`` seconds, up to ``most`` records in all.

        Raises:
            SemelError: the consumer can no longer be used. Its messages report that only once, and
                the poll in which they do may yet have to be dropped.
        """
        came = self._sizes.gather(
            consumer.consume, self.messages, most=most, room=self._room, wait=wait
        )
        self._check(consumer, came)

    def take_first(self, consumer: Consumer, wait: float) -> bool:
        """Add the first record or event that comes within ``wait`` seconds; returns whether one
        has. It does little else, because what an idle connector does between two waits costs
        more than the waits.

        Raises:
            SemelError: as :meth:`take`.
        """
        came = consumer.consume(1, wait)
        if not came:
            return False
        self._sizes.note(came)
        self.messages += came
        self._check(consumer, came)
        return True

    def _check(self, consumer: Consumer, came: list[Message]) -> None:
        self._find_error(came)
        if not self._log.fatal:
            return
        # A task that committed these records would cause its successor one conflict after another.
        # They are drained because an event of the group among them may say that the session has
        # merely expired.
        deadline = time.monotonic() + _AT_MOST
        while time.monotonic() < deadline and (came := consumer.consume(_MANY, _SOON)):
            self._find_error(came)
        raise fenced(self._connector, self._index, self._log.fatal)

    def _find_error(self, came: list[Message]) -> None:
        for error in filter(None, map(Message.error, came)):
            self.has_events = True
            if (failure := translated(self._connector, self._index, error)) is not None:
                raise failure


@dataclass(frozen=True, slots=True)
class Events:
    """The records of a poll, the partitions that were read to their ends, and those with a batch
    that cannot be read, with the reason."""

    records: list[Message]
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    unreadable: Mapping[TopicPartition, str] = field(default_factory=dict)


def without_events(messages: list[Message], tell: Callable[[str], None]) -> Events:
    """Remove the events, and whatever follows an unreadable batch in its partition.

    Raises:
        OutOfOrder: the consumer needs its positions again.
    """
    records: list[Message] = []
    ends: dict[TopicPartition, int] = {}
    unreadable: dict[TopicPartition, str] = {}
    for message in messages:
        error = message.error()
        if error is None and not unreadable:
            records.append(message)
            continue
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        if tp in unreadable:
            continue
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            ends[tp] = int(message.offset() or 0)
        elif error.code() in UNREADABLE:
            unreadable[tp] = error.str()
        elif error.code() in SEEK_AGAIN:
            raise OutOfOrder(f"{tp}: {error.str()}", tp)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            tell("too slow between two polls; rejoining the group")
        else:
            log.info("%s %s", message.topic() or "", error.str())
    return Events(records, ends, unreadable)


def close(consumer: Consumer) -> None:
    """Close a consumer, or leave it behind if it does not close in time, as it may if it has met
    damage in a log or lost its brokers."""
    try:
        within(_END, "closing a Kafka consumer", consumer.close)
    except (Abandoned, KafkaException) as error:
        log.info("%s", error)


class ConsumerLog:
    """The logger of one consumer. It passes on what the consumer's configuration asks for, and
    keeps what the log says earlier than messages do, or what only the log says.

    Log lines overtake the records that a consumer has fetched but not delivered. So they tell at
    once that it was fenced; the error message comes after those records.

    They also tell which topic it fetches, by the topic's id. Brokers since Kafka 3.1 are asked for
    records by topic id (KIP-516, librdkafka 2.5 and later), and serve no other topic under it.
    After a topic is created again, librdkafka continues with the new id at the same offset, and
    reports that in a debug line alone. The line comes before the first record of the new topic. No
    broker has to be asked, so none can answer from stale metadata.
    """

    def __init__(self, logger: logging.Logger, config: Mapping[str, Any]) -> None:
        self._logger = logger
        level = int(config.get("log_level", 6))
        self._least = logging.DEBUG if config.get("debug") else _LEVELS[min(level, 7)]
        self._ids: dict[str, str] = {}
        self.fatal = ""
        """Why the consumer can no longer be used; empty while it can."""

    def log(self, level: int, template: str, *parts: str) -> None:
        """Called by confluent-kafka while the consumer is polled."""
        if level == logging.DEBUG and (match := _CHANGED.search(parts[-1])):
            self._ids[match[1]] = match[2]
        if parts[0] == _FATAL:  # whoever polls reports it in words
            self.fatal = self.fatal or parts[-1].removeprefix(_THREAD)
            level = logging.DEBUG
        if level >= self._least:
            self._logger.log(level, template, *parts)

    def fetched(self, topic: str) -> LogId:
        """The log that records of this topic, polled last, may come from."""
        return LogId("", self._ids.get(topic, ""))


def logged_consumer(
    config: Mapping[str, Any], logger: logging.Logger
) -> tuple[Consumer, ConsumerLog]:
    """A consumer, and what it says in its log."""
    consumer_log = ConsumerLog(logger, config)
    debug = ",".join(filter(None, [str(config.get("debug", "")), _DEBUG]))
    return Consumer({**config, "debug": debug}, logger=consumer_log), consumer_log
