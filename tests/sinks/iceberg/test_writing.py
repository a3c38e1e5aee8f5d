"""What the Iceberg sink writes: types, columns, partitions, order, keys, and what is refused."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, UnknownTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, UUIDType

from semel.core.errors import ConfigError, ServiceError, TargetChanged
from semel.core.records import Commit, Records, RowsRejected
from semel.driver.planning import plan
from semel.sinks import parquet
from semel.sinks.iceberg.files import Partition, transformed
from semel.sinks.iceberg.sink import IcebergSink
from semel.sinks.staging import StagedCommit
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, changes, records, refused

PROPS = "iceberg.tables.auto-create-props."
EVOLVE = {"iceberg.tables.evolve-schema-enabled": "true"}
UPSERT = {
    "iceberg.tables.upsert-mode-enabled": "true",
    "iceberg.tables.default-id-columns": "id",
    "pk.mode": "record_key",
    "delete.enabled": "true",
}


def put(warehouse: Warehouse, batch: Records, keys: dict[str, Any] | None = None) -> None:
    warehouse.sink(keys=keys).write(Commit([batch]))


def test_columns_are_found_by_their_field_ids(warehouse: Warehouse) -> None:
    """As every reader does: the file keeps its rows when a column is renamed, nested ones too."""
    put(warehouse, records([{"id": 1, "o": {"a": "x", "l": [{"n": 1}]}}]))
    with warehouse.table().update_schema() as update:
        update.rename_column("id", "key")
        update.rename_column("o.a", "b")
        update.rename_column("o.l.element.n", "m")
    assert warehouse.rows() == [{"key": 1, "o": {"b": "x", "l": [{"m": 1}]}}]
    (path,) = warehouse.files()
    assert pq.ParquetFile(path).schema_arrow.field("id").metadata[b"PARQUET:field_id"] == b"1"


def test_values_that_do_not_fit_are_named(warehouse: Warehouse) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "n", IntegerType())
    )
    warehouse.catalog.create_namespace("db")
    warehouse.catalog.create_table("db.t", schema)
    sink = warehouse.sink()
    bad = refused(
        sink,
        records(
            {"id": ["1", "x", None, "4"], "n": [1, 2, 3, 3_000_000_000]}, offsets=[10, 11, 12, 13]
        ),
    )
    assert sorted(bad) == [11, 12, 13]
    assert "column id (int64) cannot take 'x'" in bad[11].message
    assert bad[12].message == "column id must not be null"
    assert "column n (int32) cannot take 3000000000" in bad[13].message


def test_columns_are_added_only_if_they_may_be(warehouse: Warehouse) -> None:
    put(warehouse, records([{"id": 1}]))
    with pytest.raises(ConfigError, match=r"has no column more, .*evolve-schema-enabled=true"):
        put(warehouse, records([{"id": 2, "more": "x"}]))
    put(warehouse, records([{"id": 2, "more": "x"}]), EVOLVE)
    assert warehouse.rows() == [{"id": 1, "more": None}, {"id": 2, "more": "x"}]
    with pytest.raises(ConfigError, match="fields id and ID of topic t are one column"):
        put(warehouse, records([{"ID": 2}]), EVOLVE)


def test_a_task_goes_on_with_the_columns_that_appear_while_it_writes(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=EVOLVE)
    stager = sink.stager("t-0")
    for batch in ([{"id": 1}], [{"id": 2, "more": 5}], [{"id": 3}]):
        stager.add(Commit([records(batch)]))
    files = stager.finish()
    assert len(files) == 2
    sink.write_staged(StagedCommit(files))
    assert [r["more"] for r in warehouse.rows()] == [None, 5, None]


def test_a_table_without_columns_is_not_defined_unless_it_may_be(warehouse: Warehouse) -> None:
    warehouse.sink()
    with pytest.raises(ConfigError, match="has no columns"):
        put(warehouse, records([{"id": 1}]), {"iceberg.tables.auto-create-enabled": "false"})


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("day(at)", {(19782,): 2, (19783,): 1, (None,): 1}),
        ("months(at), bucket(id, 4)", None),
        ("truncate(s, 2)", {("aa",): 2, ("bb",): 1, (None,): 1}),
        ("d", {(19782,): 4}),
        ("year(at),hour(at)", "conflicts"),
        ("hour(at),s", None),
    ],
)
def test_rows_go_to_their_partitions(
    by: str, expected: dict[tuple[Any, ...], int] | str | None, warehouse: Warehouse
) -> None:
    day = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    rows = [
        {"id": 1, "at": day, "s": "aab", "d": day.date()},
        {"id": 2, "at": day + dt.timedelta(hours=3), "s": "aac", "d": day.date()},
        {"id": 3, "at": day + dt.timedelta(days=1), "s": "bb", "d": day.date()},
        {"id": 4, "at": None, "s": None, "d": day.date()},
    ]
    keys = {"iceberg.table.db.t.partition-by": by}
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            put(warehouse, records(rows), keys)
        return
    put(warehouse, records(rows), keys)
    table = warehouse.table()
    assert sorted(r["id"] for r in warehouse.rows()) == [1, 2, 3, 4]
    files = [t.file for t in table.scan().plan_files()]
    if expected is not None:
        found = {
            tuple(f.partition[i] for i in range(len(f.partition))): f.record_count for f in files
        }
        assert found == expected
    # The same values by PyIceberg's own writer, so that both prune alike.
    table.append(warehouse.arrow())
    theirs = sorted(repr(t.file.partition) for t in table.scan().plan_files())
    assert sorted([repr(f.partition) for f in files] * 2) == theirs
    if "at" in by:
        pruned = table.scan(row_filter="at >= '2024-03-01T00:00:00+00:00'")
        assert pruned.to_arrow().column("id").to_pylist() == [3, 3]
        assert len(list(pruned.plan_files())) < len(theirs)


def test_a_partition_that_no_folder_can_be_named_by_has_none(warehouse: Warehouse) -> None:
    rows = [{"s": "x" * 300}, {"s": "y"}]
    put(warehouse, records(rows), {"iceberg.table.db.t.partition-by": "s"})
    assert warehouse.rows() == rows
    assert sorted(f.parent.name for f in warehouse.files()) == ["data", "s=y"]


def test_a_transform_that_pyiceberg_does_not_know_is_named() -> None:
    schema = Schema(NestedField(1, "s", StringType()))
    with pytest.raises(ServiceError, match=r"not know .*'zorder'\), by which column s"):
        transformed(pa.table({"s": ["x"]}), 1, UnknownTransform("zorder"), schema)


def test_a_partition_that_is_altered_meanwhile_is_noticed(warehouse: Warehouse) -> None:
    put(warehouse, records([{"id": 1, "s": "x"}]))
    sink = warehouse.sink()
    staged = sink.stage(Commit([records([{"id": 2, "s": "y"}])]))
    with warehouse.table().update_spec() as update:
        update.add_identity("s")
    with pytest.raises(TargetChanged, match="partition was altered"):
        sink.write_staged(staged)
    sink.write(Commit([records([{"id": 2, "s": "y"}])]))
    assert [r["id"] for r in warehouse.rows()] == [1, 2]


@pytest.mark.parametrize("keys", [{}, UPSERT], ids=["append", "upsert"])
def test_columns_that_are_altered_meanwhile_are_noticed_and_new_ones_are_null(
    keys: dict[str, str], warehouse: Warehouse
) -> None:
    sink = warehouse.sink(keys=keys)
    sink.write(Commit([changes((1, {"v": "a", "w": 1}))]))
    staged = sink.stage(Commit([changes((2, {"v": "b", "w": 2}))]))
    with warehouse.table().update_schema() as update:
        update.add_column("new", LongType())
    sink.write_staged(staged)
    staged = sink.stage(Commit([changes((3, {"v": "c", "w": 3}))]))
    with warehouse.table().update_schema() as update:
        update.delete_column("w")
    with pytest.raises(TargetChanged, match="column w was altered meanwhile"):
        sink.write_staged(staged)
    found = {r["v"]: r["new"] for r in warehouse.rows()}
    assert found == {"a": None, "b": None}


def test_files_are_sorted_as_the_table_asks(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP", 1000)
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "s", StringType()),
        NestedField(3, "p", LongType()),
    )
    order = SortOrder(
        SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_FIRST),
        SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST),
        order_id=1,
    )
    warehouse.catalog.create_namespace("db")
    warehouse.catalog.create_table("db.t", schema, sort_order=order)
    sink = warehouse.sink()
    stager = sink.stager("t-0")
    for start in (0, 100):
        rows = [
            {"id": None if i % 9 == 0 else -i, "s": None if i % 7 == 0 else f"s{i % 5}", "p": i}
            for i in range(start, start + 100)
        ]
        stager.add(Commit([records(rows)]))
    sink.write_staged(StagedCommit(stager.finish()))
    (task,) = warehouse.table().scan().plan_files()
    assert task.file.sort_order_id == 1
    found = pq.read_table(task.file.file_path.removeprefix("file://"))
    assert pq.ParquetFile(task.file.file_path.removeprefix("file://")).num_row_groups > 2
    shown = list(zip(found.column("s").to_pylist(), found.column("id").to_pylist(), strict=True))

    def place(row: tuple[str | None, int | None]) -> tuple[int, int, bool, int]:
        s, i = row
        return (0 if s is None else 1, -ord(s[1]) if s else 0, i is None, i or 0)

    assert shown == sorted(shown, key=place)
    assert sorted(found.column("p").to_pylist()) == list(range(200))


def test_files_end_at_their_target_size(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP", 100_000)
    keys = {
        "iceberg.tables.write-props.write.target-file-size-bytes": 400_000,
        "iceberg.tables.write-props.write.parquet.compression-codec": "uncompressed",
    }
    sink = warehouse.sink(keys=keys)
    stager = sink.stager("t-0")
    for n in range(20):
        values = [uuid.uuid4().hex for _ in range(2000)]
        stager.add(Commit([records({"id": range(n * 2000, n * 2000 + 2000), "s": values})]))
    files = stager.finish()
    assert sum(f.statistics["record_count"] for f in files) == 40_000
    *full, _last = files
    assert len(full) >= 3
    assert all(400_000 <= f.size < 600_000 for f in full)


def test_statistics_let_readers_skip(warehouse: Warehouse) -> None:
    long = "z" * 100
    for low in (0, 1000):
        put(warehouse, records([{"id": low + i, "f": i / 2, "s": long} for i in range(10)]))
    found = warehouse.table().scan(row_filter="id >= 1005")
    assert len(list(found.plan_files())) == 1
    assert found.to_arrow().column("id").to_pylist() == list(range(1005, 1010))
    assert warehouse.table().scan(row_filter=f"s = '{long}'").count() == 20
    assert warehouse.table().scan(row_filter="s > 'zzzz'").count() == 20
    put(warehouse, records({"id": [5000], "f": [float("nan")]}))
    assert warehouse.table().scan(row_filter="f is nan").count() == 1


def test_the_last_change_of_a_key_wins(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=UPSERT)
    steps = [(1, {"v": "a"}), (2, {"v": "b"}), (1, {"v": "c"}), (3, {"v": "d"}), (2, None)]
    sink.commit([advance(0, 5)], Commit([changes(*steps)]))
    assert warehouse.rows() == [{"id": 1, "v": "c"}, {"id": 3, "v": "d"}]
    later = [(3, None), (4, {"v": "e"}), (1, {"v": "f"}), (9, None)]
    sink.commit([advance(5, 9)], Commit([changes(*later)]))
    assert warehouse.rows() == [{"id": 1, "v": "f"}, {"id": 4, "v": "e"}]
    assert warehouse.stored() == 9
    staged = warehouse.files("**/semel-c-*")
    assert staged == [], "changes are deleted once they are merged"
    assert warehouse.table().schema().identifier_field_names() == {"id"}


def test_records_before_the_first_column_are_bad_records(warehouse: Warehouse) -> None:
    found = refused(warehouse.sink(), records(pa.table({"x": pa.nulls(2)})))
    assert list(found) == [0, 1]
    assert "there is no column yet" in found[0].message


def test_a_topic_may_begin_with_tombstones(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=UPSERT)
    sink.commit([advance(0, 1)], Commit([changes((1, None))]))
    sink.commit([advance(1, 2)], Commit([changes((1, {"v": "a"}))]))
    assert (warehouse.rows(), warehouse.stored()) == ([{"id": 1, "v": "a"}], 2)


def test_upserts_touch_only_the_files_that_hold_a_key(warehouse: Warehouse) -> None:
    keys = {
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.table.db.t.id-columns": "day,id",
        "iceberg.table.db.t.partition-by": "day",
    }
    rows = [{"day": d, "id": i, "v": 0} for d in ("a", "b", "c") for i in range(100)]
    sink = warehouse.sink(keys=keys)
    sink.write(Commit([records(rows)]))
    before = {t.file.file_path for t in warehouse.table().scan().plan_files()}
    moved = [{"day": "b", "id": i, "v": 1} for i in range(90, 110)]
    sink.write(Commit([records(moved)]))
    after = {t.file.file_path for t in warehouse.table().scan().plan_files()}
    assert len(before & after) == 2
    found = {(r["day"], r["id"]): r["v"] for r in warehouse.rows()}
    expected = {(r["day"], r["id"]): r["v"] for r in (*rows, *moved)}
    assert found == expected
    assert warehouse.table().scan().count() == len(expected)


def test_what_an_upsert_writes_anew_keeps_its_nulls(warehouse: Warehouse) -> None:
    """PyIceberg's reader makes an empty list of structs of a null one, and an empty map."""
    inside = pa.struct([("x", pa.int64())])
    types = {"l": pa.list_(inside), "m": pa.map_(pa.string(), inside)}
    given: list[Any] = [None, [], [{"x": None}, {"x": 1}]]
    mapped: list[Any] = [None, [], [("k", {"x": 1})]]

    def batch(ids: list[int]) -> pa.Table:
        lists = pa.array([given[i % 3] for i in ids], types["l"])
        maps = pa.array([mapped[i % 3] for i in ids], types["m"])
        within = pa.StructArray.from_arrays([lists], ["in"])
        return pa.table({"id": ids, "l": lists, "m": maps, "s": within})

    keys = {
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.default-id-columns": "id",
    }
    put(warehouse, records(batch(list(range(6)))), keys)
    put(warehouse, records(batch([4])), keys)
    (task,) = warehouse.table().scan().plan_files()
    found = pq.read_table(task.file.file_path.removeprefix("file://")).sort_by("id")
    assert found.select(["id", *types, "s"]).to_pylist() == batch(list(range(6))).to_pylist()


