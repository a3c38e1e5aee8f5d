"""Transactions of one producer, what their errors mean, and fencing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.errors import LedgerConflict, NotAssigned, SemelError, ServiceError, TransientError
from semel.kafka.clients import IDEMPOTENCE, confirms_all, is_idempotent
from semel.leftbehind import Left, within

log = logging.getLogger("semel.kafka")

_TIMEOUT = 30.0
_SLICE = 0.1
_STUCK = 10.0
_UNCONFIRMED = (
    f"no record was confirmed for {_STUCK:.0f} s: a broker is away or slow, or fewer replicas are "
    "in sync than min.insync.replicas demands"
)

DEFAULTS: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    # A commit is in memory already; it must not wait for room in the producer's queue.
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_147_483_647,
    # The brokers judge a record's size: what one topic has taken another may take, too.
    "message.max.bytes": 67_108_864,
    # Between two transactions the coordinator is busy for some milliseconds; librdkafka would wait
    # for 100 until it asks again.
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 500,
    "delivery.report.only.error": True,
    # A topic that is deleted must not come back with the brokers' defaults: a ledger topic would
    # then forget, and a target have another number of partitions.
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
"""The name of threads whose call may not end."""

TIMEOUT = "transaction.timeout.ms"
_OWNER_GONE = 30_000

_REPLACED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
_MOVED = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)
_FORBIDDEN = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
)
REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)
"""What a broker answers to a record that it will never take."""


Report = Callable[[KafkaError, object], None]
"""Told of each record that could not be delivered."""


class RecordsRefused(Exception):
    """A broker takes one or more of the records under no circumstances; nothing was written."""


def settle(producer: Producer, enough: Callable[[], bool]) -> None:
    """Wait until all is delivered or ``enough`` is known: after a failure, librdkafka keeps what
    is left of a transaction for as long as a record may wait.

    Raises:
        KafkaException: nothing was delivered for some time.
    """
    left, heard = len(producer), time.monotonic()
    while (now := producer.flush(_SLICE)) and not enough():
        if now < left:
            left, heard = now, time.monotonic()
        elif time.monotonic() - heard > _STUCK:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, _UNCONFIRMED))


def _told(error: KafkaError, message: Any) -> KafkaError:
    """A record's error, with the topic where this user lacks a right."""
    if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED or message is None:
        return error
    return KafkaError(error.code(), f"{error.str()}: topic {message.topic()}. Grant WRITE on it")


def _in_time(call: Callable[[], None]) -> None:
    """Leave a call behind that does not end: where a group's coordinator has gone, librdkafka waits
    for it whatever the timeout (its issues 5456 and 5511).

    Raises:
        KafkaException: as the call does, or it has not ended by its own timeout.
    """
    try:
        within(_STUCK + _SLICE, LEFT_BEHIND, call)
    except Left:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


class PlainProducer:
    """A producer without transactions, which is made when it is first used."""

    def __init__(self, connector: str, client: Mapping[str, Any]) -> None:
        self._connector = connector
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
            TransientError: they may have some of it, all of it or nothing.
        """
        if self._producer is None:
            self._producer = Producer(self._client, logger=log)
        producer = self._producer
        failures: list[KafkaError] = []
        try:
            for send in sends:
                send(producer, lambda error, message: failures.append(_told(error, message)))
            before_end()
            settle(producer, lambda: bool(failures))
        except KafkaException as error:
            failures.append(error.args[0])
        if failures:
            self.drop()
            if any(e.code() in REFUSED for e in failures):
                raise RecordsRefused
            raise meaning(self._connector, KafkaException(failures[0]))

    def drop(self) -> None:
        """Forget the producer, and what it has not sent yet."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


class Transactions:
    """One transactional producer after another, all of one ``transactional.id``.

    A new one fences all that came before it, wherever they run, and aborts what they left open.
    """

    def __init__(self, connector: str, client: Mapping[str, Any]) -> None:
        self._connector = connector
        dropped = _ACKS if is_idempotent(client) else (*_ACKS, *_NOT_IDEMPOTENT)
        settings = {k: v for k, v in client.items() if k not in dropped}
        self._client = {**DEFAULTS, TIMEOUT: _OWNER_GONE, **settings}
        self._producer: Producer | None = None
        self._id = ""

    def limit(self, batch: int) -> None:
        """A broker takes no batch of more bytes than this, and librdkafka does not split one that
        was refused. A single record that is larger is sent all the same."""
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
        """Take the id; whoever had it is fenced."""
        self.drop()
        self._id = transactional_id
        self._producer = self._initialised(transactional_id)

    def fence(self, transactional_id: str) -> None:
        """End another one's transaction and its right to begin a new one."""
        self._initialised(transactional_id)

    def _initialised(self, transactional_id: str, **settings: Any) -> Producer:
        settings = {**self._client, **settings, "transactional.id": transactional_id}
        producer = Producer(settings, logger=log)
        try:
            producer.list_topics(timeout=_TIMEOUT)  # else the first search waits for a connection
            producer.init_transactions(_TIMEOUT)
        except KafkaException as error:
            raise self._meaning(error) from error
        return producer

    def run(
        self,
        send: Callable[[Producer, Report], None],
        offsets: list[KafkaPartition],
        generation: Any,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """One transaction: what ``send`` queues, and offsets of the group.

        Raises:
            RecordsRefused: nothing was written.
            NotAssigned: the group's generation is another one.
            LedgerConflict: another producer of this id has fenced this one.
            TransientError: the outcome is unknown; the producer is gone.
        """
        producer = self._producer
        assert producer is not None
        failed: list[KafkaError] = []
        try:
            producer.begin_transaction()
            send(producer, lambda error, message: failed.append(_told(error, message)))
            if offsets:
                send_offsets = producer.send_offsets_to_transaction
                _in_time(lambda: send_offsets(offsets, generation, _STUCK))
            settle(producer, lambda: bool(failed))
            if failed:
                raise KafkaException(failed[0])
            before_commit()
            producer.commit_transaction(_STUCK)
        except KafkaException as error:
            cause = error.args[0]
            refused = any(e.code() in REFUSED for e in (cause, *failed))
            if cause.txn_requires_abort() and not failed and not refused:
                self._abort(producer)
            else:  # after a failed delivery an abort may take long; the next producer aborts, too
                self.drop()
            if refused:
                raise RecordsRefused from error
            raise self._meaning(error) from error
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
        """Forget the producer; its open transaction is aborted by the next one, or by time."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _meaning(self, error: KafkaException) -> SemelError:
        return meaning(self._connector, error)


def meaning(connector: str, error: KafkaException) -> SemelError:
    """What a producer's error means for the connector."""
    cause = error.args[0]
    code, text = cause.code(), f"connector {connector}: the target Kafka: {cause.str()}"
    if code in _REPLACED:
        return LedgerConflict(
            f"{text}. The transaction was aborted. Does another run of {connector} write too?"
        )
    if code in _MOVED:
        return NotAssigned(f"{text}. The transaction was aborted")
    if code in _FORBIDDEN:
        return ServiceError(text)
    return TransientError(text)
