"""Files are skipped by statistics, and never one that holds what is looked for."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, TableFeatures, write_deltalake

from semel.core.records import Commit
from semel.sinks.delta import statistics
from tests.engine.harness import some
from tests.sinks.delta.conftest import Lake
from tests.sinks.target import advance, records

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "k"}
COMPACT = {"auto.compact.min.files": 2}


def decimals(precision: int, scale: int) -> pa.Array:
    """Some with all digits, the least one, the greatest one."""
    some = random.Random(precision * 100 + scale)
    digits = [some.randrange(10 ** (precision - 1), 10**precision) for _ in range(4)]
    exact = decimal.Context(prec=50)
    found = [
        decimal.Decimal(n).scaleb(-scale, exact)
        for n in [*digits, -digits[0], 1, 10**precision - 1]
    ]
    return pa.array(found, pa.decimal128(precision, scale))


def put_one_by_one(lake: Lake, values: pa.Array, keys: dict[str, Any], times: int = 1) -> None:
    sink = lake.sink(keys=keys)
    for n in range(len(values) * times):
        column = values.slice(n % len(values), 1)
        row = pa.table({"k": column, "v": [n]})
        sink.commit([advance(n, n + 1)], Commit([records(row, offsets=[n])]))


def found(table: DeltaTable, values: pa.Array) -> Iterator[int]:
    """How many rows a filter finds of each value, by both of delta-rs's readers."""
    rows = table.to_pyarrow_dataset()
    query = QueryBuilder().register("t", table)
    for value in values:
        yield rows.to_table(filter=pc.field("k") == value).num_rows
        kind, literal = value.type, value.as_py()
        cast = f"cast('{literal:f}' as decimal({kind.precision},{kind.scale}))"
        sql = f"select v from t where k = {cast}"
        yield pa.table(query.execute(sql).read_all()).num_rows


@pytest.mark.parametrize(
    ("precision", "scale"),
    some(
        [(9, 2), (15, 5), (9, 9), (12, 6), (16, 2), (18, 0), (38, 18)],
        {(9, 9), (16, 2), (38, 18)},
    ),
)
def test_decimals_are_updated_and_found(lake: Lake, precision: int, scale: int) -> None:
    values = decimals(precision, scale)
    put_one_by_one(lake, values, UPSERT, times=2)
    assert sorted(r["k"] for r in lake.rows()) == sorted(values.to_pylist())
    assert set(found(lake.table(), values)) == {1}


@pytest.mark.parametrize(("precision", "scale"), [(9, 9), (18, 2), (38, 0)])
def test_decimals_are_found_after_a_compaction(lake: Lake, precision: int, scale: int) -> None:
    values = decimals(precision, scale)
    put_one_by_one(lake, values, COMPACT)
    assert any(e["operation"] == "OPTIMIZE" for e in lake.table().history())
    assert set(found(lake.table(), values)) == {1}


LAST = "\U0010ffff"
TIMES = [
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1, 1, 1, 0, 0, 0, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999001),
    dt.datetime(2024, 1, 1, 0, 0, 0, 1),
]
ODD = {
    "decimal": decimals(9, 9),
    "wide decimal": decimals(38, 0),
    "boolean": pa.array([True, False]),
    "timestamp": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "local timestamp": pa.array(TIMES, pa.timestamp("us")),
    "year 10000": pa.array([253402300800000000], pa.timestamp("us")),
    "date": pa.array([dt.date.min, dt.date.max, dt.date(1969, 12, 31)]),
    "long": pa.array([2**63 - 1, -(2**63), 2**53 + 1]),
    "float": pa.array([0.1, 3.4e38, 1e-45, float("inf")], pa.float32()),
    "double": pa.array([5e-324, 1.7976931348623157e308, -0.0, float("inf"), -float("inf")]),
    "text": pa.array(["", "\U00020000", "é" * 40, "z" * 100, "\x00'\"\\", "\x7f" * 5000]),
    "last text": pa.array([LAST * 70, "a" * 31 + LAST * 10, LAST * 5000, LAST + "a" * 5000]),
    "bytes": pa.array([b"", b"\xff" * 100, b"\x00"]),
}


@pytest.mark.parametrize("name", ODD)
def test_every_value_is_found(lake: Lake, name: str) -> None:
    values = ODD[name]
    put_one_by_one(lake, values, {"auto.compact": "false"})
    rows = lake.table().to_pyarrow_dataset()
    for value in values:
        assert rows.to_table(filter=pc.field("k") == value).num_rows == 1, value
        assert rows.to_table(filter=pc.field("v") >= 0).num_rows == len(values)


