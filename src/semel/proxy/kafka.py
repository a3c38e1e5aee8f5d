"""The proxy's clients of its cluster. Their calls are made so that none blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from semel.config.proxy import ProxyConfig
from semel.kafka.clients import IDEMPOTENCE, QUIET, confirms_all, proxy_client
from semel.kafka.errors import GONE
from semel.proxy.errors import Refusal, of_kafka, partition_not_found, too_many, topic_not_found

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWERS_IN = 20.0
"""Seconds that Kafka may take to answer."""
_KNOWN_FOR = 30.0
"""Seconds for which a topic is taken to be there without asking again."""
_MOST_KNOWN = 10_000
_LEARNS_IN = 5.0
_MOST_WAITING = 20
"""Calls that may wait for each thread."""
_PAUSE = 0.005
_ENDS_IN = 5.0

_PRODUCER = {
    "partitioner": "murmur2_random",
    "linger.ms": 0,
    "allow.auto.create.topics": False,
    # Brokers decide whether a record is too large.
    "message.max.bytes": 67_108_864,
    "batch.size": 900_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 131_072,
    "log_level": 0,
}
"""librdkafka's settings; ``producer.*`` wins."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to produce. A partition of -1 leaves the choice to the key, a timestamp of 0 to
    the clock."""

    key: bytes | None
    value: bytes | None
    partition: int = -1
    timestamp: int = 0
    headers: Headers = ()

    def queue(
        self, producer: Producer, topic: str, report: Callable[[KafkaError | None, Message], None]
    ) -> None:
        """Hand it to a producer. Raises BufferError: its queue is full."""
        producer.produce(
            topic,
            self.value,
            self.key,
            self.partition,
            on_delivery=report,
            timestamp=self.timestamp,
            headers=list(self.headers) or None,
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a record is, and its timestamp in milliseconds."""

    partition: int
    offset: int
    timestamp: int

    @classmethod
    def of(cls, message: Message) -> Sent:
        """What a delivery report says."""
        return cls(
            int(message.partition() or 0), int(message.offset() or 0), message.timestamp()[1]
        )


Outcome = Sent | KafkaError


