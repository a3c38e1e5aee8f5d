"""From raw records to rows for the sink: converters, then the transforms, then columns, on one
topic's Arrow batch.

All engines use it. A bad record raises nothing here: it is reported by its index in the raw batch,
with Kafka Connect's name for the stage, and ``errors.tolerance`` tells the engine what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import converters, transforms
from semel.config import ConnectorConfig, under
from semel.converters.base import Converter, Decoded, Failure
from semel.converters.json.numbers import changed, fractions, holds_mixed, is_mixed
from semel.converters.json.text import kind, shown
from semel.converters.json.write import Writer
from semel.converters.semantic import SemanticType, plain
from semel.core import records
from semel.core.errors import ConfigError
from semel.core.records import DATA_EXCEPTION, ConnectRecords, Facts, Records, one_array
from semel.sinks.base import Sink
from semel.sinks.changes import in_turn
from semel.sinks.flatten import VALUE, by_fields, flattened, lines
from semel.tasks.transform import FailedRecord, Transform, by_topic, chained, transformed
from semel.tasks.unplaced import Counts, FieldCheck, sum_of
from semel.transforms.chain import Mixed
from semel.transforms.debezium import Unwrapper, are_change_events

_REPLACE = "replace.null.with.default"
"""A key of JDBC sinks, which do so with what they are given, and of converters."""
_KEEP_NULLS = "ignore.default.for.nullables"
"""A key of Avro's converter; JSON's has replaced nulls before Debezium's sink sees them."""
_WRITER = Writer(embedded=True, numeric=True)
_FIELD = 5
"""The fewest bytes of a field of a JSON object, with the comma after it."""


@dataclass(frozen=True, slots=True)
class ConvertedRecords:
    """One topic's records, ready for the sink, those that failed, and how many the transforms left
    out. There are several ``parts`` only if transforms send records to several targets, or if
    their schemas contradict each other. ``unplaced`` counts the values that reach no column."""

    parts: Sequence[Records]
    failed: Sequence[FailedRecord]
    filtered: int = 0
    unplaced: Counts = field(default_factory=dict)

    @property
    def records(self) -> Records:
        """The records, if all go to one target."""
        (whole,) = self.parts
        return whole


