"""What files contain, where they are, and when they are closed."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from semel.config import ConnectorConfig, read
from semel.converters.json.columns import JSON
from semel.core.errors import ConfigError
from semel.core.ledger import Advance as Moved
from semel.core.ledger import OffsetRange, TopicPartition, firsts
from semel.core.records import TIMESTAMP, TIMESTAMP_TYPE, Commit, Records, RowsRejected
from semel.driver.planning import plan
from semel.sinks.files.config import FilesConfig
from semel.tasks.pipeline import Pipeline
from semel_lab.drill.stores import store_of
from tests.engine.harness import some
from tests.polled import polled
from tests.sinks.files.conftest import Folder
from tests.sinks.target import advance, changes, records, refused

ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": 'Ann "A", Köln\nlast',
        "price": Decimal("12.50"),
        "ratio": 0.5,
        "yes": True,
        "at": dt.datetime(2024, 5, 1, 12, 30, 0, 1500, dt.UTC),
        "day": dt.date(2024, 5, 1),
        "raw": b"\x00\xff",
        "tags": ["a", "b"],
        "inner": {"x": 1, "y": "z"},
    },
    {
        "id": 2,
        "name": "",
        "price": None,
        "ratio": None,
        "yes": None,
        "at": None,
        "day": None,
        "raw": None,
        "tags": None,
        "inner": None,
    },
]
TABLE = pa.Table.from_pylist(
    ROWS,
    schema=pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float64()),
            ("yes", pa.bool_()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ]
    ),
)


def put(place: Folder, batch: Records, keys: Mapping[str, Any] | None = None) -> list[str]:
    """Commit one batch of partition 0; returns the new files."""
    sink = place.sink(keys=keys)
    before = set(place.files())
    position = next(e.position for e in sink.entries() if e.partition == 0)
    last = max(batch.rows.column("__connect_offset").to_pylist())
    assert position <= last
    sink.commit([advance(position, last + 1)], Commit([batch]))
    return sorted(set(place.files()) - before)


def at(*seconds: int) -> Records:
    """Records with timestamps of their own."""
    batch = records([{"id": i} for i in range(len(seconds))])
    column = pa.array([1000 * s for s in seconds], TIMESTAMP_TYPE)
    index = batch.rows.schema.get_field_index(TIMESTAMP)
    return Records("t", batch.rows.set_column(index, TIMESTAMP, column))


def test_parquet_holds_what_came(folder: Folder) -> None:
    (file,) = put(folder, records(TABLE))
    found = folder.read()
    assert [{k: r[k] for k in ROWS[0]} for r in found] == ROWS
    assert ds.dataset(Path(folder.where, file)).to_table().to_pylist() == ROWS
    column = pq.ParquetFile(Path(folder.where, file)).metadata.row_group(0).column(0)
    assert column.compression == "SNAPPY"


def test_no_name_of_a_field_is_taken(folder: Folder) -> None:
    row = {f"__semel_{name}": 7 for name in ("topic", "partition", "offset", "time")}
    put(folder, records([row]), {"rotate.interval.ms": "1000"})
    assert [{n: r[n] for n in row} for r in folder.read()] == [row]


def test_maps_are_maps_in_avro(folder: Folder) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    column = pa.array([[("a", 1), ("b", None)], None], kind)
    (file,) = put(folder, records(pa.table({"m": column})), {"format": "avro"})
    with Path(folder.where, file).open("rb") as stream:
        assert list(fastavro.reader(stream)) == [{"m": {"a": 1, "b": None}}, {"m": None}]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_avro_holds_what_came(folder: Folder, codec: str) -> None:
    (file,) = put(folder, records(TABLE), {"format": "avro", "avro.codec": codec})
    assert file.endswith(".avro")
    with Path(folder.where, file).open("rb") as stream:
        reader = fastavro.reader(stream)
        assert list(reader) == ROWS
        assert reader.codec == codec


def test_avro_holds_times_that_python_does_not_have(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    days, moments = [2**31 - 1, -(2**31), None], [2**63 - 1, -(2**63), None]
    day = pa.array(days, pa.int32()).cast(pa.date32())
    at = pa.array(moments, pa.int64()).cast(pa.timestamp("us", "UTC"))
    listed = pa.array([[m] for m in moments], pa.list_(pa.int64())).cast(pa.list_(at.type))
    table = pa.table({"day": day, "at": at, "listed": listed})
    (file,) = put(folder, records(table), {"format": "avro"})
    for kind in ("int-date", "long-timestamp-micros"):
        monkeypatch.delitem(fastavro.read.LOGICAL_READERS, kind)
    with Path(folder.where, file).open("rb") as stream:
        assert list(fastavro.reader(stream)) == [
            {"day": d, "at": m, "listed": [m]} for d, m in zip(days, moments, strict=True)
        ]


def test_names_that_avro_does_not_know_are_refused(folder: Folder) -> None:
    with pytest.raises(ConfigError, match=r"field 'order id' cannot be written as Avro"):
        put(folder, records([{"order id": 1}]), {"format": "avro"})


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_json_has_one_object_per_line(folder: Folder, compression: str) -> None:
    keys = {"format": "json", "file.compression.type": compression}
    (file,) = put(folder, records(TABLE), keys)
    found = folder.read(f"t/**/*.json{'' if compression == 'none' else '.*'}")
    assert [r["name"] for r in found] == ['Ann "A", Köln\nlast', ""]
    assert [r["price"] for r in found] == [12.5, None]
    assert [r["inner"] for r in found] == [{"x": 1, "y": "z"}, None]
    if compression == "gzip":
        lines = gzip.decompress(Path(folder.where, file).read_bytes()).splitlines()
        assert json.loads(lines[0])["at"] == 1714566600001
        assert len(lines) == 2


def test_what_is_no_number_in_json_is_refused_there(folder: Folder) -> None:
    values = records([{"x": 1.5}, {"x": float("nan")}, {"x": None}, {"x": float("inf")}])
    with pytest.raises(RowsRejected) as refusal:
        put(folder, values, {"format": "json"})
    assert [r.offset for r in refusal.value.rejected] == [1, 3]
    assert "column x: JSON has no nan" in refusal.value.rejected[0].message
    nested = records([{"y": {"d": 1.5}}, {"y": {"d": float("nan")}}, {"y": None}])
    with pytest.raises(RowsRejected) as refusal:
        put(folder, nested, {"format": "json"})
    assert [r.offset for r in refusal.value.rejected] == [1]


def test_a_time_that_no_text_can_hold_is_refused_in_csv(folder: Folder) -> None:
    values = records([{"x": 1}] * 3)
    times = pa.array([0, 3_093_527_980_800_000, None], pa.timestamp("ms", "UTC"))  # 100000-01-01
    with pytest.raises(RowsRejected) as refusal:
        put(folder, replace(values, rows=values.rows.set_column(0, "x", times)), {"format": "csv"})
    (told,) = refusal.value.rejected
    assert told.offset == 1
    assert "column x: its year is beyond 32767" in told.message


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_csv_has_a_header_and_tells_null_from_empty(folder: Folder, compression: str) -> None:
    keys = {"format": "csv", "file.compression.type": compression}
    (file,) = put(folder, records(TABLE), keys)
    if compression == "none":
        first = Path(folder.where, file).read_text().splitlines()[0]
        assert first == '"id","name","price","ratio","yes","at","day","raw","tags","inner"'
        assert Path(folder.where, file).read_text().splitlines()[-1] == '2,"",,,,,,,,'
    found = folder.read(f"t/**/*.csv{'' if compression == 'none' else '.*'}")
    assert [r["id"] for r in found] == [1, 2]
    assert found[0]["name"] == 'Ann "A", Köln\nlast'
    assert found[0]["inner"] == '{"x":1,"y":"z"}'
    assert found[0]["raw"] == "AP8="
    assert found[0]["at"] == dt.datetime(2024, 5, 1, 12, 30, 0, 1500, dt.UTC)


def test_json_that_has_no_schema_of_its_own_stays_json(folder: Folder) -> None:
    column = pa.ExtensionArray.from_storage(JSON, pa.array(['{"x":[1]}', '"plain"', None]))
    keys = {"format": "json"}
    (file,) = put(folder, records(pa.table({"id": [1, 2, 3], "nested": column})), keys)
    lines = Path(folder.where, file).read_text().splitlines()
    assert [json.loads(n)["nested"] for n in lines] == [{"x": [1]}, "plain", None]
    assert folder.made(keys=keys).schema("t") is None  # what follows may be of other types


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
@pytest.mark.parametrize("provenance", some(["true", "false"], {"true"}))
def test_an_audit_reads_every_format(place: Folder, kind: str, provenance: str) -> None:
    keys = {"format": kind, "provenance": provenance, "flush.size": 2}
    put(place, records([{"id": i, "text": "a\nb"} for i in range(5)]), keys)
    put(place, records([{"id": 5, "more": 1.5}], offsets=[5]), keys)
    snapshot = place.made(keys=keys).snapshot(["t"])
    (target,) = snapshot.rows
    assert snapshot.rows == {target: 6}
    assert snapshot.targets == {"t": target}
    if provenance == "true":
        assert sorted(snapshot.records["t"].column("offset").to_pylist()) == list(range(6))
        assert snapshot.untraced == {target: 0}


def test_an_audit_sees_folders_of_fields_that_begin_like_what_is_hidden(place: Folder) -> None:
    keys = {"partitioner.class": "field", "partition.field.name": "_id,.x"}
    put(place, records([{"_id": i, ".x": i} for i in range(3)]), keys)
    snapshot = place.made(keys=keys).snapshot(["t"])
    assert list(snapshot.rows.values()) == [3]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_an_audit_counts_the_nulls_of_a_lone_column(folder: Folder, compression: str) -> None:
    keys = {"format": "csv", "file.compression.type": compression}
    put(folder, records([{"a": "x"}, {"a": None}, {"a": ""}, {"a": None}]), keys)
    snapshot = folder.made(keys=keys).snapshot(["t"])
    assert list(snapshot.rows.values()) == [4]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_audit_reads_compressed_files(place: Folder, kind: str, compression: str) -> None:
    keys = {"format": kind, "provenance": "true", "file.compression.type": compression}
    put(place, records([{"id": i} for i in range(5)]), keys)
    snapshot = place.made(keys=keys).snapshot(["t"])
    assert sorted(snapshot.records["t"].column("offset").to_pylist()) == list(range(5))


def test_provenance_that_was_enabled_later_is_reported(folder: Folder) -> None:
    put(folder, records([{"id": 1}]))
    with pytest.raises(ConfigError, match=r"have no column __connect_topic"):
        folder.made(keys={"provenance": "true"}).snapshot(["t"])
    put(folder, records([{"id": 2}], offsets=[1]), {"provenance": "true"})
    snapshot = folder.made(keys={"provenance": "true"}).snapshot(["t"])
    assert list(snapshot.untraced.values()) == [1]


def test_a_file_is_named_by_its_partition_and_its_offsets(folder: Folder) -> None:
    sink = folder.sink(keys={"topics": "t"})
    sink.start(firsts({advance(0, 1, partition=1).range.topic_partition: 3}))
    batch = [records([{"id": p}, {"id": p}], offsets=[3, 7], partition=p) for p in (0, 1)]
    moved = [
        Moved(OffsetRange("t", 0, 0, 9), read=2, written=2),
        Moved(OffsetRange("t", 1, 3, 9), read=2, written=2),
    ]
    both = pa.concat_tables([b.rows for b in batch])
    sink.commit(moved, Commit([Records("t", both)]))
    assert folder.files() == [
        "t/partition=0/t+0+0000000003-0000000008.parquet",
        "t/partition=1/t+1+0000000003-0000000008.parquet",
    ]


def test_names_are_made_as_configured(folder: Folder) -> None:
    keys = {
        "filename.offset.zero.pad.width": 3,
        "file.delim": "_",
        "topics.dir": "all",
        "partitioner.class": "none",
        "format": "json",
    }
    assert put(folder, records([{"id": 1}]), keys) == ["all/t/t_0_000-001.json"]


def test_files_end_after_so_many_records(folder: Folder) -> None:
    stager = folder.sink(keys={"flush.size": 4}).stager("x")
    stager.add(Commit([records([{"id": i} for i in range(3)])]))
    stager.add(Commit([records([{"id": i} for i in range(3, 10)], offsets=range(3, 10))]))
    found = [(f.target.rpartition("+")[2], f.rows) for f in stager.finish()]
    assert found == [
        ("0000000000-0000000004.parquet", 4),
        ("0000000004-0000000008.parquet", 4),
        ("0000000008-0000000010.parquet", 2),
    ]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_files_end_at_their_size(
    folder: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.sinks import parquet
    from semel.sinks.files import formats

    monkeypatch.setattr(parquet, "_ROW_GROUP", 10_000)
    monkeypatch.setattr(formats, "_WAITING", 10_000)
    keys = {"target.file.size": 60_000, "parquet.codec": "none", "format": kind}
    stager = folder.sink(keys=keys).stager("x")
    for n in range(20):
        texts = [f"{n} {i} {'x' * 50}" for i in range(200)]
        stager.add(Commit([records({"text": texts}, offsets=range(200 * n, 200 * n + 200))]))
    files = stager.finish()
    assert sum(f.rows for f in files) == 4000
    assert len(files) > 3
    assert all(50_000 < f.size < 90_000 for f in files[:-1])


def test_files_end_after_so_much_time_of_their_records(folder: Folder) -> None:
    keys = {"rotate.interval.ms": 10_000, "timestamp.extractor": "Record"}
    files = put(folder, at(0, 5, 9, 10, 11, 25, 3), keys)
    found = [f.rpartition("+")[2].partition(".")[0] for f in files]
    assert [tuple(map(int, f.split("-"))) for f in found] == [(0, 3), (3, 5), (5, 7)]


def test_the_clock_on_the_wall_paces_commits(folder: Folder) -> None:
    assert folder.made().interval is None
    assert folder.made(keys={"rotate.schedule.interval.ms": 60_000}).interval == 60
    both = {"rotate.schedule.interval.ms": 60_000, "rotate.interval.ms": 5_000}
    assert folder.made(keys=both).interval == 5
    assert folder.made(keys={**both, "timestamp.extractor": "Record"}).interval == 60


def test_fields_make_folders_as_hive_names_them(folder: Folder) -> None:
    rows = [
        {"id": 1, "city": "Köln", "place": {"n": 1}},
        {"id": 2, "city": "a/b=c", "place": {"n": 2}},
        {"id": 3, "city": None, "place": None},
        {"id": 4, "city": "Köln", "place": {"n": 1}},
        {"id": 5, "city": "..", "place": {"n": 1}},
    ]
    keys = {"partitioner.class": "field", "partition.field.name": "city,place.n"}
    files = put(folder, records(rows), keys)
    assert {f.rpartition("/")[0] for f in files} == {
        "t/city=Köln/place.n=1",
        "t/city=a%2Fb%3Dc/place.n=2",
        "t/city=__HIVE_DEFAULT_PARTITION__/place.n=__HIVE_DEFAULT_PARTITION__",
        "t/city=%2E./place.n=1",
    }
    assert "t/city=Köln/place.n=1/t+0+0000000000-0000000004.parquet" in files
    assert [r["id"] for r in folder.read()] == [1, 2, 3, 4, 5]
    twice = Folder(f"{folder.where}-twice")
    (file,) = put(twice, records(rows[:1]), {**keys, "partition.field.name": "id,id"})
    assert file.startswith("t/id=1/id=1/")


def test_folders_know_summer_time_in_any_year_and_decimals_have_no_exponent(
    folder: Folder,
) -> None:
    keys = {
        "partitioner.class": "daily",
        "timezone": "Europe/Vienna",
        "timestamp.extractor": "Record",
    }
    files = put(folder, at(2_224_706_400, 2_224_706_399, 0), keys)  # 2040-06-30, 22:00 in UTC
    days = {f.rpartition("/")[0] for f in files}
    assert days == {f"t/year={d}" for d in ("2040/month=07/day=01", "2040/month=06/day=30")} | {
        "t/year=1970/month=01/day=01"
    }
    tiny = Folder(f"{folder.where}-tiny")
    table = pa.table({"d": pa.array([Decimal("1E-8")], pa.decimal128(10, 8))})
    (file,) = put(tiny, records(table), {"partitioner.class": "field", "partition.field.name": "d"})
    assert file.startswith("t/d=0.00000001/")


def test_a_field_that_a_whole_batch_lacks_is_null_as_where_other_records_have_it(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"partitioner.class": "field", "partition.field.name": "no"}
    (file,) = put(folder, records([{"id": 6}]), keys)
    assert file.startswith("t/no=__HIVE_DEFAULT_PARTITION__/")
    assert "partition.field.name=no: records of topic t have no such field" in caplog.text


@pytest.mark.parametrize(
    ("keys", "folders"),
    [
        (
            {"partitioner.class": "daily", "timezone": "Europe/Vienna"},
            {"year=2024/month=03/day=31", "year=2024/month=04/day=01"},
        ),
        (
            {"partitioner.class": "io.confluent.connect.storage.partitioner.HourlyPartitioner"},
            {
                "year=2024/month=03/day=31/hour=00",
                "year=2024/month=03/day=31/hour=21",
                "year=2024/month=03/day=31/hour=22",
            },
        ),
        (
            {
                "partitioner.class": "time",
                "path.format": "'day'=YYYY-MM-dd/'at'=HHmm",
                "partition.duration.ms": "600000",
            },
            {
                "day=2024-03-31/at=0030",
                "day=2024-03-31/at=2150",
                "day=2024-03-31/at=2200",
            },
        ),
        (
            {"partitioner.class": "time", "path.format": "YY/'m'=M/d/ddd/H"},
            {"24/m=3/31/031/0", "24/m=3/31/031/21", "24/m=3/31/031/22"},
        ),
    ],
)
def test_times_make_folders(folder: Folder, keys: dict[str, str], folders: set[str]) -> None:
    start = int(dt.datetime(2024, 3, 31, 0, 30, tzinfo=dt.UTC).timestamp())
    files = put(
        folder,
        at(start, start + 77000, start + 77400),
        {**keys, "timestamp.extractor": "Record"},
    )
    assert {f.removeprefix("t/").rpartition("/")[0] for f in files} == folders


def test_times_before_1970_have_days_too(folder: Folder) -> None:
    keys = {"partitioner.class": "daily", "timestamp.extractor": "Record"}
    files = put(folder, at(-1, -86400, 0), keys)
    days = sorted(f.split("/")[1:4] for f in files)
    assert days == [["year=1969", "month=12", "day=31"], ["year=1970", "month=01", "day=01"]]


def test_a_record_without_a_time_has_no_day(folder: Folder) -> None:
    unknown = at(0)
    place = unknown.rows.schema.get_field_index(TIMESTAMP)
    rows = unknown.rows.set_column(place, TIMESTAMP, pa.array([-1], TIMESTAMP_TYPE))
    keys = {"partitioner.class": "daily", "timestamp.extractor": "Record"}
    with pytest.raises(RowsRejected) as error:
        put(folder, Records("t", rows), keys)
    assert error.value.rejected[0].message == "the record's timestamp is null"


def test_a_field_may_say_the_time_and_a_record_without_it_is_refused(folder: Folder) -> None:
    keys = {
        "partitioner.class": "daily",
        "timestamp.extractor": "RecordField",
        "timestamp.field": "seen",
    }
    day = dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC)
    put(folder, records([{"seen": int(day.timestamp() * 1000)}]), keys)
    assert folder.files()[0].startswith("t/year=2024/month=01/day=01/")
    text = Folder(f"{folder.where}-text")
    found = refused(
        text.sink(keys=keys), records([{"seen": "2024-01-01T00:00:00Z"}, {"seen": "?"}])
    )
    assert list(found) == [1]
    assert "seen is not a time" in found[1].message
    texts = ["2024-01-01 00:00:00", "2024-01-01", "2024-01-01T05:00:00.5+02:00", None]
    none = Folder(f"{folder.where}-none")
    found = refused(none.sink(keys=keys), records([{"seen": t} for t in texts]))
    assert {o: r.message for o, r in found.items()} == {3: "seen is null"}
    files = put(none, records([{"seen": t} for t in texts[:3]]), keys)
    assert {f.rpartition("/")[0] for f in files} == {"t/year=2024/month=01/day=01"}


def test_a_time_may_be_a_field_of_an_object_of_json(folder: Folder) -> None:
    keys = {
        "partitioner.class": "daily",
        "timestamp.extractor": "RecordField",
        "timestamp.field": "a.b",
    }
    texts = ['{"b": 1704067200000}', '{"b": "2024-01-01T05:00:00Z", "c": 1}', "{}", "[]"]
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))
    found = refused(folder.sink(keys=keys), records(pa.table({"a": column})))
    assert {o: r.message for o, r in found.items()} == {2: "a.b is null", 3: "a.b is null"}
    files = put(folder, records(pa.table({"a": column[:2]})), keys)
    assert {f.rpartition("/")[0] for f in files} == {"t/year=2024/month=01/day=01"}


def test_hive_integration_is_a_warning() -> None:
    keys = {"name": "n", "connector.class": "files", "topics": "t", "path": "/x"}
    given = {**keys, "bootstrap.servers": "h:1", "hive.integration": "true"}
    warnings = plan(
        {**given, "value.converter": "org.apache.kafka.connect.json.JsonConverter"}
    ).warnings
    assert any("hive.integration has no effect: no metastore" in w for w in warnings), warnings


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s"), pa.string()]
)
def test_times_finer_than_milliseconds_are_cut(folder: Folder, kind: pa.DataType) -> None:
    keys = {
        "partitioner.class": "daily",
        "timestamp.extractor": "RecordField",
        "timestamp.field": "at",
    }
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)
    stamps = [dt.datetime(2024, 2, 29, 23, 59, 59, 999999, dt.UTC), before]
    if kind == pa.string():
        texts = [t.isoformat() for t in stamps] + ["2024-02-29T23:59:59.999999999+0000"]
        column = pa.array(texts)
    else:
        column = pa.array(stamps, pa.timestamp("us", "UTC")).cast(kind, safe=False)
    days = {f.rpartition("/")[0] for f in put(folder, records(pa.table({"at": column})), keys)}
    last = "year=1970/month=01/day=01" if kind == pa.timestamp("s") else "year=1969/month=12/day=31"
    assert days == {"t/year=2024/month=02/day=29", f"t/{last}"}


@pytest.mark.parametrize("span", ["-1", str(400 * 366 * 86_400_000)])
def test_times_without_a_year_of_four_digits_are_bad_records(folder: Folder, span: str) -> None:
    keys = {
        "partitioner.class": "time",
        "path.format": "'year'=YYYY",
        "partition.duration.ms": span,
        "timezone": "Pacific/Auckland",
        "timestamp.extractor": "RecordField",
        "timestamp.field": "at",
    }
    end, begin = 253_402_300_800_000, -62_135_596_800_000
    day = 86_400_000
    column = pa.array([end - 1 - day, begin + day, end, begin - 1, 2**62, -(2**63) + 1])
    found = refused(folder.sink(keys=keys), records(pa.table({"at": column})))
    assert list(found) == [2, 3, 4, 5]
    assert "at is outside the years 1 to 9999" in found[2].message
    unsigned = Folder(f"{folder.where}-unsigned")
    table = pa.table({"at": pa.array([0, 2**64 - 1], pa.uint64())})
    assert list(refused(unsigned.sink(keys=keys), records(table))) == [1]
    files = put(folder, records(pa.table({"at": column.slice(0, 2)})), keys)
    assert len(files) == 2


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "UTC")], ids=str
)
def test_a_year_that_no_folder_can_be_named_by_is_a_bad_record(
    kind: pa.DataType, folder: Folder
) -> None:
    keys = {"partitioner.class": "field", "partition.field.name": "day"}
    days = pa.array([-719_163, -719_162, 0, 2_932_896, 2_932_897], pa.date32()).cast(kind)
    found = refused(folder.sink(keys=keys), records(pa.table({"day": days})))
    assert list(found) == [0, 4]
    assert found[0].message == "column day: the year is not between 1 and 9999"
    put(folder, records(pa.table({"day": days.slice(1, 3)})), keys)


@pytest.mark.parametrize(
    ("store", "size"), [("folder", 300), ("folder", 85), ("bucket", 1000), ("bucket", 340)]
)
def test_a_value_that_no_folder_can_be_named_by_is_a_bad_record(
    store: str, size: int, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(store)
    keys = {"partitioner.class": "field", "partition.field.name": "city"}
    text = ("x" if size in (300, 1000) else "/") * size  # of which each becomes %2F
    rows: list[dict[str, Any]] = [{"id": 1, "city": "a"}, {"id": 2, "city": text}]
    found = refused(place.sink(keys=keys), records(rows))
    assert list(found) == [1]
    assert "bytes are too many for" in found[1].message
    assert found[1].exception == "io.confluent.connect.storage.errors.PartitionException"
    assert place.staged() == []
    put(place, records([{"id": 1, "city": "x" * 240}]), keys)


def test_a_topic_whose_files_no_disk_can_name_is_refused_and_an_object_store_takes_it(
    folder: Folder, bucket: Folder
) -> None:
    topic = "x" * 249
    with pytest.raises(
        ConfigError, match=r"path=.* at most 255 .* Use an object store, or a topic"
    ):
        folder.made(keys={"topics": topic}).prepare([topic])
    sink = bucket.made(keys={"topics": topic})
    sink.prepare([topic])
    sink.start(firsts({TopicPartition(topic, 0): 0}))
    staged = sink.stage(Commit([records([{"id": 1}], topic=topic)]))
    sink.commit_staged([advance(0, 1, topic=topic)], staged)
    assert len(bucket.files()) == 1


@pytest.mark.parametrize("digits", [10, 11])
def test_a_file_that_no_disk_can_name_is_refused_before_its_commit(
    digits: int, folder: Folder
) -> None:
    (shortest,) = put(folder, records([{"id": 1}]))
    topic = "x" * (255 - len(shortest.rpartition("/")[2]) + 1)
    sink = folder.made("d", keys={"topics": topic})
    sink.prepare([topic])
    rows = Commit([records([{"id": 1}], topic=topic, offsets=[10 ** (digits - 1)])])
    if digits == 10:
        assert sink.stage(rows).files
        return
    before = folder.staged()
    with pytest.raises(ConfigError, match=r"has 257 bytes; at most 255"):
        sink.stage(rows)
    assert folder.staged() == before


def test_of_a_field_of_mixed_json_only_objects_and_lists_make_no_folder(folder: Folder) -> None:
    large = "12345678901234567890"
    texts = ['"plain"', None, '{"x":[1]}', "7", "[1]", "true", large]
    column = pa.ExtensionArray.from_storage(JSON, pa.array(texts))
    keys = {"partitioner.class": "field", "partition.field.name": "f"}
    mixed = records(pa.table({"f": column}))
    assert list(refused(folder.sink(keys=keys), mixed)) == [2, 4]
    kept = records(pa.table({"f": column.take(pa.array([0, 1, 3, 5, 6]))}))
    folders = {f.split("/")[1] for f in put(folder, kept, keys)}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert folders == {f"f={name}" for name in ("plain", null, "7", "true", large)}


def test_times_of_mixed_json_are_each_read_by_their_own_kind(folder: Folder) -> None:
    texts = ['"2024-01-01T05:00:00Z"', "1704153600000", '{"x": 1}', "1.5"]
    column = pa.ExtensionArray.from_storage(JSON, pa.array(texts))
    keys = {
        "partitioner.class": "daily",
        "timestamp.extractor": "RecordField",
        "timestamp.field": "at",
    }
    assert list(refused(folder.sink(keys=keys), records(pa.table({"at": column})))) == [2, 3]
    files = put(folder, records(pa.table({"at": column.slice(0, 2)})), keys)
    assert {f.split("/")[3] for f in files} == {"day=01", "day=02"}


def test_an_object_without_fields_is_a_line_of_json(folder: Folder) -> None:
    put(folder, records([{}, {}], offsets=[0, 1]), {"format": "json"})
    put(folder, records([{"id": 1}], offsets=[2]), {"format": "json"})
    (first, second) = sorted(Path(folder.where).rglob("*.json"))
    assert (first.read_text(), second.read_text()) == ("{}\n{}\n", '{"id":1}\n')


@pytest.mark.parametrize("kind", ["parquet", "csv", "avro"])
def test_values_without_any_field_are_bad_records_until_there_is_a_column(
    folder: Folder, kind: str
) -> None:
    keys = {"format": kind}
    empty = records(pa.table({"a": pa.nulls(2)}))
    found = refused(folder.sink(keys=keys), records([{}, {}], offsets=[0, 1]))
    assert list(found) == list(refused(folder.sink(keys=keys), empty)) == [0, 1]
    assert "there is no column yet. provenance=true" in found[0].message
    put(folder, records([{"id": 1}], offsets=[2]), keys)
    put(folder, records([{}], offsets=[3]), keys)
    assert list(folder.made(keys=keys).snapshot(["t"]).rows.values()) == [2]


def test_fields_are_chosen_from_those_that_are_there(folder: Folder) -> None:
    for key in ({"fields.whitelist": "typo"}, {"field.exclude.list": "a,b"}):
        for provenance in ("true", "false"):
            keys = {**key, "provenance": provenance}
            with pytest.raises(ConfigError, match=r"leaves nothing of topic t, .* have a, b"):
                put(folder, records([{"a": 1, "b": 2}]), keys)
    put(folder, records([{"a": 1, "b": 2}]), {"fields.whitelist": "a"})
    put(folder, records([{"b": 2}], offsets=[1]), {"fields.whitelist": "a"})


def test_the_time_of_writing_chooses_the_folder_once(folder: Folder) -> None:
    (file,) = put(folder, records([{"id": 1}]), {"partitioner.class": "daily"})
    today = dt.datetime.now(dt.UTC)
    days = {today.strftime("%Y-%m-%d"), (today - dt.timedelta(1)).strftime("%Y-%m-%d")}
    year, month, day = (p.partition("=")[2] for p in file.split("/")[1:4])
    assert f"{year}-{month}-{day}" in days


def test_fields_that_appear_are_in_the_files_that_follow(place: Folder) -> None:
    put(place, records([{"id": 1}]))
    put(place, records([{"id": 2, "more": "x"}], offsets=[1]))
    put(place, records([{"id": 3}], offsets=[2]))
    assert place.made().schema("t") == pa.schema([("id", pa.int64()), ("more", pa.string())])
    if place.where.startswith("/"):
        assert [r["more"] for r in place.read()] == [None, "x", None]
        last = sorted(Path(place.where, "t/partition=0").iterdir())[-1]
        assert pq.read_schema(last).names == ["id", "more"]


def test_tasks_that_find_the_same_new_field_agree_and_others_reject(place: Folder) -> None:
    put(place, records([{"id": 1}]))
    one, other = place.sink(), place.sink()
    one.schema("t"), other.schema("t")
    first = one.stage(Commit([records([{"id": 2, "n": 1}], offsets=[1])]))
    second = other.stage(Commit([records([{"id": 3, "n": 2.0}], offsets=[2])]))
    files = [*first.files, *second.files]
    assert len(files) == 2
    found = refused(other, records([{"id": 4, "n": 2.5}, {"id": 5, "n": 3.0}]))
    assert list(found) == [0]
    assert "column n (int64) cannot take 2.5" in found[0].message


def test_a_field_that_appears_while_a_task_writes_begins_another_file(folder: Folder) -> None:
    stager = folder.sink().stager("x")
    for n, row in enumerate([{"id": 1}, {"id": 2, "more": 5}, {"id": 3}]):
        stager.add(Commit([records([row], offsets=[n])]))
    assert [f.rows for f in stager.finish()] == [1, 2]


def test_fields_are_chosen(folder: Folder) -> None:
    put(folder, records([{"id": 1, "a": 1, "b": 2}]), {"field.exclude.list": "a"})
    assert [set(r) - {"partition"} for r in folder.read()] == [{"id", "b"}]


def test_the_names_of_topics_and_connectors_are_safe_in_paths(folder: Folder) -> None:
    odd = folder.sink("../a b")
    odd.commit([advance(0, 1)], Commit([records([{"id": 1}])]))
    assert all(f.startswith(("_semel/%2E.%2Fa%20b/", "t/")) for f in folder.all())


def test_tombstones_are_left_out(folder: Folder) -> None:
    assert folder.made().capabilities.takes_tombstones is False
    with pytest.raises(ConfigError, match=r"delete.enabled=true: files are only added, "):
        folder.made(keys={"delete.enabled": "true"})


@pytest.mark.parametrize(
    ("name", "given", "fails"),
    [
        ("files", None, False),
        ("files", "FAIL", True),
        ("io.confluent.connect.s3.S3SinkConnector", None, True),
        ("io.confluent.connect.s3.S3SinkConnector", "ignore", False),
        ("io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector", None, False),
    ],
)
def test_tombstones_are_bad_records_where_confluents_sinks_stop(
    folder: Folder, name: str, given: str | None, fails: bool
) -> None:
    keys = {"connector.class": name, "format": "parquet", "behavior.on.null.values": given}
    assert folder.made(keys=keys).capabilities.takes_tombstones is fails
    batch = changes((None, {"id": 1}), (None, None), (None, {"id": 2}))
    if fails:
        found = refused(folder.sink(keys=keys), batch)
        assert {o: r.message for o, r in found.items()} == {
            1: "the value is null (behavior.on.null.values=fail)"
        }


def test_wrong_combinations_are_refused(folder: Folder) -> None:
    confluent = "io.confluent.connect.s3.S3SinkConnector"
    aiven = "io.aiven.kafka.connect.gcs.GcsSinkConnector"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"path": None}, "path is required"),
        ({"path": "nowhere://x"}, r"nowhere:// is not a store that fsspec knows"),
        ({"s3.bucket.name": "b"}, "exclude each other"),
        ({"store.url": "s3://elsewhere"}, r"store.url is S3's endpoint.*endpoint_url"),
        ({"path": None, "gcs.bucket.name": "b", "store.url": "http://h"}, "store.url is S3's"),
        ({"path": None, "azblob.container.name": "b", "store.url": "http://h"}, "store.url is"),
        ({"format": "orc"}, "must be one of"),
        ({"format": "csv", "format.class": "x.JsonFormat"}, "the same setting"),
        ({"format.class": "x.OrcFormat"}, "JsonFormat, AvroFormat and ByteArrayFormat are"),
        ({"format.output.type": "json"}, "must be one of"),
        ({"format.output.envelope": "true"}, "must be false: a value is not wrapped"),
        ({"partitioner.class": "x.MyPartitioner"}, "must be one of default, none, field"),
        ({"partitioner.class": "field"}, "needs partition.field.name"),
        ({"partitioner.class": "time"}, "needs path.format"),
        ({"partitioner.class": "time", "path.format": "EEE"}, "EEE is not available"),
        ({"partitioner.class": "time", "path.format": "'day"}, "quote is not closed"),
        ({"partitioner.class": "time", "path.format": "YYYY/'..'"}, "begin with a dot or with _"),
        ({"format.bytearray.extension": "/../x"}, "must be text without /"),
        ({"partitioner.class": "daily", "timezone": "Mars"}, "timezone='Mars' is not a time zone"),
        ({"partition.duration.ms": "0"}, "must be positive"),
        (
            {"behavior.on.null.values": "write"},
            "='write' must be fail or ignore: a null has",
        ),
        ({"store.kafka.keys": "true"}, "store.kafka.keys='true' must be false: a record's key is"),
        ({"store.kafka.headers": "true"}, "must be false: a record's headers are not written"),
        ({"insert.mode": "upsert"}, "must be insert: files are only added, never changed"),
        ({"delivery.mechanism": "idempotent"}, r"other files.*delivery.mechanism=transactional"),
        (
            {"path": "hdfs://h:8020/x", "delivery": "exactly-once"},
            r"cannot create a file exclusively.*Set path to webhdfs://h:9870/x .*http-address",
        ),
        (
            {"path": None, "hdfs.url": "hdfs://h", "delivery": "at-most-once"},
            r"at-most-once cannot be kept.*Set path to webhdfs://h:9870 ",
        ),
        ({"errors.deadletterqueue.table": "t"}, "is the folder of topic t too"),
        ({"file.delim": "/"}, "must be text without /"),
        ({"aws.s3.prefix": "{{ utc_date }}/"}, "aws.s3.prefix='{{ utc_date }}/': placeholders"),
        ({"s3.sse.customer.key": "secret"}, "s3.sse.customer.key is not available"),
        ({"storage.options.key": " "}, "storage.options.key is empty"),
        ({"storage.options.client_kwargs": "{no"}, "must be an object in JSON"),
        ({"storage.options.client_kwargs": "[1]"}, "must be an object in JSON"),
        ({"path": "s3://"}, "names no bucket"),
        ({"path": "s3://b", "storage.options.endpoint_url": "minio:9000"}, "with its scheme"),
        ({"path": None, "s3.bucket.name": "b", "store.url": "minio:9000"}, "with its scheme"),
        ({"connector.class": confluent}, "format.class is required"),
        ({"connector.class": aiven}, "format.output.type is required"),
        ({"engine": "micro-batch"}, "does not run on engine=micro-batch"),
        ({"fields.whitelist": "a", "field.exclude.list": "b"}, "exclude each other"),
    ]
    for keys, message in wrong:
        raw = {k: v for k, v in folder.config(keys=keys).items() if keys.get(k, "") is not None}
        with pytest.raises(ConfigError, match=message):
            plan(raw)
    assert folder.all() == []


def test_a_store_without_exclusive_creation_is_at_least_once(folder: Folder) -> None:
    planned = plan(folder.config(keys={"path": "hdfs://h/x"}))
    assert str(planned.guarantee) == "at-least-once"
    assert "libhdfs offers no exclusive creation" in planned.guarantee.why
    planned = plan(folder.config(keys={"path": "webhdfs://h/x"}))
    assert str(planned.guarantee) == "exactly-once (transactional)"


def test_unknown_keys_are_warned_of(folder: Folder) -> None:
    planned = plan(folder.config(keys={"flush.sizes": 3, "locale": "en", "auto.create": "true"}))
    assert planned.warnings == [
        "locale has no effect: path.format shows numbers only",
        "auto.create has no effect: folders are made as they are needed",
        "unknown configuration key flush.sizes; did you mean flush.size?",
    ]


def test_a_confluent_configuration_is_taken_as_it_is(folder: Folder) -> None:
    pytest.importorskip("s3fs")
    keys = {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "path": None,
        "s3.bucket.name": "lake",
        "s3.region": "eu-central-1",
        "s3.part.size": "5242880",
        "s3.credentials.provider.class": "com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
        "store.url": "http://localhost:1",
        "storage.class": "io.confluent.connect.s3.storage.S3Storage",
        "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat",
        "flush.size": "1000",
        "rotate.schedule.interval.ms": "60000",
        "partitioner.class": "io.confluent.connect.storage.partitioner.DailyPartitioner",
        "timestamp.extractor": "Record",
        "locale": "en-US",
        "timezone": "UTC",
        "schema.compatibility": "NONE",
        "behavior.on.null.values": "ignore",
    }
    raw = {k: v for k, v in folder.config(keys=keys).items() if keys.get(k, "") is not None}
    planned = plan(raw)
    assert str(planned.guarantee) == "exactly-once (transactional)"
    assert all("has no effect" in w for w in planned.warnings)
    assert planned.sink.describe()["writes"] == "s3://lake/topics/<topic>/**/*.parquet"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("20", 20), ("-1", -1), ("True", True), ('{"a": 1}', {"a": 1}), ("2.5", "2.5"), ("x1", "x1")],
)
def test_options_have_their_types(given: str, wanted: Any) -> None:
    keys = {"path": "s3://b", "storage.options.it": given, "storage.options.key": "0123"}
    assert read(FilesConfig, keys).options() == {"it": wanted, "key": "0123"}


def test_an_option_that_the_driver_does_not_take_is_reported(folder: Folder) -> None:
    pytest.importorskip("s3fs")
    keys = {"path": "s3://b", "storage.options.max_concurrency": "many"}
    with pytest.raises(ConfigError, match=r"path=s3://b: its driver does not take storage.options"):
        folder.sink(keys=keys)


@pytest.mark.parametrize(
    ("name", "near"), [("endpoint_uri", "endpoint_url"), ("anonym", "anon"), ("x", "")]
)
def test_an_option_that_the_driver_does_not_know_is_reported_with_the_nearest(
    name: str, near: str
) -> None:
    pytest.importorskip("s3fs")
    config = {"path": "s3://b", f"storage.options.{name}": "1", "storage.options.profile": "me"}
    said = f"storage.options.{name} is not an option of the driver of s3://b"
    with pytest.raises(ConfigError, match=f"{said}.*{near}") as refusal:
        Folder("s3://b").made(keys=config)
    assert ("did you mean" in str(refusal.value)) is bool(near)


@pytest.mark.parametrize(
    "key",
    [
        "s3.bucket.name",
        "aws.s3.bucket.name",
        "gcs.bucket.name",
        "azblob.container.name",
        "azure.storage.container.name",
        "store.url",
        "hdfs.url",
    ],
)
def test_a_drill_writes_into_a_directory_of_its_own(
    folder: Folder, tmp_path: Path, key: str
) -> None:
    raw = folder.config(keys={key: "s3://lake"})
    raw = {k: v for k, v in raw.items() if k != "path"}
    store = store_of(raw, tmp_path / "drill")
    planned = plan({**raw, **store.keys, **(store.where or {})})
    assert planned.sink.describe()["writes"].startswith(f"{tmp_path}/drill/files/<topic>/")


def test_an_aiven_configuration_is_taken_as_it_is(folder: Folder) -> None:
    keys = {
        "connector.class": "io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector",
        "format.output.type": "jsonl",
        "format.output.envelope": "false",
        "file.compression.type": "gzip",
        "file.max.records": "7",
        "file.name.prefix": "raw/",
    }
    sink = plan(folder.config(keys=keys)).sink
    assert sink.describe()["writes"] == f"{folder.where}/raw/<topic>/**/*.json.gz"


def test_duckdb_reads_folders_as_columns(folder: Folder) -> None:
    keys = {"partitioner.class": "field", "partition.field.name": "kind"}
    put(folder, records([{"id": i, "kind": "ab"[i % 2]} for i in range(6)]), keys)
    query = f"SELECT id FROM read_parquet('{folder.where}/**/*.parquet') WHERE kind = 'b'"
    with duckdb.connect() as connection:
        assert sorted(r[0] for r in connection.execute(query).fetchall()) == [1, 3, 5]


def test_what_semel_says_of_dead_letters(folder: Folder) -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    bad = plan(folder.config(keys=keys)).facts()["bad records"]
    assert bad.startswith("bad records go to table dead in the transaction")


def test_files_of_hdfs_are_avro_unless_the_configuration_says_otherwise(folder: Folder) -> None:
    """As in Kafka Connect, whose other sinks have no default."""
    of_hdfs = {
        "connector.class": "io.confluent.connect.hdfs.HdfsSinkConnector",
        "path": "webhdfs://h:9870/x",
    }
    parquet = {"format.class": "io.confluent.connect.hdfs.parquet.ParquetFormat"}
    for keys, format_name in ((of_hdfs, "avro"), (of_hdfs | parquet, "parquet")):
        raw = {k: v for k, v in folder.config(keys=keys).items() if k != "format"}
        assert read(FilesConfig, plan(raw).connector.originals).format_name() == format_name


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_texts_that_look_like_times_stay_as_they_are(folder: Folder, kind: str) -> None:
    texts = ["2024-01-01T05:00:00+02:00", "2024-01-01"]
    sink = folder.sink(keys={"format": kind})
    raw = {
        "name": "c",
        "topics": "t",
        "connector.class": "files",
        "bootstrap.servers": "nowhere:9092",
        "value.converter.schemas.enable": "false",
    }
    pipeline = Pipeline(read(ConnectorConfig, raw), sink, target=sink.schema)
    values = [json.dumps({"at": text}).encode() for text in texts]
    (records_,) = pipeline.convert("t", polled(values)).parts
    assert records_.rows.column("at").to_pylist() == texts
