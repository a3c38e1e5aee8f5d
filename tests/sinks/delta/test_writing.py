"""What the Delta sink writes: types, columns, keys, files and their statistics."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from semel.core.errors import ConfigError, ServiceError
from semel.core.records import Commit, Records
from semel.driver.planning import plan
from semel.sinks import parquet
from semel.sinks.delta.files import partition_text
from semel.sinks.delta.table import column_type
from semel.sinks.staging import StagedCommit
from tests.sinks.delta.conftest import Lake
from tests.sinks.target import advance, changes, records, refused

UPSERT = {
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "id",
    "delete.enabled": "true",
}


def put(lake: Lake, batch: Records, keys: dict[str, Any] | None = None) -> None:
    lake.sink(keys=keys).write(Commit([batch]))


def test_a_type_that_delta_lacks_becomes_a_wider_one() -> None:
    assert column_type(pa.uint64()) == pa.decimal128(20, 0)
    assert column_type(pa.time64("us")) == pa.string()
    assert column_type(pa.timestamp("ns", "Europe/Berlin")) == pa.timestamp("us", "UTC")
    assert column_type(pa.large_list(pa.float16())) == pa.list_(pa.float32())


def test_values_that_do_not_fit_are_refused_one_by_one(lake: Lake) -> None:
    put(lake, records([{"id": 1, "n": 1.5, "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}]))
    sink = lake.sink()
    batch = records({"id": ["1", "two", "3", "4.5"], "n": [1, 2, 3, 4]}, offsets=[10, 11, 12, 13])
    found = refused(sink, batch)
    assert set(found) == {11, 13}
    assert "column id (int64) cannot take 'two'" in found[11].message
    numbers = records({"id": [1], "at": [5]})
    assert "which unit of time" in refused(sink, numbers)[0].message
    assert len(lake.rows()) == 1
    left = (lake.path / "t").glob("semel-*")
    assert sorted(map(str, left)) == sorted(lake.table().file_uris())


def test_a_null_for_a_column_that_must_not_be_null_is_refused(lake: Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])
    write_deltalake(str(lake.path / "t"), schema.empty_table())
    found = refused(lake.sink(), records([{"id": 1}, {"id": None}, {"id": 3}]))
    assert [(o, r.message) for o, r in found.items()] == [(1, "column id must not be null")]


def test_reading_from_the_end_needs_a_table_that_keeps_the_position(lake: Lake) -> None:
    latest = {"consumer.override.auto.offset.reset": "latest"}
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset=latest needs a table"):
        lake.sink(keys=latest)
    lake.sink().commit([advance(0, 1)], Commit([records([{"a": 1}])]))
    lake.sink(keys=latest)


def test_missing_columns_need_leave_to_be_added(lake: Lake) -> None:
    put(lake, records([{"id": 1}]))
    with pytest.raises(ConfigError, match=r"has no column more.*auto.evolve=true"):
        put(lake, records([{"id": 2, "more": "x"}]))
    put(lake, records([{"id": 2, "more": "x"}]), {"auto.evolve": "true"})
    put(lake, records([{"id": 3}]))
    assert {r["id"]: r["more"] for r in lake.rows()} == {1: None, 2: "x", 3: None}


def test_two_tasks_that_find_the_same_new_field_agree(lake: Lake) -> None:
    put(lake, records([{"id": 1}]))
    one, other = (lake.sink(keys={"auto.evolve": "true"}) for _ in range(2))
    first = one.stage(Commit([records([{"id": 2, "n": 1}])]))
    second = other.stage(Commit([records([{"id": 3, "n": 2.0}])]))
    one.write_staged(first)
    other.write_staged(second)
    assert {r["id"]: r["n"] for r in lake.rows()} == {1: None, 2: 1, 3: 2}
    assert "n" in refused(other, records([{"id": 4, "n": 2.5}]))[0].message


def test_the_last_change_of_a_key_by_offset_is_merged(lake: Lake) -> None:
    sink = lake.sink(keys=UPSERT)
    first = changes((1, {"a": "x"}), (2, {"a": "y"}), (1, None), (3, {"a": "z"}), (2, {"a": "Y"}))
    sink.commit([advance(0, 5)], Commit([first]))
    assert lake.rows() == [{"id": 2, "a": "Y"}, {"id": 3, "a": "z"}]
    second = changes((3, None), (1, {"a": None}), (3, {"a": "back"}), (2, None), (9, None))
    sink.commit([advance(5, 10)], Commit([second]))
    assert lake.rows() == [{"id": 1, "a": None}, {"id": 3, "a": "back"}]
    assert lake.stored() == 10
    assert not list((lake.path / "t").glob("semel-*"))


def test_names_are_taken_as_they_are(lake: Lake) -> None:
    keys = {**UPSERT, "pk.fields": "Order Id", "partition.by": "Über.Region"}
    sink = lake.sink(keys=keys)
    for city in ("Köln", "Bonn/Süd"):
        sink.write(Commit([changes((1, {"Über.Region": "N R=W", 'a "b"': city}))]))
    assert lake.rows() == [{"Order Id": 1, "Über.Region": "N R=W", 'a "b"': "Bonn/Süd"}]


def test_a_null_key_is_refused(lake: Lake) -> None:
    found = refused(lake.sink(keys=UPSERT), changes((1, {"a": "x"}), (None, {"a": "y"})))
    assert [r.message for r in found.values()] == ["column id of the key is null"]


def test_partitioned_tables_get_a_file_for_each_partition(lake: Lake) -> None:
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]
    rows = [{"id": i, "day": days[i % 3], "kind": ["a", ""][i % 2]} for i in range(12)]
    put(lake, records(rows), {"partition.by": "day,kind"})
    put(lake, records(rows))
    table = lake.table()
    assert table.metadata().partition_columns == ["day", "kind"]
    assert len(table.file_uris()) == 12
    expected = [{**r, "kind": r["kind"] or None} for r in rows]
    assert lake.rows() == sorted(2 * expected, key=str)
    only = table.to_pyarrow_table(filters=[("day", "=", dt.date(2024, 1, 2))])
    assert sorted(only.column("id").to_pylist()) == sorted(2 * [1, 4, 7, 10])
    with pytest.raises(ConfigError, match=r"partition.by=no.*have no field no"):
        put(lake, records(rows), {"partition.by": "no", "table.name.format": "other"})


def test_a_column_without_a_text_form_cannot_partition_a_table(lake: Lake) -> None:
    batch = records(pa.table({"id": [1], "raw": pa.array([b"ab"])}))
    with pytest.raises(ConfigError, match=r"partition.by=raw: column raw .* is of type binary"):
        put(lake, batch, {"partition.by": "raw"})
    assert not (lake.path / "t").exists()
    schema = pa.schema([("id", pa.int64()), ("raw", pa.binary())])
    write_deltalake(str(lake.path / "t"), schema.empty_table(), partition_by="raw")
    with pytest.raises(ConfigError, match="is partitioned by column raw of type binary"):
        put(lake, batch)


def test_a_table_needs_a_column_that_does_not_partition_it(lake: Lake) -> None:
    """Delta's files lack the columns of the partition, so they would have no rows."""
    batch = records([{"p": "a"}, {"p": "b"}])
    with pytest.raises(ConfigError, match=r"partition.by=p: .* have no other field"):
        put(lake, batch, {"partition.by": "p"})
    assert not (lake.path / "t").exists()
    write_deltalake(str(lake.path / "t"), pa.table({"p": ["a"]}).slice(1), partition_by="p")
    with pytest.raises(ConfigError, match="is partitioned by all of its columns"):
        put(lake, batch)
    put(lake, batch, {"table.name.format": "u", "partition.by": "p", "provenance": "true"})
    assert lake.table("u").count() == 2


