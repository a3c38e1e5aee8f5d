"""Files as locks, which the system releases when the process that holds one ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semel.core.errors import Unavailable

_AGAIN = 0.01


@contextmanager
def alone(path: Path, seconds: float, where: str) -> Iterator[None]:
    """Hold the lock, as one process at a time.

    Raises:
        Unavailable: another process has held it for this long. It may be frozen.
    """
    deadline = time.monotonic() + seconds
    with path.open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"{where}: another process holds {path}") from None
                time.sleep(_AGAIN)
        yield
