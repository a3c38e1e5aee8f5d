"""Shows the progress of a long command on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_LINES = 10.0
_UPDATES = 0.2


class Meter:
    """Overwrites one line on a terminal; elsewhere prints a new line every ten seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._over = self._stream.isatty()
        self._every = _UPDATES if self._over else _LINES
        self._said = time.monotonic()
        self._shown = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said < self._every:
            return
        self._said = now
        of = f" of {max(done, total):,}" if total else ""
        line = f"audited {done:,}{of} {what}"
        if self._over:
            self._stream.write(f"\r{line.ljust(self._shown)}")
            self._shown = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave a clean line."""
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0
