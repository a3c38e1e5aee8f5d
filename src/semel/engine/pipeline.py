"""Raw records to what a sink takes: converters, then the transform, then columns, on one topic's
Arrow batch.

Both engines use it. Nothing here raises for a bad record: it is reported by its index in the raw
batch, with Kafka Connect's name of the stage, and the engine decides by ``errors.tolerance``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import converters, records
from semel.config import ConnectorConfig, under
from semel.converters.base import Converter
from semel.engine.rowtransform import Failed, Transform, transformed
from semel.engine.unwrap import CLASSES, Unwrapper, are_change_events
from semel.records import ConnectRecords, Records
from semel.sinks.base import Sink
from semel.sinks.flatten import flattened

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Converted:
    """One topic's records, ready for the sink, those that failed, and how many the transform left
    out."""

    records: Records
    failed: Sequence[Failed]
    filtered: int = 0


class Pipeline:
    """Converters and transform of one task; they may remember schemas between batches.

    ``target`` gives the fields that a topic's target takes; ``schemas`` holds what the driver
    inferred for topics without a target, so that all tasks agree. ``frames`` says that a DataFrame
    transform follows: all metadata is wanted, and the target says nothing of the values.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        sink: Sink,
        *,
        target: Callable[[str], pa.Schema | None],
        transform: Transform | None = None,
        schemas: Mapping[str, pa.Schema] | None = None,
        frames: bool = False,
    ) -> None:
        self._connector = connector
        self._wants = sink.capabilities
        self._target = target
        self._transform = transform
        self._transforms = transform is not None or frames
        self._schemas = dict(schemas or {})
        self._converters: dict[tuple[str, bool], Converter] = {}
        unwraps = connector.connector_class.startswith(CLASSES)
        self._unwrapper = Unwrapper(connector.name) if unwraps else None

    @property
    def wants_key(self) -> bool:
        return self._wants.uses_key or self._transforms

    @property
    def wants_timestamp(self) -> bool:
        carried = records.TIMESTAMP in self._wants.carries
        return self._connector.provenance or self._transforms or carried

    @property
    def replaces(self) -> bool:
        """Whether the sink keeps the last record of each key."""
        return self._wants.replaces

    @property
    def wants_headers(self) -> bool:
        return records.HEADERS in self._wants.carries

    @property
    def passes_bytes(self) -> bool:
        """Whether keys and values reach the sink as they came: nothing changes them."""
        return self._wants.takes_bytes and not self._transforms

    def schema(self, topic: str) -> pa.Schema | None:
        """The fields to look for in values: the driver's inference, else the target's columns.

        With a transform the target's columns say nothing of the values; one of bytes has none.
        """
        if topic not in self._schemas and not self._transforms and not self._wants.takes_bytes:
            found = self._target(topic)
            if found is not None:
                self._schemas[topic] = found
        return self._schemas.get(topic)

    def infer(self, topic: str, raw: pa.Table) -> pa.Schema | None:
        """The fields found in a sample; remembered for :meth:`convert`."""
        column = whole(raw.column("value"))
        if self._unwrapper is None:
            found = self._converter(topic, is_key=False).infer(column)
        else:
            rows = self._values(topic, raw, {}).type
            found = pa.schema(list(rows)) if pa.types.is_struct(rows) else None
        if found is not None:
            self._schemas[topic] = found
        return found

    def convert(self, topic: str, raw: pa.Table) -> Converted:
        """Convert one topic's raw batch (see :mod:`semel.records`)."""
        failed: dict[int, Failed] = {}
        records = self._decoded(topic, raw, failed)
        gone = np.zeros(raw.num_rows, dtype=bool)
        gone[list(failed)] = True
        if self._unwrapper is not None:  # truncations have no key, and delete no row
            null = records.values.is_null().to_numpy(zero_copy_only=False)
            gone |= null & records.keys.is_null().to_numpy(zero_copy_only=False)
        index = np.flatnonzero(~gone)
        if gone.any():
            records = records.take(pa.array(index))
        filtered = 0
        if self._transform is not None:
            made = transformed(self._transform, records)
            filtered = len(records) - len(made.records) - len(made.failed)
            records = made.records
            failed |= {
                at: replace(f, index=at) for f in made.failed for at in [int(index[f.index])]
            }
        flat = flattened(
            records,
            deletes=self._wants.takes_tombstones,
            provenance=self._connector.provenance_columns,
        )
        return Converted(flat, [failed[i] for i in sorted(failed)], filtered)

    def _decoded(self, topic: str, raw: pa.Table, failed: dict[int, Failed]) -> ConnectRecords:
        keys = self._keys(topic, raw, failed)
        values = self._values(topic, raw, failed)
        if self.passes_bytes:  # decoding has shown that they are good
            keys = whole(raw.column("key")) if self.wants_key else keys
            values = whole(raw.column("value"))
        origin = {
            records.TOPIC: pa.repeat(pa.scalar(topic), raw.num_rows),
            records.PARTITION: raw.column("partition"),
            records.OFFSET: raw.column("offset"),
        }
        if "timestamp" in raw.column_names and (self.wants_timestamp or self.replaces):
            origin[records.TIMESTAMP] = raw.column("timestamp")
        headers = whole(raw.column("headers")) if self.wants_headers else None
        return ConnectRecords(topic, pa.table(origin), keys, values, headers)

    def _converter(self, topic: str, *, is_key: bool) -> Converter:
        if (topic, is_key) not in self._converters:
            connector = self._connector
            name = connector.key_converter if is_key else connector.value_converter
            where = "key.converter" if is_key else "value.converter"
            self._converters[topic, is_key] = converters.create(
                name,
                under(self._connector.originals, f"{where}."),
                is_key=is_key,
                where=where,
                evolve=self._wants.evolves or self._transforms,
            )
        return self._converters[topic, is_key]

    def _keys(self, topic: str, raw: pa.Table, failed: dict[int, Failed]) -> pa.Array:
        if not self.wants_key:
            return pa.nulls(raw.num_rows)
        decoded = self._converter(topic, is_key=True).decode(whole(raw.column("key")))
        for f in decoded.failures:
            failed[f.index] = Failed(f.index, "KEY_CONVERTER", f.exception, f.message)
        return decoded.values

    def _values(self, topic: str, raw: pa.Table, failed: dict[int, Failed]) -> pa.Array:
        column = whole(raw.column("value"))
        decoded = self._converter(topic, is_key=False).decode(column, self.schema(topic))
        values, failures = decoded.values, decoded.failures
        if self._unwrapper is not None and are_change_events(values):
            values, more = self._unwrapper.unwrap(values)
            failures = [*failures, *more]
        for f in failures:
            failed[f.index] = Failed(f.index, "VALUE_CONVERTER", f.exception, f.message)
        return values


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; what is one already is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def count_by_partition(table: pa.Table | None, column: str = records.PARTITION) -> dict[int, int]:
    """How many rows each partition has."""
    if table is None or not table.num_rows:
        return {}
    counts = pc.value_counts(table.column(column)).to_pylist()
    return {c["values"]: c["counts"] for c in counts}
