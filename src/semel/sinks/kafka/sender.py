"""Records and dead letters as messages, sent in one transaction with positions or without one, and
the search for those that a broker will not take."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel import converters
from semel.config import ConnectorConfig, under
from semel.converters import Converter
from semel.converters.base import Writers
from semel.core.errors import ServiceError, TransientError
from semel.core.failpoints import hit
from semel.core.quoting import named
from semel.core.records import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    Commit,
    DeadLetter,
    Records,
    RejectedRecord,
    RowsRejected,
    absence,
    absences,
    by_target,
    value_columns,
)
from semel.kafka.answers import RECORD_REFUSED
from semel.kafka.dead_letters import Header, Headers, error_headers
from semel.kafka.messages import Messages, headers, timestamps
from semel.kafka.transactions import PlainProducer, RecordsRefused, Report, Transactions
from semel.sinks.flatten import VALUE
from semel.sinks.kafka.config import KEEP, KafkaConfig
from semel.sinks.kafka.targets import Targets


class Sender:
    """Encodes and sends the records of one connector."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: KafkaConfig,
        client: Mapping[str, Any],
        targets: Targets,
        transactions: Transactions,
    ) -> None:
        self._connector = connector
        self._targets = targets
        self._transactions = transactions
        self._plain = PlainProducer(f"connector {connector.name}", client)
        self._encoder = Encoder(
            config,
            provenance=connector.provenance,
            key=_converter(connector.originals, "key.converter", connector.key_converter),
            value=_converter(connector.originals, "value.converter", connector.value_converter),
        )

    def messages(self, commit: Commit, task: int) -> list[Messages]:
        """The messages of a commit, by target topic."""
        messages = [
            self._encoder.messages(parts, self._targets.of(topic))
            for (_, topic), parts in by_target(commit.records).items()
        ]
        if commit.dead_letters and self._connector.dead_letter_topic:
            messages.append(dead_letters(self._connector, commit.dead_letters, task))
        return messages

    def transact(
        self,
        messages: Sequence[Messages] | None,
        positions: Callable[[Producer, Report], None],
        offsets: list[KafkaPartition],
        generation: Any,
        confirm: Callable[[], None],
    ) -> None:
        """Messages, positions and the group's offsets in one transaction, which is aborted if
        ``confirm`` raises once the offsets are pending. If ``messages`` is None, no failpoint
        fires.

        Raises:
            RowsRejected: nothing was written; names the records that brokers will never take.
            SemelError: see :meth:`Transactions.run`.
        """
        reach = hit if messages is not None else _nowhere

        def send(producer: Producer, failed: Report) -> None:
            for batch in messages or ():
                batch.send_in_transaction(producer, failed)
            positions(producer, failed)
            reach("sink.after_positions")

        def before_commit() -> None:
            confirm()
            reach("sink.before_commit")

        try:
            self._transactions.run(
                send,
                offsets,
                generation,
                before_commit,
                topics=[batch.topic for batch in messages or ()],
            )
        except RecordsRefused:
            raise find_refused(self._connector.name, self._transactions, messages or ()) from None

    def send(self, messages: Sequence[Messages]) -> None:
        """Send without a transaction, and wait until the brokers have everything.

        Raises:
            TransientError: they may have some of it, all of it or nothing.
        """
        hit("sink.after_positions")
        try:
            self._plain.send([batch.send for batch in messages], lambda: hit("sink.before_commit"))
        except RecordsRefused:
            raise find_refused(self._connector.name, self._transactions, messages) from None
        hit("sink.after_commit")

    def drop(self) -> None:
        """Forget the producer without transactions, and what it has not sent yet."""
        self._plain.drop()


def _converter(raw: Mapping[str, str], where: str, name: str) -> converters.Converter:
    is_key = where.startswith("key")
    return converters.create(name, under(raw, f"{where}."), is_key=is_key, where=where)


def _nowhere(_place: str) -> None:
    """A failpoint that never fires."""


def dead_letters(connector: ConnectorConfig, letters: Sequence[DeadLetter], task: int) -> Messages:
    """Dead letters for their topic, as Kafka Connect writes them."""
    return Messages(
        connector.dead_letter_topic,
        "",
        pa.chunked_array([[x.key for x in letters]], pa.binary()),
        pa.chunked_array([[x.value for x in letters]], pa.binary()),
        timestamps=[max(0, x.timestamp or 0) for x in letters],
        headers=[[*x.headers, *error_headers(connector, x, task)] for x in letters],
    )


