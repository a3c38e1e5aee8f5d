"""How records travel between Kafka, converters, transforms and sinks: as Arrow, with one topic per
batch.

A *raw batch* has the columns of Spark's Kafka source that semel uses: ``key`` and ``value``
(binary), ``partition`` (int32), ``offset`` (int64), and ``timestamp`` (timestamp[ms, UTC]) and
``headers`` (key and value of each) where they are wanted.

Converters turn it into :class:`ConnectRecords`: keys and values of any type. Transforms change
these.

For the sink they are flattened to :class:`Records`: the value's fields as columns, followed by
metadata columns whose names start with ``__connect_``, the names that JDBC sinks give to Kafka
coordinates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TOPIC = "__connect_topic"
PARTITION = "__connect_partition"
OFFSET = "__connect_offset"
TIMESTAMP = "__connect_timestamp"
HEADERS = "__connect_headers"
KEY = "__connect_key"
METADATA = (TOPIC, PARTITION, OFFSET, TIMESTAMP, HEADERS, KEY)
ORIGIN = (TOPIC, PARTITION, OFFSET)
"""Where a record was read. No transform changes it."""

DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""The exception that Kafka Connect raises for a malformed record; dead letters name it."""

Facts = Mapping[str, Any]
"""What a schema says of itself, in the words of Kafka Connect's JSON."""

TIMESTAMP_TYPE = pa.timestamp("ms", "UTC")
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
METADATA_TYPES: dict[str, pa.DataType] = {
    TOPIC: pa.string(),
    PARTITION: pa.int32(),
    OFFSET: pa.int64(),
    TIMESTAMP: TIMESTAMP_TYPE,
}


