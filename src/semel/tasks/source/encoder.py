"""From what a source has read to messages for Kafka, in columns: transforms, converters, and the
records that ``errors.tolerance=all`` leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import converters, transforms
from semel.config import SourceConnectorConfig, under
from semel.converters import Converter, Unwritable
from semel.converters.base import Writers
from semel.core.errors import BadRecord, ConfigError
from semel.core.quoting import named
from semel.core.records import HEADERS, HEADERS_TYPE, PARTITION, ConnectRecords
from semel.kafka.messages import ANY, Messages, headers, timestamps
from semel.sources.base import UnreadRecord
from semel.tasks.transform import by_topic, chained
from semel.transforms.chain import Mixed

_UNWRITTEN = (ConfigError, pa.ArrowInvalid, pa.ArrowNotImplementedError)
"""What a converter raises for what it cannot write."""


class Encoder:
    """Encodes with the converters of one connector."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._skips = connector.errors_tolerance == "all"
        self._contents = Contents(connector)
        self._key = Writers(_converter(connector, "key.converter", connector.key_converter))
        self._value = Writers(_converter(connector, "value.converter", connector.value_converter))

    def messages(self, records: ConnectRecords, skipped: list[SkippedRecord]) -> Messages:
        """The messages for the records' topic; see :meth:`encoded`."""
        records, keys, values = self.encoded(records, skipped)
        origin = records.origin
        if records.headers is not None:
            origin = origin.append_column(HEADERS, records.headers)
        return Messages(
            records.topic,
            "",
            keys,
            values,
            _partitions(records.origin),
            timestamps(records.origin),
            headers(origin),
        )

    def encoded(
        self, records: ConnectRecords, skipped: list[SkippedRecord]
    ) -> tuple[ConnectRecords, pa.ChunkedArray, pa.ChunkedArray]:
        """The records that can be written, with their keys and values in bytes. The others are
        added to ``skipped``.

        Raises:
            BadRecord: a converter cannot write keys or values, with ``errors.tolerance=none``.
        """
        try:
            return records, *self._bytes(records)
        except _Refused as refused:
            if not self._skips:
                raise BadRecord(
                    f"connector {self._name}: records for topic {named(records.topic)}: "
                    f"{refused.error}"
                ) from None
        fitting = records.take(pa.array(self._fitting(records, np.arange(len(records)), skipped)))
        none = pa.chunked_array([], pa.binary())
        return fitting, *(self._bytes(fitting) if len(fitting) else (none, none))

    def _fitting(
        self, records: ConnectRecords, rows: np.ndarray, skipped: list[SkippedRecord]
    ) -> np.ndarray:
        """Those of ``rows`` that both converters can write, found by bisecting."""
        if not len(rows):
            return rows
        try:
            self._bytes(records.take(pa.array(rows)))
            return rows
        except _Refused as error:
            refused = error
        column = records.keys if refused.is_key else records.values
        of_type = isinstance(refused.error, Unwritable)
        if len(rows) > 1 and not of_type:
            halves = np.array_split(rows, 2)
            return np.concatenate([self._fitting(records, half, skipped) for half in halves])
        absent = column.is_null().to_numpy(zero_copy_only=False)[rows]
        wrong = rows[~absent]  # a column of nulls can be written
        stage = f"{'KEY' if refused.is_key else 'VALUE'}_CONVERTER"
        why = str(refused.error)
        skipped += [
            SkippedRecord(records.topic, stage, why, self._contents.of(column, row), of_type)
            for row in wrong.tolist()
        ]
        return self._fitting(records, np.setdiff1d(rows, wrong), skipped)

    def _bytes(self, records: ConnectRecords) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Raises _Refused: a converter cannot write them."""
        columns = (
            (self._key.of(records.topic, records.key_facts), records.keys, True),
            (self._value.of(records.topic, records.value_facts), records.values, False),
        )
        written = []
        for converter, column, is_key in columns:
            try:
                written.append(_written(converter, column))
            except _UNWRITTEN as error:
                raise _Refused(error, is_key) from None
        return written[0], written[1]


class _Refused(Exception):
    """Keys, or values, that a converter cannot write."""

    def __init__(self, error: Exception, is_key: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_key = is_key


def _written(converter: Converter, column: pa.Array) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), pa.binary())])
    return pa.chunked_array([converter.encode(column)], pa.binary())


def _partitions(origin: pa.Table) -> Sequence[int] | None:
    if PARTITION not in origin.column_names:
        return None
    column = origin.column(PARTITION)
    if column.null_count == len(column):
        return None
    partitions: list[int] = pc.fill_null(column, ANY).to_numpy().tolist()
    return partitions


def _converter(connector: SourceConnectorConfig, where: str, name: str) -> Converter:
    below = under(connector.originals, f"{where}.")
    return converters.create(name, below, is_key=where == "key.converter", where=where)


class SourceChain:
    """Applies the transforms of one connector to what its source has read."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._chain = transforms.chain_of(connector.originals)
        self._skips = connector.errors_tolerance == "all"
        self._contents = Contents(connector)

    def unread(self, records: Sequence[UnreadRecord]) -> list[SkippedRecord]:
        """What the source could not read, as left out.

        Raises:
            BadRecord: there is some, with ``errors.tolerance=none``.
        """
        if records and not self._skips:
            raise BadRecord(
                f"connector {self._name}: a record for topic {named(records[0].topic)}: "
                f"{records[0].message}, or set errors.tolerance=all to leave such records out"
            )
        return [SkippedRecord(r.topic, "TASK_POLL", r.message, place=r.place) for r in records]

    def applied(
        self, records: ConnectRecords, skipped: list[SkippedRecord]
    ) -> list[ConnectRecords]:
        """The records grouped by the topic they go to, without those that transforms drop. Those
        that transforms refuse are added to ``skipped``.

        Raises:
            BadRecord: a transform refuses one, with ``errors.tolerance=none``.
        """
        if not self._chain or not len(records):
            return [records]
        if records.headers is None and self._chain.needs_headers:
            none = pa.array([[]] * len(records), HEADERS_TYPE)
            records = replace(records, headers=none)
        index = np.arange(len(records))
        try:
            result, _, refused, topics = chained(
                self._chain, records, index, True, True, stamps=True
            )
        except Mixed as mixed:
            runs = np.split(index, np.flatnonzero(np.diff(mixed.labels)) + 1)
            groups = (self.applied(records.take(pa.array(rows)), skipped) for rows in runs)
            return list(chain.from_iterable(groups))
        if refused and self._skips:
            skipped += [
                SkippedRecord(
                    records.topic, f.stage, f.message, self._contents.of(records.values, f.index)
                )
                for f in refused
            ]
        elif refused:
            first = min(refused, key=lambda f: f.index)
            raise BadRecord(
                f"connector {self._name}: a record for topic {named(records.topic)} failed in "
                f"{first.stage}: {first.message}. What was read together with it is not written; "
                "everything before that is committed"
            )
        if topics is None:
            topics = pa.repeat(pa.scalar(self._chain.route(records.topic)), len(result))
        return by_topic(result, topics)


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A record that the source, a transform or a converter refuses. ``stage`` is Kafka Connect's
    name for it; ``content`` is what the transforms or the converter were given, if it is logged.
    ``of_type`` says that every record of this type is refused; ``place`` is where the source found
    it."""

    topic: str
    stage: str
    message: str
    content: str = ""
    of_type: bool = False
    place: str = ""

    def described(self) -> str:
        """The record and its error in one log line."""
        shown = f": {self.content}" if self.content else ""
        return f"bad record for topic {named(self.topic)} ({self.stage}): {self.message}{shown}"


class Contents:
    """What the log shows of skipped records: nothing, unless the connector wants it."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._shows = connector.errors_log and connector.errors_log_messages

    def of(self, column: pa.Array, row: int) -> str:
        """One value as text."""
        if not self._shows:
            return ""
        try:
            return repr(column[row].as_py())
        except (ValueError, OverflowError, LookupError):  # Python has no such time or time zone
            return " ".join(str(column.slice(row, 1)).split())


class SkipLog:
    """What one task logs about skipped records."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._each = connector.errors_log
        self._told: set[tuple[str, str, str]] = set()

    def lines(self, skipped: Sequence[SkippedRecord]) -> Iterator[str]:
        """One for each record with ``errors.log.enable``; else one for each topic and error that
        keeps all records of a type out, because a topic may then get none at all, and one for each
        place of a source."""
        for record in skipped:
            error = (record.topic, record.stage, record.place or record.message)
            if self._each:
                yield record.described()
            elif (record.of_type or record.place) and error not in self._told:
                self._told.add(error)
                yield (
                    f"errors.tolerance=all: skipping all records like this one: "
                    f"{record.described()}"
                )