@pytest.mark.parametrize(
    "values",
    [
        pa.array([decimal.Decimal("0E-10"), decimal.Decimal("1E-10")], pa.decimal128(38, 10)),
        pa.array([0.1, 1e300, 1e-7, float("inf"), float("-inf"), float("nan")]),
        pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
        pa.array([dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        pa.array(["a/b=c %20", "é\n", "__HIVE_DEFAULT_PARTITION__", "null"]),
        pa.array([True, False]),
    ],
    ids=lambda v: str(v.type),
)
def test_partition_values_come_back_unchanged(lake: Lake, values: pa.Array) -> None:
    batch = pa.table({"p": values, "id": list(range(len(values)))})
    put(lake, records(batch), {"partition.by": "p"})
    found = lake.table().to_pyarrow_table().sort_by("id")
    assert list(map(str, found.column("p").to_pylist())) == list(map(str, values.to_pylist()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dt.datetime(2024, 1, 1, 12, 0, 0, 5, dt.UTC), "2024-01-01T12:00:00.000005Z"),
        (dt.datetime(2024, 1, 1, 12), "2024-01-01 12:00:00.000000"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
    ids=str,
)
def test_partition_values_are_written_as_every_reader_takes_them(value: Any, text: str) -> None:
    """Spark reads a time without a zone in that of its session, and Java knows no ``inf``."""
    assert partition_text(value) == text


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")], ids=str)
def test_a_year_that_no_log_can_tell_is_a_bad_record_in_a_partition_only(
    kind: pa.DataType, lake: Lake
) -> None:
    far = pa.array([10**7, 5, -(10**6)], pa.date32()).cast(kind)
    batch = pa.table({"p": far, "q": far})
    found = refused(lake.sink(keys={"partition.by": "p"}), records(batch))
    assert {o: r.message for o, r in found.items()} == dict.fromkeys(
        (0, 2), "column p: the year is not between 1 and 9999"
    )
    put(lake, records(batch.set_column(0, "p", far.take(pa.array([1, 1, 1])))))


def test_files_end_at_their_target_size(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP", 100_000)
    sink = lake.sink(keys={"target.file.size": 400_000, "parquet.codec": "none"})
    stager = sink.stager("t-0")
    for n in range(40):
        column = pa.array([f"{n}-{i}-{'x' * 50}" for i in range(1000)])
        stager.add(Commit([records(pa.table({"text": column}))]))
    staged = stager.finish()
    assert sum(json.loads(f.stats)["numRecords"] for f in staged) == 40_000
    *full, _last = staged
    assert len(full) > 3
    assert all(400_000 <= f.size < 600_000 for f in full)


def test_many_open_partitions_do_not_keep_all_rows_in_memory(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_WAITING", 100)
    sink = lake.sink(keys={"partition.by": "day"})
    stager = sink.stager("t-0")
    for n in range(4):
        stager.add(Commit([records([{"id": 100 * n + i, "day": i % 20} for i in range(100)])]))
    staged = stager.finish()
    assert len(staged) == 20
    groups = [pq.ParquetFile(lake.path / "t" / f.path).num_row_groups for f in staged]
    assert set(groups) == {4}
    sink.write_staged(StagedCommit(staged))
    assert sorted(r["id"] for r in lake.rows()) == list(range(400))


def test_statistics_let_readers_skip(lake: Lake) -> None:
    long = "z" * 100
    rows = [
        {"id": 5, "f": 1.5, "s": long, "at": dt.datetime(2024, 1, 1, 0, 0, 0, 1500, dt.UTC)},
        {"id": -7, "f": None, "s": "a", "at": dt.datetime(2023, 1, 1, tzinfo=dt.UTC)},
    ]
    put(lake, records(rows))
    (action,) = lake.table().get_add_actions(flatten=True).to_struct_array().to_pylist()
    assert (action["num_records"], action["min.id"], action["max.id"]) == (2, -7, 5)
    assert action["null_count.f"] == 1
    assert action["min.s"] == "a"
    assert action["max.s"] > long
    assert action["max.at"] >= dt.datetime(2024, 1, 1, 0, 0, 0, 1500, dt.UTC)
    found = DeltaTable(str(lake.path / "t")).to_pyarrow_table(filters=[("s", "=", long)])
    assert found.column("id").to_pylist() == [5]


def test_a_nan_makes_no_bounds(lake: Lake) -> None:
    put(lake, records({"f": [1.0, float("nan")]}))
    (action,) = lake.table().get_add_actions(flatten=True).to_struct_array().to_pylist()
    assert action.get("max.f") is None
    assert action["null_count.f"] == 0


def test_what_is_not_committed_is_seen_by_nobody_and_is_recognized_by_its_name(lake: Lake) -> None:
    sink = lake.sink("my connector")
    sink.accommodate(records([{"id": 1}]))
    stager = sink.stager("t-0-100-200")
    stager.add(Commit([records([{"id": 1}])]))
    (file,) = stager.finish()
    assert file.path.startswith("semel-my_connector-t-0-100-200-")
    assert lake.rows() == []
    stager.discard()
    assert not list((lake.path / "t").glob("*.parquet"))


def test_fields_are_chosen(lake: Lake) -> None:
    put(lake, records([{"id": 1, "a": 1, "b": 2}]), {"field.exclude.list": "a"})
    assert lake.rows() == [{"id": 1, "b": 2}]


def test_wrong_combinations_are_refused(lake: Lake) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"insert.mode": "upsert"}, "needs a key"),
        ({"delete.enabled": "true"}, "needs insert.mode=upsert and pk.mode=record_key"),
        ({"table.name.format": "${key}"}, r"only \$\{topic\}"),
        ({"insert.mode": "update"}, "must be one of insert, upsert"),
        ({"topics": None, "topics.regex": ".*", "table.name.format": "all"}, "topics.regex needs"),
        ({"storage.options.aws_region": " "}, "storage.options.aws_region is empty"),
        ({"partition.by": "a,b,a"}, "partition.by=a,b,a names a column twice"),
        ({"delta.table.path": None}, "delta.table.path is required"),
        ({"delta.table.path": "s4://b/lake"}, "s4:// is not a store that delta-rs knows"),
        ({"errors.deadletterqueue.table": "t"}, "is the table of topic t too"),
        (
            {"pk.mode": "record_value", "pk.fields": "id", "field.exclude.list": "t:id"},
            "field.exclude.list=t:id leaves out id, which pk.fields=id names",
        ),
        (
            {"pk.mode": "record_key", "key.converter": "StringConverter"},
            "pk.mode=record_key without pk.fields",
        ),
    ]
    for keys, message in wrong:
        raw = {k: v for k, v in lake.config(keys=keys).items() if keys.get(k, "") is not None}
        with pytest.raises(ConfigError, match=message):
            plan(raw)


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 6}, "IdentityColumns"),
        ({"minReaderVersion": 1, "writerFeatures": ["domainMetadata"]}, "DomainMetadata"),
        ({"readerFeatures": ["new"], "writerFeatures": ["new"]}, "'new'"),
        ({"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged"]}, "catalog"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("running", [False, True], ids=["start", "commit"])