_LAST_SECOND, _PER_SECOND = 971_890_963_199, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""The end of the year 32767, and the units of times."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be delivered, in its raw form, with the reason.

    ``stage`` and ``exception``, the full name of a class, follow Kafka Connect's error context
    (KIP-298).
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp: int | None
    stage: str
    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class ConnectRecords:
    """Records as Kafka Connect sees them, in columns of equal length.

    ``origin`` says where each was read: topic, partition, offset and, where it is wanted, the
    timestamp, in metadata columns. It never changes: counts, positions and dead letters go by it.
    (Records of a source have no place in Kafka yet: they have the partition and the time that they
    are to get, if the source or a transform chose them.) A transform may change everything else:
    ``topic``, where the records go, ``keys`` and ``values``, which may be of any type, and
    ``headers``. A null value is a tombstone. The metadata of fields holds what Connect's schema
    says beyond the Arrow type, and the facts what the schemas of keys and values say of themselves:
    name, version, doc, parameters and default. Structs may hold fields that some records lack, see
    :func:`absence`.
    """

    topic: str
    origin: pa.Table
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None = None
    key_facts: Facts = field(default_factory=dict)
    value_facts: Facts = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.origin.num_rows)

    def take(self, indices: pa.Array) -> ConnectRecords:
        """The records at these indices, in this order."""
        return replace(
            self,
            origin=self.origin.take(indices),
            keys=self.keys.take(indices),
            values=self.values.take(indices),
            headers=None if self.headers is None else self.headers.take(indices),
        )


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a commit that were read from one topic and go to one topic's target, as a sink
    takes them.

    ``rows`` are upserts or inserts; ``tombstones`` (null values) hold metadata columns only and are
    deletes. Partition and offset order the two. A commit has several parts for one target if the
    schemas of its records contradict each other. ``topic`` is where they go and names the target.
    They were read from ``origin``, which the metadata column ``__connect_topic`` holds: anything
    that identifies a record must use it.

    Values without fields are in the column ``value``, and ``has_fields`` is False. The facts are
    those of :class:`ConnectRecords`. ``declared`` are the fields of values with a schema, as that
    declares them: whether they may be null, their defaults and descriptions. ``has_schema`` says
    that values have one. For sinks that write documents, ``rows`` also say which fields a record
    lacks, see :func:`absences`. ``tells_nulls`` says that nulls are values that records hold;
    otherwise, one may stand for a field that a record lacks.
    """

    topic: str
    rows: pa.Table
    tombstones: pa.Table | None = None
    has_fields: bool = True
    key_facts: Facts = field(default_factory=dict)
    value_facts: Facts = field(default_factory=dict)
    declared: Mapping[str, pa.Field] = field(default_factory=dict)
    has_schema: bool = True
    tells_nulls: bool = False

    @property
    def count(self) -> int:
        return int(self.rows.num_rows) + (self.tombstones.num_rows if self.tombstones else 0)

    @property
    def origin(self) -> str:
        """The topic that they were read from; where they go, if there are none."""
        for table in (self.rows, self.tombstones):
            if table is not None and table.num_rows:
                return str(table.column(TOPIC)[0].as_py())
        return self.topic


def by_target(parts: Iterable[Records]) -> dict[tuple[str, str], list[Records]]:
    """Parts by the topic they were read from and the one that they go to."""
    groups: dict[tuple[str, str], list[Records]] = {}
    for part in parts:
        if part.count:
            groups.setdefault((part.origin, part.topic), []).append(part)
    return groups


def united(parts: Iterable[Records]) -> Iterator[Records]:
    """For each target that several parts go to, one row of nulls with the columns of all of them:
    what the target must have to take them. Numbers are as wide as the widest; if the types of a
    column contradict each other, the first one counts."""
    for group in by_target(p for p in parts if p.rows.num_rows).values():
        first = group[0]
        several = [p for p in group if p.has_fields == first.has_fields]
        if len(several) < 2:
            continue
        fields: dict[str, list[pa.Field]] = {}
        for column in itertools.chain.from_iterable(p.rows.schema for p in several):
            if not is_absence(column.name):
                fields.setdefault(column.name, []).append(column)
        row, columns = first.rows.slice(0, 1), {}
        for name in value_columns(list(fields)):
            typed = [f for f in fields[name] if not pa.types.is_null(f.type)] or fields[name]
            columns[name] = typed[0].with_nullable(True)
            with suppress(pa.ArrowTypeError, pa.ArrowInvalid):
                own = [pa.schema([f.with_nullable(True)]) for f in typed]
                columns[name] = pa.unify_schemas(own, promote_options="permissive").field(0)
        metadata = [f for f in row.schema if f.name in METADATA]
        values = [pa.nulls(1, f.type) for f in columns.values()]
        rows = pa.table(
            [*values, *(row.column(f.name) for f in metadata)],
            schema=pa.schema([*columns.values(), *metadata]),
        )
        declared: dict[str, pa.Field] = {}
        for part in reversed(several):
            for name, column in part.declared.items():
                other = declared.get(name, column)
                lacked = len(fields.get(name, ())) < len(several)
                declared[name] = column.with_nullable(column.nullable or other.nullable or lacked)
        yield replace(first, rows=rows, tombstones=None, declared=declared)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A converted record that the sink cannot take, by its origin. With ``left_out`` the sink's own
    configuration chooses to leave it out where ``errors.tolerance`` is ``none``."""

    topic: str
    partition: int
    offset: int
    exception: str
    message: str
    left_out: bool = False


class RowsRejected(Exception):
    """Raised by a sink, with nothing written: these records do not fit; the others may. There is at
    least one: the engines commit again without them."""

    def __init__(self, rejected: Sequence[RejectedRecord]) -> None:
        if not rejected:
            raise ValueError("a sink refuses records, but names none of them")
        super().__init__(f"{len(rejected)} records do not fit")
        self.rejected = rejected


def rejected(
    source: pa.Table, index: int, message: str, exception: str = DATA_EXCEPTION
) -> RejectedRecord:
    """The record behind a row, or a tombstone, that the sink cannot take."""
    topic, partition, offset = (source.column(n)[index].as_py() for n in ORIGIN)
    return RejectedRecord(topic, partition, offset, exception, message)


def all_rejected(why: str, *sources: pa.Table | None) -> RowsRejected:
    """The error that refuses all records behind some tables of rows or tombstones."""
    tables = [source for source in sources if source is not None]
    return RowsRejected([rejected(s, i, why) for s in tables for i in range(s.num_rows)])


