"""A new user in an empty directory, who copies what a page of the documentation shows."""

from __future__ import annotations

import os
import re
import shlex
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.patience import PATIENCE
from tests.processes import run_to_end

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)
    return [block for its, block in fenced if its == language]


class Newcomer:
    """Runs commands and programs in a directory, with services at other addresses than the page's.

    The pages' topic, ``orders``, gets a name of its own, and so do connectors, tables and files.
    """

    def __init__(
        self,
        directory: Path,
        addresses: Mapping[str, str],
        exported: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._exported = dict(exported or {})
        self._other = dict(addresses) | {"orders": f"orders{uuid.uuid4().hex[:8]}"}

    def write(self, name: str, text: str) -> None:
        (self.directory / self.here(name)).write_text(self.here(text))

    def semel(self, line: str) -> str:
        """Run a line of a page that begins with ``semel``; return what it prints."""
        return self._run(sys.executable, "-m", *shlex.split(self.here(line), comments=True))

    def python(self, program: str) -> str:
        return self._run(sys.executable, "-c", self.here(program))

    def meets(self, written: str, real: str) -> None:
        """Note another address of the pages, and the one of the service."""
        self._other[written] = real

    def here(self, text: str) -> str:
        """A text of a page with what is here."""
        for written, real in self._other.items():
            text = text.replace(written, real)
        return text

    def _run(self, *command: str) -> str:
        done = run_to_end(
            command,
            cwd=self.directory,
            env={k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
            | self._exported,
            timeout=2 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout
