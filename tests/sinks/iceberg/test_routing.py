"""Records that go to several tables: by what they hold, each under a ledger of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError

from semel.config import ConnectorConfig, read
from semel.core import failpoints
from semel.core.errors import ConfigError, LedgerConflict, TargetChanged
from semel.core.ledger import LogId, Outcome, TopicPartition, firsts
from semel.core.records import Commit, Records
from semel.driver.planning import plan
from semel.driver.startup import first_positions
from semel.sinks.iceberg.dynamic import DynamicTables, _names
from semel.sinks.iceberg.sink import IcebergSink
from tests.engine.harness import some
from tests.patience import PATIENCE
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import FIRST, advance, records, refused

_FORKS = multiprocessing.get_context("forkserver")
BOTH = {"iceberg.tables": "db.a,db.b"}
ROUTED = {
    **BOTH,
    "iceberg.tables.route-field": "kind",
    "iceberg.table.db.a.route-regex": "a.*",
    "iceberg.table.db.b.route-regex": "(b|ab)",
}


def values(first: int, until: int) -> Commit:
    """Offsets whose records go to a, to b, to both and nowhere, in turn."""
    offsets = range(first, until)
    kinds = ["a", "b", "ab", "ba"]
    return Commit([records([{"id": i, "kind": kinds[i % 4]} for i in offsets], offsets=offsets)])


def expected(until: int) -> dict[str, list[int]]:
    return {
        "db.a": [i for i in range(until) if i % 4 in (0, 2)],
        "db.b": [i for i in range(until) if i % 4 in (1, 2)],
    }


def found(warehouse: Warehouse) -> dict[str, list[int]]:
    return {t: sorted(warehouse.arrow(t)["id"].to_pylist()) for t in ("db.a", "db.b")}


def locations(warehouse: Warehouse) -> list[str]:
    return [warehouse.table(t).metadata_location for t in ("db.a", "db.b")]


def test_records_go_where_their_field_says(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=ROUTED)
    assert sink.commit([advance(0, 40)], values(0, 40)) is Outcome.APPLIED
    assert found(warehouse) == expected(40)
    (entry,) = sink.entries()
    assert (entry.position, entry.records_read, entry.rows_written) == (40, 40, 40)
    assert entry.records_filtered == 10
    assert sink.commit([advance(0, 40)], values(0, 40)) is Outcome.REPLAYED
    assert found(warehouse) == expected(40)


def test_without_a_field_all_tables_get_all_records(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=BOTH)
    sink.commit([advance(0, 8)], values(0, 8))
    assert found(warehouse) == {"db.a": list(range(8)), "db.b": list(range(8))}


@pytest.mark.parametrize(
    ("field", "rows", "there"),
    [
        ("kind", [{"id": 0, "kind": 1}, {"id": 1, "kind": None}, {"id": 2, "kind": 10}], [0]),
        pytest.param(
            "kind",
            [{"id": 0, "kind": True}, {"id": 1, "kind": False}],
            [0],
            marks=pytest.mark.long,
        ),
        ("of.kind", [{"id": 0, "of": {"kind": "1"}}, {"id": 1, "of": None}], [0]),
        pytest.param("of.kind", [{"id": 0, "of": {"sort": "1"}}], [], marks=pytest.mark.long),
        pytest.param("kind", [{"id": 0}], [], marks=pytest.mark.long),
    ],
)
def test_values_are_matched_as_text_and_as_a_whole(
    field: str, rows: list[dict[str, Any]], there: list[int], warehouse: Warehouse
) -> None:
    keys = {
        "iceberg.tables.route-field": field,
        "iceberg.table.db.t.route-regex": "1|true",
    }
    sink = warehouse.sink(keys=keys)
    sink.commit([advance(0, len(rows))], Commit([records(rows)]))
    assert [r["id"] for r in warehouse.rows()] == there
    assert sink.entries()[0].records_filtered == len(rows) - len(there)


def test_a_field_inside_text_cannot_be_a_route(warehouse: Warehouse) -> None:
    keys = {"iceberg.tables.route-field": "of.kind", "iceberg.table.db.t.route-regex": "1"}
    with pytest.raises(ConfigError, match="lift the field in a transform"):
        warehouse.sink(keys=keys).stage(Commit([records([{"of": '{"kind": 1}'}])]))


@pytest.mark.parametrize(
    "kind",
    some(
        [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view(), pa.list_(pa.string())],
        [pa.binary(), pa.list_(pa.string())],
    ),
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_field_that_is_no_text_cannot_be_a_route(
    dynamic: bool, kind: pa.DataType, warehouse: Warehouse
) -> None:
    value: Any = ["a"] if kind == pa.list_(pa.string()) else b"\xff\xfe"
    rows = records([{"id": 0}]).rows
    name = "to" if dynamic else "kind"
    rows = rows.append_column(name, pa.chunked_array([pa.array([value], kind)]))
    with pytest.raises(ConfigError, match="cannot be matched"):
        warehouse.sink(keys=DYNAMIC if dynamic else ROUTED).stage(Commit([Records("t", rows)]))


def test_a_table_gets_its_own_columns_only(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys={**ROUTED, "iceberg.tables.evolve-schema-enabled": "true"})
    sink.commit(
        [advance(0, 2)],
        Commit(
            [records([{"id": 0, "kind": "a", "x": 1, "y": None}, {"id": 1, "kind": "b", "y": 2}])]
        ),
    )
    assert warehouse.arrow("db.a").column_names == ["id", "kind", "x"]
    assert warehouse.arrow("db.b").column_names == ["id", "kind", "y"]
    sink.commit(
        [advance(2, 3)], Commit([records([{"id": 2, "kind": "b", "y": 2, "z": "1"}], offsets=[2])])
    )
    assert warehouse.arrow("db.a").column_names == ["id", "kind", "x"]
    assert warehouse.arrow("db.b").column_names == ["id", "kind", "y", "z"]
    schema = warehouse.made(keys=ROUTED).schema("t")
    assert schema is not None
    assert set(schema.names) == {"id", "kind", "x", "y", "z"}


def test_a_record_that_does_not_fit_one_table_goes_to_none(warehouse: Warehouse) -> None:
    warehouse.catalog.create_namespace("db")
    for table, kind in (("db.a", pa.int64()), ("db.b", pa.int32())):
        columns = [("id", pa.int64()), ("kind", pa.string()), ("n", kind)]
        warehouse.catalog.create_table(table, pa.schema(columns))
    bad = refused(
        warehouse.sink(keys=ROUTED),
        records([{"id": 2, "kind": "ab", "n": 7}, {"id": 3, "kind": "ab", "n": 1 << 40}]),
    )
    assert list(bad) == [1]
    assert warehouse.files() == []


def write(path: Path, points: Path) -> None:
    """The process: it commits offsets 20 to 40."""
    failpoints._directory = str(points)
    Warehouse(path).sink(keys=ROUTED).commit([advance(20, 40)], values(20, 40))


def killed_between(warehouse: Warehouse) -> None:
    """A process commits to the first table and dies before it commits to the second one."""
    warehouse.sink(keys=ROUTED).commit([advance(0, 20)], values(0, 20))
    points = warehouse.path / "points"
    points.mkdir()
    failpoints.arm(points, "sink.before_commit", "kill-worker", skip=1)
    process = _FORKS.Process(target=write, args=(warehouse.path, points))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -9
    assert found(warehouse) == {"db.a": expected(40)["db.a"], "db.b": expected(20)["db.b"]}


def test_killed_between_two_tables_the_one_is_a_replay_and_the_other_applies(
    warehouse: Warehouse,
) -> None:
    killed_between(warehouse)
    sink = warehouse.sink(keys=ROUTED)
    assert sink.entries()[0].position == 20
    assert sink.uneven([FIRST]) == {FIRST: 40}
    before = locations(warehouse)
    with pytest.raises(LedgerConflict):  # it would write rows to the first table twice
        sink.commit([advance(20, 50)], values(20, 50))
    assert locations(warehouse) == before
    for first, until in ((20, 33), (33, 40)):  # however it is cut
        assert sink.commit([advance(first, until)], values(first, until)) is Outcome.APPLIED
    assert sink.uneven([FIRST]) == {}
    assert found(warehouse) == expected(40)
    assert sink.commit([advance(33, 40)], values(33, 40)) is Outcome.REPLAYED
    (entry,) = sink.entries()
    assert (entry.position, entry.rows_written, entry.records_filtered) == (40, 40, 10)


def test_a_hole_may_reach_beyond_what_one_table_holds(warehouse: Warehouse) -> None:
    killed_between(warehouse)
    sink = warehouse.sink(keys=ROUTED)
    sink.advance([advance(20, 45, lost=25)])
    assert [e.position for e in sink.entries()] == [45]
    holes = [[(h.from_offset, h.until_offset) for h in s.holes] for s in sink.snapshots(["t"])]
    assert holes == [[(40, 45)], [(20, 45)]]


def test_a_table_that_is_new_to_the_connector_starts_where_the_others_are(
    warehouse: Warehouse,
) -> None:
    warehouse.sink(keys={"iceberg.tables": "db.a"}).commit([advance(0, 20)], values(0, 20))
    sink = warehouse.sink(keys=BOTH)
    assert [e.position for e in sink.entries()] == [20]
    sink.commit([advance(20, 24)], values(20, 24))
    assert found(warehouse) == {"db.a": list(range(24)), "db.b": list(range(20, 24))}


class Cluster:
    """A topic whose partitions hold nine offsets each."""

    def logs(self, topics: Collection[str]) -> dict[str, LogId]:
        return {topic: LogId("cluster", topic) for topic in topics}

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)


def test_a_new_partition_of_a_known_topic_is_read_from_its_start_where_a_table_is_new_too(
    warehouse: Warehouse,
) -> None:
    warehouse.sink(keys={"iceberg.tables": "db.a"}).commit([advance(0, 5)], values(0, 5))
    keys = {**BOTH, "auto.offset.reset": "latest", "first.position": "reset"}
    sink = warehouse.made(keys=keys)
    sink.prepare(["t"])
    connector = read(ConnectorConfig, warehouse.config(keys=keys))
    groups: Any = SimpleNamespace(offsets=lambda *_: ({}, False))
    first_positions(connector, sink, cast(Any, Cluster()), {"t": 2, "u": 1}, groups)
    found = {str(e.topic_partition): e.position for e in sink.entries()}
    assert found == {"t-0": 5, "t-1": 0, "u-0": 9}


def test_partitions_whose_tables_differ_are_brought_level_group_by_group(
    warehouse: Warehouse,
) -> None:
    sink = warehouse.sink(keys=BOTH)
    second = TopicPartition("t", 1)
    sink.start(firsts({second: 0}))
    sink.commit([advance(0, 8), advance(0, 8, partition=1)], values(0, 8))
    one = warehouse.made(keys={"iceberg.tables": "db.a"})
    one.commit([advance(8, 12)], values(8, 12))
    other = warehouse.made(keys={"iceberg.tables": "db.b"})
    other.commit([advance(8, 10, partition=1)], Commit([]))
    sink = warehouse.sink(keys=BOTH)
    assert [e.position for e in sink.entries()] == [8, 8]
    both = [FIRST, second]
    assert sink.uneven(both) == {FIRST: 12}
    assert sink.uneven([second]) == {second: 10}  # what is not read holds up nothing
    assert sink.uneven([TopicPartition("u", 0)]) == {}
    sink.commit([advance(8, 12)], values(8, 12))
    assert sink.uneven(both) == {second: 10}


def test_wrong_configurations_are_refused(warehouse: Warehouse) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"iceberg.tables": "db.a,db.a"}, "names a table twice"),
        ({"iceberg.table.db.a.route-regex": None}, "db.a.route-regex is required"),
        ({"iceberg.table.db.a.route-regex": "("}, "is not a regular expression"),
        ({"iceberg.tables.route-field": None}, "has no field to match"),
        ({"iceberg.tables.ledger": "db.ledger"}, "iceberg.tables.ledger='db.ledger' has no effect"),
        ({"iceberg.table.db.c.route-regex": "c"}, "iceberg.tables is db.a,db.b"),
        ({"delivery": "at-most-once"}, "set delivery=exactly-once"),
        ({"engine": "micro-batch"}, "Set engine=direct"),
        ({"errors.deadletterqueue.table": "db.b"}, "need a table of their own"),
        (
            {
                "iceberg.tables.upsert-mode-enabled": "true",
                "iceberg.tables.default-id-columns": "id",
            },
            "table would keep the older row",
        ),
    ]
    for keys, message in wrong:
        with pytest.raises(ConfigError, match=message):
            plan(warehouse.config(keys={**ROUTED, **keys}))
    for table, value in (("db.x", 1), ("db.y", "1")):
        sink = warehouse.sink(keys={"iceberg.tables": table})
        sink.commit([advance(0, 1)], Commit([records([{"id": value}])]))
    with pytest.raises(ConfigError, match="different types"):
        warehouse.sink(keys={"iceberg.tables": "db.x,db.y"})


@pytest.mark.parametrize(
    ("one", "other", "read"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        pytest.param(pa.float64(), pa.float32(), pa.float64(), marks=pytest.mark.long),
        (pa.int64(), pa.float64(), None),
        pytest.param(pa.decimal128(20, 2), pa.float64(), None, marks=pytest.mark.long),
        pytest.param(pa.int64(), pa.decimal128(20, 0), None, marks=pytest.mark.long),
        (pa.string(), pa.binary(), None),
        pytest.param(pa.timestamp("us"), pa.timestamp("us", "UTC"), None, marks=pytest.mark.long),
    ],
)
def test_a_column_of_two_tables_is_read_in_a_type_that_keeps_both(
    one: pa.DataType, other: pa.DataType, read: pa.DataType | None, warehouse: Warehouse
) -> None:
    warehouse.catalog.create_namespace("db")
    for table, kind in (("db.a", one), ("db.b", other)):
        warehouse.catalog.create_table(table, pa.schema([("id", pa.int64()), ("n", kind)]))
    sink = warehouse.made(keys=BOTH)
    if read is None:
        with pytest.raises(ConfigError, match="different types"):
            sink.prepare(["t"])
    else:
        sink.prepare(["t"])
        assert sink.schema("t") == pa.schema([("id", pa.int64()), ("n", read)])


def test_what_a_connector_does_is_described(warehouse: Warehouse) -> None:
    said = plan(warehouse.config(keys=ROUTED)).sink.describe()
    assert said["writes"] == "Iceberg table db.a (a.*), db.b ((b|ab)) by kind"


# Tables that records name

DYNAMIC = {
    "iceberg.tables": None,
    "iceberg.tables.dynamic-enabled": "true",
    "iceberg.tables.route-field": "to",
    "iceberg.tables.ledger": "db.ledger",
}


def to(*names: str | None, first: int = 0) -> Commit:
    """Records that name these tables, one after the other."""
    rows = [{"id": first + i, "to": name} for i, name in enumerate(names)]
    return Commit([records(rows, offsets=range(first, first + len(names)))])


def ids(warehouse: Warehouse, table: str) -> list[int]:
    return sorted(warehouse.arrow(table)["id"].to_pylist())


def test_records_go_to_the_tables_that_they_name(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=DYNAMIC)
    assert sink.commit([advance(0, 4)], to("db.a", "DB.B", None, "db.a")) is Outcome.APPLIED
    assert (ids(warehouse, "db.a"), ids(warehouse, "db.b")) == ([0, 3], [1])
    (entry,) = sink.entries()
    assert (entry.position, entry.rows_written, entry.records_filtered) == (4, 3, 1)
    assert sink.commit([advance(0, 4)], to("db.a", "DB.B", None, "db.a")) is Outcome.REPLAYED
    sink.commit([advance(4, 5)], to("db.c", first=4))
    before = warehouse.table("db.a").metadata_location
    sink.commit([advance(5, 6)], to("db.b", first=5))
    assert warehouse.table("db.a").metadata_location == before
    assert (ids(warehouse, "db.b"), ids(warehouse, "db.c")) == ([1, 5], [4])


def test_a_table_ahead_of_the_ledger_treats_its_range_as_a_replay(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.sink(keys=DYNAMIC).commit([advance(0, 1)], to("db.b"))
    sink = warehouse.sink(keys=DYNAMIC)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DynamicTables, "settle", die)
        sink.commit([advance(1, 4)], to("db.a", "db.b", "db.a", first=1))
    assert ids(warehouse, "db.a") == [1, 3]
    sink = warehouse.sink(keys=DYNAMIC)
    assert sink.entries()[0].position == 1
    assert sink.uneven([TopicPartition("u", 0)]) == {}
    sink = warehouse.sink(keys=DYNAMIC)
    assert sink.uneven([FIRST]) == {FIRST: 4}
    with pytest.raises(TargetChanged):
        sink.commit([advance(1, 5)], to("db.a", "db.b", "db.a", "db.a", first=1))
    assert sink.commit([advance(1, 3)], to("db.a", "db.b", first=1)) is Outcome.APPLIED
    assert sink.commit([advance(3, 4)], to("db.a", first=3)) is Outcome.APPLIED
    assert sink.uneven([FIRST]) == {}
    assert (ids(warehouse, "db.a"), ids(warehouse, "db.b")) == ([1, 3], [0, 2])


def test_a_run_that_was_overtaken_does_not_move_the_ledger_back(warehouse: Warehouse) -> None:
    zombie = warehouse.sink(keys=DYNAMIC)
    zombie.entries()
    other = warehouse.made(keys=DYNAMIC)
    other.commit([advance(0, 2)], to("db.a", "db.b"))
    other.commit([advance(2, 3)], to("db.c", first=2))
    with pytest.raises(LedgerConflict):
        zombie.commit([advance(0, 1)], to("db.a"))
    assert zombie.entries()[0].position == 3
    assert ids(warehouse, "db.a") == [0]


def test_positions_that_are_set_by_hand_are_those_of_all_tables(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=DYNAMIC)
    sink.commit([advance(0, 2)], to("db.a", "db.b"))
    sink.set_positions(firsts({FIRST: 1}))
    sink = warehouse.sink(keys=DYNAMIC)
    assert sink.uneven([FIRST]) == {}
    sink.commit([advance(1, 2)], to("db.b", first=1))
    assert (ids(warehouse, "db.a"), ids(warehouse, "db.b")) == ([0], [1, 1])
    sink.set_positions(None)
    assert sink.entries() == []


@pytest.mark.parametrize("wanted", some([{FIRST: 0}, None], [None]), ids=["set", "reset"])
@pytest.mark.parametrize(
    "step",
    some(["judge", "touched", "_home.move", "_land_in", "settle"], {"_home.move", "settle"}),
)
def test_positions_are_set_by_hand_while_the_connector_commits(
    step: str,
    wanted: dict[TopicPartition, int] | None,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a table that it knows nor one that is new may be left with more than the ledger."""
    sink = warehouse.sink(keys=DYNAMIC)
    sink.commit([advance(0, 2)], to("db.b", "db.b"))
    if step == "_home.move":  # the other way round: the run commits while positions are set
        hand = warehouse.made(keys=DYNAMIC)
        interrupted(monkeypatch, hand._tables._home, "move", lambda: run(sink))
        hand.set_positions(wanted and firsts(wanted))
    else:
        where = sink if step == "_land_in" else sink._tables
        by_hand = warehouse.made(keys=DYNAMIC)
        interrupted(
            monkeypatch, where, step, lambda: by_hand.set_positions(wanted and firsts(wanted))
        )
        with pytest.raises(LedgerConflict):
            run(sink)
    after = warehouse.sink(keys=DYNAMIC)
    assert [e.position for e in after.entries()] == [0]
    assert after.uneven([FIRST]) == {}