def some_rejected(source: pa.Table, reasons: Mapping[int, str]) -> RowsRejected:
    """The error that refuses the records behind some rows, each for its reason."""
    return RowsRejected([rejected(source, i, why) for i, why in sorted(reasons.items())])


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything that becomes visible together: the rows of each topic and the dead letters.

    ``along`` is for a sink whose ledger is the consumer group's cluster: it takes a producer, and
    what to call with a record that is not delivered, and sends more in the same transaction.
    """

    records: Sequence[Records]
    dead_letters: Sequence[DeadLetter] = field(default=())
    along: Callable[[Any, Any], None] | None = None


def check_years(values: pa.Array | pa.ChunkedArray) -> None:
    """Raises ArrowInvalid for dates and times so far away that Arrow has other texts for them."""
    kind = values.type
    if pa.types.is_date(kind):
        counts, a_second = values.cast(pa.date32()).cast(pa.int32()), 1 / 86_400
    elif pa.types.is_timestamp(kind):
        counts, a_second = values.cast(pa.int64()), _PER_SECOND[kind.unit]
    else:
        return
    bounds = pc.min_max(counts).as_py()
    if max(-(bounds["min"] or 0), bounds["max"] or 0) > _LAST_SECOND * a_second:
        raise pa.ArrowInvalid("its year is beyond 32767, and no text can hold it")


def known_times(stamps: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The times of Kafka's records, null for those that have none: Kafka's protocol says -1."""
    none = pa.scalar(-1, TIMESTAMP_TYPE).cast(stamps.type)
    return pc.if_else(pc.equal(stamps, none), pa.scalar(None, stamps.type), stamps)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; a single chunk is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def list_offsets(lists: pa.Array) -> pa.Array:
    """The offsets into what ``flatten`` returns, which omits the elements outside a slice."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def lists_like(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Lists of the same lengths and nulls with other elements."""
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(list_offsets(lists), elements, mask=mask)


def nested_field(
    column: pa.Array | pa.ChunkedArray, path: Sequence[str]
) -> pa.Array | pa.ChunkedArray | None:
    """The field at a path below a column of structs; None if there is none. An empty path is the
    column itself."""
    for name in path:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return None
        column = pc.struct_field(column, name)
    return column


def value_columns(names: Sequence[str]) -> list[str]:
    """The column names that are fields of values."""
    return [n for n in names if n not in METADATA and not n.startswith(_ABSENT)]


_ABSENT = "\0absent:"


def absence(name: str) -> str:
    """The name of the booleans, beside a field, that say which structs lack the field. They lack
    none if there are no such booleans, and have the field where these are null."""
    return _ABSENT + name


def is_absence(name: str) -> bool:
    """Whether this is the name of such booleans."""
    return name.startswith(_ABSENT)


def named_by(name: str) -> str:
    """The field that such booleans are about, by their name."""
    return name.removeprefix(_ABSENT)


def members(structs: pa.StructArray) -> Iterator[tuple[pa.Field, pa.Array, pa.Array | None]]:
    """The fields of structs with their values, and which structs lack each; None if none does."""
    arrays = dict(zip(structs.type.names, structs.flatten(), strict=True))
    for member in structs.type:
        if not is_absence(member.name):
            yield member, arrays[member.name], arrays.get(absence(member.name))


def absences(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The fields that some rows lack, and which rows do."""
    masks = {
        n: rows.column(absence(n))
        for n in value_columns(rows.column_names)
        if absence(n) in rows.column_names
    }
    return {n: pc.fill_null(rows_, False) for n, rows_ in masks.items()}


def tells_absence(kind: pa.DataType) -> bool:
    """Whether structs of a type, or structs inside, may lack fields."""
    if not pa.types.is_nested(kind):
        return False
    inside = [kind.field(n) for n in range(kind.num_fields)]
    return any(is_absence(f.name) or tells_absence(f.type) for f in inside)


def without_absence(values: pa.Array) -> pa.Array:
    """The values with nulls in the place of fields that a struct lacks."""
    if not tells_absence(values.type):
        return values
    mask = values.is_null() if values.null_count else None
    if pa.types.is_struct(values.type):
        kept = [
            (f, without_absence(values.field(n)))
            for n, f in enumerate(values.type)
            if not is_absence(f.name)
        ]
        fields = [f.with_type(array.type) for f, array in kept]
        return pa.StructArray.from_arrays([a for _, a in kept], fields=fields, mask=mask)
    if pa.types.is_list(values.type):
        return lists_like(values, without_absence(values.flatten()))
    return values
