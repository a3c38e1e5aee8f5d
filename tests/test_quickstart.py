"""The quick start's files, commands and Python, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semel.embedded import Kafka
from tests.patience import PATIENCE

PAGE = (Path(__file__).parent.parent / "docs/quickstart.md").read_text()
pytestmark = pytest.mark.integration


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(kafka: Kafka, database: str, tmp_path: Path) -> Shell:
    return Shell(kafka.bootstrap_servers, database, tmp_path)


class Shell:
    """A user in a directory, with services at other addresses than the page's."""

    def __init__(self, servers: str, database: str, directory: Path) -> None:
        where = urlsplit(database)
        self._addresses = {
            "localhost:9092": servers,
            "127.0.0.1:5432/semel": f"{where.hostname}:{where.port}{where.path}",
        }
        self._directory = directory
        (directory / "orders.json").write_text(self._here(blocks("json")[0]))

    def _here(self, text: str) -> str:
        for written, real in self._addresses.items():
            text = text.replace(written, real)
        return text

    def run(self, *command: str) -> str:
        """Run a command and return what it prints."""
        done = subprocess.run(
            command,
            cwd=self._directory,
            env={k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")},
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def semel(self, line: str) -> str:
        """A line of the page that begins with ``semel``."""
        words = shlex.split(self._here(line), comments=True)
        return self.run(sys.executable, "-m", *words)

    def python(self, program: str) -> str:
        return self.run(sys.executable, "-c", self._here(program))


def test_the_python_of_the_quick_start_shows_what_it_says(shell: Shell) -> None:
    produce, transform = blocks("python")
    shell.python(produce)
    # A Python worker finds the transform by value: what -c runs is no module.
    assert shell.python(transform).splitlines()[-1] in PAGE


@pytest.mark.long
def test_the_commands_of_the_quick_start_do_what_they_say(shell: Shell) -> None:
    lines = [n for n in PAGE.splitlines() if re.match(r"semel \w+ orders\.json", n)]
    assert [n.split()[1] for n in lines] == ["validate", "describe", "run", "audit"]
    shell.python(blocks("python")[0])
    told = [shell.semel(line) for line in lines]
    assert "valid; exactly-once (transactional)" in told[0]
    assert "1000 records: 0 lost, 0 duplicated" in told[-1]
