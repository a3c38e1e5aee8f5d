"""CPU seconds and memory of process trees, sampled from /proc in one pass."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_TICK = os.sysconf("SC_CLK_TCK")
_KERNEL = 2  # kthreadd: the parent of all kernel threads


@dataclass
class Usage:
    """One tree's CPU over time, and its peak memory in bytes."""

    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_rss: int = 0
    peak_pss: int = 0

    def between(self, start: float, end: float) -> float:
        """CPU seconds used between two times of time.monotonic()."""
        if not self.times:
            return float("nan")
        low, high = np.interp([start, end], self.times, self.cpu)
        return float(high - low)


class Meter:
    """Samples trees of processes from ``__enter__`` to ``__exit__``.

    ``roots`` gives each tree's first process; a descendant counts as such forever. Memory is
    sampled for the trees named in ``weigh``: the resident set, and the proportional set, in
    which a page that forked workers share counts once.
    """

    def __init__(
        self,
        roots: Mapping[str, int],
        weigh: tuple[str, ...] = (),
        every: float = 0.2,
        weigh_every: float = 1.0,
    ) -> None:
        self.usage = {name: Usage() for name in roots}
        self._roots = dict(roots)
        self._weigh = weigh
        self._every, self._weigh_every = every, weigh_every
        self._owner: dict[int, str] = {pid: name for name, pid in roots.items()}
        self._seen: dict[int, float] = {}
        self._kernel: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, daemon=True)

    def __enter__(self) -> Meter:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def add(self, name: str, pid: int) -> None:
        """Watch a tree that has only just begun."""
        self.usage.setdefault(name, Usage())
        self._owner[pid] = name

    def _sample_all(self) -> None:
        weighed = 0.0
        while not self._stop.wait(self._every):
            self._sample()
            if time.monotonic() - weighed >= self._weigh_every:
                self._take_weight()
                weighed = time.monotonic()
        self._sample()

    def _sample(self) -> None:
        now = time.monotonic()
        parents: dict[int, int] = {}
        used: dict[int, float] = {}
        for entry in os.listdir("/proc"):  # noqa: PTH208 (several times a second)
            if not entry.isdigit() or (pid := int(entry)) in self._kernel:
                continue
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            parents[pid] = int(fields[1])
            if parents[pid] == _KERNEL:
                self._kernel.add(pid)
            used[pid] = (int(fields[11]) + int(fields[12])) / _TICK
        for pid in sorted(parents):
            self._find_owner(pid, parents)
        for pid, seconds in used.items():
            if pid in self._owner:
                self._seen[pid] = seconds
        totals: dict[str, float] = {}
        for pid, seconds in self._seen.items():
            owner = self._owner[pid]
            totals[owner] = totals.get(owner, 0.0) + seconds
        for name, usage in list(self.usage.items()):
            usage.times.append(now)
            usage.cpu.append(totals.get(name, 0.0))

    def _find_owner(self, pid: int, parents: Mapping[int, int]) -> None:
        line = []
        at = pid
        while at in parents and at not in self._owner:
            line.append(at)
            at = parents[at]
        if at in self._owner:
            for member in line:
                self._owner[member] = self._owner[at]

    def _take_weight(self) -> None:
        for name in self._weigh:
            rss = pss = 0
            for pid in [p for p, owner in list(self._owner.items()) if owner == name]:
                with suppress(OSError):
                    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    sizes = dict(
                        line.split(":", 1) for line in text.splitlines()[1:] if line.endswith("kB")
                    )
                    rss += int(sizes["Rss"].split()[0]) * 1024
                    pss += int(sizes["Pss"].split()[0]) * 1024
            usage = self.usage.setdefault(name, Usage())
            usage.peak_rss = max(usage.peak_rss, rss)
            usage.peak_pss = max(usage.peak_pss, pss)