@pytest.mark.parametrize("name", ["__semel_deletes", "__semel_offset", "__semel_givenid"])
def test_a_field_named_like_a_column_of_changes_is_refused(warehouse: Warehouse, name: str) -> None:
    keys = {
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.default-id-columns": "id",
    }
    with pytest.raises(RowsRejected) as refused:
        put(warehouse, records(pa.table({"id": [1, 2, 3], name: [None, 7, None]})), keys)
    assert [r.offset for r in refused.value.rejected] == [1]
    put(warehouse, records(pa.table({"id": [1, 3], name: pa.nulls(2, pa.int64())})), keys)
    assert sorted(r["id"] for r in warehouse.rows()) == [1, 3]


def test_upserts_by_the_tables_own_identifier(warehouse: Warehouse) -> None:
    schema = Schema(
        NestedField(1, "id", StringType(), required=True),
        NestedField(2, "v", LongType()),
        identifier_field_ids=[1],
    )
    warehouse.catalog.create_namespace("db")
    warehouse.catalog.create_table("db.t", schema)
    keys = {"iceberg.tables.upsert-mode-enabled": "true"}
    for v in (1, 2):
        put(warehouse, records([{"id": "x", "v": v}, {"id": f"y{v}", "v": v}]), keys)
    assert [tuple(r.values()) for r in warehouse.rows()] == [("x", 2), ("y1", 1), ("y2", 2)]
    sink = warehouse.sink(keys=keys)
    assert (
        refused(sink, records([{"id": None, "v": 1}]))[0].message == "column id of the key is null"
    )


