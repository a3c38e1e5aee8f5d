"""Raw records to converted ones: converters, then the transform, on one topic's Arrow batch.

Both engines use it. Nothing here raises for a bad record: it is reported by its index in the raw
batch, with Kafka Connect's name of the stage, and the engine decides by ``errors.tolerance``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import converters, records
from semel.config import ConnectorConfig, under
from semel.converters.base import Converter
from semel.engine.unwrap import CLASSES, Unwrapper, are_change_events
from semel.errors import ConfigError
from semel.records import Records
from semel.sinks.base import Sink
from semel.sinks.layout import provenance_conflict

Transform = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
"""A transform of the direct engine: an Arrow batch in, an Arrow batch out, one record at a time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """A record that could not be converted or transformed, by its index in the raw batch."""

    index: int
    stage: str
    exception: str
    message: str


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
        raw: Mapping[str, str],
        sink: Sink,
        *,
        target: Callable[[str], pa.Schema | None],
        transform: Transform | None = None,
        schemas: Mapping[str, pa.Schema] | None = None,
        frames: bool = False,
    ) -> None:
        self._connector = connector
        self._raw = raw
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
        keys = self._keys(topic, raw, failed)
        values = self._values(topic, raw, failed)
        gone = np.zeros(raw.num_rows, dtype=bool)
        gone[list(failed)] = True
        null = values.is_null().to_numpy(zero_copy_only=False)
        if self.passes_bytes:  # decoding has shown that they are good
            keys = raw.column("key") if self.wants_key else keys
            values = whole(raw.column("value"))
        metadata = self._metadata(topic, raw, keys)
        index = np.flatnonzero(~null & ~gone)
        rows = self._flatten(values, metadata, index)
        tombstones = None
        deletes = null & ~gone
        if self._unwrapper is not None:  # truncations have no key, and delete no row
            deletes &= metadata.column(records.KEY).is_valid().to_numpy()
        if self._wants.takes_tombstones and deletes.any():
            tombstones = metadata.take(pa.array(np.flatnonzero(deletes)))
        filtered = 0
        if self._transform is not None and rows.num_rows:
            given = rows.num_rows + len(failed)
            rows = self._transformed(rows, index, failed)
            filtered = given - rows.num_rows - len(failed)
        failures = [failed[i] for i in sorted(failed)]
        return Converted(Records(topic, rows, tombstones), failures, filtered)

    def _converter(self, topic: str, *, is_key: bool) -> Converter:
        if (topic, is_key) not in self._converters:
            connector = self._connector
            name = connector.key_converter if is_key else connector.value_converter
            where = "key.converter" if is_key else "value.converter"
            self._converters[topic, is_key] = converters.create(
                name,
                under(self._raw, f"{where}."),
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

    def _metadata(self, topic: str, raw: pa.Table, keys: pa.Array) -> pa.Table:
        columns = {
            records.TOPIC: pa.repeat(pa.scalar(topic), raw.num_rows),
            records.PARTITION: raw.column("partition"),
            records.OFFSET: raw.column("offset"),
        }
        if "timestamp" in raw.column_names and (self.wants_timestamp or self.replaces):
            columns[records.TIMESTAMP] = raw.column("timestamp")
        if self.wants_headers:
            columns[records.HEADERS] = raw.column("headers")
        columns[records.KEY] = keys
        return pa.table(columns)

    def _flatten(self, values: pa.Array, metadata: pa.Table, index: np.ndarray) -> pa.Table:
        if len(index) < len(values):
            chosen = pa.array(index)
            values, metadata = values.take(chosen), metadata.take(chosen)
        if pa.types.is_struct(values.type):
            columns = dict(zip([f.name for f in values.type], values.flatten(), strict=True))
            self._refuse_overwriting(columns)
        else:
            columns = {"value": values}
        rows = pa.table(columns | dict(zip(metadata.column_names, metadata.columns, strict=True)))
        # What is known of the JSON in a field stands in its metadata.
        known = {f.name: f.metadata for f in values.type} if pa.types.is_struct(values.type) else {}
        fields = [f.with_metadata(known.get(f.name)) for f in rows.schema]
        return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))

    def _refuse_overwriting(self, columns: Mapping[str, pa.Array]) -> None:
        """Of a target that has columns of provenance, all may be null."""
        for metadata, name in self._connector.provenance_columns.items():
            held = columns.get(name) if name in records.METADATA else None
            if held is not None and held.null_count < len(held):
                raise provenance_conflict(metadata, name, f"{name} is a field of the values")

    def _transformed(
        self, rows: pa.Table, index: np.ndarray, failed: dict[int, Failed]
    ) -> pa.Table:
        """Apply the transform; where it raises, find the records it raises for by halving."""
        try:
            return self._apply(rows)
        except ConfigError:
            raise
        except Exception as error:
            if rows.num_rows == 1:
                at = int(index[0])
                failed[at] = Failed(at, "TRANSFORMATION", _full_name(error), str(error))
                return rows.slice(0, 0)
        middle = rows.num_rows // 2
        parts = [
            self._transformed(rows.slice(0, middle), index[:middle], failed),
            self._transformed(rows.slice(middle), index[middle:], failed),
        ]
        whole = [p for p in parts if p.num_rows]
        return pa.concat_tables(whole, promote_options="permissive") if whole else parts[0]

    def _apply(self, rows: pa.Table) -> pa.Table:
        assert self._transform is not None
        batch = rows.combine_chunks().to_batches()[0]
        try:
            result = self._transform(batch)
        except AttributeError as error:
            if error.obj is not batch:
                raise
            raise ConfigError(
                f"the transform asks for {error.name}, which a pyarrow.RecordBatch does not have. "
                "To be given a Spark DataFrame, set engine=micro-batch, or annotate it with "
                "DataFrame"
            ) from None
        if isinstance(result, pa.RecordBatch):
            result = pa.Table.from_batches([result])
        if not isinstance(result, pa.Table):
            raise ConfigError(
                "the transform must return a pyarrow RecordBatch or Table, not "
                f"{type(result).__name__}"
            )
        missing = [
            n for n in records.METADATA if n in batch.schema.names and n not in result.column_names
        ]
        if missing:
            raise ConfigError(
                f"the transform dropped the metadata column {missing[0]}; let the columns that "
                "start with __connect_ pass"
            )
        coordinates = result.select([records.PARTITION, records.OFFSET])
        distinct = coordinates.group_by(coordinates.column_names, use_threads=False).aggregate([])
        if distinct.num_rows < result.num_rows:
            raise ConfigError(
                "the transform repeats a record; on the direct engine one record makes at most "
                "one row. Use a DataFrame transform with engine=micro-batch"
            )
        return result


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; what is one already is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _full_name(error: Exception) -> str:
    """An exception's class as Python shows it, with its module unless that is Python's own."""
    kind = type(error)
    inner = kind.__module__ == "builtins"
    return kind.__qualname__ if inner else f"{kind.__module__}.{kind.__qualname__}"


def count_by_partition(table: pa.Table | None, column: str = records.PARTITION) -> dict[int, int]:
    """How many rows each partition has."""
    if table is None or not table.num_rows:
        return {}
    counts = pc.value_counts(table.column(column)).to_pylist()
    return {c["values"]: c["counts"] for c in counts}
