"""Semantic types of Kafka Connect and Debezium: what docs/converters.md says of each is true."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from adbc_driver_postgresql import dbapi
from deltalake import DeltaTable

from semel.config import ConnectorConfig, read
from semel.converters.json.envelope import PayloadReader
from semel.converters.semantic import DECIMAL, TYPES, SemanticType, semantic_facts
from semel.core.records import Commit, RowsRejected, one_array
from semel.databases.columns import new_semantic_type, stored_type
from semel.databases.duckdb import Duckdb
from semel.databases.mysql import Mysql
from semel.databases.postgresql.database import Postgres
from semel.databases.postgresql.types import column as postgresql_column
from semel.databases.sqlite import Sqlite
from semel.databases.sqlserver import SqlServer
from semel.sinks import create
from semel.sinks.delta.table import column_type as delta_type
from semel.sinks.iceberg.target import column_type as iceberg_type
from semel.sinks.sql.convert import convert
from semel.sinks.sql.semantic import formed
from semel.spark.jars import resolve
from semel.tasks.pipeline import Pipeline
from semel_lab.embedded.mariadb import MariaDB
from semel_lab.jars import DEBEZIUM_POSTGRES
from tests import databases
from tests.polled import polled
from tests.sinks.iceberg.conftest import Warehouse

DOCS = Path(__file__).parents[2] / "docs" / "converters.md"
CONNECT = "org.apache.kafka.connect.data."
ID = {"field": "id", "type": "int64", "optional": False}


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


WKB = b"\1\1\0\0\0" + struct.pack("<dd", 1.5, -2.0)
GEOMETRY = [
    {"field": "wkb", "type": "bytes", "optional": False},
    {"field": "srid", "type": "int32", "optional": True},
]
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
MOMENT = dt.datetime(2024, 2, 29, 8, 20, 30, 500_000)
STRUCT: dict[str, Mapping[str, Any]] = {
    "io.debezium.data.VariableScaleDecimal": {
        "fields": [
            {"field": "scale", "type": "int32", "optional": False},
            {"field": "value", "type": "bytes", "optional": False},
        ]
    },
    "io.debezium.data.SparseDoubleVector": {
        "fields": [
            {"field": "dimensions", "type": "int16", "optional": False},
            {
                "field": "vector",
                "type": "map",
                "keys": {"type": "int16", "optional": False},
                "values": {"type": "double", "optional": False},
                "optional": False,
            },
        ]
    },
    "io.debezium.data.geometry.Geometry": {"fields": GEOMETRY},
    "io.debezium.data.geometry.Geography": {"fields": GEOMETRY},
    "io.debezium.data.geometry.Point": {
        "fields": [
            {"field": "x", "type": "double", "optional": False},
            {"field": "y", "type": "double", "optional": False},
            {"field": "wkb", "type": "bytes", "optional": True},
            {"field": "srid", "type": "int32", "optional": True},
        ]
    },
    "io.debezium.data.DoubleVector": {"items": {"type": "double", "optional": False}},
    "io.debezium.data.FloatVector": {"items": {"type": "float", "optional": False}},
}
PARAMETERS = {
    DECIMAL: {"scale": "2", "connect.decimal.precision": "10"},
    "io.debezium.data.Bits": {"length": "16"},
    "io.debezium.data.Enum": {"allowed": "a,b's"},
    "io.debezium.data.EnumSet": {"allowed": "a,b,c"},
}
WIRES = {
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.string(): "string",
    pa.binary(): "bytes",
}


def kind_of(name: str) -> str:
    if name == DECIMAL:
        return "bytes"
    wire = TYPES[name].wire
    return WIRES.get(wire) or ("struct" if pa.types.is_struct(wire) else "array")


def schema_of(name: str, **parameters: str) -> dict[str, Any]:
    """A schema as Debezium makes it."""
    found = {"type": kind_of(name), "name": name, "optional": True, **STRUCT.get(name, {})}
    given = parameters or PARAMETERS.get(name)
    return {**found, "parameters": given} if given else found


def arrow_of(name: str) -> pa.DataType:
    """The type of a field's column, as a converter and a sink's layout make it."""
    schema = {"type": "struct", "fields": [{"field": "v", **schema_of(name)}]}
    kind = PayloadReader(json.dumps(schema)).type.field("v").type
    facts = semantic_facts(schema_of(name))
    return kind if facts is None else SemanticType(kind, json.dumps(facts).encode())


def in_table(name: str) -> list[str]:
    """The cells of a type in the documentation's table."""
    kind = arrow_of(name)
    plain = stored_type(kind)
    postgresql = new_semantic_type(
        kind, "PostgreSQL", lambda _: True, in_key=False
    ) or Postgres.column_type(object.__new__(Postgres), plain)
    mysql = new_semantic_type(kind, "MySQL", lambda _: True, in_key=False)
    sqlserver = new_semantic_type(kind, "SQL Server", lambda _: True, in_key=False)
    duckdb = new_semantic_type(kind, "DuckDB", lambda _: True, in_key=False)
    lakes = [str(delta_type(kind)), str(iceberg_type(kind))]
    return [
        f"`{name.removeprefix(CONNECT).removeprefix('io.debezium.')}`",
        kind_of(name),
        str(plain),
        postgresql,
        (mysql or Mysql.column_type(object.__new__(Mysql), plain)).lower(),
        (sqlserver or SqlServer.column_type(object.__new__(SqlServer), plain))
        .partition(" COLLATE")[0]
        .lower(),
        Sqlite.column_type(object.__new__(Sqlite), plain).lower(),
        (duckdb or Duckdb.column_type(object.__new__(Duckdb), plain)).lower(),
        lakes[0] if lakes[0] == lakes[1] else " / ".join(lakes),
    ]


