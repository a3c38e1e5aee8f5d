"""The transactions of one producer, and fencing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.abandoned import Abandoned, within
from semel.core.errors import SemelError, ServiceError
from semel.core.quoting import named
from semel.kafka.answers import FAILED_BEFORE, FAILED_WITH_OTHERS, RECORD_REFUSED, producer_failure
from semel.kafka.clients import IDEMPOTENCE, QUIET, confirms_all, is_idempotent

_TIMEOUT = 30.0
_SLICE = 0.1
_STUCK = 10.0
_UNCONFIRMED = (
    f"no record was confirmed for {_STUCK:.0f} s: a broker is down or slow, or fewer replicas are "
    "in sync than min.insync.replicas demands"
)

DEFAULTS: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    # A commit is in memory already; it must not wait for room in the producer's queue.
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_147_483_647,
    # The brokers decide whether a record is too large: what one topic took, another may take, too.
    "message.max.bytes": 67_108_864,
    # Between two transactions the coordinator is busy for a few milliseconds; librdkafka would wait
    # 100 ms before it asks again.
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 500,
    "delivery.report.only.error": True,
    # A topic that is deleted must not come back with the brokers' defaults: a ledger topic would
    # then lose records, and a target would have a different number of partitions.
    "allow.auto.create.topics": False,
    "log_level": 0,
}
"""librdkafka's settings; ``producer.override.*`` wins."""

_ACKS = ("acks", "request.required.acks")
_NOT_IDEMPOTENT = (
    IDEMPOTENCE,
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "retries",
    "queuing.strategy",
)
"""Settings of a producer that is not idempotent, which a transactional one may not take."""

LEFT_BEHIND = "sending offsets to a transaction"
"""The name of threads whose call may never end."""

TIMEOUT = "transaction.timeout.ms"
_OWNER_GONE = 30_000

Report = Callable[[KafkaError, object], None]
"""Called with each record that could not be delivered."""


def confirmed(client: Mapping[str, Any]) -> dict[str, Any]:
    """A producer's settings, without those that could let a broker lose what it has confirmed, or
    accept it twice."""
    dropped = _ACKS if is_idempotent(client) else (*_ACKS, *_NOT_IDEMPOTENT)
    return {k: v for k, v in client.items() if k not in dropped}


class RecordsRefused(Exception):
    """A broker will never accept one or more of the records; nothing was written."""


def settle(producer: Producer, enough: Callable[[], bool]) -> None:
    """Wait until all is delivered or ``enough`` is known: after a failure, librdkafka keeps what
    is left of a transaction for as long as a record may wait.

    Raises:
        KafkaException: nothing was delivered for some time.
    """
    pending, heard = len(producer), time.monotonic()
    while (now := producer.flush(_SLICE)) and not enough():
        if now < pending:
            pending, heard = now, time.monotonic()
        elif time.monotonic() - heard > _STUCK:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, _UNCONFIRMED))


def _named(error: KafkaError, message: Any) -> KafkaError:
    """A record's error, which names the topic if this user lacks a right on it."""
    if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED or message is None:
        return error
    return KafkaError(
        error.code(), f"{error.str()}: topic {named(message.topic())}. Grant WRITE on it"
    )


def _failure(producer: Producer) -> KafkaError | None:
    """The error with which a transaction has failed; None if it has not. A healthy one rejects a
    second begin, and is unaffected."""
    try:
        producer.begin_transaction()
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.fatal() or error.txn_requires_abort():
            return error
    return None


def _cause(
    producer: Producer, failures: Sequence[KafkaError], topics: Collection[str]
) -> KafkaError | None:
    """Why records for these topics were not delivered; None if nothing has failed. What a
    record's failure says is not always the reason: it may have been dropped along with others."""
    cause = next((e for e in failures if e.code() not in FAILED_WITH_OTHERS), None)
    if cause is not None:
        return cause
    error = _failure(producer)
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        names = " and ".join(map(named, sorted(topics)))
        return KafkaError(error.code(), f"{error.str()}: topic {names}. Grant WRITE on it")
    return error or next(iter(failures), None)


def _in_time(call: Callable[[], None]) -> None:
    """Abandon a call that does not end: if a group's coordinator has gone, librdkafka waits for it
    regardless of the timeout (its issues 5456 and 5511).

    Raises:
        KafkaException: as the call does, or it has not ended by its own timeout.
    """
    try:
        within(_STUCK + _SLICE, LEFT_BEHIND, call)
    except Abandoned:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