def test_a_feature_that_delta_rs_lacks_is_named(
    protocol: dict[str, Any], named: str, running: bool, lake: Lake
) -> None:
    put(lake, records([{"id": 1}]))
    sink = lake.sink() if running else None
    log = sorted((lake.path / "t" / "_delta_log").glob("*.json"))
    more = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **protocol}}
    log[-1].with_name(f"{len(log):020}.json").write_text(json.dumps(more))
    with pytest.raises(ServiceError, match=rf"delta-rs cannot write it: .*{named}.*DROP FEATURE"):
        (sink or lake.sink()).write(Commit([records([{"id": 2}])]))


def test_small_files_are_compacted_and_the_ledger_goes_on(lake: Lake) -> None:
    sink = lake.sink(keys={"auto.compact.min.files": 4})
    plain = lake.sink("plain", {"auto.compact": "false"})
    for n in range(10):
        batch = records([{"id": n}], offsets=[n])
        sink.commit([advance(n, n + 1)], Commit([batch]))
        if n < 3:
            plain.commit([advance(n, n + 1)], Commit([batch]))
    assert lake.stored() == 10
    assert sorted(r["id"] for r in lake.rows()) == sorted([*range(10), 0, 1, 2])
    assert len(lake.table().file_uris()) == 3
    kinds = [entry["operation"] for entry in lake.table().history()]
    assert kinds.count("OPTIMIZE") == 2


