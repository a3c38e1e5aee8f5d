"""What other packages bring."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semel import extras


def test_entry_points_are_read_once_though_spark_changes_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = extras.entries("semel.sinks")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "userFiles-1"), *sys.path])
    assert extras.entries("semel.sinks") is found
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages"), *sys.path])
    assert extras.entries("semel.sinks") is not found
