"""The proxy's clients of its cluster. Their calls are made so that none blocks the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from semel.config.proxy import ProxyConfig
from semel.core.errors import SemelError, ServiceError
from semel.core.quoting import named
from semel.kafka.answers import GONE
from semel.kafka.cluster import LoginRefused, wait_for_brokers
from semel.proxy.errors import Refusal, of_kafka, partition_not_found, too_many, topic_not_found
from semel.proxy.logins import Clients

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
_POLLS_EVERY = 0.001
_MOST_LOGINS = 100
"""The users whose own clients are connected at the same time."""

Headers = Sequence[tuple[str, bytes | None]]


class OutgoingRecord(NamedTuple):
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
            headers=list(self.headers) if self.headers else None,
        )


class RecordMetadata(NamedTuple):
    """Where a record is, and its timestamp in milliseconds."""

    partition: int
    offset: int
    timestamp: int

    @classmethod
    def of(cls, message: Message) -> RecordMetadata:
        """What a delivery report says."""
        return cls(
            int(message.partition() or 0), int(message.offset() or 0), message.timestamp()[1]
        )


Outcome = RecordMetadata | KafkaError


_acting: ContextVar[Clients] = ContextVar("the clients of a request")
_asking: ContextVar[str] = ContextVar("the user of a request", default="")


class Kafka:
    """One cluster, from the start of the proxy until it is closed. A request asks it with the login
    of its user, or else with the proxy's own."""

    def __init__(self, config: ProxyConfig, of_users: Mapping[str, Clients] | None = None) -> None:
        self.config = config
        self.own = Clients(config)
        self._of_users = dict(of_users or {})
        self._greetings: dict[str, asyncio.Future[None]] = {}
        """Of the users whose clients are connected, in the order of their last request."""
        self._pool = ThreadPoolExecutor(config.threads, "semel-rest-kafka")
        self._most_waiting = config.threads * _MOST_WAITING
        self._waiting = 0

    def close(self) -> None:
        """Send what is queued, and end."""
        for clients in (self.own, *self._of_users.values()):
            clients.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def clients(self) -> Clients:
        """The clients of the request that is being served."""
        return _acting.get(self.own)

    @property
    def user(self) -> str:
        """Whose request is being served; empty without a login."""
        return _asking.get()

    @asynccontextmanager
    async def acting_as(self, user: str | None) -> AsyncIterator[None]:
        """Serve a request of this user.

        Raises:
            Refusal: the user's login is refused, or too many are in use.
        """
        asking = _asking.set(user or "")
        clients = self._of_users.get(user or "")
        try:
            if clients is None:
                yield
            else:
                async with self._logged_in(clients):
                    yield
        finally:
            _asking.reset(asking)

    @asynccontextmanager
    async def _logged_in(self, clients: Clients) -> AsyncIterator[None]:
        clients.requests += 1
        try:
            await self._greet(clients)
            token = _acting.set(clients)
            try:
                yield
            finally:
                _acting.reset(token)
        finally:
            clients.requests -= 1
            clients.used = time.monotonic()

    async def _greet(self, clients: Clients) -> None:
        """Have a login checked when it is used first."""
        user = clients.user
        while user not in self._greetings and len(self._greetings) >= _MOST_LOGINS:
            idle = (each for each in self._greetings if not self._of_users[each].is_busy)
            if (longest := next(idle, None)) is None:
                raise too_many(f"{_MOST_LOGINS} users use logins of their own now")
            await self._forget(longest)
        greeting = self._greetings.pop(user, None)
        if greeting is None:
            greeting = asyncio.ensure_future(self.call(_check, clients))
        self._greetings[user] = greeting
        try:
            await asyncio.shield(greeting)
        except SemelError:
            self._greetings.pop(user, None)
            raise

    async def close_idle(self, oldest: float) -> None:
        """Disconnect users without a request since then."""
        for user in list(self._greetings):
            clients = self._of_users[user]
            if not clients.is_busy and clients.used < oldest:
                await self._forget(user)

    async def _forget(self, user: str) -> None:
        greeting = self._greetings.pop(user)
        try:
            await self.call(self._of_users[user].close)
        except Refusal:  # it is still connected
            self._greetings.setdefault(user, greeting)
            raise

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
            within = copy_context().run
            return await loop.run_in_executor(
                self._pool, partial(within, function, *arguments, **named)
            )
        except KafkaException as error:
            raise of_kafka(error) from None
        finally:
            self._waiting -= 1

    async def answer(self, ask: Callable[[AdminClient], Future[T]], topic: str = "") -> T:
        """The answer to one of the admin client's questions, which may be about a ``topic``.

        Raises:
            Refusal: Kafka refuses, or no answer has come.
        """
        admin = self.clients.admin  # the answer is lost once nothing refers to the client
        try:
            question = asyncio.wrap_future(await self.call(ask, admin))
        except (TypeError, ValueError) as error:
            raise Refusal(400, str(error), 40002) from None
        done, _ = await asyncio.wait({question}, timeout=ANSWERS_IN)
        if not done:
            raise self.unanswered()
        try:
            return question.result()
        except KafkaException as error:
            raise of_kafka(error, topic) from None

    def unanswered(self) -> Refusal:
        """No answer has come: the next question is asked by a new client."""
        self.clients.forget_admin()
        return Refusal(503, f"Kafka has not answered within {ANSWERS_IN:.0f} s", 50003)

    async def metadata(self, topic: str | None = None) -> Any:
        """Brokers, and topics with their partitions: all, or one.

        Raises:
            Refusal: there is no such topic, or Kafka does not answer.
        """
        if topic is not None:
            check_topic(topic)
        metadata = await self.call(
            lambda: self.clients.admin.list_topics(topic, timeout=ANSWERS_IN)
        )
        if topic is not None:
            described = metadata.topics.get(topic)
            if described is None or (described.error and described.error.code() in GONE):
                self.clients.topics.pop(topic, None)
                raise topic_not_found(topic)
            if described.error is not None and not described.partitions:
                raise of_kafka(described.error, topic)
        return metadata

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
        self.clients.topics.pop(topic, None)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, as of a moment ago.

        Raises:
            Refusal: there is no such topic.
        """
        topics = self.clients.topics
        count, asked = topics.get(topic, (0, -math.inf))
        if time.monotonic() - asked > _KNOWN_FOR:
            metadata = await self.metadata(topic)
            count = len(metadata.topics[topic].partitions)
            if len(topics) >= _MOST_KNOWN:
                topics.clear()
            topics[topic] = count, time.monotonic()
        return count

    async def check_partition(self, topic: str, partition: int) -> None:
        """Raises Refusal: there is no such partition."""
        if not 0 <= partition < await self.partitions(topic):
            self.clients.topics.pop(topic, None)  # there may be more by now
            if not 0 <= partition < await self.partitions(topic):
                raise partition_not_found(topic, partition)

    async def offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        """The offset that a partition has there: at its first record, or after its last.

        Raises:
            Refusal: there is no such partition, or Kafka does not answer.
        """
        place = TopicPartition(topic, partition)
        listed = await self.answer(
            lambda admin: admin.list_offsets({place: spec}, request_timeout=ANSWERS_IN)[place],
            topic,
        )
        return int(listed.offset)

    async def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset of a partition, and the one after its last. Raises as :meth:`offset`."""
        first = await self.offset(topic, partition, OffsetSpec.earliest())
        return first, await self.offset(topic, partition, OffsetSpec.latest())

    async def produce(self, topic: str, records: Sequence[OutgoingRecord]) -> list[Outcome]:
        """What becomes of each record, once brokers have confirmed or refused it.

        Raises:
            Refusal: too much is waiting already; nothing was sent.
        """
        if not records:
            return []
        clients, batch = self.clients, _Batch(len(records))
        until = time.monotonic() + self.config.produce_timeout_ms / 1000
        with _polling(clients) as producer:
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
            clients.topics.pop(topic, None)
        return outcomes


