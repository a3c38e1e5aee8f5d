"""A sample of the tests that ``make test`` leaves out: a different one for each seed.

``make sample SEED=...`` runs them in the order in which they are drawn, as many as can start in a
few minutes. Over many samples, every test gets its turn.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable

import pytest

SIZE = 40
BEGIN_WITHIN = 150.0
"""Seconds in which tests of a sample may begin: it should end within five minutes."""
LONGEST = 300.0
"""Seconds in which a test has to end, with the servers that it starts."""
TOO_LONG = (
    "tests/test_image.py",
    "tests/test_packaging.py",
    "tests/test_extras_installed.py",
    "tests/rest/test_cluster_faults.py",
)
"""Take longer than that: only `make long` runs them. CONTRIBUTING.md says why."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="SEED", help="run a sample of the long tests")


def drawn(seed: str, tests: Iterable[str]) -> list[str]:
    """Which tests the sample holds, the first one first."""

    def lot(test: str) -> bytes:
        return hashlib.sha256(f"{seed} {test}".encode()).digest()

    return sorted((test for test in tests if not test.startswith(TOO_LONG)), key=lot)[:SIZE]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("sample")
    if seed is None:
        return
    long = {item.nodeid: item for item in items if item.get_closest_marker("long")}
    chosen = [long[test] for test in drawn(seed, long)]
    for item in chosen:
        item.add_marker(pytest.mark.timeout(LONGEST))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


class Clock:
    """When the sample began, in this process."""

    began = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("sample") is None:
        return
    if time.monotonic() - Clock.began > BEGIN_WITHIN:
        pytest.skip("left to another commit's sample")
