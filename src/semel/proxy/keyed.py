"""Produce exactly once: a request's records and its Idempotency-Key are one transaction.

The keys are records of a compacted topic. Each of its partitions belongs to one transactional.id,
so at any time one proxy can write to it. Whoever takes it over first fences its predecessor, whose
open transaction is aborted by that, and only then reads the partition up to its end: from then on
it knows every key that was ever committed there, until it is fenced itself. So a key is:

    not known        write its records, and the key with the answer     applied
    known, same      write nothing, and give the first answer again     replay
    known, other     write nothing, and refuse                          conflict

A transaction whose outcome is unknown is settled in the same way: take over, read, and look.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from fastapi import Request, Response

from semel.config.proxy import KEYS_PARTITIONS, KEYS_RETENTION, KEYS_TOPIC, ProxyConfig
from semel.core.errors import (
    ConfigError,
    SemelError,
    ServiceError,
    TransientError,
    misconfigured,
)
from semel.core.failpoints import hit
from semel.core.ledger import TopicPartition
from semel.kafka.answers import GONE, NOT_AUTHORIZED, RECORD_REFUSED
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import partition_of
from semel.kafka.transactions import RecordsRefused, Report, Transactions, settle
from semel.proxy.bodies import written
from semel.proxy.errors import Refusal, key_conflict, of_kafka, too_many
from semel.proxy.kafka import Kafka, Outcome, OutgoingRecord, RecordMetadata
from semel.proxy.logins import Clients
from semel.proxy.reading import COMMITTED, LogReader, OutOfRange
from semel.worker.rest.guard import USER

log = logging.getLogger(__name__)

HEADER, REPLAYED = "idempotency-key", "Idempotency-Replayed"
_LONGEST = 255
_MOST_WAITING = 1000
_TOGETHER, _TOGETHER_BYTES = 100, 4 * 1024 * 1024
"""How many requests, and how much, one transaction may hold."""
_BATCH = 10_000
_READS_IN = 60.0
_ENDS_IN = 5.0
_SHORTEST, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds to wait after being fenced: another proxy is at work, and should get something done."""

Tell = Callable[[list[Outcome]], bytes]


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a request, apart from those of other users, and a fingerprint of the request."""

    name: bytes
    fingerprint: str


async def key_of(request: Request) -> Key | None:
    """The key of a request; None if it has none.

    Raises:
        Refusal: it is not one.
    """
    header = request.headers.get(HEADER)
    if header is None:
        return None
    header = header.strip()
    if not 0 < len(header) <= _LONGEST or not (header.isascii() and header.isprintable()):
        raise Refusal(400, f"An Idempotency-Key has 1 to {_LONGEST} printable characters")
    user: str | None = getattr(request.state, USER, None)
    kind = request.headers.get("content-type", "")
    parts = f"{request.method} {request.url.path}\n{kind}\n".encode(), await request.body()
    fingerprint = hashlib.sha256(b"".join(parts)).hexdigest()
    return Key(json.dumps([user or "", header]).encode(), fingerprint)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What is kept of a request: a fingerprint, its answer, and when it was committed."""

    fingerprint: str
    answer: bytes
    kind: str
    at: float

    @property
    def record(self) -> bytes:
        """As the topic has it."""
        answer = self.answer.decode()
        facts = {"request": self.fingerprint, "type": self.kind, "answer": answer}
        return written(facts)

    @classmethod
    def of(cls, value: bytes, at: float) -> StoredAnswer:
        entry = json.loads(value)
        return cls(entry["request"], entry["answer"].encode(), entry["type"], at)


@dataclass
class Job:
    """A request that waits for its transaction."""

    clients: Clients
    key: Key
    topic: str
    records: Sequence[OutgoingRecord]
    tell: Tell
    kind: str
    until: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[tuple[StoredAnswer, bool]]
    outcomes: list[Any] = field(default_factory=list)
    is_over: bool = False

    @property
    def size(self) -> int:
        return sum(len(r.key or b"") + len(r.value or b"") for r in self.records)

    def end(self, known: StoredAnswer, *, replayed: bool) -> None:
        """Give an answer."""
        self._settle(partial(self.future.set_result, (known, replayed)))

    def fail(self, error: Refusal) -> None:
        """Refuse it."""
        self._settle(partial(self.future.set_exception, error))

    def _settle(self, act: Callable[[], None]) -> None:
        self.is_over = True
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else act())


