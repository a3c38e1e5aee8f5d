"""The demonstrations as a newcomer runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_a_table_that_changes_is_copied_through_crashes(tmp_path: Path) -> None:
    options = [
        "--source",
        "--crashes",
        "2",
        "--seed",
        "3",
        "--dir",
        str(tmp_path / "demo"),
        "--json",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "semel", "demo", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert facts["kept"]
    assert facts["rows"] > 1_000_000
    assert facts["updates"] > 0
    assert (facts["crashes"], facts["differences"]) == (2, 0)
