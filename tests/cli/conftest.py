"""The command as a user runs it, in the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.cli import command
from tests.engine.conftest import Config, configure, written  # noqa: F401

NOWHERE: Config = {
    "name": "nowhere",
    "connector.class": "postgresql",
    "topics": "a,b",
    "bootstrap.servers": "192.0.2.1:9092",
    "connection.url": "jdbc:postgresql://192.0.2.1/db",
    "value.converter": "JsonConverter",
}
Write = Callable[[Config], Path]


class Ended:
    """How a command ended: its exit code, and what it printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Semel = Callable[..., Ended]


@pytest.fixture
def semel(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Semel:
    """Runs the command in this process, as its entry point does."""

    def invoke(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["semel", *map(str, arguments)])
        capfd.readouterr()
        code = 0
        try:
            command()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capfd.readouterr()
        assert "Traceback" not in err + out
        return Ended(code, out, err)

    return invoke