def test_a_number_is_found_beside_a_nan(lake: Lake) -> None:
    batch = records({"f": [1.5, float("nan")], "id": [1, 2]})
    lake.sink().write(Commit([batch]))
    rows = lake.table().to_pyarrow_dataset()
    assert rows.to_table(filter=pc.field("f") == 1.5).column("id").to_pylist() == [1]


def test_statistics_are_of_as_many_columns_as_the_table_wants(lake: Lake) -> None:
    columns = {"day": ["x"], "list": [[1]], **{f"c{i}": [i] for i in range(50)}}
    write_deltalake(
        str(lake.path / "t"),
        pa.table(columns).schema.empty_table(),
        partition_by="day",
        configuration={"delta.dataSkippingNumIndexedCols": "40"},
    )
    lake.sink().write(Commit([records(columns)]))
    rows = lake.table().to_pyarrow_dataset()
    for i in (0, 30, 31, 32, 39, 40, 49):
        assert rows.to_table(filter=pc.field(f"c{i}") == i).num_rows == 1
    (action,) = lake.table().get_add_actions(flatten=True).to_struct_array().to_pylist()
    assert action["max.c35"] == 35


@pytest.mark.parametrize("keys", [UPSERT, COMPACT])
def test_in_a_table_of_another_writer_the_columns_with_statistics_are_named(
    lake: Lake, keys: dict[str, Any]
) -> None:
    values = decimals(18, 2)
    given = pa.table({"k": values, "v": list(range(len(values)))})
    for row in range(len(values)):  # by delta-rs, with the bounds that it writes
        write_deltalake(str(lake.path / "t"), given.slice(row, 1), mode="append")
    lake.table().optimize.compact()
    put_one_by_one(lake, values, keys)
    expected = 1 if keys is UPSERT else 2
    assert set(found(lake.table(), values)) == {expected}
    configuration = lake.table().metadata().configuration
    assert configuration["delta.dataSkippingStatsColumns"] == "`v`"


def test_columns_with_statistics_are_named_only_where_delta_rs_would_err() -> None:
    plain = pa.schema([("id", pa.int64()), ("price", pa.decimal128(15, 2))])
    assert statistics.named(plain, [], {}) is None
    assert statistics.named(plain, [], {statistics.PROPERTY: "price"}) == "price"
    wide = pa.decimal128(18, 2)
    columns = pa.schema(
        [
            *plain,
            ("a,b.c", pa.string()),
            ("day", pa.date32()),
            ("sum", wide),
            ("s", pa.struct([("n", pa.int64()), ("sum", wide)])),
            ("raw", pa.binary()),
        ]
    )
    assert statistics.named(columns, ["day"], {}) == "`id`,`price`,`a,b.c`"
    for given, expected in (
        ("id,s.n, `a,b.c`", "id,s.n, `a,b.c`"),
        ("id, sum,s.n", "id,s.n"),
        ("`s`,id", "id"),
        ("s.`sum`,s.n,summary", "s.n,summary"),
    ):
        assert statistics.named(columns, [], {statistics.PROPERTY: given}) == expected


DELETED = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg0rr91",
    "sizeInBytes": 34,
    "cardinality": 1,
}
"""A deletion vector that removes a file's second row."""


@pytest.mark.parametrize(
    ("change", "rows"), [({"stats": None}, 3), ({"deletionVector": DELETED}, 2)]
)
def test_the_rows_of_a_table_are_counted_whatever_its_files_were_written_with(
    change: dict[str, Any], rows: int, lake: Lake
) -> None:
    put_one_by_one(lake, pa.array([1]), {})
    write_deltalake(str(lake.path / "t"), pa.table({"k": [2, 3], "v": [0, 1]}), mode="append")
    lake.table().alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    log = sorted((lake.path / "t" / "_delta_log").glob("*.json"))
    (add,) = [json.loads(x)["add"] for x in log[-2].read_text().splitlines() if '"add"' in x]
    actions = [{"add": {**add, **change}}]
    if "stats" not in change:
        actions += [{"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}}]
    log[-1].with_name(f"{len(log):020}.json").write_text("\n".join(map(json.dumps, actions)))
    assert lake.sink().snapshot(["t"]).rows == {"t": rows}
