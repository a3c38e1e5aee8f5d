"""What a drill does to files and lakes."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from semel_lab.drill.disk import Disk
from semel_lab.drill.lakes import DeltaLake, IcebergLake

ROWS = pa.table({"id": [1, 2, 3], "kind": ["a", "b", None]})

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(line.strip(), "wb") as file:
            file.write(b"x" * 100_000)
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@contextmanager
def writer() -> Iterator[subprocess.Popen[str]]:
    """A process that writes a file when it is told a path, and says what came of it."""
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def write(process: subprocess.Popen[str], path: Path) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{path}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


class TestDisk:
    @pytest.mark.parametrize("mounts", [True, False], ids=["mounted", "limited"])
    def test_a_full_disk_takes_nothing_and_then_everything(
        self, mounts: bool, tmp_path: Path
    ) -> None:
        disk = Disk(tmp_path / "disk")
        disk.open(mount=mounts)
        if mounts and not disk.directory.is_mount():
            disk.close()
            pytest.skip("this process may not mount file systems")
        try:
            with writer() as process:
                processes = [psutil.Process(process.pid)]
                assert write(process, disk.directory / "before") == 0
                with disk.full(4, lambda: processes):
                    refused = write(process, disk.directory / "meanwhile")
                    assert refused == (errno.ENOSPC if mounts else errno.EFBIG)
                assert write(process, disk.directory / "after") == 0
        finally:
            disk.close()
        assert not disk.directory.is_mount()
        sizes = {f.name: f.stat().st_size for f in disk.directory.iterdir()}
        assert (sizes["before"], sizes["after"]) == (100_000, 100_000)
        assert sizes["meanwhile"] < 100_000


class TestLakes:
    """Another writer's commits are real ones and leave the rows as they were."""

    def test_delta(self, tmp_path: Path) -> None:
        where = str(tmp_path / "lake" / "t")
        write_deltalake(where, ROWS, partition_by=["kind"])
        lake = DeltaLake(tmp_path / "lake")
        for number in (1, 2):
            before = DeltaTable(where).version()
            lake.write()
            assert DeltaTable(where).version() == before + 3
            assert lake.marks() == {str(number)}
            assert (
                DeltaTable(where).to_pyarrow_table().sort_by("id").select(ROWS.column_names) == ROWS
            )

    def test_iceberg(self, tmp_path: Path) -> None:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
        }
        catalog = load_catalog("iceberg", **properties)
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", ROWS.schema)
        table.append(ROWS)
        lake = IcebergLake(properties)
        for number in (1, 2):
            before = len(table.refresh().snapshots())
            lake.write()
            assert len(table.refresh().snapshots()) == before + 1
            assert lake.marks() == {str(number)}
            assert table.schema().fields[0].doc == f"semel-drill {number}"
            assert table.scan().to_arrow()["id"].to_pylist() == [1, 2, 3]