def test_upserts_need_a_key(warehouse: Warehouse) -> None:
    with pytest.raises(ConfigError, match=r"because table db\.t has no identifier"):
        put(warehouse, records([{"id": 1}]), {"iceberg.tables.upsert-mode-enabled": "true"})


def test_a_branch_is_written_instead_of_main(warehouse: Warehouse) -> None:
    put(warehouse, records([{"id": 1}]))
    table = warehouse.table()
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    sink = warehouse.sink(keys={"iceberg.table.db.t.commit-branch": "audit"})
    sink.commit([advance(0, 1)], Commit([records([{"id": 2}])]))
    assert [r["id"] for r in warehouse.rows()] == [1]
    table = warehouse.table()
    branch = table.scan(snapshot_id=table.refs()["audit"].snapshot_id)
    assert sorted(branch.to_arrow().column("id").to_pylist()) == [1, 2]
    assert sink.snapshot(["t"]).rows == {"db.t": 2}
    table.manage_snapshots().create_tag(head.snapshot_id, "v1").commit()
    with pytest.raises(ConfigError, match=r"has a tag v1, and no .*change the commit-branch"):
        warehouse.sink(keys={"iceberg.tables.default-commit-branch": "v1"})


def test_provenance_is_stored(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys={"provenance": "true"})
    sink.commit([advance(0, 3)], Commit([records([{"id": i} for i in range(3)])]))
    snapshot = sink.snapshot(["t"])
    assert sorted(snapshot.records["t"].column("offset").to_pylist()) == [0, 1, 2]
    schema = sink.schema("t")
    assert schema is not None
    assert schema.names == ["id"]


