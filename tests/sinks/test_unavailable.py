"""A column whose value Debezium could not tell keeps what it holds; the placeholder is never
written."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.audit.hashes import ExpectedRows
from semel.audit.workspace import Workspace
from semel.config import ConnectorConfig, read
from semel.core.records import Commit, RowsRejected
from semel.sinks import create
from semel.sinks.sql.base import DatabaseSink
from semel.sinks.unavailable import PLACEHOLDER, unavailable
from semel.tasks.pipeline import ConvertedRecords, Pipeline
from tests import databases
from tests.polled import polled
from tests.sinks.test_semantic_types import asked

P = PLACEHOLDER
CODES = list(P.encode())
UPSERT = {
    "insert.mode": "upsert",
    "pk.mode": "record_value",
    "pk.fields": "id",
    "auto.create": "true",
}
SCHEMA = [
    {"field": "id", "type": "int64"},
    {"field": "a", "type": "string", "optional": True},
    {"field": "b", "type": "bytes", "optional": True},
]


def change(number: int, a: str | None, b: bytes | None) -> bytes:
    given = None if b is None else base64.b64encode(b).decode()
    schema = {"type": "struct", "fields": SCHEMA}
    return json.dumps({"schema": schema, "payload": {"id": number, "a": a, "b": given}}).encode()


class Run:
    """A connector's sink and converters, without Kafka."""

    def __init__(self, config: Mapping[str, str]) -> None:
        base = {"name": "c", "bootstrap.servers": "nowhere:9092", "topics": "t"}
        self.connector = read(ConnectorConfig, {**base, **config})
        self.sink = create(self.connector)
        self.pipeline = Pipeline(self.connector, self.sink, target=self.sink.schema)
        self.sink.prepare(["t"])
        self._offset = 0

    def convert(self, values: Sequence[bytes], places: Sequence[int]) -> ConvertedRecords:
        return self.pipeline.convert("t", polled(values, offsets=places))

    def commit(self, values: Sequence[bytes]) -> dict[int, str]:
        """Commit a batch; returns the reasons of its bad records by their place in it."""
        places = range(self._offset, self._offset + len(values))
        self._offset += len(values)
        bad: dict[int, str] = {}
        while True:
            kept = [n for n in range(len(values)) if n not in bad]
            made = self.convert([values[n] for n in kept], [places[n] for n in kept])
            try:
                self.sink.write(Commit([part for part in made.parts if part.count]))
                return bad
            except RowsRejected as refusal:
                bad |= {places.index(r.offset): r.message for r in refusal.rejected}


def config_of(url: str) -> dict[str, str]:
    kind = "postgresql" if url.startswith("postgresql") else url.split(":")[1]
    return {"connector.class": kind, "connection.url": url}


def rows(url: str) -> list[Any]:
    query = "SELECT id, a, b FROM t ORDER BY id"
    return asked(url, query) if url.startswith("postgresql") else databases.query(url, query)


def keeps_columns(url: str) -> None:
    run = Run({**config_of(url), **UPSERT})
    assert run.commit([change(1, "one", b"1"), change(2, "two", b"2"), change(3, "x", b"3")]) == {}
    # Each key has its own columns left out, in one batch, in any order and several times.
    batch = [
        change(1, P, b"1b"),
        change(2, "two b", P.encode()),
        change(3, "lost", b"3b"),
        change(1, "one c", P.encode()),
        change(3, None, P.encode()),
        change(2, P, P.encode()),
        change(3, P, None),
        change(4, P, b"4"),
        change(5, "five", b"5"),
        change(5, P, P.encode()),
    ]
    assert run.commit(batch) == {}
    assert rows(url) == [
        (1, "one c", b"1b"),
        (2, "two b", b"2"),
        (3, None, None),
        (4, None, b"4"),
        (5, "five", b"5"),
    ]
    run.sink.close()


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_an_upsert_leaves_such_columns_as_they_are(kind: str, tmp_path: Path) -> None:
    keeps_columns(f"jdbc:{kind}:{tmp_path / 'db'}")


@pytest.mark.integration
def test_an_upsert_into_postgresql_leaves_such_columns_as_they_are(database: str) -> None:
    keeps_columns(database)


@pytest.mark.integration
def test_an_upsert_into_mariadb_leaves_such_columns_as_they_are(mariadb: Any) -> None:
    url = mariadb.create_database("unavailable")
    try:
        keeps_columns(url.replace("jdbc:mariadb", "jdbc:mysql"))
    finally:
        mariadb.drop_database("unavailable")


