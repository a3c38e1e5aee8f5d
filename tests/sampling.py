"""A sample of the tests that ``make test`` leaves out: another one for each seed.

``make sample SEED=...`` runs as many as fit into some minutes: over many commits all are met.
"""

from __future__ import annotations

import hashlib
import time

import pytest

SIZE = 40
BEGIN_WITHIN = 240.0
"""Seconds in which tests of a sample may begin."""
TOO_LONG = ("tests/test_image.py", "tests/rest/test_cluster_faults.py")
"""Take longer than a whole sample: only `make long` runs them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="SEED", help="run a sample of the long tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("sample")
    if seed is None:
        return

    def drawn(item: pytest.Item) -> bytes:
        return hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest()

    long = [
        item
        for item in items
        if item.get_closest_marker("long") and not item.nodeid.startswith(TOO_LONG)
    ]
    chosen = sorted(long, key=drawn)[:SIZE]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in long if item in chosen]


class Clock:
    """When the sample began, in this process."""

    began = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("sample") is None:
        return
    if time.monotonic() - Clock.began > BEGIN_WITHIN:
        pytest.skip("left to another commit's sample")