def test_names_that_differ_only_in_case_are_refused(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="fields id and ID of topic t are one column to Delta"):
        put(lake, records([{"id": 1, "ID": 2}]))
    put(lake, records([{"id": 1}]))
    with pytest.raises(ConfigError, match=r"fields id and ID .*field.exclude.list"):
        put(lake, records([{"id": 1, "ID": 2}]), {"auto.evolve": "true"})
    put(lake, records([{"id": 2, "ID": 2}]), {"field.exclude.list": "ID"})


def test_a_task_goes_on_with_the_columns_that_appear_while_it_writes(lake: Lake) -> None:
    sink = lake.sink(keys={"auto.evolve": "true"})
    stager = sink.stager("t-0")
    for batch in ([{"id": 1}], [{"id": 2, "more": 5}], [{"id": 3}]):
        stager.add(Commit([records(batch)]))
    sink.write_staged(StagedCommit(stager.finish()))
    assert [(r["id"], r["more"]) for r in lake.rows()] == [(1, None), (2, 5), (3, None)]


def test_changes_of_a_key_go_on_with_the_columns_that_appear_within_a_trigger(lake: Lake) -> None:
    keys = {**UPSERT, "auto.evolve": "true"}
    sink = lake.sink(keys=keys)
    sink.write(Commit([changes((1, {"a": 0}))]))
    one, other = (lake.sink(keys=keys).stager(f"t-{n}") for n in range(2))
    one.add(Commit([changes((1, {"a": 1}))]))
    other.add(Commit([changes((2, {"a": 2}))]))
    other.add(Commit([changes((3, {"a": 3, "more": 5}))]))
    sink.write_staged(StagedCommit([*one.finish(), *other.finish()]))
    assert [tuple(r.values()) for r in lake.rows()] == [(1, 1, None), (2, 2, None), (3, 3, 5)]


