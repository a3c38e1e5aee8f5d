"""A process that dies or freezes inside a commit, and another one that continues after it."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest

from semel.core import failpoints
from semel.core.errors import LedgerConflict
from semel.core.ledger import Outcome
from tests.engine.harness import some, wait_until
from tests.patience import PATIENCE
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, values

_FORKS = multiprocessing.get_context("forkserver")
MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.default-id-columns": "id",
    },
}
PLACES = [p for p in failpoints.PLACES if p.startswith("sink.")]


def write(warehouse: Warehouse, points: Path, keys: dict[str, Any]) -> None:
    """The process: it commits offsets 10 to 20."""
    failpoints._directory = str(points)
    try:
        warehouse.sink(keys=keys).commit([advance(10, 20)], values(10, 20))
    except LedgerConflict as conflict:
        sys.exit(conflict.exit_code)


def begun(warehouse: Warehouse, mode: str, place: str, action: str) -> tuple[Any, Path]:
    warehouse.sink(keys=MODES[mode]).commit([advance(0, 10)], values(0, 10))
    points = warehouse.path / "points"
    points.mkdir()
    failpoints.arm(points, place, action)
    process = _FORKS.Process(target=write, args=(warehouse, points, MODES[mode]))
    process.start()
    return process, points


@pytest.mark.parametrize(
    ("mode", "place"),
    some(
        [*(("append", p) for p in PLACES), ("upsert", "sink.before_commit")],
        {("append", "sink.before_commit"), ("append", "sink.after_commit")},
    ),
)
def test_killed_in_a_commit(mode: str, place: str, anywhere: Warehouse) -> None:
    process, _ = begun(anywhere, mode, place, "kill-worker")
    process.join(PATIENCE)
    assert process.exitcode == -9
    landed = place == "sink.after_commit"
    assert anywhere.stored() == (20 if landed else 10)
    assert len(anywhere.rows()) == (20 if landed else 10)
    outcome = anywhere.sink(keys=MODES[mode]).commit([advance(10, 20)], values(10, 20))
    assert outcome is (Outcome.REPLAYED if landed else Outcome.APPLIED)
    assert sorted(r["id"] for r in anywhere.rows()) == list(range(20))


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        pytest.param("append", "sink.after_positions", marks=pytest.mark.long),
        ("append", "sink.before_commit"),
        pytest.param("upsert", "sink.before_commit", marks=pytest.mark.long),
    ],
)
def test_a_zombie_that_wakes_up_is_fenced(mode: str, place: str, anywhere: Warehouse) -> None:
    assert_fenced_when_it_wakes_up(mode, place, anywhere)


def assert_fenced_when_it_wakes_up(mode: str, place: str, warehouse: Warehouse) -> None:
    """A process that slept in a commit while others committed is fenced and leaves nothing."""
    process, points = begun(warehouse, mode, place, "freeze")
    wait_until((points / f"frozen.{process.pid}").exists)
    sink = warehouse.sink(keys=MODES[mode])
    sink.commit([advance(10, 20)], values(10, 20))
    sink.commit([advance(20, 25)], values(20, 25))
    location = warehouse.table().metadata_location
    failpoints.thaw(points, process.pid)
    process.join(PATIENCE)
    assert process.exitcode == LedgerConflict.exit_code
    assert warehouse.table().metadata_location == location
    assert sorted(r["id"] for r in warehouse.rows()) == list(range(25))