def test_an_audit_reads_columns_that_were_altered_after_the_last_commit(
    warehouse: Warehouse,
) -> None:
    warehouse.sink(keys=UPSERT).write(Commit([changes((1, {"a": 5}))]))
    with warehouse.table().update_schema() as update:
        update.rename_column("id", "key").rename_column("a", "id")
    keys = UPSERT | {"iceberg.tables.default-id-columns": "key"}
    stored = warehouse.sink(keys=keys).snapshot(["t"]).keys["t"]
    assert [b.to_pydict() for b in stored.batches()] == [{"key": [1]}]
    keys["iceberg.tables.default-id-columns"] = "x"
    keys["iceberg.tables.evolve-schema-enabled"] = "true"
    with pytest.raises(ServiceError, match=r"Iceberg table .*: Could not find column: 'x'"):
        warehouse.sink(keys=keys).snapshot(["t"])


def test_tables_are_created_with_their_properties(warehouse: Warehouse) -> None:
    put(warehouse, records([{"id": 1}]), {f"{PROPS}write.parquet.compression-codec": "gzip"})
    assert warehouse.table().properties["write.parquet.compression-codec"] == "gzip"
    (path,) = warehouse.files()
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "GZIP"


def test_an_existing_configuration_of_the_connect_sink_runs_as_it_is(warehouse: Warehouse) -> None:
    raw = warehouse.config(
        keys={
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "iceberg.control.topic": "control-iceberg",
            "iceberg.control.commit.interval-ms": "60000",
            "iceberg.catalog.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "iceberg.kafka.bootstrap.servers": "nowhere:9092",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        }
    )
    planned = plan(raw)
    assert planned.engine == "bounded"
    assert str(planned.guarantee) == "exactly-once (transactional)"
    (warning,) = planned.warnings
    assert warning.startswith("iceberg.control.topic has no effect")
    assert planned.sink.interval == 60  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "given", "interval"),
    [
        ("iceberg", None, None),
        ("org.apache.iceberg.connect.IcebergSinkConnector", None, 300),
        ("io.tabular.iceberg.connect.IcebergSinkConnector", "60000", 60),
    ],
)
def test_iceberg_classes_commit_as_often_as_icebergs_own_sink(
    warehouse: Warehouse, name: str, given: str | None, interval: float | None
) -> None:
    keys = {"connector.class": name, "iceberg.control.commit.interval-ms": given}
    sink = plan(warehouse.config(keys=keys)).sink
    assert isinstance(sink, IcebergSink)
    assert sink.interval == interval


