"""A record is bad only for its own value: what shares its batch, and in which order batches come,
changes neither the rows nor the bad records."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.config import ConnectorConfig, read
from semel.core.records import Commit, RowsRejected
from semel.databases.columns import Column
from semel.sinks import create
from semel.sinks.base import Sink
from semel.sinks.casts import unfit_rows
from semel.sinks.convert import convert as as_type
from semel.sinks.sql.convert import convert
from semel.tasks.pipeline import Pipeline
from tests import databases
from tests.engine.harness import some
from tests.polled import polled
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import Target

ID = {"field": "id", "type": "int64"}


def listed(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": kind, "optional": True}}


FIELDS: dict[str, Sequence[tuple[Mapping[str, Any], Any]]] = {
    "n": [
        ({"type": "int64"}, 7),
        ({"type": "int32"}, None),
        ({"type": "double"}, 0.5),
        ({"type": "string"}, "12.25"),
        ({"type": "string"}, "none"),
        ({"type": "boolean"}, None),
        ({"type": "struct", "fields": [{"field": "a", "type": "int32"}]}, {"a": 1}),
        ({"type": "struct", "fields": [{"field": "a", "type": "int32"}]}, None),
        ({"type": "array", "items": {"type": "int32"}}, [1]),
    ],
    "at": [
        ({"type": "int64"}, 5),
        ({"type": "int64"}, None),
        ({"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, 1_700_000_000_000),
        ({"type": "string"}, "2024-01-01T00:00:00Z"),
        ({"type": "string"}, "soon"),
        ({"type": "array", "items": {"type": "string"}}, None),
    ],
    "words": [
        ({"type": "string"}, "x"),
        ({"type": "int32"}, 3),
        ({"type": "float"}, 0.1),
        ({"type": "double"}, 0.1),
        ({"type": "boolean"}, True),
        ({"type": "string"}, None),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}, {"a": 1}),
    ],
    "list": [
        (listed("int64"), [1]),
        (listed("int64"), []),
        (listed("int64"), None),
        (listed("string"), ["x"]),
        (listed("string"), ["2", None]),
        ({"type": "array", "items": listed("int32")}, [[1, 2], [3, 4]]),
        ({"type": "array", "items": listed("int32")}, [[1, 2], [3]]),
        ({"type": "array", "items": listed("int64")}, []),
        ({"type": "array", "items": listed("int64")}, None),
        ({"type": "int64"}, 5),
        ({"type": "struct", "fields": [{"field": "a", "type": "int32"}]}, {"a": 1}),
    ],
}
FOUNDER = {
    "n": ({"type": "double"}, 1.5),
    "at": ({"type": "int64"}, 7),
    "words": ({"type": "string"}, "x"),
    "list": (listed("int64"), [7]),
}


@st.composite
def values(draw: st.DrawFn, *, enveloped: bool) -> list[bytes]:
    """Records whose fields have whatever type and value, after one that gives columns their types
    where the target has none yet."""
    found: list[Any] = []
    for number in range(draw(st.integers(3, 8))):
        fields, payload = [ID], {"id": number}
        drawn = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True)) if number else FIELDS
        for name in drawn:
            kind, value = draw(st.sampled_from(FIELDS[name])) if number else FOUNDER[name]
            fields.append({"field": name, "optional": True, **kind})
            payload[name] = value
        schema = {"type": "struct", "fields": fields}
        found.append({"schema": schema, "payload": payload} if enveloped else payload)
    return [json.dumps(value).encode() for value in found]


@st.composite
def batches(draw: st.DrawFn, count: int) -> list[list[int]]:
    """The numbers of records cut into pieces, in any order of pieces after the first record."""
    cuts = draw(st.sets(st.integers(2, count - 1)))
    edges = [1, *sorted(cuts), count]
    pieces = [list(range(*span)) for span in itertools.pairwise(edges)]
    return [[0], *draw(st.permutations(pieces))]


def committed(
    config: Mapping[str, str], given: Sequence[bytes], order: list[list[int]]
) -> set[int]:
    """Commit records batch by batch, as the engines do; returns those that are bad."""
    connector = read(ConnectorConfig, dict(config))
    sink = create(connector)
    pipeline = Pipeline(connector, sink, target=sink.schema)
    bad: set[int] = set()
    try:
        sink.prepare(["t"])
        for batch in order:
            _commit(sink, pipeline, given, batch, bad)
    finally:
        sink.close()
    return bad


def _commit(
    sink: Sink, pipeline: Pipeline, given: Sequence[bytes], batch: list[int], bad: set[int]
) -> None:
    while True:
        kept = [n for n in batch if n not in bad]
        raw = polled([given[n] for n in kept], offsets=kept)
        made = pipeline.convert("t", raw)
        bad |= {kept[f.index] for f in made.failed}
        if made.failed:
            continue
        try:
            sink.write(Commit([part for part in made.parts if part.count]))
            return
        except RowsRejected as refusal:
            bad |= {r.offset for r in refusal.rejected}


Store = tuple[Mapping[str, str], Callable[[], list[Any]]]
"""An empty target: the configuration of a sink that writes to it, and what reads its rows."""
BASE = {
    "name": "c",
    "bootstrap.servers": "nowhere:9092",
    "topics": "t",
    "errors.tolerance": "all",
}
PLAIN = {"value.converter.schemas.enable": "false"}
TRANSFORMED = {
    **PLAIN,
    "transforms": "x",
    "transforms.x.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
    "transforms.x.exclude": "nothing",
}
COLUMNS = {
    "sqlite": "id BIGINT, n DECIMAL(10, 2), at TIMESTAMP, words TEXT, list JSON",
    "duckdb": 'id BIGINT, n DECIMAL(10, 2), "at" TIMESTAMPTZ, words VARCHAR, list BIGINT[]',
    "postgresql": "id bigint, n numeric, at timestamp, words text, list bigint[]",
    "mariadb": "id BIGINT, n DECIMAL(10, 2), at DATETIME(6), words TEXT, list JSON",
}
ARROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("n", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("words", pa.string()),
        pa.field("list", pa.list_(pa.int64())),
    ]
)
_fresh = itertools.count()


def sql(request: pytest.FixtureRequest, kind: str) -> Store:
    url, name = f"jdbc:{kind}:{Path(tempfile.mkdtemp()) / 'db'}", f"t{next(_fresh)}"
    if kind == "postgresql":
        url = request.getfixturevalue("database")
        with closing(Target(url)) as target:
            target.execute(f"CREATE TABLE {name} ({COLUMNS[kind]})")
    else:
        if kind == "mariadb":
            url = request.getfixturevalue("mariadb").create_database(f"each_{name}")
        databases.query(url, f"CREATE TABLE {name} ({COLUMNS[kind]})")
    config = {"connector.class": kind, "connection.url": url, "table.name.format": name}

    def rows() -> list[Any]:
        moment = '"at"' if kind == "duckdb" else "at"  # AT is a word of DuckDB's
        statement = f"SELECT id, n, CAST({moment} AS CHAR(40)), words, list FROM {name} ORDER BY id"
        if kind != "postgresql":
            return databases.query(url, statement)
        with closing(Target(url)) as target:
            return target.tuples(statement)

    return config, rows


def delta(_request: pytest.FixtureRequest, _kind: str) -> Store:
    path = Path(tempfile.mkdtemp())
    DeltaTable.create(str(path / "t"), ARROW)
    return {"connector.class": "delta", "delta.table.path": str(path)}, lambda: _sorted(
        DeltaTable(str(path / "t")).to_pyarrow_table()
    )


def iceberg(_request: pytest.FixtureRequest, _kind: str) -> Store:
    warehouse = Warehouse(Path(tempfile.mkdtemp()))
    warehouse.catalog.create_namespace("db")
    warehouse.catalog.create_table("db.t", ARROW)
    return warehouse.config(), lambda: _sorted(warehouse.arrow())


def files(_request: pytest.FixtureRequest, kind: str) -> Store:
    """Files, by folders of what a record holds."""
    path, (format_, partitioner) = tempfile.mkdtemp(), kind.split("-")
    config = {
        "connector.class": "files",
        "path": path,
        "format": format_,
        "partitioner.class": partitioner,
        "partition.field.name": "n",
        "path.format": "YYYY-MM-dd-HH",
        "timestamp.extractor": "RecordField",
        "timestamp.field": "at",
    }

    def rows() -> list[Any]:
        found = []
        held = dict if format_ == "json" else _given
        for file in Path(path, "t").rglob(f"*.{format_}*"):
            found += [(file.parent.name, held(row)) for row in _read(file, format_)]
        return sorted(found, key=lambda row: row[1]["id"])

    return config, rows


def _given(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row holds: whether a file has a column for a null depends on its other rows."""
    return {n: _number(v) for n, v in row.items() if v not in (None, "")}


