"""What a source has read as messages for Kafka, in columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from semel import converters
from semel.config import SourceConnectorConfig, under
from semel.converters import Converter
from semel.errors import BadRecord, ConfigError
from semel.kafka.messages import ANY, Messages, headers, objects, timestamps
from semel.records import HEADERS, PARTITION, ConnectRecords
from semel.transforms.naming import named


class Encoder:
    """Encodes with the converters of one connector."""

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._key = _converter(connector, "key.converter", connector.key_converter)
        self._value = _converter(connector, "value.converter", connector.value_converter)

    def messages(self, records: ConnectRecords) -> Messages:
        """The messages for the records' topic.

        Raises:
            BadRecord: a converter cannot write keys or values of this type.
        """
        keys, values = self.encoded(records)
        origin = records.origin
        if records.headers is not None:
            origin = origin.append_column(HEADERS, records.headers)
        found = headers(origin) if records.headers is not None else None
        return Messages(
            records.topic,
            "",
            objects(keys),
            objects(values),
            _partitions(records.origin),
            timestamps(records.origin),
            itertools.repeat(None) if found is None else found,
        )

    def encoded(self, records: ConnectRecords) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Keys and values in bytes.

        Raises:
            BadRecord: a converter cannot write keys or values of this type.
        """
        try:
            keys = self._bytes(self._key.for_topic(records.topic), records.keys)
            return keys, self._bytes(self._value.for_topic(records.topic), records.values)
        except ConfigError as error:
            raise BadRecord(
                f"connector {self._name}: records for topic {records.topic}: {error}"
            ) from None

    def _bytes(self, converter: Converter, column: pa.Array) -> pa.ChunkedArray:
        if pa.types.is_null(column.type):
            return pa.chunked_array([column.cast(pa.binary())])
        return pa.chunked_array([converter.encode(column)], pa.binary())


def _partitions(origin: pa.Table) -> Iterable[int]:
    if PARTITION not in origin.column_names:
        return itertools.repeat(ANY)
    column = origin.column(PARTITION)
    if column.null_count == len(column):
        return itertools.repeat(ANY)
    found: list[int] = pc.fill_null(column, ANY).to_numpy().tolist()
    return found


def _converter(connector: SourceConnectorConfig, where: str, name: str) -> Converter:
    below = under(connector.originals, f"{where}.")
    is_key = where == "key.converter"
    made = converters.create(name, below, is_key=is_key, where=where)
    return named(made, connector.originals, is_key=is_key)
