"""A catalog in SQLite with a local warehouse, and sinks that write into its tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from semel.config import ConnectorConfig, read
from semel.ledger import TopicPartition
from semel.records import Commit, Records, Rejected, RowsRejected
from semel.sinks.iceberg.sink import IcebergSink

FIRST = TopicPartition("t", 0)


class Warehouse:
    """One catalog."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{path}/catalog.db",
            "warehouse": f"file://{path}/warehouse",
        }

    def config(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> dict[str, str]:
        config = {
            "name": name,
            "connector.class": "iceberg",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "iceberg.tables": "db.t",
            "iceberg.tables.auto-create-enabled": "true",
            **{f"iceberg.catalog.{k}": v for k, v in self.properties.items()},
            **{k: None if v is None else str(v) for k, v in (keys or {}).items()},
        }
        return {k: v for k, v in config.items() if v is not None}

    def sink(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> IcebergSink:
        """A sink that has entered its first position."""
        made = self.unprepared(name, keys)
        made.prepare(["t"])
        made.start({FIRST: 0})
        return made

    def unprepared(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> IcebergSink:
        raw = self.config(name, keys)
        return IcebergSink(read(ConnectorConfig, raw), raw)

    @property
    def catalog(self) -> Catalog:
        return load_catalog("iceberg", **self.properties)

    def table(self, name: str = "db.t") -> Table:
        return self.catalog.load_table(name)

    def arrow(self, name: str = "db.t") -> pa.Table:
        found: pa.Table = self.table(name).scan().to_arrow()
        return found

    def rows(self, name: str = "db.t") -> list[dict[str, Any]]:
        return sorted(self.arrow(name).to_pylist(), key=str)

    def files(self, pattern: str = "**/*.parquet") -> list[Path]:
        return sorted((self.path / "warehouse").glob(pattern))

    def stored(self, topic: str = "t", partition: int = 0, name: str = "c") -> int | None:
        """A position, straight from the table."""
        text = self.table().properties.get(f"semel:{name}:{topic}:{partition}")
        return None if text is None else int(json.loads(text)["position"])


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


def refused(sink: IcebergSink, records: Records) -> dict[int, Rejected]:
    """What the sink rejects, by offset."""
    try:
        sink.stage(Commit([records]))
    except RowsRejected as rejection:
        return {r.offset: r for r in rejection.rejected}
    raise AssertionError("nothing was rejected")