def test_wrong_configurations_are_refused(warehouse: Warehouse) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"iceberg.tables": None}, "iceberg.tables is required"),
        ({"iceberg.tables": "t"}, "has no namespace"),
        ({"iceberg.table.db.t.route-regex": "a"}, "route-regex='a'"),
        ({"iceberg.tables.schema-case-insensitive": "true"}, "Set it to false"),
        ({"iceberg.table.db.u.id-columns": "id"}, r"iceberg.table.db.u.id-columns='id'"),
        ({"iceberg.table.db.t.id-column": "id"}, r"settings are id-columns"),
        ({"iceberg.table.db.t.partition-by": "week(at)"}, r"'week\(at\)' is not a column"),
        ({"iceberg.table.db.t.partition-by": "bucket(id)"}, r"'bucket\(id\)' is not"),
        ({"iceberg.table.db.t.partition-by": "day(at, 3)"}, r"'day\(at, 3\)' is not"),
        ({"iceberg.table.db.t.partition-by": "bucket(id, 0)"}, r"0\)': n must be at least 1"),
        ({"iceberg.table.db.t.partition-by": "truncate(s, 2147483648)"}, "at most 2147483647"),
        ({"delete.enabled": "true"}, "pk.mode=record_key, because a tombstone"),
        ({"iceberg.catalog.type": "hadoop"}, "cannot refuse a commit"),
        ({"iceberg.catalog.type": "nessie"}, "'nessie' is not one of.*speaks rest too: set iceb"),
        ({"iceberg.catalog.type": "jdbc"}, "'jdbc' is not one of.*is sql here: .*SQLAlchemy URL"),
        ({"iceberg.catalog.type": "dynamodb"}, "'dynamodb' is not one of.*cannot commit to it"),
        *(
            (
                {"iceberg.catalog.type": kind, "iceberg.catalog.uri": uri, key: "a.b.c"},
                f"{key}='a.b.c'.*have one level",
            )
            for kind, uri in (("hive", "thrift://host:9083"), ("glue", None))
            for key in ("iceberg.tables", "errors.deadletterqueue.table")
        ),
        ({"iceberg.catalog.type": None}, "is not one of rest, sql"),
        ({"iceberg.catalog.catalog-impl": "org.x.Nessie"}, "'org.x.Nessie' is not available"),
        ({"iceberg.catalog.uri": "jdbc:sqlite:x"}, "SQLAlchemy URL"),
        ({"errors.deadletterqueue.table": "db.t"}, "need a table of their own"),
        ({"errors.deadletterqueue.table": "dead"}, "has no namespace"),
        (
            {"iceberg.control.commit.interval-ms": "5", "processingTime": "1 s"},
            "are the same setting",
        ),
    ]
    for keys, message in wrong:
        with pytest.raises(ConfigError, match=message):
            plan(warehouse.config(keys=keys))


def test_an_error_about_an_impossible_catalog_names_its_property(warehouse: Warehouse) -> None:
    wrong: list[tuple[str, str | None, str]] = [
        ("sql", None, "iceberg.catalog.uri is required with iceberg.catalog.type=sql"),
        ("hive", None, "iceberg.catalog.uri is required with iceberg.catalog.type=hive"),
        ("sql", "nonsense", "iceberg.catalog.uri: Could not parse"),
    ]
    for kind, uri, message in wrong:
        keys = {"iceberg.catalog.type": kind, "iceberg.catalog.uri": uri}
        with pytest.raises(ConfigError, match=message):
            warehouse.made(keys=keys).entries()


def test_numbers_are_parted_by_their_bits_and_nan_is_one_partition(warehouse: Warehouse) -> None:
    numbers = [0.0, -0.0, float("nan")]
    batches = [
        records({"f": numbers, "id": [1, 2, 3]}, offsets=range(first, first + 3))
        for first in (0, 3)
    ]
    sink = warehouse.sink(keys={"iceberg.tables.default-partition-by": "f"})
    sink.commit([advance(0, 6)], Commit(batches))
    table = warehouse.table()
    found = table.inspect.files().select(["partition", "record_count"]).to_pylist()
    assert sorted(str((f["partition"]["f"], f["record_count"])) for f in found) == [
        "(-0.0, 2)",
        "(0.0, 2)",
        "(nan, 2)",
    ]


