"""Memory that is given back: what a large batch took is not kept for the next one."""

from __future__ import annotations

import ctypes
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