class Pipeline:
    """Converters and transforms of one task; they may remember schemas between batches.

    ``target`` gives the fields that a topic's target takes; ``schemas`` holds what the driver
    inferred for topics without a target, so that all tasks agree. ``frames`` says that a DataFrame
    transform follows: it gets all metadata, and the target's columns do not describe the values.
    ``lacking`` is that of the sink, as this task may call it.
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
        lacking: Callable[[str, Collection[str]], Collection[str]] | None = None,
    ) -> None:
        self._connector = connector
        self._unplaced = None if frames else FieldCheck(connector, sink, lacking)
        self._sink = sink
        self._wants = sink.capabilities
        self._target = target
        self._transform = transform
        self._chain = transforms.chain_of(connector.originals)
        self._wants_all = transform is not None or frames
        self._splits = not (self._chain.goes_by_topic or self._wants.ignores_topics)
        self._changes = self._wants_all or self._chain.changes_contents or self._splits
        self._transforms = self._changes or self._chain.reads_contents
        tells = self._wants.tells_schemas and not frames
        self._tells_absence = (self._wants.writes_documents and not frames) or (
            tells and self._transforms and self._transform is None
        )
        self._tells_schemas = self._tells_absence or tells
        csv = self._wants.writes_text and not self._wants.writes_documents
        self._tells_numbers = self._tells_absence and not csv and transform is None
        self._schemas = dict(schemas or {})
        self._converters: dict[tuple[str, bool], Converter] = {}
        takes_events = self._wants.takes_change_events
        self._unwrapper = Unwrapper(connector.name) if takes_events else None

    @property
    def wants_key(self) -> bool:
        return self._wants.uses_key or self._wants_all or self._chain.needs_key

    @property
    def wants_timestamp(self) -> bool:
        carried = records.TIMESTAMP in self._wants.carries
        needed = self._wants_all or self._chain.needs_timestamp
        return self._connector.provenance or needed or carried

    @property
    def replaces(self) -> bool:
        """Whether the sink keeps the last record of each key."""
        return self._wants.replaces

    @property
    def wants_headers(self) -> bool:
        return records.HEADERS in self._wants.carries or self._chain.needs_headers

    @property
    def passes_bytes(self) -> bool:
        """Whether keys and values reach the sink as they came: nothing changes them."""
        return self._wants.takes_bytes and not self._changes

    @property
    def needs_fields(self) -> bool:
        """Whether the sink, or what comes before it, works on the fields of values."""
        return self._changes or not (self._wants.takes_bytes or self._wants.takes_text)

    def schema(self, topic: str) -> pa.Schema | None:
        """The fields to look for in values: the driver's inference, else the target's columns.

        With a transform, the target's columns do not describe the values; a target of bytes has
        none.
        """
        if topic not in self._schemas and not self._transforms and self.needs_fields:
            schema = self._target(topic)
            if schema is not None:
                self._schemas[topic] = schema
        return self._schemas.get(topic)

    def add_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Add the schemas that the driver has inferred."""
        self._schemas |= schemas

    def infer(self, topic: str, raw: pa.Table) -> pa.Schema | None:
        """The fields found in a sample; remembered for :meth:`convert`."""
        column = one_array(raw.column("value"))
        wide = self._too_wide(column)
        if wide:
            column = column.filter(pc.invert(_rows_of(wide, column)))
        if self._unwrapper is None:
            schema = self._converter(topic, is_key=False).infer(column)
        else:
            rows = self._values(topic, raw, {}, {}).values
            if not self._chain and are_change_events(rows):
                rows = self._unwrapper.unwrap(rows)[0]
            schema = pa.schema(list(rows.type)) if pa.types.is_struct(rows.type) else None
        if schema is not None:
            self._schemas[topic] = schema
        return schema

    def convert(self, topic: str, raw: pa.Table) -> ConvertedRecords:
        """Convert one topic's raw batch (see :mod:`semel.core.records`)."""
        failed: dict[int, FailedRecord] = {}
        unread: dict[str, int] = {}
        records, apart = self._decoded(topic, raw, failed, unread)
        if apart is not None and self._unplaced is not None:  # a DataFrame has one schema
            return self._apart(topic, raw, apart)
        index = np.delete(np.arange(raw.num_rows), list(failed))
        if failed:
            records = records.take(pa.array(index))
        total, unreadable, topics = len(records), len(failed), None
        if self._chain:
            typed = self._has_schemas(topic)
            try:
                records, index, refused, topics = chained(
                    self._chain,
                    records,
                    index,
                    *typed,
                    takes_apart=self._unplaced is not None,
                    by_number=self._tells_numbers,
                )
            except Mixed as mixed:
                labels = np.zeros(raw.num_rows, np.int64)
                labels[index] = mixed.labels
                return self._apart(topic, raw, labels)
            failed |= {f.index: f for f in refused}
        if self.passes_bytes:  # decoding has shown that they are good
            records = self._as_read(raw, records, index)
        if self._unwrapper is not None:
            records, index = self._unwrapped(self._unwrapper, records, index, failed)
        if self._transform is not None:
            records = replace(
                records,
                keys=changed(records.keys, fractions),
                values=changed(records.values, fractions),
            )
            result = transformed(self._connector.name, self._transform, records)
            records = self._whole(result.records)
            for f in result.failed:
                at = int(index[f.index])
                failed[at] = replace(f, index=at)
        if self._wants.only_objects and not self._typed(topic):
            records, index = _objects(records, index, failed)
        if self._wants.takes_text:
            records = self._as_lines(topic, raw, records, index)
        split = [records] if topics is None or not self._splits else by_topic(records, topics)
        flat = [piece for part in split for piece in self._flattened(topic, part)]
        filtered = total - len(records) - (len(failed) - unreadable)
        if self._unplaced is not None and self._transforms:
            for place, part in enumerate(flat):
                flat[place] = self._usable(self._unplaced, part, raw, failed)
        unplaced = self._leave_out_unplaced(topic, flat, unread)
        return ConvertedRecords(flat, [failed[i] for i in sorted(failed)], filtered, unplaced)

    def flatten(self, records: ConnectRecords) -> tuple[list[Records], Counts]:
        """What a program has made, for the sink, and how many values reach no column."""
        if self._wants.takes_text:
            records = replace(records, values=lines(records.values))
        flat = self._flattened(records.topic, self._whole(records))
        parts = [replace(part, tells_nulls=False) for part in flat]
        return parts, self._leave_out_unplaced(records.topic, parts, {})

    def _apart(self, topic: str, raw: pa.Table, labels: np.ndarray) -> ConvertedRecords:
        """Convert records whose schemas contradict each other in batches of their own, so that each
        is judged as if it had come alone."""
        together = np.argsort(labels, kind="stable")
        pieces = np.split(together, np.flatnonzero(np.diff(labels[together])) + 1)
        pieces.sort(key=lambda rows: rows[0])
        converted = [self.convert(topic, raw.take(pa.array(rows))) for rows in pieces]
        failed = [
            replace(f, index=int(rows[f.index]))
            for rows, piece in zip(pieces, converted, strict=True)
            for f in piece.failed
        ]
        parts = [part for piece in converted for part in piece.parts]
        parts = [part for part in parts if part.count] or parts[:1]
        return ConvertedRecords(
            self._in_turn(parts),
            sorted(failed, key=lambda f: f.index),
            sum(piece.filtered for piece in converted),
            sum_of(piece.unplaced for piece in converted),
        )

    def _in_turn(self, parts: list[Records]) -> list[Records]:
        if self._wants.any_order or len(parts) < 2:
            return parts
        keys = None
        with suppress(ConfigError):  # some lack a field of the key: the sink says which
            keys = [self._sink.key_of(p) for p in parts] if self._wants.replaces else None
        return in_turn(parts, keys)

    def _flattened(self, topic: str, records: ConnectRecords) -> list[Records]:
        has_schema = self._typed(topic)
        tells = self._tells_schemas if has_schema else self._tells_absence
        flat = flattened(
            records,
            deletes=self._wants.takes_tombstones,
            provenance=self._connector.provenance_columns,
            has_schema=has_schema,
            tells_absence=tells,
        )
        flat = replace(flat, tells_nulls=tells and not self._fills_fields(topic))
        if self._unplaced is None or not self._wants.writes_documents:
            flat = self._with_numbers(flat)
        return self._in_turn(by_fields(flat)) if has_schema and tells else [flat]

    def _with_numbers(self, part: Records) -> Records:
        """Fields of whole numbers and fractions as they are where the target has a column that
        takes each in its own way; fractions elsewhere."""
        rows, columns = part.rows, None
        for at, f in enumerate(rows.schema):
            if not (is_mixed(f) or holds_mixed(f.type)):
                continue
            if columns is None:
                target = None if self._unplaced is None else self._target(part.topic)
                columns = [] if target is None else target.names
            values = one_array(rows.column(at))
            if f.name in columns and is_mixed(f):
                rows = rows.set_column(at, f.remove_metadata(), values)
            elif is_mixed(f):
                rows = rows.set_column(at, *fractions(f, values))
            else:
                values = changed(values, fractions)
                rows = rows.set_column(at, f.with_type(values.type), values)
        return replace(part, rows=rows)

    def _leave_out_unplaced(
        self, topic: str, parts: list[Records], unread: Mapping[str, int]
    ) -> Counts:
        """Take fields without a column out of the records; returns how many values that leaves
        out, with those that the converter has left out."""
        if self._unplaced is None:
            return {}
        counts: list[Counts] = [self._unplaced.unread(topic, unread)] if unread else []
        for place, part in enumerate(parts):
            parts[place], left_out = self._unplaced.without(part, typed=part.has_schema)
            counts.append(left_out)
        return sum_of(counts)

    def _usable(
        self, unplaced: FieldCheck, part: Records, raw: pa.Table, failed: dict[int, FailedRecord]
    ) -> Records:
        """Records without those whose fields the target takes none of."""
        useless: dict[int, str] = {}
        if not part.has_schema:
            useless = unplaced.useless(part, self._target, told=self._tells_absence)
        for at, why in useless.items():
            bad = _row_of(raw, part.rows, at)
            failed[bad] = FailedRecord(bad, "VALUE_CONVERTER", DATA_EXCEPTION, why)
        if useless:
            kept = np.delete(np.arange(part.rows.num_rows), list(useless))
            return replace(part, rows=part.rows.take(pa.array(kept)))
        return part

    def _as_read(self, raw: pa.Table, records: ConnectRecords, index: np.ndarray) -> ConnectRecords:
        """The records with the bytes of their keys and values."""
        table = raw.select(["key", "value"] if self.wants_key else ["value"])
        if len(index) < raw.num_rows:
            table = table.take(pa.array(index))
        keys = one_array(table.column("key")) if self.wants_key else records.keys
        return replace(records, keys=keys, values=one_array(table.column("value")))

    def _whole(self, records: ConnectRecords) -> ConnectRecords:
        """What a program has made. A lone column ``value`` becomes the whole value if it is what
        the sink writes: bytes, or the text of lines."""
        if _names(records.values) != [VALUE]:
            return records
        values = pc.struct_field(records.values, VALUE)
        is_whole = self._wants.takes_bytes and pa.types.is_binary(values.type)
        return replace(records, values=values) if is_whole or self._wants.takes_text else records

    def _as_lines(
        self, topic: str, raw: pa.Table, records: ConnectRecords, index: np.ndarray
    ) -> ConnectRecords:
        """The records with their values as lines."""
        values = records.values
        if not self._changes:
            written = raw.column("value")
            written = written.take(pa.array(index)) if len(index) < raw.num_rows else written
            values = self._converter(topic, is_key=False).as_written(one_array(written), values)
        return replace(records, values=lines(values))

    def _has_schemas(self, topic: str) -> tuple[bool, bool]:
        """Whether keys and values come with schemas."""
        keys = self.wants_key and self._converter(topic, is_key=True).has_schemas
        return keys, self._converter(topic, is_key=False).has_schemas

    def _typed(self, topic: str) -> bool:
        """Whether values have a schema, their own or that of what a program has made."""
        return self._transform is not None or self._has_schemas(topic)[1]

    def _fills_fields(self, topic: str) -> bool:
        """Whether a null may stand for a field that a record lacks."""
        fills = self._transform is not None or self._chain.fills_fields
        return fills or self._converter(topic, is_key=False).fills_fields

    def _unwrapped(
        self,
        unwrapper: Unwrapper,
        records: ConnectRecords,
        index: np.ndarray,
        failed: dict[int, FailedRecord],
    ) -> tuple[ConnectRecords, np.ndarray]:
        values: pa.Array = records.values
        wrong: Sequence[Failure] = ()
        if are_change_events(values):
            values, wrong = unwrapper.unwrap(values)
        for f in wrong:
            at = int(index[f.index])
            failed[at] = FailedRecord(at, "VALUE_CONVERTER", f.exception, f.message)
        # Truncations have no key and delete no row.
        gone = pc.and_(values.is_null(), records.keys.is_null()).to_numpy(zero_copy_only=False)
        gone[[f.index for f in wrong]] = True
        kept = np.flatnonzero(~gone)
        return replace(records, values=values).take(pa.array(kept)), index[kept]

    def _decoded(
        self, topic: str, raw: pa.Table, failed: dict[int, FailedRecord], unread: dict[str, int]
    ) -> tuple[ConnectRecords, np.ndarray | None]:
        """The records, and a number for each if their schemas contradict each other."""
        keys = self._keys(topic, raw, failed)
        values = self._values(topic, raw, failed, unread)
        apart = values.apart if keys.apart is None else keys.apart
        if keys.apart is not None and values.apart is not None:
            apart = keys.apart * (int(values.apart.max()) + 1) + values.apart
        origin = {
            records.TOPIC: pa.repeat(pa.scalar(topic), raw.num_rows),
            records.PARTITION: raw.column("partition"),
            records.OFFSET: raw.column("offset"),
        }
        if "timestamp" in raw.column_names and (self.wants_timestamp or self.replaces):
            origin[records.TIMESTAMP] = raw.column("timestamp")
        headers = one_array(raw.column("headers")) if self.wants_headers else None
        key, value = keys.values, values.values
        facts = [{**_facts(whole.values), **whole.facts} for whole in (keys, values)]
        if self._transforms or self._wants.takes_text:  # they know fields that are described only
            key, value = plain(key), plain(value)
        converted = ConnectRecords(topic, pa.table(origin), key, value, headers, *facts)
        return converted, apart

    def _converter(self, topic: str, *, is_key: bool) -> Converter:
        if (topic, is_key) not in self._converters:
            connector = self._connector
            name = connector.key_converter if is_key else connector.value_converter
            where = "key.converter" if is_key else "value.converter"
            settings = under(connector.originals, f"{where}.")
            if connector.originals.get(_REPLACE, "").strip().lower() == "false":
                settings = {**settings, _REPLACE: "false"}
            if self._wants.takes_change_events and not is_key:
                settings = {**settings, _KEEP_NULLS: "true"}
            converter = self._converters[topic, is_key] = converters.create(
                name,
                settings,
                is_key=is_key,
                where=where,
                evolve=self._wants.evolves or self._transforms,
            )
            if self._chain.reads_contents or self._wants.writes_text:
                converter.keep_text()
            if (self._transforms or self._tells_absence) and self._unplaced is not None:
                converter.expect_others()
            if self._unplaced is not None:
                converter.take_any()
            if self._unplaced is not None and self._unplaced.counts:
                converter.count_unread()
            if self._wants.takes_bytes and self._changes:
                converter.tell_names_apart()
            as_written = self.passes_bytes or (self._reads_json and not self.needs_fields)
            if self._tells_schemas and not as_written:
                converter.tell_fields_apart()
            if self._tells_absence and self.needs_fields:
                converter.tell_absence()
            writes = self.needs_fields and (self._transforms or self._wants.writes_documents)
            if writes and self._transform is None and self._unplaced is not None:
                converter.keep_numbers()
        return self._converters[topic, is_key]

    def _keys(self, topic: str, raw: pa.Table, failed: dict[int, FailedRecord]) -> Decoded:
        if not self.wants_key:
            return Decoded(pa.nulls(raw.num_rows))
        decoded = self._converter(topic, is_key=True).decode(one_array(raw.column("key")))
        for f in decoded.failures:
            failed[f.index] = FailedRecord(f.index, "KEY_CONVERTER", f.exception, f.message)
        return decoded

    def _too_wide(self, column: pa.Array) -> dict[int, FailedRecord]:
        """JSON objects with more fields than the target can have columns. They are set aside before
        they are decoded: every other record of the batch would get these columns, too."""
        most = self._wants.most_columns
        if most is None or self._transforms or not self._reads_json:
            return {}
        large = pc.indices_nonzero(pc.greater(pc.binary_length(column), _FIELD * most))
        if not len(large):
            return {}
        many = pc.greater(pc.count_substring(column.take(large), ":"), most)
        failed = {}
        for row in large.filter(many).to_pylist():
            count = _fields_of(column[row].as_py())
            if count > most:
                text = f"it has {count:,} fields, and the target has {most:,} columns at most"
                failed[row] = FailedRecord(row, "VALUE_CONVERTER", records.DATA_EXCEPTION, text)
        return failed

    @property
    def _reads_json(self) -> bool:
        return converters.full_name(self._connector.value_converter).endswith(".JsonConverter")

    def _values(
        self, topic: str, raw: pa.Table, failed: dict[int, FailedRecord], unread: dict[str, int]
    ) -> Decoded:
        column = one_array(raw.column("value"))
        wide = self._too_wide(column)
        if wide:
            failed |= wide
            column = pc.if_else(_rows_of(wide, column), None, column)
        decoded = self._converter(topic, is_key=False).decode(column, self.schema(topic))
        for f in decoded.failures:
            failed[f.index] = FailedRecord(f.index, "VALUE_CONVERTER", f.exception, f.message)
        unread.update(decoded.unread)
        return decoded


