"""A value is itself in a lake's table, or its record is refused: as JSON, and as Arrow."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema as Columns
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from semel.converters.json.converter import JsonConverter
from semel.core.records import Commit, RowsRejected
from semel.sinks.base import Sink
from tests.sinks.delta.conftest import Lake
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import records
from tests.sinks.test_semantic_types import written
from tests.sinks.test_values import (
    EITHER,
    FIXED,
    INT64,
    REFUSED,
    boolean,
    date,
    decimal,
    floating,
    literals,
    string,
    time,
    timestamp,
    whole,
)

UTC = pa.timestamp("us", "UTC")


def on_the_wall(text: str) -> Any:
    """A time without its zone: so does Iceberg's own sink."""
    zone = r'([T ]\d\d:\d\d[:.\d]*)(Z|[+-](0\d|1[0-8])(:?[0-5]\d)?)"$'
    return timestamp(re.sub(zone, r'\1"', text))


DELTA = [
    (pa.int8(), whole(-128, 127)),
    (pa.int16(), whole(-(2**15), 2**15 - 1)),
    (pa.int32(), whole(-(2**31), 2**31 - 1)),
    (pa.int64(), INT64),
    (pa.float32(), floating(32)),
    (pa.float64(), floating(64)),
    (pa.decimal128(10, 2), decimal(10, 2)),
    (pa.decimal128(38, 18), decimal(38, 18)),
    (pa.bool_(), boolean),
    (pa.string(), string()),
    (pa.date32(), date),
    (UTC, timestamp),
    (pa.timestamp("us"), timestamp),
]
ICEBERG: list[tuple[IcebergType, Any]] = [
    (IntegerType(), whole(-(2**31), 2**31 - 1)),
    (LongType(), INT64),
    (FloatType(), floating(32)),
    (DoubleType(), floating(64)),
    (DecimalType(10, 2), decimal(10, 2)),
    (DecimalType(38, 0), decimal(38, 0)),
    (BooleanType(), boolean),
    (StringType(), string()),
    (DateType(), date),
    (TimeType(), time),
    (TimestampType(), on_the_wall),
    (TimestamptzType(), timestamp),
]


class Store(ABC):
    """Tables, each of one column ``v`` beside the offset."""

    columns: Sequence[tuple[Any, Any]]

    def __init__(self) -> None:
        self._fresh = itertools.count()

    def name(self) -> str:
        """A table that is not there yet."""
        return f"t{next(self._fresh)}"

    @abstractmethod
    def create(self, name: str, kind: Any) -> None:
        """Make a table by other means than semel's."""

    @abstractmethod
    def sink(self, name: str) -> Sink:
        """A sink that writes topic ``name`` to the table."""

    @abstractmethod
    def read(self, name: str) -> pa.Table:
        """What others read."""

    def write(self, name: str, rows: pa.Table) -> pa.Table:
        """What is there of the rows once those that are refused are left out."""
        sink = self.sink(name)
        while rows.num_rows:
            try:
                ids = rows.column("id").to_pylist()
                sink.write(Commit([records(rows, topic=name, offsets=ids)]))
                break
            except RowsRejected as refusal:
                gone = pa.array([r.offset for r in refusal.rejected], pa.int64())
                rows = rows.filter(pc.invert(pc.is_in(rows.column("id"), gone)))
        return self.read(name)


class Delta(Store):
    columns = DELTA

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._lake = Lake(path)

    def create(self, name: str, kind: pa.DataType) -> None:
        schema = pa.schema([("id", pa.int64()), ("v", kind)])
        DeltaTable.create(str(self._lake.path / name), Schema.from_arrow(schema))

    def sink(self, name: str) -> Sink:
        return self._lake.made(keys={"topics": name})

    def read(self, name: str) -> pa.Table:
        found: pa.Table = self._lake.table(name).to_pyarrow_table()
        return found


class Iceberg(Store):
    columns = ICEBERG

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._warehouse = Warehouse(path)
        self._catalog = self._warehouse.catalog
        self._catalog.create_namespace_if_not_exists("db")

    def create(self, name: str, kind: IcebergType) -> None:
        fields = NestedField(1, "id", LongType()), NestedField(2, "v", kind)
        self._catalog.create_table(f"db.{name}", Columns(*fields))

    def sink(self, name: str) -> Sink:
        made = self._warehouse.made(keys={"topics": name, "iceberg.tables": f"db.{name}"})
        made.prepare([name])
        return made

    def read(self, name: str) -> pa.Table:
        return self._warehouse.arrow(f"db.{name}")


