"""What a task reports to the driver: its positions, its counts and lines for the log."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping

from semel.core.ledger import TopicPartition
from semel.tasks.batch import Batch
from semel.tasks.commit import CommitCounter
from semel.tasks.control import ControlLine, Report
from semel.tasks.unplaced import sum_of

_EVERY = 0.2


class Reporter:
    """Totals since the task started, reported at most every 0.2 s."""

    def __init__(self, line: ControlLine, index: int, attempt: int) -> None:
        self._line = line
        self._index = index
        self._attempt = attempt
        self._positions: dict[TopicPartition, int] = {}
        self._sent: Counter[str] = Counter()
        self._unplaced: Counter[tuple[str, str]] = Counter()
        self._records = self._rows = self._failed = self._commits = 0
        self._told = 0.0
        self._untold = False
        self._caught_up = False
        self.counter = CommitCounter()
        """Counts the task's commits."""

    def tell(self, message: str) -> None:
        """Write a line to the driver's log; the committer's thread calls this, too."""
        self._line.send(Report("log", self._index, self._attempt, pid=os.getpid(), message=message))

    def waits(self, why: str) -> None:
        """Report which service does not answer; an empty text once it does."""
        self._line.send(Report("waiting", self._index, self._attempt, os.getpid(), message=why))

    def assigned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Report that the task now reads these partitions, from these positions."""
        self._positions = dict(positions)
        self.report("assigned")

    def given_up(self) -> None:
        """Report that the task has no partitions until the group assigns some."""
        self._positions = {}
        self.report("progress")

    def committed(self, batch: Batch) -> None:
        """Count a batch."""
        self._positions.update(batch.until)
        self._records += sum(a.read for a in batch.advances)
        self._rows += sum(a.written for a in batch.advances)
        self._failed += sum(a.failed for a in batch.advances)
        self._unplaced.update(sum_of(a.unplaced for a in batch.advances))
        self._commits += 1
        self._untold = True
        self.report_in_time()

    def sent(self, records: int, by_topic: Mapping[str, int], failed: int) -> None:
        """Count a commit of this many ``records``: how many were written, by topic, and how many
        were left out because they are bad."""
        self._sent.update(by_topic)
        self._records += records
        self._rows += sum(by_topic.values())
        self._failed += failed
        self._commits += 1
        self._untold = True
        self.report_in_time()

    def caught_up(self, is_so: bool) -> None:
        """Note whether nothing is left to read now, and everything is committed."""
        self._untold |= is_so and not self._caught_up
        self._caught_up = is_so

    def report_in_time(self) -> None:
        """Report what is new, unless that was done a moment ago."""
        if self._untold and time.monotonic() - self._told > _EVERY:
            self.report("progress")

    def report_rest(self) -> None:
        """Report what is new, before the task says how it has ended."""
        if self._untold:
            self.report("progress")

    def report(self, kind: str) -> None:
        """Report everything; see :class:`~semel.tasks.control.Report` for the kinds."""
        self._told = time.monotonic()
        self._untold = False
        self._line.send(
            Report(
                kind,
                self._index,
                self._attempt,
                pid=os.getpid(),
                host=socket.gethostname(),
                positions=dict(self._positions),
                sent=dict(self._sent),
                records=self._records,
                rows=self._rows,
                failed=self._failed,
                commits=self._commits,
                unplaced=dict(self._unplaced),
                deliveries=self.counter.totals,
                caught_up=self._caught_up,
            )
        )
