"""Finding the records that a broker will not take: too large, or against the topic's rules."""

from __future__ import annotations

import functools
from collections.abc import Sequence, Sized

from confluent_kafka import KafkaError, KafkaException, Producer

from semel.core.errors import ServiceError, TransientError
from semel.core.quoting import named
from semel.core.records import Rejected, RowsRejected
from semel.kafka.errors import RECORD_REFUSED
from semel.kafka.messages import Messages
from semel.kafka.transactions import Transactions

_JAVA = {
    KafkaError.MSG_SIZE_TOO_LARGE: "RecordTooLargeException",
    KafkaError.INVALID_MSG_SIZE: "RecordTooLargeException",
    KafkaError.INVALID_TIMESTAMP: "InvalidTimestampException",
}


def find_refused(
    connector: str, transactions: Transactions, messages: Sequence[Messages]
) -> Exception:
    """Send each record in a transaction of its own, which is aborted, to see whether brokers take
    it.

    A refusal ends a transaction, so each record needs its own: this is for few records only.

    Returns:
        the exception to raise: RowsRejected, or the error if no record is to blame.
    """
    records = [(one, record) for one in messages for record in one.each()]
    bad: dict[int, KafkaError] = {}

    def judged(number: int, error: KafkaError, _message: object) -> None:
        if error.code() in RECORD_REFUSED:
            bad[number] = error

    def send(producer: Producer) -> None:
        for number, (one, record) in enumerate(records):
            if number in bad:
                continue
            report = functools.partial(judged, number)
            try:
                producer.produce(one.topic, *record.sent(report))
            except KafkaException as error:
                report(error.args[0], None)
                if error.args[0].code() not in RECORD_REFUSED:
                    return  # the transaction has failed already

    known = -1
    while known < len(bad):
        known = len(bad)
        transactions.probe(send, functools.partial(_grown, bad, known))
    rejected = [
        Rejected(
            records[number][0].source,
            records[number][1].partition,
            records[number][1].offset,
            f"org.apache.kafka.common.errors.{_JAVA.get(error.code(), 'InvalidRecordException')}",
            f"topic {named(records[number][0].topic)}: {error.str()}",
        )
        for number, error in sorted(bad.items())
    ]
    letters = [one.topic for one, _ in (records[number] for number in bad) if not one.source]
    if letters:
        return ServiceError(
            f"connector {connector}: topic {named(letters[0])} does not take a dead letter: raise "
            "its max.message.bytes"
        )
    if rejected:
        return RowsRejected(rejected)
    return TransientError(f"connector {connector}: the target Kafka refused a batch of records")


def _grown(found: Sized, size: int) -> bool:
    return len(found) > size
