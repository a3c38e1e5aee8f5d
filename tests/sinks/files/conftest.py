"""A directory (or a store in memory, or in HDFS) of files, and sinks that write into it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pytest

from semel.sinks.files.ledger import LedgerState
from semel.sinks.files.sink import FilesSink
from semel.storage import drivers
from semel_lab.embedded.hdfs import Hdfs
from tests.sinks.target import Place


class Folder(Place):
    """One place that sinks write to."""

    kind = FilesSink

    def __init__(self, where: str) -> None:
        self.where = where

    def config(self, name: str = "c", keys: Mapping[str, Any] | None = None) -> dict[str, str]:
        return {
            "name": name,
            "connector.class": "files",
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "value.converter": "JsonConverter",
            "path": self.where,
            **{k: str(v) for k, v in (keys or {}).items() if v is not None},
        }

    def state(self, name: str = "c") -> LedgerState:
        return self.made(name)._ledger.newest()

    def all(self) -> list[str]:
        """Every file there is, hidden ones too."""
        filesystem, root = fsspec.url_to_fs(self.where)
        filesystem.invalidate_cache()
        root = root.rstrip("/")
        found: list[str] = filesystem.find(root) if filesystem.exists(root) else []
        return sorted(str(f).removeprefix(f"{root}/") for f in found)

    def files(self) -> list[str]:
        """What a reader sees."""
        return [f for f in self.all() if not any(p.startswith(("_", ".")) for p in f.split("/"))]

    def staged(self) -> list[str]:
        return [f for f in self.all() if "/staged/" in f]

    def read(self, pattern: str = "t/**/*.parquet") -> list[dict[str, Any]]:
        """Rows, by a reader that knows nothing of semel."""
        reader = {"parquet": "read_parquet", "json": "read_json", "csv": "read_csv"}[
            next(k for k in ("parquet", "json", "csv") if f".{k}" in pattern)
        ]
        query = f"SELECT * FROM {reader}('{self.where}/{pattern}', union_by_name=true)"
        with duckdb.connect() as connection:
            table = connection.sql(query).to_arrow_table()
        return sorted(table.to_pylist(), key=lambda r: r.get("id") or 0)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is a store as good as others where all writers are in one process, as here."""
    monkeypatch.setattr(drivers, "_EXCLUSIVE", drivers._EXCLUSIVE | {"memory"})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "files"))


@pytest.fixture
def bucket() -> Iterator[Folder]:
    """An object store: no folders, no renaming."""
    where = f"memory://bucket-{uuid.uuid4().hex}"
    yield Folder(where)
    filesystem, root = fsspec.url_to_fs(where)
    if filesystem.exists(root):
        filesystem.rm(root, recursive=True)


@pytest.fixture
def directory(hdfs: Hdfs) -> Folder:
    """A directory in HDFS."""
    return Folder(f"webhdfs://{hdfs.user}@{hdfs.url.partition('://')[2]}/{uuid.uuid4().hex}")


@pytest.fixture(
    params=[
        "folder",
        "bucket",
        pytest.param("directory", marks=[pytest.mark.integration, pytest.mark.long]),
    ]
)
def place(request: pytest.FixtureRequest) -> Folder:
    """Each of them."""
    found: Folder = request.getfixturevalue(request.param)
    return found