class KeyedRequests:
    """Carries out requests that have a key."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._shards: dict[int, _Shard] = {}
        self._preparing = asyncio.Lock()
        self._is_prepared = False

    async def produce(
        self,
        key: Key,
        topic: str,
        records: Sequence[OutgoingRecord],
        tell: Tell,
        kind: str,
        status: int = 200,
    ) -> Response:
        """Carry out a request once, and answer it as often as it comes. ``tell`` makes the answer,
        which is of this kind.

        Raises:
            Refusal: the key was used for another one, or Kafka does not take it.
        """
        config = self._kafka.config
        async with self._preparing:
            if not self._is_prepared:
                await self._kafka.call(self._prepare)
                self._is_prepared = True
        number = partition_of(key.name, config.keys_partitions)
        if number not in self._shards:
            self._shards[number] = _Shard(self._kafka, number)
        loop = asyncio.get_running_loop()
        until = time.monotonic() + config.produce_timeout_ms / 1000
        clients = self._kafka.clients
        job = Job(clients, key, topic, records, tell, kind, until, loop, loop.create_future())
        self._shards[number].put(job)
        known, replayed = await job.future
        headers = {REPLAYED: "true"} if replayed else None
        return Response(known.answer, status, headers, known.kind)

    def _prepare(self) -> None:
        """Raises Refusal: the topic of the keys cannot be used."""
        try:
            prepare(Cluster(self._kafka.own.client), self._kafka.config)
        except (ConfigError, ServiceError, TransientError) as error:
            raise Refusal(503, str(error), 50303) from None

    def close(self) -> None:
        """End after the transactions in hand."""
        for shard in self._shards.values():
            shard.end()
        for shard in self._shards.values():
            shard.join()


def prepare(cluster: Cluster, config: ProxyConfig) -> None:
    """Create the topic of the keys, or check the one that is there.

    Raises:
        ConfigError: it would lose keys too early, or has another number of partitions.
    """
    topic = config.keys_topic
    cluster.create_topic(
        topic,
        config.keys_partitions,
        config.keys_replication,
        {
            "cleanup.policy": "compact,delete",
            "retention.ms": str(config.keys_retention_ms),
            "segment.ms": str(max(config.keys_retention_ms // 4, 60_000)),
            "max.message.bytes": str(64 * 1024 * 1024),
            "message.timestamp.type": "LogAppendTime",
        },
    )
    settings = cluster.topic_config(topic) or {}
    retention = int(settings.get("retention.ms", -1))
    if "delete" in settings.get("cleanup.policy", "") and 0 <= retention < config.keys_retention_ms:
        raise misconfigured(
            KEYS_RETENTION,
            f"{KEYS_TOPIC}={topic} has retention.ms={retention}, which is less than "
            f"{KEYS_RETENTION}={config.keys_retention_ms}: keys would be forgotten too early. "
            "Change one of them",
        )
    count = cluster.topics().get(topic, config.keys_partitions)
    if count != config.keys_partitions:
        raise misconfigured(
            KEYS_PARTITIONS,
            f"{KEYS_TOPIC}={topic} has {count} partitions, but {KEYS_PARTITIONS}="
            f"{config.keys_partitions}: a key would be looked for in the wrong one. Set it to "
            f"{count} in all proxies",
        )


class _Shard:
    """One partition of the keys, and its transactional.id, in a thread of its own."""

    def __init__(self, kafka: Kafka, number: int) -> None:
        config = kafka.config
        self._place = TopicPartition(config.keys_topic, number)
        self._retention = config.keys_retention_ms / 1000
        self._idle = config.instance_timeout_ms / 1000
        self._own = kafka.own
        self._cluster = Cluster(kafka.own.client)
        self._clients = kafka.own
        self._transactions = self._transactions_of(kafka.own)
        self._reader: LogReader | None = None
        self._known: dict[bytes, StoredAnswer] = {}
        self._position = 0
        self._jobs: queue.Queue[Job | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(
            target=self._work, daemon=True, name=f"semel-rest-keys-{number}"
        )
        self._thread.start()

    def _transactions_of(self, clients: Clients) -> Transactions:
        client = {"linger.ms": 0, "delivery.report.only.error": False, **clients.transactional}
        return Transactions(f"the REST proxy ({self._place})", client)

    def put(self, job: Job) -> None:
        """Raises Refusal: too many wait."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise too_many("Too many requests with an Idempotency-Key wait") from None

    def end(self) -> None:
        """End, after what waits."""
        with suppress(queue.Full):
            self._jobs.put_nowait(None)

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join(_ENDS_IN)

    def _work(self) -> None:
        is_over = False
        while not is_over:
            jobs, size = [], 0
            next_job = self._next()
            while next_job is not None:
                jobs.append(next_job)
                size += next_job.size
                if self._jobs.empty() or len(jobs) >= _TOGETHER or size >= _TOGETHER_BYTES:
                    break
                next_job = self._jobs.get()
            is_over = next_job is None
            for clients in {job.clients.user: job.clients for job in jobs}.values():
                self._serve_all([job for job in jobs if job.clients is clients], clients)
        self._transactions.drop()
        if self._reader is not None:
            self._reader.close()

    def _next(self) -> Job | None:
        """The next request; None at the end. Users who send none are disconnected."""
        while True:
            try:
                return self._jobs.get(timeout=None if self._clients is self._own else self._idle)
            except queue.Empty:
                self._become(self._own)

    def _become(self, clients: Clients) -> None:
        """Write with this login from now on. As it is the same transactional.id, the login before
        is fenced."""
        if clients is not self._clients:
            self._transactions.drop()
            self._clients, self._transactions = clients, self._transactions_of(clients)

    def _serve_all(self, jobs: list[Job], clients: Clients) -> None:
        try:
            self._become(clients)
            self._serve(jobs)
        except Exception as error:
            log.exception("requests with an Idempotency-Key failed")
            self._transactions.drop()
            for job in jobs:
                job.fail(Refusal(500, f"{type(error).__name__}: {error}", 50002))

    def _serve(self, jobs: list[Job]) -> None:
        """Answer each of these requests."""
        pause = _SHORTEST
        is_tried = False
        while jobs := [job for job in jobs if not job.is_over]:
            fresh: list[Job] = []
            try:
                if not self._transactions.is_open:
                    self._take_over()
                fresh = self._judged(jobs)
                if fresh:
                    is_tried = True
                    self._commit(fresh)
            except (RecordsRefused, SemelError) as error:
                within = error.__cause__
                cause = within.args[0] if isinstance(within, KafkaException) else None
                if fresh and _is_final(error, cause):
                    if len(fresh) > 1:  # one of them has spoilt it for all
                        for job in fresh:
                            self._serve([job])
                    else:
                        fresh[0].fail(_refusal(error, cause, fresh[0]))
                    continue
                if isinstance(error, Refusal) and not is_tried:
                    for job in jobs:
                        job.fail(error)
                    continue
                # Fenced, or the outcome is unknown: the topic of the keys tells.
                log.info("%s: %s", self._place, error)
                self._transactions.drop()
                for job in jobs:
                    if time.monotonic() > job.until:
                        job.fail(_unknown(error))
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _take_over(self) -> None:
        """Fence whoever wrote here, and learn of all keys that were committed.

        Raises:
            Refusal: this login may not write here.
            TransientError: Kafka does not answer.
        """
        topic, partition = self._place.topic, self._place.partition
        try:
            self._transactions.open(f"{topic}-{partition}")
        except ServiceError as error:  # this login has no right to
            raise Refusal(403, str(error), 40301) from None
        if self._reader is None:
            self._reader = LogReader(self._own.consumer, COMMITTED)
            self._position = self._cluster.earliest([self._place])[self._place]
        # The predecessor's last transaction has ended: nothing below this end stays hidden.
        end, _ = self._cluster.ends([self._place])[self._place]
        until = time.monotonic() + _READS_IN
        while self._position < end:
            try:
                batch = self._reader.read(
                    *(topic, partition, self._position),
                    most=_BATCH,
                    most_bytes=_TOGETHER_BYTES,
                    until=min(until, time.monotonic() + 1),
                )
            except OutOfRange:  # they have expired meanwhile
                self._position = self._cluster.earliest([self._place])[self._place]
                continue
            except Refusal as refused:
                raise TransientError(str(refused)) from None
            for message in batch.messages:
                self._learn(message)
            self._position = batch.next
            if time.monotonic() > until:
                raise TransientError(
                    f"{self._place} can be read up to {self._position} only, and ends at {end}. If "
                    "that does not change, the brokers have lost track of a transaction: "
                    "kafka-transactions.sh find-hanging names it"
                )

    def _learn(self, message: Message) -> None:
        key: Any = message.key()
        value: Any = message.value()
        try:
            known = StoredAnswer.of(value, message.timestamp()[1] / 1000)
        except (ValueError, TypeError, LookupError, AttributeError):
            log.warning("%s, offset %s was not written by a proxy", self._place, message.offset())
        else:
            self._known.pop(key, None)
            self._known[key] = known

    def _judged(self, jobs: Sequence[Job]) -> list[Job]:
        """The first request of each unknown key; those of known ones are answered."""
        oldest = time.time() - self._retention
        while self._known:
            first = next(iter(self._known))
            if self._known[first].at > oldest:
                break
            del self._known[first]
        fresh: dict[bytes, Job] = {}
        for job in jobs:
            known = self._known.get(job.key.name)
            if known is None:
                fresh.setdefault(job.key.name, job)
            elif known.fingerprint == job.key.fingerprint:
                job.end(known, replayed=True)
            else:
                job.fail(key_conflict())
        return list(fresh.values())

    def _commit(self, jobs: Sequence[Job]) -> None:
        """One transaction: the records of these requests, and their keys.

        Raises:
            RecordsRefused: nothing was written.
            LedgerConflict: another proxy has taken over; nothing was written.
            TransientError: the outcome is unknown.
        """
        producers: list[Producer] = []
        answers: dict[bytes, StoredAnswer] = {}

        def send(producer: Producer, report: Report) -> None:
            producers.append(producer)
            for job in jobs:
                job.outcomes = [None] * len(job.records)
                for index, record in enumerate(job.records):
                    record.queue(producer, job.topic, partial(_delivered, job, index, report))

        def add_keys() -> None:
            hit("source.after_records")
            failed: list[KafkaError] = []
            topic, partition = self._place.topic, self._place.partition
            for job in jobs:
                answer = job.tell(job.outcomes)
                known = StoredAnswer(job.key.fingerprint, answer, job.kind, time.time())
                answers[job.key.name] = known
                producers[0].produce(
                    *(topic, known.record, job.key.name, partition),
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
            settle(producers[0], lambda: bool(failed))
            if failed:
                reason = f"{failed[0].str()}: topic {topic}"
                raise KafkaException(KafkaError(failed[0].code(), reason))
            hit("sink.before_commit")

        topics = {job.topic for job in jobs} | {self._place.topic}
        self._transactions.run(send, [], None, add_keys, topics=topics)
        hit("sink.after_commit")
        self._known |= answers
        for job in jobs:
            job.end(answers[job.key.name], replayed=False)


def _delivered(
    job: Job, index: int, report: Report, error: KafkaError | None, message: Message
) -> None:
    if error is None:
        job.outcomes[index] = RecordMetadata.of(message)
    else:
        job.outcomes[index] = error
        report(error, message)


def _is_final(error: Exception, cause: KafkaError | None) -> bool:
    """Whether requests can never be carried out."""
    if isinstance(error, RecordsRefused | ServiceError):
        return True
    return cause is not None and cause.code() in GONE


def _refusal(error: Exception, cause: KafkaError | None, job: Job) -> Refusal:
    failure = next((each for each in job.outcomes if isinstance(each, KafkaError)), cause)
    if failure is not None and failure.code() in RECORD_REFUSED + GONE + NOT_AUTHORIZED:
        return of_kafka(failure, job.topic)
    return Refusal(422, f"Kafka refuses a record: {error or failure}", 42207)


def _unknown(error: Exception) -> Refusal:
    return Refusal(
        503,
        f"Whether the records were written is not known ({error}). Repeat the request with the "
        "same Idempotency-Key",
        50003,
        {"Retry-After": "1"},
    )
