"""Consumer instances: each is a Kafka consumer that lives between requests."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import ConfigError
from semel.core.patterns import compiled
from semel.kafka.answers import GONE, UNBOUNDED
from semel.kafka.clients import QUIET
from semel.kafka.consumer import close
from semel.proxy.bodies import EmbeddedFormat
from semel.proxy.errors import (
    Refusal,
    already_exists,
    illegal_state,
    instance_not_found,
    of_kafka,
    too_many,
    wrong_payload,
)
from semel.proxy.kafka import Kafka
from semel.proxy.reading import size_of

log = logging.getLogger(__name__)
T = TypeVar("T")

_BATCH = 500
_SHORTEST, _LONGEST = 0.002, 0.05
"""Seconds between two looks whether records have come."""
_MATCHES_EVERY = 10.0
"""Seconds between two looks for new topics that a pattern matches."""
_MATCHES_FOR = 5.0
"""Seconds that such a look may take."""
_SEEKS_FOR, _SEEK_PAUSE = 5.0, 0.05
_ANSWERS_IN = 15.0
_MARK = "@"
"""Parts the name of an instance from its proxy's URL in the client.id of a group's members."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Instance:
    """How an instance was created."""

    group: str
    id: str
    embedded: EmbeddedFormat
    auto_offset_reset: str
    auto_commit: bool
    fetch_min_bytes: int
    timeout_ms: int


