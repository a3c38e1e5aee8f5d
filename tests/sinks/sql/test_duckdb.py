"""What only DuckDB does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest

from semel.config import ConnectorConfig, read
from semel.errors import ConfigError
from semel.sinks import sink_class
from semel.sinks.sql.sink import SqlSink

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "k"}


def made(file: Path, keys: Mapping[str, str]) -> SqlSink:
    raw = {
        "name": "c",
        "connector.class": "duckdb",
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "connection.url": f"jdbc:duckdb:{file}",
        **keys,
    }
    sink = sink_class("duckdb")(read(ConnectorConfig, raw))
    assert isinstance(sink, SqlSink)
    return sink


@pytest.mark.parametrize("mode", ["upsert", "update"])
def test_a_key_column_with_a_collation_is_refused_before_anything_is_read(
    mode: str, tmp_path: Path
) -> None:
    """Its indexes tell bob from BOB, its comparisons do not."""
    file = tmp_path / "d.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t (k VARCHAR COLLATE NOCASE PRIMARY KEY, v INT)")
    with pytest.raises(ConfigError, match=r"key column k has a collation.*without COLLATE"):
        made(file, {**UPSERT, "insert.mode": mode}).prepare(["t"])
    made(file, {}).prepare(["t"])  # rows are inserted, whatever the key