class PlainProducer:
    """A producer without transactions, created on first use. Errors name its ``owner``."""

    def __init__(self, owner: str, client: Mapping[str, Any]) -> None:
        self._owner = owner
        self._client = {**DEFAULTS, IDEMPOTENCE: confirms_all(client), **client}
        self._producer: Producer | None = None

    def send(
        self,
        sends: Sequence[Callable[[Producer, Report], None]],
        before_end: Callable[[], None],
    ) -> None:
        """Queue everything, and wait until the brokers have it.

        Raises:
            RecordsRefused: some of it.
            TransientError: the brokers may have some of it, all of it or nothing.
        """
        if self._producer is None:
            self._producer = Producer(self._client, logger=QUIET)
        producer = self._producer
        failures: list[KafkaError] = []
        try:
            for send in sends:
                send(producer, lambda error, message: failures.append(_named(error, message)))
            before_end()
            settle(producer, lambda: bool(failures))
        except KafkaException as error:
            failures.append(error.args[0])
        if failures:
            self.drop()
            if any(e.code() in RECORD_REFUSED for e in failures):
                raise RecordsRefused
            raise producer_failure(self._owner, KafkaException(failures[0]))

    def drop(self) -> None:
        """Forget the producer, and what it has not sent yet."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


class Transactions:
    """One transactional producer after another, all of one ``transactional.id``.

    A new one fences all that came before it, wherever they run, and aborts what they left open.
    """

    def __init__(self, owner: str, client: Mapping[str, Any]) -> None:
        self._owner = owner
        self._client = {**DEFAULTS, TIMEOUT: _OWNER_GONE, **confirmed(client)}
        self._producer: Producer | None = None
        self._id = ""

    def limit(self, batch: int) -> None:
        """Limit batches to the size that a broker accepts: librdkafka does not split a refused one.
        A single larger record is still sent."""
        if batch < int(self._client["batch.size"]):
            self._client["batch.size"] = batch
            self.drop()

    @property
    def seconds(self) -> float:
        """How long an open transaction may last before the broker aborts it."""
        return float(self._client[TIMEOUT]) / 1000

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self, transactional_id: str) -> None:
        """Take the id and fence its previous owner."""
        self.drop()
        self._id = transactional_id
        self._producer = self._initialised(transactional_id)

    def fence(self, transactional_id: str) -> None:
        """End another producer's transaction and keep it from beginning a new one."""
        self._initialised(transactional_id)

    def _initialised(self, transactional_id: str, **settings: Any) -> Producer:
        settings = {**self._client, **settings, "transactional.id": transactional_id}
        producer = Producer(settings, logger=QUIET)
        try:
            producer.list_topics(timeout=_TIMEOUT)  # else the first lookup waits for a connection
            producer.init_transactions(_TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise ServiceError(
                    f"{self._owner}: this user may not write transactions of transactional.id "
                    f"{transactional_id}. Grant DESCRIBE and WRITE on it"
                ) from None
            raise self._meaning(error) from error
        return producer

    def run(
        self,
        send: Callable[[Producer, Report], None],
        offsets: list[KafkaPartition],
        generation: Any,
        before_commit: Callable[[], None] = lambda: None,
        *,
        topics: Collection[str] = (),
    ) -> None:
        """One transaction: what ``send`` queues, and offsets of the group. It is aborted if
        ``before_commit`` raises. ``send`` need not report failures if its ``topics`` are given.

        Raises:
            RecordsRefused: nothing was written.
            NotAssigned: the group is in another generation.
            LedgerConflict: another producer of this id has fenced this one.
            TransientError: the outcome is unknown, and the producer is gone; or ``before_commit``
                has raised it.
        """
        producer = self._producer
        assert producer is not None
        failures: list[KafkaError] = []
        written = set(topics)
        failure: KafkaError | None = None

        def report(error: KafkaError, message: Any) -> None:
            failures.append(_named(error, message))
            written.add(str(message.topic()))

        try:
            producer.begin_transaction()
            send(producer, report)
            if offsets:
                send_offsets = producer.send_offsets_to_transaction
                _in_time(lambda: send_offsets(offsets, generation, _STUCK))
            settle(producer, lambda: bool(failures) or _failure(producer) is not None)
            failure = _cause(producer, failures, written)
            if failure is not None:
                raise KafkaException(failure)
            before_commit()
            producer.commit_transaction(_STUCK)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in FAILED_BEFORE:
                cause = failure = _cause(producer, failures, written) or cause
            refused = any(e.code() in RECORD_REFUSED for e in (cause, *failures))
            if refused:  # perhaps nobody else aborts it, and readers would wait for its timeout
                self._abort(producer)
                self.drop()
                raise RecordsRefused from error
            if cause.txn_requires_abort() and failure is None:
                self._abort(producer)
            else:  # after a failed delivery an abort may take long; the next producer aborts, too
                self.drop()
            raise self._meaning(KafkaException(cause)) from error
        except SemelError:  # successors would wait for the transaction's timeout
            self._abort(producer)
            raise
        except BaseException:
            self.drop()
            raise

    def probe(self, send: Callable[[Producer], None], enough: Callable[[], bool]) -> None:
        """A transaction that is always aborted, in which each record is sent by itself."""
        producer = self._initialised(f"{self._id}-probe", **{"batch.num.messages": 1})
        try:
            producer.begin_transaction()
            send(producer)
            settle(producer, enough)
        except KafkaException as error:
            raise self._meaning(error) from error
        finally:
            producer.purge()
            self.fence(f"{self._id}-probe")

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(_STUCK)
        except KafkaException:
            self.drop()

    def drop(self) -> None:
        """Forget the producer; its open transaction is aborted by the next one, or when it times
        out."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _meaning(self, error: KafkaException) -> SemelError:
        return producer_failure(self._owner, error)