def run(sink: IcebergSink) -> None:
    sink.commit([advance(2, 4)], to("db.b", "db.a", first=2))


def interrupted(
    monkeypatch: pytest.MonkeyPatch, whose: object, step: str, by: Callable[[], None]
) -> None:
    """Let something else happen right before a step."""
    taken = getattr(whose, step)

    def first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        by()
        return taken(*args, **kwargs)

    monkeypatch.setattr(whose, step, first)


def test_tables_that_may_not_be_created_get_nothing(warehouse: Warehouse) -> None:
    keys = {**DYNAMIC, "iceberg.tables.auto-create-enabled": "false"}
    sink = warehouse.sink(keys=keys)
    sink.commit([advance(0, 2)], to("db.a", "db.b"))
    assert sink.entries()[0].records_filtered == 2
    assert not warehouse.catalog.table_exists("db.a")


def test_settings_of_a_table_hold_whatever_the_case_of_its_name(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys={**DYNAMIC, "iceberg.table.Db.Orders.partition-by": "id"})
    sink.commit([advance(0, 1)], to("DB.orders"))
    assert [f.name for f in warehouse.table("db.orders").spec().fields] == ["id"]


def test_names_that_are_no_tables_are_rejected(warehouse: Warehouse) -> None:
    keys = {**DYNAMIC, "iceberg.tables.ledger": "Db.Ledger", "errors.deadletterqueue.table": "Db.D"}
    names = ["a", "db.a", "db.", "db.ledger", "", "db.d", "db.a b", "db/..", "db.\u212a\u0131"]
    names += ["db." + 300 * "x", ".".join(["db"] + 100 * ["x" + "y" * 9])]
    bad = refused(warehouse.sink(keys=keys), to(*names).records[0])
    form = "is not namespace.name, or of more levels, of letters, digits, _ and -, at most 128 each"
    assert bad.keys() == set(range(len(names))) - {1}
    assert {o: r.message for o, r in bad.items() if o < 5} == {
        0: f"field to: 'a' {form}",
        2: f"field to: 'db.' {form}",
        3: "field to: db.ledger is reserved for positions or dead letters",
        4: f"field to: '' {form}",
    }
    assert bad[5].message == "field to: db.d is reserved for positions or dead letters"
    assert {t for _, t in warehouse.catalog.list_tables("db")} == {"a"}


