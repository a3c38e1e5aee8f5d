"""Turns what a source has read into messages for Kafka, in columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import converters
from semel.config import SourceConnectorConfig, under
from semel.converters import Converter, Unwritable
from semel.converters.base import Writers
from semel.core.errors import BadRecord, ConfigError
from semel.core.quoting import named
from semel.core.records import HEADERS, PARTITION, ConnectRecords
from semel.kafka.messages import ANY, Messages, headers, timestamps
from semel.tasks.source.skipped import Contents, Skipped

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

    def messages(self, records: ConnectRecords, skipped: list[Skipped]) -> Messages:
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
        self, records: ConnectRecords, skipped: list[Skipped]
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
        left = records.take(pa.array(self._fitting(records, np.arange(len(records)), skipped)))
        none = pa.chunked_array([], pa.binary())
        return left, *(self._bytes(left) if len(left) else (none, none))

    def _fitting(
        self, records: ConnectRecords, rows: np.ndarray, skipped: list[Skipped]
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
            Skipped(records.topic, stage, why, self._contents.of(column, row), of_type)
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
    found: list[int] = pc.fill_null(column, ANY).to_numpy().tolist()
    return found


def _converter(connector: SourceConnectorConfig, where: str, name: str) -> Converter:
    below = under(connector.originals, f"{where}.")
    return converters.create(name, below, is_key=where == "key.converter", where=where)
