"""Memory that is given back: what a large batch took is not kept for the next one, and garbage is
collected when nothing waits for it."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import pyarrow as pa

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""glibc's mallopt(3)."""
_ARENAS = 2
_MAPPED = 4 * 1024 * 1024
"""Bytes from which on an allocation is a mapping of its own, which goes back when it is freed.
Unless it is told, glibc raises this with each such allocation, up to 32 MiB."""
LARGE = 4 * 1024 * 1024
"""Bytes of a batch after which memory is given back."""
_COMMITS_A_COLLECTION = 256


def limit_caches() -> None:
    """Keep allocators from holding on to much; where the C library is not glibc, it is left."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_MMAP_THRESHOLD, _MAPPED)


def give_back() -> None:
    """Return unused memory to the system. It takes some milliseconds."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Garbage:
    """What the commits of a task leave, while Python does not collect it by itself."""

    def __init__(self) -> None:
        self._commits = 0
        self._warm = False

    def note(self, nbytes: int) -> None:
        """A commit of so many bytes has ended."""
        if nbytes > LARGE:
            give_back()
        self._commits += 1
        if self._commits >= _COMMITS_A_COLLECTION:
            self.collect()

    def collect(self) -> None:
        """To be called when nothing waits: it may take longer than a small commit. Nearly all that
        the first collection leaves stays as long as the task: later ones pass it over."""
        if self._commits:
            gc.collect()
            if not self._warm:
                gc.freeze()
                self._warm = True
            self._commits = 0