@pytest.mark.parametrize(
    ("kind", "name", "taken"),
    [
        ("sql", "a.b.c", True),
        ("rest", "a.b-c.d", True),
        ("glue", "a.b-c", True),
        ("glue", "a.b.c", False),
    ],
)
def test_names_are_those_that_the_catalog_takes(kind: str, name: str, taken: bool) -> None:
    assert bool(_names(kind)[0].fullmatch(name)) is taken


def test_tables_that_cannot_be_written_are_the_records_fault(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.catalog.create_namespace("db")
    orc = {"write.format.default": "orc"}
    warehouse.catalog.create_table("db.orc", pa.schema([("id", pa.int64())]), properties=orc)
    sink = warehouse.sink(keys=DYNAMIC)
    create = SqlCatalog.create_table

    def some(catalog: SqlCatalog, identifier: str, *args: Any, **kwargs: Any) -> Any:
        if identifier == "db.refused":
            raise BadRequestError("not here")
        return create(catalog, identifier, *args, **kwargs)

    monkeypatch.setattr(SqlCatalog, "create_table", some)
    bad = refused(sink, to("db.orc", "db.a", "db.refused").records[0])
    assert {o: r.message for o, r in bad.items()} == {
        0: "field to: connector c: table db.orc wants orc files (write.format.default): "
        "semel writes parquet",
        2: "field to: Iceberg table db.refused: not here",
    }


def test_wrong_configurations_with_named_tables_are_refused(warehouse: Warehouse) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"iceberg.tables": "db.a"}, "exclude each other"),
        ({"iceberg.tables.route-field": None}, "needs iceberg.tables.route-field"),
        ({"iceberg.tables.ledger": "ledger"}, "has no namespace"),
        ({"iceberg.table.db.a.route-regex": "a"}, "the field itself names the table"),
        (
            {"iceberg.table.db.A.id-columns": "a", "iceberg.table.Db.a.id-columns": "b"},
            "is also set in another case",
        ),
        ({"errors.deadletterqueue.table": "db.ledger"}, "is in iceberg.tables.ledger too"),
    ]
    for keys, message in wrong:
        with pytest.raises(ConfigError, match=message):
            plan(warehouse.config(keys={**DYNAMIC, **keys}))
    said = plan(warehouse.config(keys={**DYNAMIC, "iceberg.tables.ledger": None})).sink.describe()
    assert said["writes"] == "Iceberg tables that to names"
    assert said["ledger"] == "properties of table semel.c, and of each other one"
