"""The order in which the tests begin names files that are there."""

from __future__ import annotations

from pathlib import Path

from tests.scheduling import FIRST, TOGETHER

ROOT = Path(__file__).parents[1]


def test_every_place_that_is_named_is_there() -> None:
    named = {*FIRST, *(place for places in TOGETHER.values() for place in places)} - {*TOGETHER}
    missing = sorted(place for place in named if not (ROOT / place).exists())
    assert not missing, f"tests/scheduling.py names {missing}"