def _number(value: Any) -> Any:
    """CSV has no types: 7 may be written as 7.0."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


def _read(file: Path, format_: str) -> list[Any]:
    if format_ == "parquet":
        return pq.read_table(file, partitioning=None).to_pylist()
    if format_ == "avro":
        with file.open("rb") as opened:
            return list(fastavro.reader(opened))
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt") as opened:
        if format_ == "csv":
            return list(csv.DictReader(opened))
        return [json.loads(line) for line in opened]


def search(request: pytest.FixtureRequest, kind: str) -> Store:
    server = request.getfixturevalue(kind)
    index = f"t-{next(_fresh)}"
    properties = {
        "id": {"type": "long"},
        "n": {"type": "double"},
        "at": {"type": "date"},
        "words": {"type": "text"},
        "list": {"type": "long"},
    }
    server.request("PUT", f"/{index}", {"mappings": {"properties": properties}})
    config = {
        "connector.class": kind,
        "connection.url": server.url,
        "key.ignore": "true",
        "index.name.format": index,
        "read.timeout.ms": "600000",
    }

    def rows() -> list[Any]:
        server.request("POST", f"/{index}/_refresh")
        found = server.request("POST", f"/{index}/_search", {"size": 10_000})
        return sorted((h["_source"] for h in found["hits"]["hits"]), key=lambda r: r["id"])

    return config, rows


def _sorted(found: pa.Table) -> list[Any]:
    return found.sort_by("id").select(ARROW.names).to_pylist()


STORES: dict[str, Callable[[pytest.FixtureRequest, str], Store]] = {
    **dict.fromkeys(COLUMNS, sql),
    "delta": delta,
    "iceberg": iceberg,
    **{
        f"{format_}-{by}": files
        for format_ in ("parquet", "json", "csv", "avro")
        for by in ("none", "field", "time")
    },
    "opensearch": search,
    "elasticsearch": search,
}


@pytest.mark.parametrize(
    "keys", [{}, PLAIN, TRANSFORMED], ids=["envelopes", "plain", "transformed"]
)
@pytest.mark.parametrize("store", some(STORES, {"sqlite"}))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_cut_of_a_batch_gives_the_same_rows_and_bad_records(
    store: str, keys: Mapping[str, str], request: pytest.FixtureRequest, data: st.DataObject
) -> None:
    given_ = data.draw(values(enveloped=not keys))
    alone_config, alone = STORES[store](request, store)
    bad = committed({**BASE, **alone_config, **keys}, given_, [[n] for n in range(len(given_))])
    config, rows = STORES[store](request, store)
    order = data.draw(batches(len(given_)))
    assert (committed({**BASE, **config, **keys}, given_, order), rows()) == (bad, alone())


def test_json_of_several_kinds_is_judged_value_by_value() -> None:
    texts = ["1", '"2.5"', '{"a":1}', "123456789012345678901234567890", None, "[1]"]
    values = pa.chunked_array([pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))])
    number = Column(
        "n", 1700, "numeric", "numeric", pa.string(), pa.decimal128(38, 0), any_numeric=True
    )
    found = unfit_rows(values, lambda some: convert(some, number))
    assert dict(found) == {2: "JSON is not numeric", 5: "list<item: int64> is not numeric"}
    good = values.take(pa.array([0, 1, 3, 4]))
    assert convert(good, number).values.to_pylist() == [
        "1",
        "2.5",
        "123456789012345678901234567890",
        None,
    ]


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.list_(pa.int64())), pa.struct([("a", pa.int8())]), pa.json_()]
)
def test_nulls_of_any_type_fit_every_column(kind: pa.DataType) -> None:
    nulls = pa.chunked_array([pa.nulls(2, kind)])
    item = Column("", 23, "integer", "integer", pa.int32(), pa.int32())
    for column in (
        Column("at", 1114, "timestamp", "timestamp", pa.timestamp("us"), pa.timestamp("us")),
        Column("l", 1007, "integer[]", "integer[]", pa.list_(pa.int32()), None, element=item),
    ):
        assert convert(nulls, column).values.null_count == 2
    assert as_type(nulls, pa.timestamp("us")).null_count == 2


def created(kind: str, path: Path) -> dict[str, str]:
    """The configuration of a sink for plain JSON that makes its target."""
    config = {
        "sqlite": {"connector.class": kind, "connection.url": f"jdbc:{kind}:{path}/db"},
        "duckdb": {"connector.class": kind, "connection.url": f"jdbc:{kind}:{path}/db"},
        "delta": {"connector.class": kind, "delta.table.path": str(path)},
        "parquet": {"connector.class": "files", "path": str(path)},
    }[kind]
    return {**BASE, **PLAIN, "auto.create": "true", **config}


CREATED = ["sqlite", "duckdb", "delta", "parquet"]


@pytest.mark.parametrize("kind", some(CREATED, {"sqlite"}))
def test_records_without_fields_are_refused_while_there_is_no_column(
    kind: str, tmp_path: Path
) -> None:
    given_ = [b"{}", b'{"id": 1}', b"{}"]
    assert committed(created(kind, tmp_path), given_, [[0], [1], [2]]) == {0}


@pytest.mark.parametrize("kind", some(CREATED, {"duckdb"}))
def test_a_list_without_items_gives_no_column_a_type_that_others_do_not_fit(
    kind: str, tmp_path: Path
) -> None:
    lists = ["[]", "[null]", "[1]", '["x"]', "[[2]]", '[{"a": 3}]']
    given_ = [f'{{"id": {n}, "list": {text}}}'.encode() for n, text in enumerate(lists)]
    config = created(kind, tmp_path)
    assert committed(config, given_, [[n] for n in range(len(given_))]) == set()
    if kind == "duckdb":
        found = databases.query(config["connection.url"], "SELECT list FROM t ORDER BY id")
        assert [json.loads(text) for (text,) in found] == [json.loads(text) for text in lists]


@pytest.mark.parametrize("store", some(STORES, {"sqlite"}))
def test_one_record_of_another_kind_condemns_no_other(
    store: str, request: pytest.FixtureRequest
) -> None:
    def record(number: int, *fields: Mapping[str, Any], **values: Any) -> bytes:
        schema = {"type": "struct", "fields": [ID, *fields]}
        return json.dumps({"schema": schema, "payload": {"id": number, **values}}).encode()

    founder = [{"field": name, "optional": True, **kind} for name, (kind, _) in FOUNDER.items()]
    struct = {"type": "struct", "fields": [{"field": "a", "type": "int32"}]}
    nested = {"type": "array", "items": {"type": "array", "items": {"type": "int32"}}}
    others = [
        record(1001, {"field": "n", **struct}, n={"a": 1}),
        record(1002, {"field": "at", "optional": True, **nested}, at=[[1]]),
    ]
    given_ = [record(0, *founder, **{n: value for n, (_, value) in FOUNDER.items()})]
    given_ += [*map(record, range(1, 1001)), *others]
    config, rows = STORES[store](request, store)
    whole = list(range(1, len(given_)))
    bad = committed({**BASE, **config}, given_, [[0], whole])
    lacking_times = range(1, 1001) if store.endswith("-time") else ()
    kept = {
        "opensearch": {1002},  # [[1]] is 1 to these servers
        "elasticsearch": {1002},
        "json-none": {1001, 1002},  # any line may hold any value
        "json-field": {1002},
    }
    # The first's time is a number.
    assert bad - {0} == {*lacking_times, 1001, 1002} - kept.get(store, set())
    assert len(rows()) == len(given_) - len(bad)
