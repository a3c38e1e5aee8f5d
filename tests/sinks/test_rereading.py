"""A sink shows stored rows in the same form as the rows that it expects of records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from semel.core.ledger import OffsetRange
from semel.core.records import OFFSET, PARTITION, Records
from semel.sinks.rereading import View, Viewable, canonical
from tests.sinks.target import Target, put, records
from tests.sinks.test_postgresql_types import CASES, JSON, TYPES, json_array

PROVENANCE = (
    "__connect_topic text, __connect_partition int, __connect_offset bigint, "
    "__connect_timestamp timestamptz"
)


def shown(view: View, topic: str, columns: list[str], *ranges: OffsetRange) -> list[dict[str, Any]]:
    """Rows in the order of their first column."""
    batches = list(view.rows(topic, columns, ranges or None))
    found = pa.Table.from_batches(batches) if batches else pa.table({})
    return found.sort_by(columns[0]).to_pylist() if found.num_rows else []


def plain(table: pa.Table) -> list[str]:
    """Rows in the order of their first column, as texts: a NaN is no other than itself."""
    table = pa.table({n: canonical(table.column(n)) for n in table.column_names})
    return [str(row) for row in table.sort_by(table.column_names[0]).to_pylist()]


def test_postgresql_shows_values_of_every_type_as_it_says_that_they_should_be(
    target: Target,
) -> None:
    target.execute(*TYPES)
    sink = target.sink(pk_mode="record_key", pk_fields="id")
    assert isinstance(sink, Viewable)
    written: dict[str, Records] = {}
    for number, (kind, values, _) in enumerate(CASES.values()):
        target.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {kind})")
        null = json_array([None]) if values.type == JSON else pa.nulls(1, values.type)
        column = pa.chunked_array([values, null])
        keys = list(range(len(column)))
        written[f"t{number}"] = records(pa.table({"v": column}), topic=f"t{number}", keys=keys)
    put(sink, *written.values())
    with sink.viewing([]) as (view,):
        for name, (topic, made) in zip(CASES, written.items(), strict=True):
            held = view.held(made)
            assert held.values.column_names == ["id", "v"], name
            assert plain(held.values) == plain(
                pa.Table.from_batches(view.rows(topic, ["id", "v"]))
            ), name
            assert held.places.column(OFFSET).to_pylist() == list(range(made.count))


def test_a_view_shows_the_rows_of_one_instant_and_of_the_offsets_asked_for(target: Target) -> None:
    target.execute(f"CREATE TABLE t (n int, {PROVENANCE})")
    sink = target.sink(provenance="true")
    put(sink, records({"n": [0, 10, 20, 30]}), records({"n": [5]}, partition=1))
    with sink.viewing(["t"]) as (view,):
        target.execute("UPDATE t SET n = -1")
        put(sink, records({"n": [40]}, offsets=[4]))
        assert [r["n"] for r in shown(view, "t", ["n"])] == [0, 5, 10, 20, 30]
        ranges = OffsetRange("t", 0, 1, 3), OffsetRange("u", 0, 0, 9)
        assert shown(view, "t", ["n"], *ranges) == [
            {"n": 10, PARTITION: 0, OFFSET: 1, "__connect_timestamp": 1_700_000_000_001},
            {"n": 20, PARTITION: 0, OFFSET: 2, "__connect_timestamp": 1_700_000_000_002},
        ]
        assert not shown(view, "nowhere", ["n"])
        assert view.snapshot(["t"]).rows == {"t": 5}
        assert not view.snapshot([]).records


def test_records_that_the_store_would_refuse_hold_nothing(target: Target) -> None:
    target.execute("CREATE TABLE t (n smallint, r int4range, d int DEFAULT 7)")
    sink = target.sink()
    made = records(
        {"n": [1, 70_000, 3, 4], "r": ["[1,2)", "[1,2)", "x", "[1, 3]"], "d": [None, 1, 2, 3]}
    )
    with sink.viewing(["t"]) as (view,):
        held = view.held(made)
    assert held.places.column(OFFSET).to_pylist() == [0, 3]
    assert held.values.to_pylist() == [
        {"n": 1, "r": "[1,2)", "d": None},
        {"n": 4, "r": "[1,4)", "d": 3},
    ]
    assert held.optional == {"d"}