@pytest.mark.parametrize(
    ("allowed", "members"),
    [
        ("a,b's", "'a','b''s'"),
        (r"a\,b,c\\,d\e,,f\\\,g", r"'a,b','c\','d\e','','f\,g'"),
        (",a,", "'','a',''"),
    ],
)
def test_members_are_separated_by_the_commas_that_debezium_does_not_escape(
    allowed: str, members: str
) -> None:
    facts = {"name": "io.debezium.data.Enum", "parameters": {"allowed": allowed}}
    kind = SemanticType(pa.string(), json.dumps(facts).encode())
    found = new_semantic_type(kind, "MySQL", lambda _: True, in_key=False)
    assert found == f"enum({members})"


@pytest.mark.parametrize("database", [Postgres, Mysql, SqlServer, Sqlite, Duckdb])
def test_a_decimal_of_whole_hundreds_gets_a_column_without_fractions(database: Any) -> None:
    made = database.column_type(object.__new__(database), pa.decimal128(5, -2))
    assert made.lower().partition("(")[2] == "7, 0)"


def test_the_documentation_has_each_type_as_it_is() -> None:
    section = DOCS.read_text().partition("## Semantic types\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("| `") and line.count("|") == 10
    ]
    assert rows == [in_table(name) for name in (DECIMAL, *TYPES)]


@pytest.mark.integration
def test_every_semantic_type_of_debezium_has_a_reading() -> None:
    names: set[str] = set()
    for path in resolve(DEBEZIUM_POSTGRES):
        if path.name.startswith("debezium-"):
            with zipfile.ZipFile(path) as jar:
                for entry in jar.namelist():
                    if re.fullmatch(r"io/debezium/(.+/)?(data|time)/[^$]+\.class", entry):
                        found = re.findall(rb"io\.debezium\.(?:data|time)\.[\w.]+", jar.read(entry))
                        names |= {name.decode() for name in found}
    assert {"io.debezium.time.MicroTimestamp", "io.debezium.data.Ltree"} <= names
    # A change event itself.
    assert names - {"io.debezium.data.Envelope"} == {n for n in TYPES if "debezium" in n}


class Case(NamedTuple):
    """A value as it is sent, and what each store has of it."""

    name: str
    sent: Any
    postgresql: Any
    mariadb: Any
    sqlite: Any
    duckdb: Any
    lake: Any


def same(name: str, sent: Any, value: Any, **others: Any) -> Case:
    stores = dict.fromkeys(("postgresql", "mariadb", "sqlite", "duckdb", "lake"), value)
    return Case(name, sent, **{**stores, **others})


D = "io.debezium.data."
T = "io.debezium.time."
POINT = {"x": 1.5, "y": -2.0, "wkb": b64(WKB), "srid": None}
PLACE = {"wkb": b64(WKB), "srid": 4326}
CASES = [
    same(DECIMAL, b64((12345).to_bytes(2, "big")), Decimal("123.45"), sqlite=123.45),
    same(CONNECT + "Date", 19782, dt.date(2024, 2, 29), sqlite="2024-02-29"),
    same(
        D + "Bits",
        b64((258).to_bytes(2, "little")),
        "0000000100000010",
        mariadb=b"\x01\x02",
        sqlite=b"\x02\x01",
        lake=b"\x02\x01",
    ),
    same(D + "Uuid", UUID, UUID),
    same(D + "Enum", "b's", "b's"),
    same(D + "EnumSet", "a,c", "a,c"),
    same(D + "Xml", "<a/>", "<a/>"),
    same(D + "Tsvector", "'a':1 'b':2", "'a':1 'b':2"),
    same(D + "Ltree", "a.b", "a.b"),
    same(D + "Json", '{"a": 1}', '{"a": 1}', postgresql='{"a": 1}'),
    same(
        D + "VariableScaleDecimal",
        {"scale": 3, "value": b64((-123456).to_bytes(3, "big", signed=True))},
        "-123.456",
        postgresql=Decimal("-123.456"),
        mariadb=Decimal("-123.456"),
    ),
    same(D + "DoubleVector", [0.5, 2.0], "[0.5,2.0]", postgresql="[0.5,2]", lake=[0.5, 2.0]),
    same(D + "FloatVector", [0.5, 0.25], "[0.5,0.25]", lake=[0.5, 0.25]),
    same(
        D + "SparseDoubleVector", {"dimensions": 5, "vector": [[1, 0.5], [3, 2]]}, "{1:0.5,3:2}/5"
    ),
    same(
        D + "geometry.Point",
        POINT,
        json.dumps(POINT, separators=(",", ":")),
        postgresql="(1.5,-2)",
        mariadb=b"\0\0\0\0" + WKB,
        lake={**POINT, "wkb": WKB},
    ),
    same(
        D + "geometry.Geometry",
        PLACE,
        json.dumps(PLACE, separators=(",", ":")),
        postgresql=json.dumps(PLACE),
        mariadb=(4326).to_bytes(4, "little") + WKB,
        lake={"wkb": WKB, "srid": 4326},
    ),
    same(
        T + "Interval",
        "P1Y2M3DT4H5M6.78S",
        "P1Y2M3DT4H5M6.78S",
        postgresql="1 year 2 mons 3 days 04:05:06.78",
        duckdb="1 year 2 months 3 days 04:05:06.78",
    ),
    same(
        T + "MicroDuration",
        90_000_001,
        90_000_001,
        postgresql="00:01:30.000001",
        duckdb="00:01:30.000001",
    ),
    same(
        T + "NanoDuration", 1_000_000, 1_000_000, postgresql="00:00:00.001", duckdb="00:00:00.001"
    ),
    same(T + "Year", 2024, 2024),
    same(
        T + "ZonedTime",
        "10:20:30.5+02:00",
        "10:20:30.5+02",
        mariadb=dt.timedelta(hours=8, minutes=20, seconds=30.5),
        sqlite="10:20:30.5+02:00",
        lake="10:20:30.5+02:00",
    ),
    same(
        T + "ZonedTimestamp",
        "2024-02-29T10:20:30.5+02:00",
        MOMENT.replace(tzinfo=dt.UTC),
        mariadb=MOMENT,
        sqlite="2024-02-29 08:20:30.500000Z",
        duckdb="2024-02-29 08:20:30.5+00",
    ),
    same(T + "Timestamp", 1_709_194_830_500, MOMENT, sqlite="2024-02-29 08:20:30.500000"),
    same(T + "MicroTimestamp", 1_709_194_830_500_000, MOMENT, sqlite="2024-02-29 08:20:30.500000"),
    same(
        T + "NanoTimestamp", 1_709_194_830_500_000_000, MOMENT, sqlite="2024-02-29 08:20:30.500000"
    ),
    same(T + "IsoDate", "2024-02-29Z", dt.date(2024, 2, 29), sqlite="2024-02-29"),
    same(T + "IsoTimestamp", "2024-02-29T08:20:30.5Z", MOMENT, sqlite="2024-02-29 08:20:30.500000"),
    same(
        T + "IsoTime",
        "08:20:30.5Z",
        dt.time(8, 20, 30, 500_000),
        mariadb=dt.timedelta(hours=8, minutes=20, seconds=30.5),
        sqlite="08:20:30.500000",
        lake="08:20:30.500000",
    ),
]


def names(cases: Sequence[Case]) -> list[str]:
    return [f"c{n}" for n in range(len(cases))]


def envelope(cases: Sequence[Case], **payload: Any) -> bytes:
    fields = [{"field": f"c{n}", **schema_of(c.name)} for n, c in enumerate(cases)]
    values = {f"c{n}": c.sent for n, c in enumerate(cases)}
    return record([ID, *fields], {"id": 1, **values, **payload})


def record(fields: Sequence[Mapping[str, Any]], payload: Mapping[str, Any]) -> bytes:
    schema = {"type": "struct", "fields": fields}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def written(
    config: Mapping[str, str], values: Sequence[bytes | None], keys: Sequence[bytes] | None = None
) -> dict[int, str]:
    """Commit records; returns the reasons of those that are bad."""
    base = {"name": "c", "bootstrap.servers": "nowhere:9092", "topics": "t"}
    connector = read(ConnectorConfig, {**base, "auto.create": "true", **config})
    sink = create(connector)
    pipeline = Pipeline(connector, sink, target=sink.schema)
    bad: dict[int, str] = {}
    try:
        sink.prepare(["t"])
        while True:
            kept = [n for n in range(len(values)) if n not in bad]
            mine = [keys[n] for n in kept] if keys else None
            made = pipeline.convert("t", polled([values[n] for n in kept], mine, offsets=kept))
            bad |= {kept[f.index]: f.message for f in made.failed}
            if made.failed:
                continue
            try:
                sink.write(Commit([part for part in made.parts if part.count]))
                return bad
            except RowsRejected as refusal:
                bad |= {r.offset: r.message for r in refusal.rejected}
    finally:
        sink.close()


def asked(database: str, *statements: str) -> list[Any]:
    """The rows of the last statement."""
    with dbapi.connect(database, autocommit=True) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.integration
def test_postgresql_has_each_value_in_a_column_of_its_type(database: str) -> None:
    asked(database, "CREATE EXTENSION ltree")
    asked(database, "CREATE EXTENSION vector")
    config = {"connector.class": "postgresql", "connection.url": database}
    assert written(config, [envelope(CASES)]) == {}
    (found,) = asked(database, f"SELECT {', '.join(f'{n}::text' for n in names(CASES))} FROM t")
    assert dict(zip(names(CASES), found, strict=True)) == {
        n: in_text(c.postgresql) for n, c in zip(names(CASES), CASES, strict=True)
    }


@pytest.mark.integration
def test_mariadb_has_each_value_in_a_column_of_its_type(mariadb: MariaDB) -> None:
    url = mariadb.create_database("semantic")
    try:
        config = {"connector.class": "mysql", "connection.url": url}
        assert written(config, [envelope(CASES)]) == {}
        (found,) = databases.query(url, f"SELECT {', '.join(names(CASES))} FROM t")
        assert databases.query(url, "SELECT c2 + 0 FROM t") == [(258,)]
    finally:
        mariadb.drop_database("semantic")
    assert dict(zip(names(CASES), found, strict=True)) == {
        n: c.mariadb for n, c in zip(names(CASES), CASES, strict=True)
    }


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_file_has_each_value_in_a_column_of_its_type(kind: str, tmp_path: Path) -> None:
    url = f"jdbc:{kind}:{tmp_path / 'db'}"
    config = {"connector.class": kind, "connection.url": url}
    assert written(config, [envelope(CASES)]) == {}
    as_text = kind == "duckdb"
    chosen = [f"{n}::VARCHAR" if as_text else n for n in names(CASES)]
    (found,) = databases.query(url, f"SELECT {', '.join(chosen)} FROM t")
    wanted = [getattr(c, kind) for c in CASES]
    if as_text:
        wanted = [in_text(value) for value in wanted]
    assert dict(zip(names(CASES), found, strict=True)) == dict(
        zip(names(CASES), wanted, strict=True)
    )


def in_text(value: Any) -> str:
    """A value as SQL shows it."""
    if isinstance(value, dt.datetime) and value.tzinfo:
        return f"{in_text(value.replace(tzinfo=None))}+00"
    if isinstance(value, (dt.datetime, dt.time)) and value.microsecond:
        return str(value).rstrip("0")
    return str(value)


def test_delta_has_each_value_in_a_column_of_its_type(tmp_path: Path) -> None:
    config = {"connector.class": "delta", "delta.table.path": str(tmp_path)}
    assert written(config, [envelope(CASES)]) == {}
    (found,) = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().select(names(CASES)).to_pylist()
    assert found == {n: c.lake for n, c in zip(names(CASES), CASES, strict=True)}


TIME = dt.time(8, 20, 30, 500_000)


def test_iceberg_has_each_value_in_a_column_of_its_type(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    assert written(warehouse.config(), [envelope(CASES)]) == {}
    (found,) = warehouse.arrow().select(names(CASES)).to_pylist()
    wanted = {n: c.lake for n, c in zip(names(CASES), CASES, strict=True)}
    of_time = f"c{[c.name for c in CASES].index(T + 'IsoTime')}"
    assert found == {**wanted, of_time: TIME}


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_files_have_each_value(kind: str, tmp_path: Path) -> None:
    config = {"connector.class": "files", "path": str(tmp_path), "format": kind}
    assert written(config, [envelope(CASES)]) == {}
    (path,) = tmp_path.rglob(f"*.{kind}")
    wanted = {n: c.lake for n, c in zip(names(CASES), CASES, strict=True)}
    if kind == "parquet":
        found = pq.read_table(path).select(names(CASES)).to_pylist()
        assert found == [wanted]
    else:
        found = json.loads(path.read_text())
        bits, amount, geometry = found["c2"], found["c10"], found["c15"]
        assert (bits, amount, geometry) == (b64(b"\2\1"), "-123.456", PLACE)


def test_only_a_record_whose_value_is_no_value_of_its_type_is_bad(tmp_path: Path) -> None:
    variable = schema_of(D + "VariableScaleDecimal")
    wrong: list[tuple[str, Any]] = [
        (D + "VariableScaleDecimal", {"scale": 2_000_000_000, "value": b64(b"\1")}),
        (D + "VariableScaleDecimal", {"scale": 1, "value": ""}),
        (D + "VariableScaleDecimal", {"scale": None, "value": b64(b"\1")}),
        (D + "VariableScaleDecimal", "NaN"),
        (T + "MicroTime", 86_400_000_000),
        (T + "Timestamp", 300_000 * 31_556_952_000),
        (T + "ZonedTimestamp", "infinity"),
        (T + "ZonedTimestamp", "2024-02-29T10:20:30"),
        (T + "IsoDate", "2024-02-30Z"),
        (T + "ZonedTime", 7),
        (D + "geometry.Geometry", {"wkb": None, "srid": 1}),
        (D + "SparseDoubleVector", {"dimensions": 1, "vector": [[1]]}),
    ]
    right = {c.name: c.sent for c in CASES} | {T + "MicroTime": 1}
    values = []
    for name, value in wrong:
        field = {"field": "v", **schema_of(name)}
        values += [record([ID, field], {"id": 1, "v": sent}) for sent in (right[name], value)]
    for number in range(0, len(values), 2):
        config = {"connector.class": "delta", "delta.table.path": str(tmp_path / f"{number}")}
        bad = written(config, values[number : number + 2])
        assert list(bad) == [1], (wrong[number // 2], bad)
        assert "v" in bad[1]
    assert variable["name"] == D + "VariableScaleDecimal"


BITS = {"length": "9"}


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (b"", "000000000"),
        (b"\2", "000000010"),
        (b"\2\1", "100000010"),
        (b"\2\1\0", "100000010"),
        (b"\2\2", None),
        (b"\2\1\1", None),
    ],
)
def test_bits_of_any_number_of_bytes_are_their_value_or_refused(
    sent: bytes, value: str | None, tmp_path: Path
) -> None:
    url = f"jdbc:duckdb:{tmp_path / 'db'}"
    databases.query(url, "CREATE TABLE t (id BIGINT, v BIT)")
    config = {"connector.class": "duckdb", "connection.url": url}
    field = {"field": "v", **schema_of(D + "Bits", **BITS)}
    good = record([ID, field], {"id": 1, "v": b64(b"\1")})
    given = record([ID, field], {"id": 2, "v": b64(sent)})
    assert list(written(config, [good, given])) == ([] if value else [1])
    found = databases.query(url, "SELECT v::VARCHAR FROM t ORDER BY id")
    assert found == [("000000001",), (value,)][: 2 if value else 1]


NESTED = [
    {"field": "at", "type": "int64", "name": T + "MicroTimestamp", "optional": True},
    {"field": "amount", **schema_of(DECIMAL)},
    {"field": "any", **schema_of(D + "VariableScaleDecimal")},
    {"field": "raw", "type": "bytes", "optional": True},
]
INSIDE = {
    "at": 1_709_194_830_500_000,
    "amount": b64((12345).to_bytes(2, "big")),
    "any": {"scale": 1, "value": b64(b"\5")},
    "raw": b64(b"\0\xff"),
}
SHOWN = {"at": "2024-02-29T08:20:30.500000", "amount": 123.45, "any": "0.5", "raw": "AP8="}


def test_semantic_types_are_read_in_structs_lists_and_maps(tmp_path: Path) -> None:
    item = {"type": "struct", "fields": NESTED, "optional": True}
    fields = [
        ID,
        {"field": "one", **item},
        {"field": "many", "type": "array", "items": item, "optional": True},
        {
            "field": "named",
            "type": "map",
            "keys": {"type": "string", "optional": False},
            "values": item,
            "optional": True,
        },
        {
            "field": "times",
            "type": "array",
            "items": {"type": "string", "name": T + "ZonedTimestamp", "optional": True},
            "optional": True,
        },
    ]
    payload = {"one": INSIDE, "many": [INSIDE], "named": {"a": INSIDE}}
    times = {"times": ["2024-02-29T10:20:30.5+02:00"]}
    value = record(fields, {"id": 1, **payload, **times})
    url = f"jdbc:sqlite:{tmp_path / 'db'}"
    assert written({"connector.class": "sqlite", "connection.url": url}, [value]) == {}
    (found,) = databases.query(url, "SELECT one, many, named, times FROM t")
    moment = "2024-02-29T08:20:30.500000Z"
    assert [json.loads(v) for v in found] == [SHOWN, [SHOWN], {"a": SHOWN}, [moment]]
    lake = {"connector.class": "delta", "delta.table.path": str(tmp_path)}
    assert written(lake, [value]) == {}
    (row,) = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    inside = {"at": MOMENT, "amount": Decimal("123.45"), "any": "0.5", "raw": b"\0\xff"}
    assert (row["one"], row["many"], dict(row["named"])) == (inside, [inside], {"a": inside})


def test_columns_that_are_there_take_what_fits_them(tmp_path: Path) -> None:
    url = f"jdbc:duckdb:{tmp_path / 'db'}"
    databases.query(
        url,
        "CREATE TABLE t (id BIGINT, price DECIMAL(10, 3), rough DOUBLE, flag BOOLEAN, "
        "mask INTEGER, letters VARCHAR, raw BLOB, clock TIME, span INTERVAL, late TIMESTAMPTZ)",
    )
    variable, bits = D + "VariableScaleDecimal", D + "Bits"
    fields = [
        ID,
        {"field": "price", **schema_of(variable)},
        {"field": "rough", **schema_of(variable)},
        {"field": "flag", **schema_of(bits, length="1")},
        {"field": "mask", **schema_of(bits)},
        {"field": "letters", **schema_of(bits)},
        {"field": "raw", **schema_of(bits)},
        {"field": "clock", **schema_of(T + "ZonedTime")},
        {"field": "span", **schema_of(T + "Interval")},
        {"field": "late", **schema_of(T + "IsoTimestamp")},
    ]
    two = b64((258).to_bytes(2, "little"))
    payload = {
        "id": 1,
        "price": {"scale": 1, "value": b64(b"\x0f")},
        "rough": {"scale": -2, "value": b64(b"\3")},
        "flag": b64(b"\1"),
        **dict.fromkeys(("mask", "letters", "raw"), two),
        "clock": "10:20:30+02:00",
        "span": "P0Y0M1DT0H0M0S",
        "late": "2024-02-29T08:20:30Z",
    }
    finer = {"scale": 4, "value": b64(b"\1")}
    config = {"connector.class": "duckdb", "connection.url": url}
    values = [payload, {**payload, "price": finer}, {**payload, "flag": two}]
    bad = written(config, [record(fields, value) for value in values])
    assert sorted(bad) == [1, 2]
    assert bad[1].startswith("column price (DECIMAL(10,3)) cannot take '0.0001'")
    (found,) = databases.query(url, "SELECT COLUMNS(*)::VARCHAR FROM t")
    assert found == (
        *("1", "1.500", "300.0", "true", "258", "0000000100000010", "\\x02\\x01"),
        *("08:20:30", "1 day", "2024-02-29 08:20:30+00"),
    )


def test_keys_have_semantic_types(tmp_path: Path) -> None:
    url = f"jdbc:duckdb:{tmp_path / 'db'}"
    config = {
        "connector.class": "duckdb",
        "connection.url": url,
        "key.converter": "JsonConverter",
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "delete.enabled": "true",
    }
    row = record([{"field": "v", "type": "int32"}], {"v": 1})
    whole = json.dumps({"schema": schema_of(D + "Uuid"), "payload": UUID}).encode()
    other = whole.replace(b"6ba7", b"7ba7")
    keyed = {**config, "pk.fields": "id"}
    assert written(keyed, [row, row, None, row], [whole, other, other, whole]) == {}
    kinds = "SELECT data_type FROM duckdb_columns() WHERE column_name = 'id'"
    assert databases.query(url, kinds) == [("UUID",)]
    assert databases.query(url, "SELECT id::VARCHAR, v FROM t") == [(UUID, 1)]
    databases.query(url, "DROP TABLE t")
    part = record([{"field": "id", **schema_of(D + "Uuid")}], {"id": UUID})
    assert written(config, [row], [part]) == {}
    assert databases.query(url, kinds) == [("UUID",)]


@pytest.mark.parametrize(
    ("type_", "base", "sent", "value"),
    [
        ("bit(16)", "bit", b"\2\1", "0000000100000010"),
        ("bit(20)", "bit", b"\2\1", "00000000000100000010"),
        ("bit(8)", "bit", b"\2\1", None),
        ("bit varying", "varbit", b"\2\1", "0000000100000010"),
        ("a_domain", "bit", b"\2\1", "0000000100000010"),
        ("integer", "int4", b"\2\1", 258),
        ("boolean", "bool", b"\1\0", True),
        ("boolean", "bool", b"\2\0", None),
        ("bytea", "bytea", b"\2\1", b"\2\1"),
        ("text", "text", b"\2\1", "0000000100000010"),
    ],
)
def test_postgresqls_columns_take_bits(type_: str, base: str, sent: bytes, value: Any) -> None:
    kind = SemanticType(pa.binary(), json.dumps(semantic_facts(schema_of(D + "Bits"))).encode())
    bits = pa.chunked_array([pa.ExtensionArray.from_storage(kind, pa.array([sent, None]))])
    for array in (False, True):
        column = postgresql_column(
            "v", 1, f"{type_}{'[]' if array else ''}", base, base, -1, array=array
        )
        values = bits
        if array:
            inner = one_array(bits)
            lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), inner.storage)
            facts = json.dumps({"items": semantic_facts(schema_of(D + "Bits"))}).encode()
            whole = pa.ExtensionArray.from_storage(SemanticType(lists.type, facts), lists)
            values = pa.chunked_array([whole])
        if value is None:
            with pytest.raises(pa.ArrowInvalid):
                convert(formed(values, column), column)
            continue
        found = convert(formed(values, column), column).values.to_pylist()
        if not array:
            assert found == [value, None]
        elif isinstance(value, str):
            assert found == [f'{{"{value}",NULL}}']


@pytest.mark.integration
def test_maps_go_to_hstore(database: str) -> None:
    asked(database, "CREATE EXTENSION hstore")
    asked(database, "CREATE TABLE t (id bigint, v hstore)")
    texts = {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}
    config = {"connector.class": "postgresql", "connection.url": database}
    sent = {'a"b\\': "1", "c": None, "d": ""}
    fields = [ID, {"field": "v", "optional": True, **texts}]
    values = [record(fields, {"id": 1, "v": sent}), record(fields, {"id": 2, "v": {}})]
    values.append(
        record([ID, {"field": "v", **schema_of(D + "Json")}], {"id": 3, "v": '{"x":"y"}'})
    )
    assert written(config, values) == {}
    found = asked(
        database, "SELECT v->'a\"b\\', v ? 'c', v->'c', v->'d', v->'x' FROM t ORDER BY id"
    )
    assert found == [
        ("1", True, None, "", None),
        (None, False, None, None, None),
        (None, False, None, None, "y"),
    ]


@pytest.mark.parametrize(
    "transforms",
    [
        {},
        {"v": {"type": "HoistField$Value", "field": "value"}},
        {
            "k": {"type": "HoistField$Key", "field": "k"},
            "v": {"type": "ReplaceField$Key", "exclude": "none"},
        },
    ],
    ids=["alone", "hoisted", "hoisted key"],
)
def test_whole_keys_and_values_keep_their_semantic_type_behind_a_transform(
    transforms: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    url = f"jdbc:duckdb:{tmp_path / 'db'}"
    config = {
        "connector.class": "duckdb",
        "connection.url": url,
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "k",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "transforms": ",".join(transforms),
    }
    for alias, keys in transforms.items():
        config |= {f"transforms.{alias}.{name}": text for name, text in keys.items()}
    key = {"schema": schema_of("io.debezium.data.Uuid"), "payload": UUID}
    value = {"schema": schema_of("io.debezium.data.Bits"), "payload": b64(b"\2\1")}
    texts = [json.dumps(each).encode() for each in (value, key)]
    assert written(config, texts[:1], texts[1:]) == {}
    found = databases.query(url, "SELECT typeof(k), typeof(value), CAST(value AS VARCHAR) FROM t")
    assert found == [("UUID", "BIT", "0000000100000010")]