@pytest.fixture(params=[Delta, Iceberg])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield request.param(tmp_path)


def shown(values: pa.ChunkedArray) -> list[Any]:
    """As Python has them; moments are in UTC and without a zone."""
    kind = values.type
    if not pa.types.is_temporal(kind):
        return list(values.to_pylist())
    parse: Any = dt.datetime.fromisoformat
    if pa.types.is_date(kind):
        parse = dt.date.fromisoformat
    elif pa.types.is_time(kind):
        parse = dt.time.fromisoformat
    else:
        values = values.cast(pa.timestamp("us"))
    found = []
    for text in values.cast(pa.string()).to_pylist():
        try:
            found.append(parse(text))
        except ValueError:
            found.append(text)  # a year that Python lacks
    return found


def problems(store: Store, number: int, written: Sequence[str]) -> list[str]:
    kind, becomes = store.columns[number]
    name = store.name()
    store.create(name, kind)
    values = [f'{{"id":{n},"v":{text}}}'.encode() for n, text in enumerate(written)]
    converter = JsonConverter(schemas_enable=False)
    decoded = converter.decode(pa.array(values), store.sink(name).schema(name))
    fields = zip([f.name for f in decoded.values.type], decoded.values.flatten(), strict=True)
    rows = pa.table(dict(fields)).filter(decoded.values.is_valid())
    there = store.write(name, rows)
    found = dict(zip(there.column("id").to_pylist(), shown(there.column("v")), strict=True))
    wrong = []
    for n, text in enumerate(written):
        wanted, held = becomes(text), found.get(n, REFUSED)
        if wanted is EITHER or (wanted is REFUSED and held is REFUSED):
            continue
        if held is REFUSED or wanted is REFUSED or held != wanted:
            said = ["refused" if v is REFUSED else repr(v) for v in (held, wanted)]
            wrong.append(f"{kind}: {text} is {said[0]} instead of {said[1]}")
    return wrong


@pytest.mark.long
def test_a_json_value_is_itself_in_the_table_or_refused(store: Store) -> None:
    found = [w for n in range(len(store.columns)) for w in problems(store, n, FIXED)]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_any_json_value_is_itself_in_the_table_or_refused(store: Store) -> None:
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(literals, st.integers(0, len(store.columns) - 1))
    def check(written: Sequence[str], number: int) -> None:
        found = problems(store, number, written)
        assert not found, "\n".join(found)

    check()


# Typed values, as converters with schemas make them


def integers(kind: pa.DataType) -> st.SearchStrategy[Any]:
    low, high = 0, 2**kind.bit_width - 1
    if pa.types.is_signed_integer(kind):
        low, high = -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, high]))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    whole_units = st.one_of(st.integers(-most, most), st.sampled_from([most, -most]))
    return whole_units.map(lambda n: _units(n, scale))


def _units(n: int, scale: int) -> Decimal:
    sign, digits = (1 if n < 0 else 0), tuple(map(int, str(abs(n))))
    return Decimal((sign, digits, -scale))


DATES = st.dates()
MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
NEAR = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((k, integers(k)) for k in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((k, integers(k)) for k in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *((pa.decimal128(p, s), decimals(p, s)) for p, s in ((1, 0), (9, 9), (18, 2), (38, 18))),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.dictionary(pa.int32(), pa.string()), TEXT),
    (pa.binary(), st.binary(max_size=20)),
    (pa.binary(4), st.binary(min_size=4, max_size=4)),
    (pa.date32(), DATES),
    (
        pa.timestamp("ms"),
        MOMENTS.map(lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000)),
    ),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("ns"), NEAR),
    (UTC, MOMENTS.map(lambda m: m.replace(tzinfo=dt.UTC))),
    (pa.timestamp("ms", "+02:00"), NEAR.map(lambda m: m.replace(microsecond=0, tzinfo=dt.UTC))),
    (pa.time64("us"), st.times()),
]


