"""The lab's tests run on the same services as semel's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import *  # noqa: F403


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that other users can be let into, as root's PostgreSQL must be: pytest shuts its own
    to them whenever another run begins. It is kept if the test fails."""
    failed = request.session.testsfailed
    directory = Path(tempfile.mkdtemp(prefix="semel-lab-"))
    yield directory
    if request.session.testsfailed == failed:
        shutil.rmtree(directory, ignore_errors=True)