def test_uuids_part_order_and_identify_rows(warehouse: Warehouse) -> None:
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "id", UUIDType()))
    order = SortOrder(SortField(2, IdentityTransform()))
    warehouse.catalog.create_namespace("db")
    warehouse.catalog.create_table("db.t", schema, sort_order=order)
    with warehouse.table().update_spec() as update:
        update.add_identity("id")
    a, b = (uuid.UUID(int=i) for i in (1, 2))
    keys = {k: v for k, v in UPSERT.items() if k.startswith("iceberg.")}
    for n in (1, 2):
        put(warehouse, records({"n": [n, n], "id": [str(b), str(a)]}), keys)
    assert warehouse.rows() == [{"n": 2, "id": a}, {"n": 2, "id": b}]
    found = [t.file.partition[0] for t in warehouse.table().scan().plan_files()]
    assert sorted(found) == [a, b]


def test_partitions_are_equal_or_differ() -> None:
    zero, negative, nan, other = (Partition((v,)) for v in (0.0, -0.0, float("nan"), float("nan")))
    assert (zero == negative, zero != negative) == (False, True)
    assert (nan == other, nan != other) == (True, False)


def test_columns_are_widened_for_values_that_need_it(warehouse: Warehouse) -> None:
    narrow = pa.table(
        {"n": pa.array([1], pa.int32()), "x": pa.array([0.5], pa.float32()), "y": [1.5]}
    )
    warehouse.sink().commit([advance(0, 1)], Commit([records(narrow)]))
    wide = pa.table(
        {"n": pa.array([7, None]), "x": pa.array([0.25, float("nan")]), "y": [2.5, None]}
    )
    keys = {"iceberg.tables.evolve-schema-enabled": "true"}
    sink = warehouse.sink(keys=keys)
    sink.commit([advance(1, 3)], Commit([records(wide, offsets=[1, 2])]))
    assert [str(f.field_type) for f in warehouse.table().schema().fields] == [
        "int",
        "float",
        "double",
    ]
    wider = pa.table({"n": pa.array([2**40]), "x": pa.array([0.1]), "y": [3.5]})
    strict = refused(warehouse.sink(), records(wider, offsets=[3]))
    assert list(strict) == [3]
    sink.commit([advance(3, 4)], Commit([records(wider, offsets=[3])]))
    found = warehouse.arrow()
    assert [str(f.field_type) for f in warehouse.table().schema().fields] == [
        "long",
        "double",
        "double",
    ]
    assert sorted(found["n"].drop_null().to_pylist()) == [1, 7, 2**40]
    assert 0.1 in found["x"].to_pylist()
