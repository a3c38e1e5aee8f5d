"""Columns that records fill from their keys: the values have no say in whether a record is good."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, read
from semel.core.ledger import TopicPartition
from semel.core.records import DeadLetter
from semel.sinks import sink_class
from semel.sinks.sql.sink import SqlSink
from semel.tasks.batch import Batcher
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import TopicTable
from tests.polled import polled

Record = tuple[str | None, str | None]
"""Key and value."""

LENIENT = {"errors.tolerance": "all"}
KEYED = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "k"}


class Target:
    """A SQLite database with one table."""

    def __init__(self, path: Path, table: str) -> None:
        self.file = path / "database"
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute(f"CREATE TABLE t ({table})")

    def take(
        self, keys: dict[str, str], *polled: tuple[str | None, str | None]
    ) -> list[DeadLetter]:
        """Write keys and values; the bad ones."""
        raw = {
            "name": "c",
            "connector.class": "sqlite",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "connection.url": f"jdbc:sqlite:{self.file}",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            **LENIENT,
            **keys,
        }
        connector = read(ConnectorConfig, raw)
        sink = sink_class("sqlite")(connector)
        assert isinstance(sink, SqlSink)
        try:
            sink.prepare(["t"])
            batcher = Batcher(connector, Pipeline(connector, sink, target=sink.schema))
            batch = batcher.batch(
                [TopicTable("t", _table(polled))], {TopicPartition("t", 0): 0}, {}
            )
            sink.write(batch.commit)
        finally:
            sink.close()
        return list(batch.commit.dead_letters)

    def rows(self) -> list[Any]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute("SELECT * FROM t ORDER BY 1").fetchall()


def _table(records: tuple[Record, ...]) -> pa.Table:
    keys, values = zip(*records, strict=True)
    return polled([v and v.encode() for v in values], [k and k.encode() for k in keys])


@pytest.mark.parametrize("key", ['"a"', '{"k": "a"}'])
def test_a_table_of_keys_alone_takes_records_whatever_their_values_hold(
    tmp_path: Path, key: str
) -> None:
    target = Target(tmp_path, "k TEXT PRIMARY KEY")
    other = key.replace("a", "b")
    assert not target.take(KEYED, (key, '{"seen": true}'), (other, "{}"))
    assert target.rows() == [("a",), ("b",)]


def test_a_field_named_like_the_key_need_not_fit_the_keys_column(tmp_path: Path) -> None:
    target = Target(tmp_path, "k BIGINT PRIMARY KEY, n INTEGER")
    assert not target.take(KEYED, ("1", '{"k": "not a number", "n": 2}'))
    assert target.rows() == [(1, 2)]


def test_a_record_without_any_column_of_the_values_is_still_a_bad_one(tmp_path: Path) -> None:
    """Its row would hold nothing but a key and nulls."""
    target = Target(tmp_path, "k BIGINT PRIMARY KEY, n INTEGER")
    (letter,) = target.take(KEYED, ("1", '{"N": 2}'))
    assert "none of its fields (N) is a column that the target takes (n)" in letter.message


def test_tombstones_delete_from_a_table_of_keys_alone(tmp_path: Path) -> None:
    target = Target(tmp_path, "k BIGINT PRIMARY KEY")
    keys = KEYED | {"delete.enabled": "true"}
    assert not target.take(keys, ("1", '{"x": 1}'), ("2", '{"x": 1}'), ("1", None))
    assert target.rows() == [(2,)]


def test_coordinates_alone_may_fill_a_table(tmp_path: Path) -> None:
    target = Target(tmp_path, "a TEXT, b INTEGER, c INTEGER, PRIMARY KEY (a, b, c)")
    keys = {"pk.mode": "kafka", "pk.fields": "a,b,c"}
    assert not target.take(keys, (None, '{"x": 1}'))
    assert target.rows() == [("t", 0, 0)]