def _check(clients: Clients) -> None:
    """Raises Refusal: Kafka does not let this login in, or does not answer."""
    try:
        wait_for_brokers(clients.client)
    except LoginRefused as error:
        raise Refusal(
            401, f"Kafka refuses the login of {named(clients.user)}: {error}", 40101
        ) from None
    except ServiceError as error:
        raise Refusal(503, str(error), 50003) from None


@contextmanager
def _polling(clients: Clients) -> Iterator[Producer]:
    """A producer that is polled for delivery reports within a ``with`` statement."""
    clients.in_flight += 1
    if clients.polling is None or clients.polling.done():
        clients.polling = asyncio.create_task(_poll(clients), context=Context())
    try:
        yield clients.producer
    finally:
        clients.in_flight -= 1


async def _poll(clients: Clients) -> None:
    """Poll while records are in flight. A thread would have to take the GIL for every delivery
    report, and might wait 5 ms each time."""
    while clients.in_flight:
        clients.producer.poll(0)
        await asyncio.sleep(_POLLS_EVERY)


class _Batch:
    """The outcomes of a request's records, which come one by one."""

    def __init__(self, count: int) -> None:
        self._outcomes: list[Any] = [None] * count
        self._left = count
        self.future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def report(self, index: int, error: KafkaError | None, message: Message) -> None:
        self.settle(index, error if error is not None else RecordMetadata.of(message))

    def settle(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        self._left -= 1
        if not self._left and not self.future.done():
            self.future.set_result(self._outcomes)


_LONGEST_NAME = 249


def check_topic(topic: str) -> None:
    """Raises Refusal: no topic can have this name."""
    legal = all(c.isascii() and (c.isalnum() or c in "._-") for c in topic)
    if not legal or not 0 < len(topic) <= _LONGEST_NAME or topic in (".", ".."):
        raise topic_not_found(topic)
