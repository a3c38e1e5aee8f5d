from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sinks.target import Target


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    """A new, empty database and what is needed to write into it and look at it."""
    made = Target(database)
    yield made
    made.close()
