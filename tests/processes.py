"""Commands that tests run in processes of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

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