def test_an_update_leaves_such_columns_as_they_are(tmp_path: Path) -> None:
    url = f"jdbc:sqlite:{tmp_path / 'db'}"
    databases.query(url, "CREATE TABLE t (id BIGINT PRIMARY KEY, a TEXT, b BLOB)")
    databases.query(url, "INSERT INTO t VALUES (1, 'one', x'31')")
    run = Run({**config_of(url), **UPSERT, "insert.mode": "update"})
    assert run.commit([change(1, P, b"2"), change(9, P, b"9")]) == {}
    assert rows(url) == [(1, "one", b"2")]
    run.sink.close()


@pytest.mark.parametrize("store", ["sqlite", "delta", "files"])
def test_a_sink_that_cannot_leave_a_column_out_refuses_the_record(
    store: str, tmp_path: Path
) -> None:
    config = {
        "sqlite": {
            "connector.class": "sqlite",
            "connection.url": f"jdbc:sqlite:{tmp_path / 'db'}",
            "auto.create": "true",
        },
        "delta": {
            "connector.class": "delta",
            "delta.table.path": str(tmp_path),
            **UPSERT,
        },
        "files": {"connector.class": "files", "path": str(tmp_path), "format": "json"},
    }[store]
    bad: dict[int, str]
    connector = Run(config)
    if store == "sqlite":
        bad = connector.commit([change(1, "one", b"1"), change(2, P, b"2"), change(3, "x", b"3")])
        assert list(bad) == [1]
        assert databases.query(config["connection.url"], "SELECT id FROM t") == [(1,), (3,)]
    else:
        records = connector.convert([change(1, "one", b"1"), change(2, P, b"2")], [0, 1]).parts
        with pytest.raises(RowsRejected) as refusal:
            connector.sink.stage(Commit(records))  # type: ignore[attr-defined]
        (rejected,) = refusal.value.rejected
        bad = {rejected.offset: rejected.message}
        assert list(bad) == [1]
    (why,) = bad.values()
    assert why.startswith(f"field a holds {P!r}")
    assert "post.processors=reselect" in why


def test_an_audit_does_not_report_columns_that_kept_their_value(tmp_path: Path) -> None:
    url = f"jdbc:sqlite:{tmp_path / 'db'}"
    run = Run({**config_of(url), **UPSERT})
    values = [change(1, "one", b"1"), change(2, "two", b"2"), change(1, P, b"1b")]
    assert run.commit(values) == {}
    (records,) = run.convert(values, range(len(values))).parts

    def changed() -> int:
        with run.sink.viewing(["t"]) as (view,), closing(Workspace()) as workspace:  # type: ignore[attr-defined]
            keys, _ = run.sink.key_of(records)
            assert keys is not None
            expected = ExpectedRows(workspace, key=keys.column_names, replaces=True)
            held = view.held(records)
            expected.add("t", held.places, held.values, held.optional)
            expected.change("t", keys, records.rows, deleted=False)
            return sum(expected.by_key(view.rows("t", expected.columns)).counts.values())

    assert changed() == 0
    databases.query(url, "UPDATE t SET a = 'another' WHERE id = 1")
    assert changed() == 0
    databases.query(url, "UPDATE t SET a = 'another' WHERE id = 2")
    assert changed() == 1
    run.sink.close()


def test_another_placeholder_is_known_by_its_key(tmp_path: Path) -> None:
    url = f"jdbc:sqlite:{tmp_path / 'db'}"
    run = Run({**config_of(url), **UPSERT, "unavailable.value.placeholder": "n/a"})
    assert isinstance(run.sink, DatabaseSink)
    assert run.commit([change(1, "one", b"1"), change(1, "n/a", b"2"), change(2, P, b"3")]) == {}
    assert rows(url) == [(1, "one", b"2"), (2, P, b"3")]
    run.sink.close()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([P, "x", None]),
        pa.array([P.encode(), b"x", None]),
        pa.array([[P], [P, P], None]),
        pa.array([[P.encode()], [b"x"], None]),
        pa.array([CODES, CODES[1:], None], pa.list_(pa.int32())),
        pa.array([CODES, [], None], pa.list_(pa.int64())),
        pa.array([[(P, P)], [(P, "x")], None], pa.map_(pa.string(), pa.string())),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array([P, '{"a":1}', None])),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array([f'{{"{P}":"{P}"}}', "1", None])),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array([f'["{P}"]', "[1]", None])),
    ],
    ids=lambda values: str(values.type),
)
def test_every_form_of_the_placeholder_is_known(values: pa.Array) -> None:
    found = unavailable({"v": pa.chunked_array([values])}, (), P)
    assert {name: rows.tolist() for name, rows in found.items()} == {"v": [True, False, False]}