class Session:
    """One instance. Its methods are called one at a time. It connects when it is used first."""

    def __init__(self, given: Instance, kafka: Kafka, url: str) -> None:
        self.given = given
        self._client = {
            "enable.auto.commit": given.auto_commit,
            # What was read is not yet what a client has received.
            "enable.auto.offset.store": False,
            "auto.offset.reset": given.auto_offset_reset,
            "isolation.level": "read_committed",
            "check.crcs": True,
            "session.timeout.ms": 30_000,
            "max.poll.interval.ms": 86_400_000,  # the proxy has its own limit for idle ones
            # These bound what is fetched ahead for a client that does not read on.
            "queued.max.messages.kbytes": 512,
            "fetch.message.max.bytes": 524_288,
            "fetch.queue.backoff.ms": 20,
            # Two thirds of the memory of an idle consumer are histograms for the brokers (KIP-714).
            "enable.metrics.push": False,
            "allow.auto.create.topics": False,
            "log_level": 0,
            **kafka.clients.consumer,
            "group.id": given.group,
            "client.id": f"{given.id}{_MARK}{_shown(url)}",
        }
        self._connected: Consumer | None = None
        self.lock = asyncio.Lock()
        self.used = time.monotonic()
        self.topics: list[str] = []
        self._pattern: str | None = None
        self._matched_at = 0.0
        self._assigned: list[Place] = []
        self._kept: deque[Message] = deque()
        self._positions: dict[Place, int] = {}
        self.lost: set[Place] = set()
        """Partitions that were taken away during the last poll."""

    @property
    def _consumer(self) -> Consumer:
        if self._connected is None:
            self._connected = Consumer(self._client, logger=QUIET)
        return self._connected

    def subscribe(self, topics: list[str], pattern: str | None) -> None:
        """Raises Refusal: it is assigned partitions, or Kafka refuses."""
        if self._assigned:
            raise illegal_state("this consumer is assigned partitions, so it cannot subscribe")
        by_pattern = self._pattern is not None
        if (self.topics or by_pattern) and by_pattern != (pattern is not None):
            raise illegal_state("this consumer is subscribed by name or pattern: end that first")
        if pattern is None:
            topics = list(dict.fromkeys(topics))  # librdkafka refuses one that is named twice
            self._subscribe(topics)
        else:
            self._match(pattern)

    def _subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics, on_revoke=self._revoked)
        self.topics = topics

    def _revoked(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        """Forget where it was: another member may go on from there, and commit, until they come
        back."""
        gone = {(each.topic, each.partition) for each in partitions}
        self._kept = deque(m for m in self._kept if _place(m) not in gone)
        self._positions = {p: at for p, at in self._positions.items() if p not in gone}
        self.lost |= gone

    def unsubscribe(self) -> None:
        """The next use connects anew: librdkafka would take partitions that are assigned now back
        once it has handled the end of the subscription."""
        self.close()
        self.topics, self._assigned, self._pattern = [], [], None
        self._forget()

    def assign(self, places: Sequence[Place]) -> None:
        """Raises Refusal: it is subscribed to topics."""
        if self.topics or self._pattern is not None:
            raise illegal_state("this consumer is subscribed to topics, so it cannot be assigned")
        places = list(dict.fromkeys(places))
        gone = set(self._assigned) - set(places)
        positions = {p: at for p, at in self._positions.items() if p not in gone}
        self._forget()
        self._positions = positions
        starts = [KafkaPartition(t, p, positions.get((t, p), _STORED)) for t, p in places]
        self._consumer.assign(starts)
        self._assigned = places

    def assignment(self) -> list[Place]:
        if self._assigned:
            return self._assigned
        return [(each.topic, each.partition) for each in self._consumer.assignment()]

    def seek(self, offsets: Mapping[Place, int], times: Mapping[Place, int]) -> None:
        """Go on from these offsets, and from the first records since these times.

        Raises:
            Refusal: a partition is not assigned to it.
        """
        assigned = self.assignment()
        for topic, partition in (*offsets, *times):
            if (topic, partition) not in assigned:
                raise illegal_state(f"No current assignment for partition {topic}-{partition}")
        asked = [KafkaPartition(t, p, at) for (t, p), at in times.items()]
        partitions = self._consumer.offsets_for_times(asked, timeout=_ANSWERS_IN) if asked else []
        since = {(each.topic, each.partition): each.offset for each in partitions}
        offsets = {place: self._resolved(place, at) for place, at in {**offsets, **since}.items()}
        self._kept = deque(m for m in self._kept if _place(m) not in offsets)
        if self._assigned:  # librdkafka cannot seek before it has begun to fetch
            positions = self._positions | dict(offsets)
            self._consumer.assign(
                [KafkaPartition(t, p, positions.get((t, p), _STORED)) for t, p in self._assigned]
            )
        else:
            for (topic, partition), offset in offsets.items():
                self._seek(KafkaPartition(topic, partition, offset))
        for place, offset in offsets.items():
            self._positions[place] = offset

    def _resolved(self, place: Place, offset: int) -> int:
        """The offset that the end of a partition is now: it would be a later one at each use."""
        if offset != END:
            return offset
        _, end = self._consumer.get_watermark_offsets(KafkaPartition(*place), _ANSWERS_IN)
        return int(end)

    def _seek(self, place: KafkaPartition) -> None:
        until = time.monotonic() + _SEEKS_FOR
        while True:
            try:
                self._consumer.seek(place)
                return
            except KafkaException as error:
                # A partition that was just assigned is not fetched yet.
                if error.args[0].code() != KafkaError._STATE or time.monotonic() > until:
                    raise illegal_state(error.args[0].str()) from None
                time.sleep(_SEEK_PAUSE)

    def poll(self) -> list[Message]:
        """What has come, without waiting.

        Raises:
            Refusal: the consumer has failed.
        """
        self.lost.clear()
        if self._kept:
            kept = list(self._kept)
            self._kept.clear()
            return kept
        if self._pattern is not None and time.monotonic() - self._matched_at > _MATCHES_EVERY:
            self._match(self._pattern)
        messages, failed = [], None
        for message in self._consumer.consume(_BATCH, 0):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() in GONE and self.topics:
                log.warning("consumer %s of group %s: %s", self.given.id, self.given.group, error)
            elif error.code() != KafkaError._PARTITION_EOF:
                failed = of_kafka(error, message.topic() or "")
        messages = self.still_own(messages)
        if failed is not None:
            self._kept.extend(messages)
            raise failed
        return messages

    def _match(self, pattern: str) -> None:
        """Subscribe to the topics that match by now. librdkafka would match them without a limit
        of time.

        Raises:
            Refusal: it takes too long to find out.
        """
        java = compiled(pattern)
        listed = self._consumer.list_topics(timeout=_ANSWERS_IN).topics
        until = time.monotonic() + _MATCHES_FOR

        def fits(topic: str) -> bool:
            if time.monotonic() > until:
                raise wrong_payload(f"topic_pattern takes too long to match {len(listed)} topics")
            return not topic.startswith("__") and java.fullmatch(topic)

        try:
            topics = sorted(filter(fits, listed))
        except ConfigError as error:
            raise wrong_payload(f"topic_pattern: {error}") from None
        self._pattern, self._matched_at = pattern, time.monotonic()
        if topics:
            if topics != self.topics:
                self._subscribe(topics)
        elif self.topics:
            self._consumer.unsubscribe()
            self.topics = []

    def still_own(self, messages: Iterable[Message]) -> list[Message]:
        """Without those of partitions that were taken away during the last poll."""
        return [each for each in messages if _place(each) not in self.lost]

    def keep(self, messages: Iterable[Message]) -> None:
        """Put back what a client has not received, for the next request."""
        self._kept.extendleft(reversed(self.still_own(messages)))

    def passed(self, messages: Iterable[Message]) -> None:
        """Note what a client is sent."""
        moved: dict[Place, int] = {}
        for message in messages:
            moved[_place(message)] = int(message.offset() or 0) + 1
        self._positions |= moved
        if self.given.auto_commit and moved:
            with suppress(KafkaException):  # it belongs to another member by now
                self._consumer.store_offsets(
                    offsets=[KafkaPartition(t, p, at) for (t, p), at in moved.items()]
                )

    def commit(self, offsets: Sequence[KafkaPartition] | None) -> list[KafkaPartition]:
        """Commit these offsets, or those of all records that were sent."""
        if offsets is None:
            own = set(self.assignment())
            positions = self._positions.items()
            offsets = [
                KafkaPartition(t, p, at) for (t, p), at in positions if (t, p) in own and at >= 0
            ]
        if not offsets:
            return []
        done = self._consumer.commit(offsets=list(offsets), asynchronous=False)
        for each in done or ():
            if each.error is not None:
                raise of_kafka(each.error)
        return list(done or ())

    def committed(self, places: Sequence[Place]) -> list[KafkaPartition]:
        asked = [KafkaPartition(t, p) for t, p in places]
        partitions = self._consumer.committed(asked, timeout=_ANSWERS_IN)
        return [partition for partition in partitions if partition.offset >= 0]

    def close(self) -> None:
        """Leave the group. A consumer that cannot be closed is left behind."""
        self._kept.clear()
        connected, self._connected = self._connected, None  # two calls must not close it at once
        if connected is not None:
            with suppress(KafkaException):
                connected.poll(0)  # close() may wait forever if it has to handle an answer
            close(connected)

    def _forget(self) -> None:
        self._kept.clear()
        self._positions = {}


_STORED = OFFSET_INVALID
"""Where the group has committed, or else ``auto.offset.reset``."""
BEGINNING, END = OFFSET_BEGINNING, OFFSET_END


class Sessions:
    """All instances of this proxy. Those that stay idle are closed."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._config = kafka.config
        self._sessions: dict[tuple[str, str, str], Session] = {}
        """By user, group and name."""

    def __len__(self) -> int:
        return len(self._sessions)

    async def create(self, given: Instance) -> str:
        """Start an instance. Returns its URL.

        Raises:
            Refusal: it is there already, or there are too many, or its settings are wrong.
        """
        name = self._named(given.group, given.id)
        if name in self._sessions:
            raise already_exists(given.group, given.id)
        if len(self._sessions) >= self._config.max_consumers:
            raise too_many(f"This proxy has {len(self._sessions)} consumers already")
        self._sessions[name] = Session(given, self._kafka, self._config.url)
        return instance_url(self._config.url, given.group, given.id)

    def _named(self, group: str, instance: str) -> tuple[str, str, str]:
        return self._kafka.user, group, instance

    def new_id(self) -> str:
        """A name for an instance that was given none. It tells other proxies where it is."""
        where = self._config.url.encode().hex()
        return "-".join(
            filter(None, ["rest-consumer", self._config.proxy_id, uuid.uuid4().hex, where])
        )

    async def use(self, group: str, instance: str, call: Callable[[Session], T]) -> T:
        """What a call that blocks finds; one at a time for each instance.

        Raises:
            Refusal: there is no such instance, or Kafka refuses.
        """
        return await self.using(group, instance, lambda session: self._kafka.call(call, session))

    async def using(self, group: str, instance: str, act: Callable[[Session], Awaitable[T]]) -> T:
        """The same for what awaits."""
        session = await self._session(group, instance)
        session.used = time.monotonic()
        try:
            async with session.lock:
                if self._sessions.get(self._named(group, instance)) is not session:
                    raise instance_not_found(group, instance)
                return await act(session)
        finally:
            session.used = time.monotonic()

    async def read(
        self,
        group: str,
        instance: str,
        *,
        timeout_ms: int,
        most_bytes: int,
        hand_over: Callable[[Session, list[Message]], Awaitable[T]],
    ) -> T:
        """Wait for records, and hand them over: what that raises leaves them to the next
        request."""

        async def act(session: Session) -> T:
            least = max(session.given.fetch_min_bytes, 1)
            until = time.monotonic() + timeout_ms / 1000
            messages: list[Message] = []
            size, pause = 0, _SHORTEST
            try:
                while True:
                    came = await self._kafka.call(session.poll)
                    if session.lost:
                        messages = session.still_own(messages)
                        size = sum(map(size_of, messages))
                    for at, message in enumerate(came):
                        more = size_of(message)
                        if messages and size + more > most_bytes:
                            session.keep(came[at:])
                            break
                        messages.append(message)
                        size += more
                    else:
                        remaining = until - time.monotonic()
                        if size < most_bytes and remaining > 0 and (came or size < least):
                            pause = _SHORTEST if came else min(2 * pause, _LONGEST)
                            await asyncio.sleep(min(pause, remaining))
                            continue
                    break
                answer = await hand_over(session, messages)
            except BaseException:
                session.keep(messages)
                raise
            session.passed(messages)
            return answer

        return await self.using(group, instance, act)

    async def delete(self, group: str, instance: str) -> None:
        """Raises Refusal: there is no such instance."""
        await self._session(group, instance)
        if not await self._end(self._named(group, instance)):
            raise instance_not_found(group, instance)

    async def close(self) -> None:
        """Close all."""
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*map(self._close, sessions), return_exceptions=True)

    async def _end(self, name: tuple[str, str, str]) -> bool:
        """Close an instance. Returns whether it was there.

        Raises:
            Refusal: too many calls wait; it is still there.
        """
        session = self._sessions.get(name)
        if session is None:
            return False
        async with session.lock:
            if self._sessions.get(name) is not session:
                return False
            await self._kafka.call(session.close)
            del self._sessions[name]
        return True

    async def _close(self, session: Session) -> None:
        async with session.lock:
            await self._kafka.call(session.close)

    async def close_idle(self, oldest: float) -> None:
        """Close those that nobody has used since then."""
        for name, session in list(self._sessions.items()):
            if session.used < oldest and not session.lock.locked():
                _, group, instance = name
                with suppress(Refusal):  # the next turn tries again
                    await self._end(name)
                    log.info("consumer %s of group %s was idle, and is closed", instance, group)

    async def _session(self, group: str, instance: str) -> Session:
        session = self._sessions.get(self._named(group, instance))
        if session is not None:
            return session
        owner = await self._owner(group, instance)
        if owner:
            raise OtherProxy(owner)
        raise instance_not_found(group, instance)

    async def _owner(self, group: str, instance: str) -> str:
        """The URL of the other proxy that has an instance, as its name says, or the group."""
        peers = {url.rstrip("/") for url in self._config.peers}
        if not peers:
            return ""
        with suppress(ValueError):
            url = bytes.fromhex(instance.rpartition("-")[2]).decode()
            if url in peers:
                return url
        with suppress(Refusal):
            described = await self._kafka.answer(
                lambda admin: admin.describe_consumer_groups([group], request_timeout=UNBOUNDED)[
                    group
                ]
            )
            for member in described.members:
                name, _, where = member.client_id.rpartition(_MARK)
                for url in peers:
                    if (name, where) == (instance, _shown(url)):
                        return url
        return ""


class OtherProxy(Exception):
    """Another proxy has the instance."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def instance_url(base: str, group: str, instance: str) -> str:
    """Where an instance answers."""
    return f"{base}/consumers/{quote(group, safe='')}/instances/{quote(instance, safe='')}"


def _shown(url: str) -> str:
    """A URL as a client.id has it, which is part of paths of v3."""
    return url.partition("://")[2].replace("/", "_")


def _place(message: Message) -> Place:
    return str(message.topic()), int(message.partition() or 0)
