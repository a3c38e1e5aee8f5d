"""A directory of Delta tables, and sinks that write into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from semel.config import ConnectorConfig, read
from semel.core.ledger import TopicPartition, firsts
from semel.sinks.delta.sink import DeltaSink

FIRST = TopicPartition("t", 0)


class Lake:
    """One directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> dict[str, str]:
        return {
            "name": name,
            "connector.class": "delta",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "delta.table.path": str(self.path),
            "auto.create": "true",
            **{k: str(v) for k, v in (keys or {}).items() if v is not None},
        }

    def made(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> DeltaSink:
        """A sink that has not looked at the store yet."""
        raw = self.config(name, keys)
        return DeltaSink(read(ConnectorConfig, raw))

    def sink(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> DeltaSink:
        """A sink that has entered its first position."""
        made = self.made(name, keys)
        made.prepare(["t"])
        made.start(firsts({FIRST: 0}))
        return made

    def table(self, name: str = "t") -> DeltaTable:
        return DeltaTable(str(self.path / name))

    def rows(self, name: str = "t") -> list[dict[str, Any]]:
        found: pa.Table = self.table(name).to_pyarrow_table()
        return sorted(found.to_pylist(), key=str)

    def stored(self, topic: str = "t", partition: int = 0, name: str = "c") -> int | None:
        """A position, straight from the table."""
        return self.table(topic).transaction_version(f"semel:{name}:{topic}:{partition}")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)
