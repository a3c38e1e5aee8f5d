"""A disk of a test's own, which can be full or read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel_lab.drill.disk import Disk
from tests.engine.harness import wait_until
from tests.patience import PATIENCE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of its own, which can be full."""
    made = Disk(tmp_path / "disk")
    made.open(mount=True)
    if not made.directory.is_mount():
        pytest.skip("may not mount a disk")
    yield made
    made.close()


@contextmanager
def read_only(disk: Disk) -> Iterator[None]:
    """Refuse all writes, from the moment at which no file is open for writing."""

    def mount(options: str) -> bool:
        command = ["mount", "-o", f"remount,{options}", str(disk.directory)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
        return done.returncode == 0

    wait_until(lambda: mount("ro"))
    try:
        yield
    finally:
        assert mount("rw")
