"""How tests try generated values: one round, or rounds for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

EXAMPLES = 25
"""As many of each kind in one round."""
Check = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seconds", default="0", help="how long each test of tests/fuzz goes on")
    parser.addoption("--fuzz-seed", default="1", help="the seed of its first round")


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Callable[..., Callable[[Check], None]]:
    """Decorates a function that takes generated values, and calls it with them. A failure names
    the seed of its round."""
    end = time.monotonic() + float(request.config.getoption("--fuzz-seconds"))
    first = int(request.config.getoption("--fuzz-seed"))

    def decorate(**strategies: Any) -> Callable[[Check], None]:
        def run(check: Check) -> None:
            number = first
            while number == first or time.monotonic() < end:
                _round(given(**strategies)(check), number)
                number += 1

        return run

    return decorate


def _round(check: Check, number: int) -> None:
    bounded = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )(check)
    try:
        seed(number)(bounded)()
    except BaseException as error:
        error.add_note(f"To repeat it: make fuzz SEED={number} SECONDS=0")
        raise
