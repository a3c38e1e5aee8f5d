"""Commands that tests run in processes of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semel.spark import jars
from semel_lab.embedded.java import find_jdk
from tests.patience import PATIENCE


def run_to_end(
    command: Sequence[object], *, check: bool = False, timeout: float = PATIENCE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it said. Options are those of ``subprocess.run``."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
        **options,
    )


def run_java(program: Path, given: str, *sets: jars.JarSet, flags: Sequence[str] = ()) -> list[str]:
    """The lines that a Java program in one source file makes of its input, with these jars."""
    command = [find_jdk(program.stem), *flags, "-cp", jars.classpath(*sets), program]
    done = run_to_end(command, input=given, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
