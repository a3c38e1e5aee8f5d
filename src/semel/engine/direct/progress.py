"""What a task tells the driver of itself: where it stands, what it has done, lines for the log."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from semel.engine.batch import Batch
from semel.engine.control import ControlLine, Report
from semel.ledger import TopicPartition

_EVERY = 0.2


class Progress:
    """Totals since the task started. They are told at most every 0.2 s."""

    def __init__(self, line: ControlLine, index: int, attempt: int) -> None:
        self._line = line
        self._index = index
        self._attempt = attempt
        self._positions: dict[TopicPartition, int] = {}
        self._records = self._rows = self._failed = self._commits = 0
        self._told = 0.0
        self._untold = False

    def tell(self, message: str) -> None:
        """A line in the driver's log; also from the committer's thread."""
        self._line.send(Report("log", self._index, self._attempt, pid=os.getpid(), message=message))

    def assigned(self, positions: Mapping[TopicPartition, int]) -> None:
        """The task reads these partitions now, from these positions."""
        self._positions = dict(positions)
        self.report("assigned")

    def committed(self, batch: Batch) -> None:
        """Count a batch."""
        self._positions.update(batch.until)
        self._records += sum(a.read for a in batch.advances)
        self._rows += sum(a.written for a in batch.advances)
        self._failed += sum(a.failed for a in batch.advances)
        self._commits += 1
        self._untold = True
        self.report_in_time()

    def report_in_time(self) -> None:
        """Tell what is new, unless that was done a moment ago."""
        if self._untold and time.monotonic() - self._told > _EVERY:
            self.report("progress")

    def report(self, kind: str) -> None:
        """Tell all; see :class:`~semel.engine.control.Report` for the kinds."""
        self._told = time.monotonic()
        self._untold = False
        self._line.send(
            Report(
                kind,
                self._index,
                self._attempt,
                pid=os.getpid(),
                positions=dict(self._positions),
                records=self._records,
                rows=self._rows,
                failed=self._failed,
                commits=self._commits,
            )
        )
