"""A directory of Delta tables, and sinks that write into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from semel.sinks.delta.sink import DeltaSink
from tests.sinks.target import Place


class Lake(Place):
    """One directory."""

    kind = DeltaSink

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
