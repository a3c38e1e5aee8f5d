"""How far a sink has come, judged by rows that are committed and visible in the table.

The records of a partition become visible in order, so it is enough to look for some of them: a
marker is a record whose row is looked up by primary key. It costs the same, next to nothing, on
both systems, and needs neither system's own figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.records import Workload
from benchmarks.rig import Rig

_AHEAD = 512  # ids looked up at once
_STEPS = 4096  # markers of all partitions together
_EVERY = 0.05
INSTANT = 1e-6
"""Seconds added to a moment at which several markers were seen, so that all of them count."""


@dataclass(frozen=True)
class Curve:
    """Records committed over time: for each partition, when each of its markers was seen."""

    workload: Workload
    started: float
    times: list[list[float]]
    counts: list[list[int]]

    @property
    def ended(self) -> float:
        return max(t[-1] for t in self.times)

    @property
    def first(self) -> float:
        """When the first rows were visible."""
        return min(t[1] for t in self.times)

    def committed(self, at: float) -> float:
        """Records of all partitions that were committed at a time."""
        return sum(float(np.interp(at, t, c)) for t, c in zip(self.times, self.counts, strict=True))

    def reached(self, share: float) -> float:
        """When a share of all records was committed."""
        moments = sorted({t for times in self.times for t in times})
        least = share * self.workload.records
        return next(t for t in moments if self.committed(t + INSTANT) >= least)


class SinkStalled(RuntimeError):
    """The sink ended or ran out of time before all records were in the table."""


def follow(
    rig: Rig, table: str, workload: Workload, check: Callable[[], None], timeout: float
) -> Curve:
    """Watch the table until every partition's last record is visible.

    ``check`` is called now and then and raises when the system has failed.
    """
    each = workload.records // workload.partitions
    steps = min(each, max(4, _STEPS // workload.partitions))
    indices = sorted({round(each * (s + 1) / steps) - 1 for s in range(steps)})
    ahead = max(1, _AHEAD // workload.partitions)
    started = time.monotonic()
    times = [[started] for _ in range(workload.partitions)]
    counts = [[0] for _ in range(workload.partitions)]
    reached = [0] * workload.partitions
    deadline, next_check = started + timeout, started + 1
    with rig.connect() as connection, connection.cursor() as cursor:
        while min(reached) < len(indices):
            now = time.monotonic()
            if now > next_check:
                check()
                next_check = now + 1
            if now > deadline:
                done = sum(c[-1] for c in counts)
                raise SinkStalled(
                    f"{done:,} of {workload.records:,} records in table after {timeout:.0f} s"
                )
            markers_ahead = [
                [workload.record(p, indices[s]) for s in range(r, min(r + ahead, len(indices)))]
                for p, r in enumerate(reached)
            ]
            ids = ",".join(str(key) for markers in markers_ahead for key, _ in markers)
            cursor.execute(f"SELECT id, ts FROM {table} WHERE id = ANY('{{{ids}}}'::bigint[])")
            seen = cursor.fetch_arrow_table()
            rows = dict(
                zip(seen.column("id").to_pylist(), seen.column("ts").to_pylist(), strict=True)
            )
            for p, markers in enumerate(markers_ahead):
                for key, ts in markers:
                    if rows.get(key, -1) < ts:
                        break
                    times[p].append(now)
                    counts[p].append(indices[reached[p]] + 1)
                    reached[p] += 1
            time.sleep(_EVERY)
    return Curve(workload, started, times, counts)