class Kafka:
    """Clients of one cluster, from its start until it is closed."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.client = proxy_client(config, "admin")
        self.consumer = proxy_client(config, "consumer")
        self.transactional = proxy_client(config, "producer")
        self._produces = {
            **_PRODUCER,
            "message.timeout.ms": config.produce_timeout_ms,
            IDEMPOTENCE: confirms_all(self.transactional),
            **self.transactional,
        }
        self._pool = ThreadPoolExecutor(config.threads, "semel-rest-kafka")
        self._most_waiting = config.threads * _MOST_WAITING
        self._waiting = 0
        self._known: dict[str, tuple[int, float]] = {}
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def close(self) -> None:
        """Send what is queued, and end."""
        producer = self._producer
        if producer is not None:
            producer.flush(_ENDS_IN)
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def admin(self) -> AdminClient:
        """The client for questions."""
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient({**self.client, "log_level": 0}, logger=QUIET)
            return self._admin

    @property
    def producer(self) -> Producer:
        """The client for records without a key of their own."""
        with self._lock:
            if self._producer is None:
                self._producer = made = Producer(self._produces, logger=QUIET)
                reports = threading.Thread(target=self._poll, args=(made,), daemon=True)
                reports.start()
            return self._producer

    async def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What a blocking call returns, made in a thread.

        Raises:
            Refusal: too many calls wait already, or Kafka refuses.
        """
        if self._waiting >= self._most_waiting:
            raise too_many("Too many requests wait for Kafka")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, partial(function, *arguments, **named))
        except KafkaException as error:
            raise of_kafka(error) from None
        finally:
            self._waiting -= 1

    async def answer(self, ask: Callable[[AdminClient], Future[T]], topic: str = "") -> T:
        """The answer to one of the admin client's questions, which may be about a ``topic``. If
        none comes, the next question is asked by a new client.

        Raises:
            Refusal: Kafka refuses, or no answer has come.
        """
        admin = self.admin  # the answer is lost once nothing refers to the client
        try:
            question = asyncio.wrap_future(await self.call(ask, admin))
        except (TypeError, ValueError) as error:
            raise Refusal(400, str(error), 40002) from None
        done, _ = await asyncio.wait({question}, timeout=ANSWERS_IN)
        if not done:
            with self._lock:
                self._admin = None
            raise Refusal(503, f"Kafka has not answered within {ANSWERS_IN:.0f} s", 50003)
        try:
            return question.result()
        except KafkaException as error:
            raise of_kafka(error, topic) from None

    async def metadata(self, topic: str | None = None) -> Any:
        """Brokers, and topics with their partitions: all, or one.

        Raises:
            Refusal: there is no such topic, or Kafka does not answer.
        """
        if topic is not None:
            check_topic(topic)
        found = await self.call(lambda: self.admin.list_topics(topic, timeout=ANSWERS_IN))
        if topic is not None:
            described = found.topics.get(topic)
            if described is None or (described.error and described.error.code() in GONE):
                self._known.pop(topic, None)
                raise topic_not_found(topic)
            if described.error is not None and not described.partitions:
                raise of_kafka(described.error, topic)
        return found

    async def metadata_soon(self, topic: str) -> Any:
        """The same of a topic that was just created: a broker may learn of it later.

        Raises:
            Refusal: none does for some time.
        """
        until = time.monotonic() + _LEARNS_IN
        while True:
            try:
                return await self.metadata(topic)
            except Refusal as refused:
                if refused.status != 404 or time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)

    def forget(self, topic: str) -> None:
        """Ask again whether a topic is there."""
        self._known.pop(topic, None)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, as of a moment ago.

        Raises:
            Refusal: there is no such topic.
        """
        count, asked = self._known.get(topic, (0, -math.inf))
        if time.monotonic() - asked > _KNOWN_FOR:
            found = await self.metadata(topic)
            count = len(found.topics[topic].partitions)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[topic] = count, time.monotonic()
        return count

    async def check_partition(self, topic: str, partition: int) -> None:
        """Raises Refusal: there is no such partition."""
        if not 0 <= partition < await self.partitions(topic):
            self._known.pop(topic, None)  # there may be more by now
            if not 0 <= partition < await self.partitions(topic):
                raise partition_not_found(topic, partition)

    async def produce(self, topic: str, records: Sequence[Outgoing]) -> list[Outcome]:
        """What becomes of each record, once brokers have confirmed or refused it.

        Raises:
            Refusal: too much is waiting already; nothing was sent.
        """
        if not records:
            return []
        batch = _Batch(len(records), asyncio.get_running_loop())
        producer, until = self.producer, time.monotonic() + self.config.produce_timeout_ms / 1000
        for index, record in enumerate(records):
            while True:
                try:
                    record.queue(producer, topic, partial(batch.report, index))
                    break
                except BufferError:
                    if time.monotonic() > until:
                        if not index:
                            raise too_many("Too many records wait for Kafka") from None
                        batch.settle(index, KafkaError(KafkaError._QUEUE_FULL))
                        break
                    await asyncio.sleep(_PAUSE)
                except KafkaException as error:
                    batch.settle(index, error.args[0])
                    break
        outcomes = await batch.future
        if any(isinstance(o, KafkaError) and o.code() in GONE for o in outcomes):
            self._known.pop(topic, None)
        return outcomes

    def _poll(self, producer: Producer) -> None:
        """Hear what becomes of records."""
        while not self._over.is_set():
            with suppress(RuntimeError):  # the loop of a request has ended
                producer.poll(0.1)


class _Batch:
    """The outcomes of a request's records, which come one by one and in another thread."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self._outcomes: list[Any] = [None] * count
        self._left = count
        self._loop = loop
        self._lock = threading.Lock()
        self.future: asyncio.Future[list[Outcome]] = loop.create_future()

    def report(self, index: int, error: KafkaError | None, message: Message) -> None:
        self.settle(index, error if error is not None else Sent.of(message))

    def settle(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        with self._lock:
            self._left -= 1
            over = not self._left
        if over:
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.future.done():
            self.future.set_result(self._outcomes)


_LONGEST_NAME = 249


def check_topic(topic: str) -> None:
    """Raises Refusal: no topic can have this name."""
    legal = all(c.isascii() and (c.isalnum() or c in "._-") for c in topic)
    if not legal or not 0 < len(topic) <= _LONGEST_NAME or topic in (".", ".."):
        raise topic_not_found(topic)