class Encoder:
    """Makes messages. ``key`` and ``value`` are converters for what a transform has changed."""

    def __init__(
        self, config: KafkaConfig, *, provenance: bool, key: Converter, value: Converter
    ) -> None:
        self._config = config
        self._provenance = provenance
        self._key = Writers(key)
        self._value = Writers(value)

    def messages(self, parts: Sequence[Records], topic: str) -> Messages:
        """One topic's records in their order, tombstones in their place between the others."""
        tables, key_chunks, value_chunks = [], [], []
        for part in parts:
            tables.append(part.rows)
            key_chunks += self._keys(part, part.rows, topic).chunks
            value_chunks += self._values(part, topic).chunks
            if (gone := part.tombstones) is not None and gone.num_rows:
                tables.append(gone)
                key_chunks += self._keys(part, gone, topic).chunks
                value_chunks.append(pa.nulls(gone.num_rows, pa.binary()))
        keys, values = (
            pa.chunked_array(chunks, pa.binary()) for chunks in (key_chunks, value_chunks)
        )
        origin, rows = parts[0].origin, tables[0]
        if len(tables) > 1:
            names = [n for n in (PARTITION, OFFSET, TIMESTAMP, HEADERS) if n in rows.column_names]
            rows = pa.concat_tables([t.select(names) for t in tables])
            order = np.lexsort((rows.column(OFFSET), rows.column(PARTITION)))
            rows, values, keys = rows.take(order), values.take(order), keys.take(order)
        partitions = rows.column(PARTITION).to_numpy().tolist()
        offsets = rows.column(OFFSET).to_numpy().tolist()
        keep = self._config.partitioner == KEEP
        return Messages(
            topic,
            origin,
            keys,
            values,
            partitions if keep else None,
            timestamps(rows),
            self._headers(origin, rows, partitions, offsets),
            partitions,
            offsets,
        )

    def _values(self, records: Records, topic: str) -> pa.ChunkedArray:
        rows = records.rows
        if records.has_fields:
            names = [*value_columns(rows.column_names), *map(absence, absences(rows))]
            values = rows.select(names).to_struct_array()
        else:
            values = rows.column(VALUE)
        return _encoded(self._value.of(topic, records.value_facts), values)

    def _keys(self, records: Records, rows: pa.Table, topic: str) -> pa.ChunkedArray:
        return _encoded(self._key.of(topic, records.key_facts), rows.column(KEY))

    def _headers(
        self, source: str, rows: pa.Table, partitions: list[int], offsets: list[int]
    ) -> Sequence[Headers | None] | None:
        own = headers(rows)
        if not self._provenance:
            return own
        config = self._config
        topic: Header = (config.topic_header, source.encode())
        names = (config.partition_header, config.offset_header)
        texts: dict[int, Header] = {p: (names[0], b"%d" % p) for p in set(partitions)}
        marks: Iterable[Headers] = (
            [topic, texts[p], (names[1], b"%d" % o)]
            for p, o in zip(partitions, offsets, strict=True)
        )
        if own is None:
            return list(marks)
        return [h + m for h, m in zip(own, marks, strict=True)]


def _encoded(converter: Converter, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Encode values. Bytes are written unchanged, whether they were read, are a field that a
    transform has made the value, or come from a program."""
    if pa.types.is_binary(values.type) or pa.types.is_null(values.type):
        return values.cast(pa.binary())
    return pa.chunked_array([converter.encode(c) for c in values.chunks], pa.binary())


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
    records = [(batch, record) for batch in messages for record in batch.each()]
    bad: dict[int, KafkaError] = {}

    def judged(number: int, error: KafkaError, _message: object) -> None:
        if error.code() in RECORD_REFUSED:
            bad[number] = error

    def send(producer: Producer) -> None:
        for number, (batch, record) in enumerate(records):
            if number in bad:
                continue
            report = functools.partial(judged, number)
            try:
                producer.produce(batch.topic, *record.sent(report))
            except KafkaException as error:
                report(error.args[0], None)
                if error.args[0].code() not in RECORD_REFUSED:
                    return  # the transaction has failed already

    count = -1
    while count < len(bad):
        count = len(bad)
        transactions.probe(send, functools.partial(_grown, bad, count))
    rejected = [
        RejectedRecord(
            records[number][0].source,
            records[number][1].partition,
            records[number][1].offset,
            f"org.apache.kafka.common.errors.{_JAVA.get(error.code(), 'InvalidRecordException')}",
            f"topic {named(records[number][0].topic)}: {error.str()}",
        )
        for number, error in sorted(bad.items())
    ]
    letters = [batch.topic for batch, _ in (records[number] for number in bad) if not batch.source]
    if letters:
        return ServiceError(
            f"connector {connector}: topic {named(letters[0])} does not take a dead letter: raise "
            "its max.message.bytes"
        )
    if rejected:
        return RowsRejected(rejected)
    return TransientError(f"connector {connector}: the target Kafka refused a batch of records")


def _grown(errors: Sized, size: int) -> bool:
    return len(errors) > size
