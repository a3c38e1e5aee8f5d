"""A record is written with the fields that it has itself, absent or null, whichever records share
its batch."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.config import ConnectorConfig, read
from semel.converters import create as converter_of
from semel.core.records import Commit
from semel.sinks import create
from semel.sinks.kafka.config import KafkaConfig
from semel.sinks.kafka.sender import Encoder
from semel.tasks.pipeline import Pipeline
from tests import databases
from tests.engine.harness import some
from tests.polled import polled
from tests.sinks.target import Target

INT, TEXT = {"type": "int64", "optional": True}, {"type": "string", "optional": True}


def struct(**fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "optional": True,
        "fields": [{"field": name, **kind} for name, kind in fields.items()],
    }


VERSIONS = [
    struct(id=INT, a=TEXT),
    struct(id=INT, a=TEXT, b=INT),
    struct(id=INT, b=INT),
    struct(id=INT, a=TEXT, inner=struct(x=INT)),
    struct(id=INT, a=TEXT, inner=struct(x=INT, y=struct(z=TEXT))),
    struct(id=INT, items={"type": "array", "optional": True, "items": struct(x=INT)}),
    struct(id=INT, items={"type": "array", "optional": True, "items": struct(x=INT, y=INT)}),
    struct(id=INT),
]


def value_of(schema: Mapping[str, Any], number: int) -> Any:
    match schema["type"]:
        case "struct":
            return {f["field"]: value_of(f, number) for f in schema["fields"]}
        case "array":
            return [value_of(schema["items"], number)]
    return number if schema["type"] == "int64" else f"t{number}"


PLAIN_FIELDS: Mapping[str, Sequence[Any]] = {
    "a": [None, "x", 1, 0.5, True, "2024-01-01", "2024-01-01 10:00+01:00", {"x": 1}],
    "b": [None, {}, {"x": None}, {"x": 1, "y": {"z": []}}, {"y": {"z": "w"}}, [{"x": 1}, {}]],
    "c": [None, 7, -1],
    "e": [None, 1, 2.5, -0.0, 3.0, [1, 2], [1.5, 2], 2**53 + 1, 10**25],
    "f": [{"x": 1}, {"x": 1.5}, {"x": 2**60}],
    'd"\\é': [None, "\n"],
}


@st.composite
def plain(draw: st.DrawFn) -> list[bytes]:
    found = []
    for number in range(draw(st.integers(2, 7))):
        names = draw(st.lists(st.sampled_from(sorted(PLAIN_FIELDS)), unique=True))
        own = {name: draw(st.sampled_from(PLAIN_FIELDS[name])) for name in names}
        found.append(
            json.dumps({**own, "id": number} if draw(st.booleans()) else {"id": number, **own})
        )
    return [text.encode() for text in found]


@st.composite
def enveloped(draw: st.DrawFn) -> list[bytes]:
    found = []
    for number in range(draw(st.integers(2, 7))):
        schema = draw(st.sampled_from(VERSIONS))
        payload = value_of(schema, number)
        gone = draw(st.sets(st.sampled_from(sorted(payload)))) - {"id"}
        payload |= dict.fromkeys(gone)
        found.append(json.dumps({"schema": schema, "payload": payload}).encode())
    return found


@st.composite
def cuts(draw: st.DrawFn, count: int, *, ordered: bool) -> list[list[int]]:
    edges = [0, *sorted(draw(st.sets(st.integers(1, count - 1)))), count]
    pieces = [list(range(*span)) for span in itertools.pairwise(edges)]
    return pieces if ordered else list(draw(st.permutations(pieces)))


BASE = {
    "name": "c",
    "bootstrap.servers": "nowhere:9092",
    "topics": "t",
    "errors.tolerance": "all",
}
PLAIN = {"value.converter.schemas.enable": "false"}
SMT = "org.apache.kafka.connect.transforms."


def transformed(kind: str, **keys: str) -> dict[str, str]:
    options = {f"transforms.x.{name.replace('_', '.')}": value for name, value in keys.items()}
    return {"transforms": "x", "transforms.x.type": f"{SMT}{kind}$Value", **options}


WAYS: Mapping[str, Mapping[str, str]] = {
    "plain": PLAIN,
    "plain-renamed": {**PLAIN, **transformed("ReplaceField", renames="c:d", exclude="nothing")},
    "plain-inserted": {**PLAIN, **transformed("InsertField", static_field="s", static_value="v")},
    "plain-flattened": {**PLAIN, **transformed("Flatten")},
    "plain-hoisted": {**PLAIN, **transformed("HoistField", field="whole")},
    "plain-masked": {**PLAIN, **transformed("MaskField", fields="a")},
    "plain-cast": {**PLAIN, **transformed("Cast", spec="c:string")},
    "plain-cast-some": {
        **PLAIN,
        **transformed("Cast", spec="c:string"),
        "transforms.x.predicate": "p",
        "predicates": "p",
        "predicates.p.type": f"{SMT}predicates.HasHeaderKey",
        "predicates.p.name": "odd",
    },
    "enveloped": {},
    "enveloped-renamed": transformed("ReplaceField", renames="b:d"),
}


def batch(given_: Sequence[bytes], numbers: Sequence[int]) -> pa.Table:
    headers = [[{"key": "odd", "value": b""}] if n % 2 else [] for n in numbers]
    keys = [str(n).encode() for n in numbers]
    return polled([given_[n] for n in numbers], keys, offsets=numbers, headers=headers)


Put = Callable[[Pipeline, Commit], None]


def written(
    config: Mapping[str, str],
    given_: Sequence[bytes],
    order: Sequence[Sequence[int]],
    put: Put | None = None,
) -> None:
    """Commit records batch by batch, as the engines do."""
    connector = read(ConnectorConfig, {**BASE, **config})
    sink = create(connector)
    try:
        if put is None:
            sink.prepare(["t"])
        pipeline = Pipeline(connector, sink, target=sink.schema)
        for numbers in order:
            made = pipeline.convert("t", batch(given_, numbers))
            assert not made.failed
            commit = Commit([part for part in made.parts if part.count])
            sink.write(commit) if put is None else put(pipeline, commit)
    finally:
        sink.close()


Documents = Callable[[Mapping[str, str], Sequence[bytes], Sequence[Sequence[int]]], list[Any]]
_fresh = itertools.count()


def in_files(_request: Any) -> Documents:
    def documents(
        keys: Mapping[str, str], given_: Sequence[bytes], order: Sequence[Sequence[int]]
    ) -> list[Any]:
        path = tempfile.mkdtemp()
        written({"connector.class": "files", "path": path, "format": "json", **keys}, given_, order)
        lines = [f.read_text().splitlines() for f in Path(path, "t").rglob("*.json")]
        return [json.loads(line) for line in itertools.chain(*lines)]

    return documents


def in_lines(_request: Any) -> Documents:
    def documents(
        keys: Mapping[str, str], given_: Sequence[bytes], order: Sequence[Sequence[int]]
    ) -> list[Any]:
        path = Path(tempfile.mkdtemp(), "lines")
        config = {"connector.class": "FileStreamSink", "file": str(path), "spark.master": "local"}
        written({**config, **keys}, given_, order)
        return [_parsed(line) for line in path.read_text().splitlines()]

    return documents


def _parsed(line: str) -> Any:
    """JSON, or the text of a record that is one."""
    return line if line.isalpha() and line != "true" else json.loads(line)


def in_messages(_request: Any) -> Documents:
    """What the Kafka sink sends."""

    def documents(
        keys: Mapping[str, str], given_: Sequence[bytes], order: Sequence[Sequence[int]]
    ) -> list[Any]:
        keys = {"transforms": "n", "transforms.n.type": f"{SMT}ReplaceField$Value", **keys}
        found: list[Any] = []

        def put(_pipeline: Pipeline, commit: Commit) -> None:
            config = {**BASE, "connector.class": "kafka", **keys}
            value = converter_of(
                "org.apache.kafka.connect.json.JsonConverter",
                {"schemas.enable": config.get("value.converter.schemas.enable", "true")},
                is_key=False,
                where="value.converter",
            )
            encoder = Encoder(read(KafkaConfig, config), provenance=False, key=value, value=value)
            values = encoder.messages(commit.records, "t").values
            found.extend(json.loads(text) for text in values.to_pylist())

        written({"connector.class": "kafka", "topic": "t2", **keys}, given_, order, put)
        return found

    return documents


def in_search(kind: str, **more: str) -> Callable[[pytest.FixtureRequest], Documents]:
    def store(request: pytest.FixtureRequest) -> Documents:
        server = request.getfixturevalue(kind)

        def documents(
            keys: Mapping[str, str], given_: Sequence[bytes], order: Sequence[Sequence[int]]
        ) -> list[Any]:
            index = f"own-{next(_fresh)}"
            mapping = {"mappings": {"dynamic": "false"}}
            server.request("PUT", f"/{index}", mapping)
            config = {
                "connector.class": kind,
                "connection.url": server.url,
                "index.name.format": index,
                "read.timeout.ms": "600000",
                "auto.evolve": "false",  # a field holds values of several types
            }
            written({**config, **more, **keys}, given_, order)
            server.request("POST", f"/{index}/_refresh")
            found = server.request("POST", f"/{index}/_search", {"size": 1000})
            return [h["_source"] for h in found["hits"]["hits"]]

        return documents

    return store


DOCUMENTS: Mapping[str, Callable[[pytest.FixtureRequest], Documents]] = {
    "files": in_files,
    "lines": in_lines,
    "messages": in_messages,
    "opensearch": in_search("opensearch"),
    "opensearch-upsert": in_search("opensearch", **{"write.method": "upsert"}),
    "elasticsearch": in_search("elasticsearch"),
}


def expected(way: str, value: Any) -> Any:
    """What Kafka Connect makes of a record, where that is easily told."""
    if way.startswith("enveloped"):
        value = value["payload"]
        return {"d" if way == "enveloped-renamed" and n == "b" else n: v for n, v in value.items()}
    match way:
        case "plain-renamed":
            return {"d" if n == "c" else n: v for n, v in value.items()}
        case "plain-inserted":
            return {**value, "s": "v"}
        case "plain-hoisted":
            return {"whole": value}
        case "plain-masked":
            return {**value, "a": masked(value.get("a"))}
        case "plain-cast" | "plain-cast-some":
            own = value.get("c")
            cast = way == "plain-cast" or value["id"] % 2
            return {**value, "c": None if own is None else str(own)} if cast else value
        case "plain-flattened":
            return flat(value)
    return value


def masked(value: Any) -> Any:
    return None if value is None else type(value)()


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in value.items():
        inside = isinstance(each, dict)
        found |= flat(each, f"{before}{name}.") if inside else {f"{before}{name}": each}
    return found


CASES = [(store, way) for store in DOCUMENTS for way in WAYS]
SHORT = {
    ("files", "plain"),
    ("files", "plain-flattened"),
    ("files", "plain-cast-some"),
    ("files", "enveloped"),
    ("lines", "plain-renamed"),
    ("messages", "plain-inserted"),
    ("messages", "enveloped-renamed"),
}


@pytest.mark.parametrize(("store", "way"), some(CASES, SHORT))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_document_has_the_fields_of_its_record_and_no_others(
    store: str, way: str, request: pytest.FixtureRequest, data: st.DataObject
) -> None:
    given_ = data.draw(plain() if way.startswith("plain") else enveloped())
    order = data.draw(cuts(len(given_), ordered=False))
    found = DOCUMENTS[store](request)(WAYS[way], given_, order)
    if store == "messages" and way.startswith("enveloped"):
        names = [[f["field"] for f in each["schema"]["fields"]] for each in found]
        found = [each["payload"] for each in found]
        assert [sorted(own) for own in names] == [sorted(each) for each in found]
    wanted = [expected(way, json.loads(value)) for value in given_]
    assert sorted(map(shown, found)) == sorted(map(shown, wanted))


def shown(document: Any) -> str:
    """Unlike dictionaries, texts tell 1, 1.0 and true apart."""
    return json.dumps(document, sort_keys=True)


SHAPES = [5, "x", {"id": 1}, [1, None], True, {"value": {"a": 2}}, 2.5, 10**25, [[1], {}], 7]


@pytest.mark.parametrize("store", some(["files", "lines", "opensearch"], {"files", "lines"}))
@pytest.mark.parametrize("order", [[[*range(10)]], [[n] for n in range(10)], [[2, 5], [0, 1, 3]]])
def test_a_value_that_is_no_object_is_written_alike_in_every_batch(
    store: str, order: list[list[int]], request: pytest.FixtureRequest
) -> None:
    given_ = [json.dumps(value).encode() for value in SHAPES]
    found = DOCUMENTS[store](request)(PLAIN, given_, order)
    values = [SHAPES[n] for batch_ in order for n in batch_]
    if store != "lines":
        values = [v if isinstance(v, dict) else {"value": v} for v in values]
    assert sorted(map(shown, found)) == sorted(map(shown, values))


Table = tuple[Mapping[str, str], Callable[[], list[Any]]]
COLUMNS = ("id", "a", "b", "c")


def sql(request: pytest.FixtureRequest, kind: str) -> Table:
    """A table with a row for each id, all of whose columns hold something."""
    url, name = f"jdbc:{kind}:{Path(tempfile.mkdtemp()) / 'db'}", f"own{next(_fresh)}"
    statements = [
        f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, a VARCHAR(40), b BIGINT, "
        "c VARCHAR(40) DEFAULT 'default')",
        f"INSERT INTO {name} VALUES (0, 'A', -1, 'C'), (1, 'A', -1, 'C'), (2, 'A', -1, 'C')",
    ]
    read_ = f"SELECT id, a, b, c FROM {name} ORDER BY id"
    if kind == "postgresql":
        url = request.getfixturevalue("database")
        with closing(Target(url)) as target:
            for statement in statements:
                target.execute(statement)
    else:
        if kind == "mariadb":
            url = request.getfixturevalue("mariadb").create_database(name)
        for statement in statements:
            databases.query(url, statement)

    def rows() -> list[Any]:
        if kind != "postgresql":
            return databases.query(url, read_)
        with closing(Target(url)) as target:
            return target.tuples(read_)

    keys = {"connector.class": kind, "connection.url": url, "table.name.format": name}
    return keys, rows


def delta(_request: pytest.FixtureRequest, _kind: str) -> Table:
    path = tempfile.mkdtemp()
    kinds = [("id", pa.int64()), ("a", pa.string()), ("b", pa.int64()), ("c", pa.string())]
    held = {"id": [0, 1, 2], "a": ["A"] * 3, "b": [-1] * 3, "c": ["C"] * 3}
    write_deltalake(f"{path}/t", pa.table(held, schema=pa.schema(kinds)))

    def rows() -> list[Any]:
        found = DeltaTable(f"{path}/t").to_pyarrow_table().sort_by("id").select(COLUMNS)
        return [tuple(row.values()) for row in found.to_pylist()]

    return {"connector.class": "delta", "delta.table.path": path}, rows


TABLES = {**dict.fromkeys(("sqlite", "duckdb", "postgresql", "mariadb"), sql), "delta": delta}
KINDS = {"id": INT, "a": TEXT, "b": INT, "c": TEXT}
UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}


@st.composite
def changes(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for number in range(draw(st.integers(2, 9))):
        names = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1))
        own = {
            n: draw(st.sampled_from([None, number if n == "b" else f"t{number}"])) for n in names
        }
        found.append({"id": draw(st.integers(0, 4)), **own})
    return found


TABLE_WAYS: Mapping[str, Mapping[str, str]] = {
    "enveloped": {},
    "plain": PLAIN,
    "plain-transformed": {**PLAIN, **transformed("ReplaceField", exclude="nothing")},
    "plain-filtered": {
        **PLAIN,
        "transforms": "x",
        "transforms.x.type": "io.confluent.connect.transforms.Filter$Value",
        "transforms.x.filter.condition": "$[?(@.id >= 0)]",
        "transforms.x.filter.type": "include",
    },
}


@pytest.mark.parametrize("way", TABLE_WAYS)
@pytest.mark.parametrize("store", some(TABLES, {"sqlite"}))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_upsert_writes_the_columns_of_its_record_and_no_others(
    store: str, way: str, request: pytest.FixtureRequest, data: st.DataObject
) -> None:
    records = data.draw(changes())
    wanted: dict[int, dict[str, Any]] = {
        number: {"id": number, "a": "A", "b": -1, "c": "C"} for number in range(3)
    }
    given_ = []
    for each in records:
        schema = struct(**{name: KINDS[name] for name in each})
        whole = each if way.startswith("plain") else {"schema": schema, "payload": each}
        given_.append(json.dumps(whole).encode())
        # Plain JSON is read with the table's columns, so a null may stand for a missing field.
        own = {**dict.fromkeys("abc"), **each} if way == "plain" else dict(each)
        if way == "plain" and store != "delta" and own["c"] is None:
            own.pop("c")
        default = None if store == "delta" else "default"
        new = {"id": each["id"], "a": None, "b": None, "c": default}
        wanted[each["id"]] = {**wanted.get(each["id"], new), **own}
    config, rows = TABLES[store](request, store)
    order = data.draw(cuts(len(given_), ordered=True))
    written({**config, **UPSERT, **TABLE_WAYS[way]}, given_, order)
    assert rows() == [tuple(row.values()) for _, row in sorted(wanted.items())]


FILLED: Mapping[str, Mapping[str, str]] = {
    "sql": {"transforms": "x", "transforms.x.type": "sql", "transforms.x.query": "FROM records"},
    "declared": {
        **transformed("ReplaceField", exclude="nothing"),
        "value.converter.schema": "id BIGINT, a STRING, b BIGINT, c STRING",
    },
}


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("way", [*FILLED, "transformed"])
def test_a_field_that_a_record_lacks_leaves_a_default_alone(
    way: str, mode: str, request: pytest.FixtureRequest
) -> None:
    config, rows = sql(request, "sqlite")
    keys = FILLED.get(way, TABLE_WAYS["plain-transformed"])
    values = [{"id": 5, "a": "x"}, {"id": 6, "a": "y", "c": None}, {"id": 7, "c": "z"}]
    if mode == "upsert":
        values.append({"id": 0, "a": "x"})
    texts = [json.dumps(value).encode() for value in values]
    written({**config, **PLAIN, **UPSERT, **keys, "insert.mode": mode}, texts, [range(len(texts))])
    null = None if way == "transformed" else "default"
    found = {row[0]: row[3] for row in rows()}
    assert found == {0: "C", 1: "C", 2: "C", 5: "default", 6: null, 7: "z"}
