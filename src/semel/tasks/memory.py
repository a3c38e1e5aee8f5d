"""Keeps memory low: returns the memory of large batches, and collects garbage when nothing
waits."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa

from semel.core import abandoned

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""glibc's mallopt(3)."""
_ARENAS = 2
_MAPPED = 4 * 1024 * 1024
"""Allocations of at least this many bytes get a mapping of their own, which is returned when it is
freed. By default glibc raises this limit with each such allocation, up to 32 MiB."""
LARGE = 4 * 1024 * 1024
"""Bytes of a batch after which memory is given back."""
_COMMITS_PER_COLLECTION = 256
_RESIDENT, _DATA = 1, 5
_LOOKS = 0.5
"""Seconds between two looks at how much memory a task uses."""
_TOLD_IN = 1.0
"""Seconds in which a process that uses too much may say so."""
_STACKS = 512 * 1024 * 1024
"""Bytes for the stacks of threads, which count as memory that a process has asked for."""
_BETWEEN = 10.0
"""Seconds, at least, after which a task that has nothing to do gives memory back again."""


def limit_caches() -> None:
    """Limit the memory that glibc's allocator keeps. Other allocators are left alone."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_MMAP_THRESHOLD, _MAPPED)


def limit(nbytes: int) -> None:
    """Let this process use so many bytes more than it does now: for what goes beyond, the system
    gives it no memory."""
    pa.allocate_buffer(1)  # with the first one, Arrow's allocator reserves a gigabyte of addresses
    with suppress(OSError, ValueError):  # not on Linux, or the limit is fixed
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_used(_DATA) + nbytes + _STACKS, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


_guards: list[threading.Event] = []


def is_guarded() -> bool:
    """Whether this process runs a task, whose memory is limited."""
    return bool(_guards)


@contextmanager
def guarded(nbytes: int, exceeded: Callable[[str], None]) -> Iterator[None]:
    """Within a ``with`` statement, let this process use so many bytes more than it does now.

    If it uses more, ``exceeded`` is told how many, and the process ends. If memory grows so fast
    that nobody can be told, the system ends it.
    """
    over = threading.Event()
    try:
        most = _used(_RESIDENT) + nbytes
    except OSError:  # not on Linux
        yield
        return

    def look() -> None:
        while not over.wait(_LOOKS):
            used = _used(_RESIDENT)
            if used > most:
                text = f"uses {used:,} bytes of memory, more than task.max.memory.bytes allows"
                try:
                    abandoned.within(_TOLD_IN, "a last word", partial(exceeded, text))
                finally:
                    abandoned.end_process()

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit(8 * nbytes)  # librdkafka asks for a whole batch at once, and dies without a word
    threading.Thread(target=look, daemon=True, name="semel-memory").start()
    _guards.append(over)
    try:
        yield
    finally:
        _guards.remove(over)
        over.set()
        resource.setrlimit(resource.RLIMIT_DATA, before)  # Spark may use this worker again


def _used(column: int) -> int:
    """What this process uses, from a column of proc(5)'s ``statm``."""
    pages = int(Path("/proc/self/statm").read_text().split()[column])
    return pages * os.sysconf("SC_PAGESIZE")


def give_back() -> None:
    """Return unused memory to the system. It takes a few milliseconds."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_after(nbytes: int) -> None:
    """Return unused memory after a large batch."""
    if nbytes > LARGE:
        give_back()


class Garbage:
    """Collects a task's garbage while Python's automatic collection is off.

    While large commits follow each other, memory is given back once in ``every`` seconds: the next
    commit needs it, and the system clears each page before it hands it out.
    """

    def __init__(self, every: float = 0.0) -> None:
        self._every = every
        self._owes = False
        self._due = self._gave_back = -math.inf
        self._commits = 0
        self._warm = False

    def note(self, nbytes: int) -> None:
        """Note the end of a commit of ``nbytes``."""
        self._owes |= nbytes > LARGE
        if self._owes and (now := time.monotonic()) >= self._due:
            self._owes, self._due = False, now + self._every
            give_back()
        self._commits += 1
        if self._commits >= _COMMITS_PER_COLLECTION:
            self.collect()

    def collect(self) -> None:
        """Call this when nothing waits: it may take longer than a small commit. Nearly all objects
        that survive the first collection live as long as the task, so later ones skip them."""
        if self._commits:
            gc.collect()
            if not self._warm:
                gc.freeze()
                self._warm = True
            self._commits = 0
            now = time.monotonic()
            if self._owes or now - self._gave_back > _BETWEEN:
                self._owes, self._gave_back = False, now
                give_back()
