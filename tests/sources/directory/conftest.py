"""A directory source without Kafka: what it reads, and what becomes of the files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.driver.planning import plan_source
from semel.sources.base import SourceBatch
from semel.sources.directory.source import DirectorySource

Offsets = dict[str, Mapping[str, Any]]


class Reading:
    """What an engine would do: read, commit, and keep the offsets."""

    def __init__(self, source: DirectorySource, stored: Offsets | None = None) -> None:
        self.source = source
        self.stored: Offsets = {} if stored is None else stored
        self.values: list[Any] = []
        self.keys: list[Any] = []
        self.timestamps: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.batches: Iterator[SourceBatch | None] = iter(())
        self.restart()

    def restart(self) -> None:
        """As after a crash: from the committed offsets."""
        known = dict(self.stored)
        self.batches = self.source.read_shard(
            {"shard": 0}, lambda partition: known.get(partition["fileName"])
        )

    def step(self, *, cleans: bool = True) -> bool:
        """Read and commit one batch; ``cleans`` unless the task dies after the commit."""
        batch = next(self.batches)
        if batch is None:
            return False
        for records in batch.records:
            self.values += records.values.to_pylist()
            self.keys += records.keys.to_pylist()
            for headers in records.headers.to_pylist() if records.headers is not None else ():
                self.headers.append({h["key"]: h["value"].decode() for h in headers})
            if "__connect_timestamp" in records.origin.column_names:
                self.timestamps += records.origin["__connect_timestamp"].to_pylist()
        for partition, offset in batch.reached:
            self.stored[partition["fileName"]] = json.loads(json.dumps(offset))
        for partition, offset in batch.reached if cleans else ():
            self.source.committed(partition, offset)
        return True

    def all(self) -> list[Any]:
        """Read until nothing is there now; everything that was read so far."""
        idle = 0
        while idle < 2:  # the second one looks at the files again
            idle = 0 if self.step() else idle + 1
            time.sleep(0.003 * idle)
        return self.values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("in", "done", "bad"):
        (tmp_path / name).mkdir()
    return tmp_path / "in"


@pytest.fixture
def make(folder: Path) -> Callable[..., DirectorySource]:
    def made(format: str = "text", **keys: str) -> DirectorySource:
        raw = {
            "name": "files",
            "connector.class": "Directory",
            "format": format,
            "topic": "t",
            "input.path": str(folder),
            "finished.path": str(folder.parent / "done"),
            "error.path": str(folder.parent / "bad"),
            "file.minimum.age.ms": "0",
            "empty.poll.wait.ms": "1",
            "bootstrap.servers": "localhost:1",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            **{k if "." in k else k.replace("_", "."): v for k, v in keys.items()},
        }
        source = plan_source({k: v for k, v in raw.items() if v}).source
        assert isinstance(source, DirectorySource)
        return source

    return made


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
