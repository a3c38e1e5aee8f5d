"""Reads a partition from any offset, without a consumer group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.kafka.answers import SEEK_AGAIN
from semel.kafka.clients import QUIET
from semel.kafka.consumer import close
from semel.proxy.errors import Refusal, of_kafka, too_many
from semel.proxy.kafka import Kafka

T = TypeVar("T")
COMMITTED = "read_committed"
_BATCH = 500
_FETCHES_IN = 0.1
"""Seconds in which a reader at the end hears of a record that was just written."""
_LEAST = 5.0
"""Seconds that a read takes at least until it knows that nothing is there."""
_IDLE = 30.0
"""Seconds for which a reader keeps what it has fetched ahead for nobody."""


class OutOfRange(Refusal):
    """A position whose records are gone, or that the log has not reached."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(
            416,
            f"{topic}-{partition} has no offset {offset}: its records were deleted, or its log was "
            "cut. GET .../offsets tells which offsets it has",
            41601,
        )


@dataclass(frozen=True, slots=True)
class Slice:
    """Records of a partition, and where the next begin. ``is_end``: nothing more is there yet."""

    messages: list[Message]
    next: int
    is_end: bool


class LogReader:
    """One client that reads wherever it is sent, one call at a time. It may be a ``user``'s."""

    def __init__(self, client: Mapping[str, Any], isolation: str, user: str = "") -> None:
        self._consumer = Consumer(
            {
                "check.crcs": True,
                "queued.max.messages.kbytes": 2048,
                "fetch.message.max.bytes": 1_048_576,
                "fetch.wait.max.ms": 20,  # a fetch that finds nothing marks the end
                "fetch.queue.backoff.ms": 20,  # else a full queue delays the next partition by 1 s
                "allow.auto.create.topics": False,
                "log_level": 0,
                **client,
                "group.id": "semel-rest-readers",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
            },
            logger=QUIET,
        )
        self.isolation = isolation
        self.user = user
        self.used = 0.0
        self.at: tuple[str, int, int] = ("", 0, 0)
        """What it reads next."""
        self._is_end = False
        """Whether that was the end; librdkafka tells it once."""

    def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        most: int,
        most_bytes: int,
        until: float,
        epoch: int = -1,
    ) -> Slice:
        """Records from an offset on, as soon as there are some, or at the end of the time. If the
        record before was of this leader epoch, a log that was cut since is noticed.

        Raises:
            Refusal: they cannot be read.
        """
        is_end = self._is_end
        if self.at != (topic, partition, offset):
            place = KafkaPartition(topic, partition, offset, leader_epoch=epoch)
            self._consumer.assign([place])
            is_end = False
        self.at = ("", 0, 0)
        messages: list[Message] = []
        position, size = offset, 0
        longest = max(until, time.monotonic() + _LEAST)
        until = max(until, time.monotonic() + _FETCHES_IN)
        while len(messages) < most and size < most_bytes:
            remaining = (until if is_end else longest) - time.monotonic()
            if remaining <= 0 or (is_end and messages):
                break
            came = self._consumer.consume(1, remaining)
            came += self._consumer.consume(min(_BATCH, most - len(messages) - 1), 0)
            for message in came:
                error = message.error()
                if error is None:
                    messages.append(message)
                    size += size_of(message)
                    position, is_end = int(message.offset() or 0) + 1, False
                elif error.code() == KafkaError._PARTITION_EOF:
                    position, is_end = int(message.offset() or 0), True
                elif error.code() in SEEK_AGAIN:
                    raise OutOfRange(topic, partition, offset)
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # it joins no group
                    raise of_kafka(error, topic)
        kept = _within(messages, most_bytes)
        if kept < len(messages):  # the rest is fetched again
            return Slice(messages[:kept], int(messages[kept].offset() or 0), False)
        self.at, self._is_end = (topic, partition, position), is_end
        return Slice(messages, position, is_end)

    def close(self) -> None:
        close(self._consumer)


def size_of(message: Message) -> int:
    """The bytes of a record's key and value."""
    value: Any = message
    return len(value) + len(message.key() or b"")


def _within(messages: list[Message], most_bytes: int) -> int:
    """How many of the messages an answer may hold: the first one in any case."""
    size = 0
    for count, message in enumerate(messages):
        size += size_of(message)
        if size > most_bytes and count:
            return count
    return len(messages)


class Readers:
    """The readers of a proxy. One that stands where a request continues is taken first: it has
    fetched already."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._idle: list[LogReader] = []
        self._most = kafka.config.max_readers
        self._busy = 0
        self._places = asyncio.Semaphore(self._most)

    async def use(
        self,
        isolation: str,
        place: tuple[str, int, int],
        act: Callable[[LogReader], Awaitable[T]],
    ) -> T:
        """What an action with a reader returns.

        Raises:
            Refusal: none is free in time.
        """
        try:
            await asyncio.wait_for(
                self._places.acquire(), self._kafka.config.reader_timeout_ms / 1000
            )
        except TimeoutError:
            raise too_many("Too many requests read from partitions") from None
        self._busy += 1
        try:
            reader = await self._reader(isolation, place)
            try:
                result = await act(reader)
            except BaseException:
                await self._close(reader)
                raise
            reader.used = time.monotonic()
            self._idle.append(reader)
            return result
        finally:
            self._busy -= 1
            self._places.release()

    async def _reader(self, isolation: str, place: tuple[str, int, int]) -> LogReader:
        clients = self._kafka.clients
        fit = [r for r in self._idle if (r.user, r.isolation) == (clients.user, isolation)]
        if fit:
            reader = next((r for r in fit if r.at == place), fit[0])
            self._idle.remove(reader)
            return reader
        if self._idle and len(self._idle) + self._busy > self._most:
            await self._close(self._idle.pop(0))
        return await self._kafka.call(LogReader, clients.consumer, isolation, clients.user)

    async def close_idle(self, oldest: float) -> None:
        """Close those that nobody has used since then, or for long."""
        oldest = max(oldest, time.monotonic() - _IDLE)
        for reader in [each for each in self._idle if each.used < oldest]:
            if reader in self._idle:
                self._idle.remove(reader)
                await self._close(reader)

    async def _close(self, reader: LogReader) -> None:
        try:
            await self._kafka.call(reader.close)
        except Refusal:  # too many calls wait: it is closed once it is the oldest
            self._idle.insert(0, reader)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