def _objects(
    records: ConnectRecords, index: np.ndarray, failed: dict[int, FailedRecord]
) -> tuple[ConnectRecords, np.ndarray]:
    """The records without those whose values are neither objects nor null."""
    if pa.types.is_struct(records.values.type) or not len(records):
        return records, index
    there = np.asarray(records.values.is_valid())
    texts = _WRITER.texts(records.values).filter(pa.array(there)).to_pylist()
    for at, text in zip(index[there].tolist(), texts, strict=True):
        why = f"{shown(text)} is {kind(text)}, not an object"
        failed[at] = FailedRecord(at, "VALUE_CONVERTER", DATA_EXCEPTION, why)
    return records.take(pa.array(np.flatnonzero(~there))), index[~there]


def _row_of(raw: pa.Table, rows: pa.Table, at: int) -> int:
    """The record that a row is made of."""
    partition, offset = (rows.column(n)[at] for n in (records.PARTITION, records.OFFSET))
    mask = pc.and_(
        pc.equal(raw.column("partition"), partition), pc.equal(raw.column("offset"), offset)
    )
    return int(pc.index(mask, True).as_py())


def _facts(values: pa.Array) -> Facts:
    return values.type.facts if isinstance(values.type, SemanticType) else {}


def _rows_of(failed: Mapping[int, FailedRecord], column: pa.Array) -> pa.Array:
    mask = np.zeros(len(column), np.bool_)
    mask[list(failed)] = True
    return pa.array(mask)


def _fields_of(value: bytes) -> int:
    """How many fields a JSON object has, or the payload of one with a schema."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return 0  # the converter says what is wrong
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        parsed = parsed["payload"]
    return len(parsed) if isinstance(parsed, dict) else 0


def _names(values: pa.Array) -> list[str]:
    return [f.name for f in values.type] if pa.types.is_struct(values.type) else []


def count_by_partition(table: pa.Table | None) -> dict[int, int]:
    """How many rows each partition has."""
    if table is None or not table.num_rows:
        return {}
    counts = pc.value_counts(table.column(records.PARTITION)).to_pylist()
    return {c["values"]: c["counts"] for c in counts}
