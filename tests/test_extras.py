"""What other packages bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from semel.config import extras
from tests.patience import PATIENCE


def test_entry_points_are_read_once_though_spark_changes_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = extras.entries("semel.sinks")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "userFiles-1"), *sys.path])
    assert extras.entries("semel.sinks") is found
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages"), *sys.path])
    assert extras.entries("semel.sinks") is not found


def test_the_postgresql_sink_imports_pandas_only_for_those_who_use_data_sets() -> None:
    program = """
import sys
import semel.sinks.postgresql
assert "pandas" not in sys.modules
import pyarrow
known = pyarrow.dataset  # as others hold it
assert not hasattr(known, "__file__")
assert "pandas" not in sys.modules
from pyarrow.dataset import Scanner, dataset
assert "pandas" in sys.modules
assert known.Scanner is pyarrow.dataset.Scanner is Scanner
assert sys.modules["pyarrow.dataset"] is pyarrow.dataset is not known
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_a_module_that_is_used_meanwhile_is_imported() -> None:
    program = """
import sys
from semel.config.extras import deferred
with deferred("pyarrow.dataset"):
    from pyarrow.dataset import dataset
assert dataset is sys.modules["pyarrow.dataset"].dataset
with deferred("pyarrow.dataset"):
    assert dataset is sys.modules["pyarrow.dataset"].dataset
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