@pytest.mark.parametrize("name", ["a`b", "``", 'a"b', "a.b", "it's a"])
def test_a_column_may_have_any_name(name: str, lake: Lake) -> None:
    keyed = {**UPSERT, "pk.fields": name, "delete.enabled": "true", "auto.evolve": "true"}
    sink = lake.sink(keys=keyed)
    value = f"{name} too"
    exact = decimal.Decimal("0.1234567")  # delta-rs must not write bounds of it
    sink.write(Commit([changes((1, {value: 0, "d": exact}), (2, {value: 0, "d": exact}))]))
    sink.write(Commit([changes((1, {value: 1}), (2, None), (3, {value: 3}))]))
    sink.write(Commit([changes((3, None), (3, {"more": 4}))]))
    found = [(r[name], r[value], r["more"]) for r in lake.rows()]
    assert found == [(1, 1, None), (3, None, 4)]
    assert "delta.dataSkippingStatsColumns" in lake.table().metadata().configuration


def test_a_row_keeps_what_no_record_gives(lake: Lake) -> None:
    before = pa.table({"id": [1, 2, 3, 4], "a": [0, 0, 0, 0], "secret": ["w", "x", "y", "z"]})
    write_deltalake(str(lake.path / "t"), before)
    sink = lake.sink(keys={**UPSERT, "fields.whitelist": "a"})
    one, other = (sink.stager(f"t-{n}") for n in range(2))
    one.add(Commit([changes((1, {"a": 1, "secret": "no"}), (2, None), (5, {"a": 5}))]))
    other.add(Commit([changes((3, None), (3, {"a": None}))]))
    sink.write_staged(StagedCommit([*one.finish(), *other.finish()]))
    assert [tuple(r.values()) for r in lake.rows()] == [
        (1, 1, "w"),
        (3, None, None),  # deleted, and inserted again
        (4, 0, "z"),
        (5, 5, None),
    ]


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_a_table_of_nested_timestamps_without_a_zone_can_be_opened(lake: Lake, kind: str) -> None:
    """delta-rs by itself leaves out the feature that readers ask for."""
    moment, inner = dt.datetime(2026, 1, 1), pa.timestamp("us")
    kinds: dict[str, tuple[object, pa.DataType]] = {
        "list": ([moment], pa.list_(inner)),
        "struct": ({"a": moment}, pa.struct([("a", inner)])),
        "map": ([("a", moment)], pa.map_(pa.string(), inner)),
    }
    value, type_ = kinds[kind]
    at = pa.array([value, None], type_)
    sink = lake.sink()
    with pytest.raises(ConfigError, match="whose only column is at, with timestamps"):
        sink.commit([advance(0, 2)], Commit([records(pa.table({"at": at}))]))
    sink.commit([advance(0, 2)], Commit([records(pa.table({"id": [1, 2], "at": at}))]))
    assert [r["at"] for r in lake.table().to_pyarrow_table().to_pylist()] == [value, None]
    later = records(pa.table({"id": [3, 4], "on": at}), offsets=[2, 3])
    lake.sink(keys={"auto.evolve": "true"}).commit([advance(2, 4)], Commit([later]))
    assert value in [r["on"] for r in lake.table().to_pyarrow_table().to_pylist()]