def nested(
    inner: tuple[pa.DataType, st.SearchStrategy[Any]],
) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    kind, values = inner
    some = st.one_of(st.none(), values)
    fields = {"a": some, "b": st.integers(0, 9)}
    items = st.dictionaries(TEXT, some, max_size=3).map(lambda found: list(found.items()))
    return [
        (pa.list_(kind), st.lists(some, max_size=3)),
        (pa.struct([("a", kind), ("b", pa.int32())]), st.fixed_dictionaries(fields)),
        (pa.map_(pa.string(), kind), items),
    ]


TYPED = [*SCALARS, *itertools.chain.from_iterable(map(nested, SCALARS))]


def plain(value: Any) -> Any:
    """A value without what a lake's type does not tell apart."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, dt.time):
        return value.isoformat("microseconds")
    if isinstance(value, str) and len(value) == 8 and value[2] == value[5] == ":":
        return f"{value}.000000"
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def differing(store: Store, kind: pa.DataType, values: Sequence[Any]) -> list[str]:
    name = store.name()
    column = pa.array(values, kind)
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": column})
    there = store.write(name, rows).sort_by("id")
    found = there.column("v").to_pylist() if "v" in there.column_names else [None] * len(values)
    given_ = column.to_pylist()
    missing = set(range(len(values))) - set(there.column("id").to_pylist())
    if missing:
        return [f"{kind}: {given_[min(missing)]!r} is refused"]
    return [
        f"{kind}: {a!r} became {b!r}"
        for a, b in zip(given_, found, strict=True)
        if plain(a) != plain(b)
    ]


def check_typed(store: Store, examples: int, numbers: Sequence[int]) -> None:
    def claim(kind: pa.DataType) -> Callable[[Sequence[Any]], None]:
        def check(written: Sequence[Any]) -> None:
            found = differing(store, kind, written)
            assert not found, "\n".join(found)

        return check

    for kind, values in [TYPED[n] for n in numbers]:
        lists = st.lists(st.one_of(st.none(), values), min_size=1, max_size=30)
        some = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        some(given(lists)(claim(kind)))()


def test_a_typed_value_is_read_back_as_it_was(store: Store) -> None:
    check_typed(store, 3, range(len(SCALARS)))


@pytest.mark.long
def test_any_typed_value_is_read_back_as_it_was(store: Store) -> None:
    check_typed(store, 5, range(len(TYPED)))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.date32()], ids=str
)
def test_a_time_that_python_does_not_have_is_kept_or_refused_alone(
    store: Store, kind: pa.DataType
) -> None:
    """A producer may write any number as a logical type of Kafka Connect's."""
    most = 2 ** (kind.bit_width - 1)
    numbers = [0, most - 1, -most, 10**5 * 366, None]
    whole_numbers = pa.int32() if kind.bit_width == 32 else pa.int64()
    rows = pa.table({"id": range(5), "v": pa.array(numbers, whole_numbers).cast(kind)})
    found = store.write(store.name(), rows)
    there = dict(
        zip(
            found.column("id").to_pylist(),
            found.column("v").cast(whole_numbers).to_pylist(),
            strict=True,
        )
    )
    scale = 1000 if pa.types.is_timestamp(kind) and kind.unit == "ms" else 1
    assert {0, 4} <= there.keys()
    assert there == {n: v and v * scale for n, v in enumerate(numbers) if n in there}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_a_schema_says_of_a_field_is_the_comment_of_its_column(
    kind: str, tmp_path: Path
) -> None:
    warehouse = Warehouse(tmp_path)
    lake = {"connector.class": "delta", "delta.table.path": str(tmp_path)}
    said = {"field": "v", "type": "int32", "optional": True, "doc": "what it's for \\ ä"}
    fields = [{"field": "id", "type": "int64"}, said, {**said, "field": "w", "doc": "JSON"}]
    value = {"schema": {"type": "struct", "fields": fields}, "payload": {"id": 1, "v": 2, "w": 3}}
    config = lake if kind == "delta" else warehouse.config()
    assert written(config, [json.dumps(value).encode()]) == {}
    if kind == "delta":
        found = [f.metadata.get("comment") for f in DeltaTable(str(tmp_path / "t")).schema().fields]
    else:
        found = [f.doc for f in warehouse.catalog.load_table("db.t").schema().fields]
    assert found == [None, said["doc"], None]  # "JSON" would say that a text holds JSON
