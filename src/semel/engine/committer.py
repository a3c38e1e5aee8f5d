"""A task's commits, in their own thread: one at a time, in order, and retried if that may help."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from semel.config import ConnectorConfig
from semel.delivery import Guarantee
from semel.engine.batch import Batch
from semel.engine.control import ControlLine
from semel.engine.deliver import Deliverer
from semel.engine.deliveries import Deliveries
from semel.engine.retry import Retries, retrying
from semel.errors import TargetChanged, TransientError
from semel.records import DeadLetter
from semel.sinks.base import Sink

T = TypeVar("T")

_LOOK = 0.2
"""Seconds between two checks whether the task is ending."""


class Committer:
    """Delivers batches; ``tell`` writes a line to the driver's log, and ``waits`` is that of
    :class:`~semel.engine.retry.Retries`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        guarantee: Guarantee,
        sink: Sink,
        line: ControlLine,
        index: int,
        tell: Callable[[str], None],
        waits: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._connector = connector
        self._waits = waits
        self._line = line
        self._tell = tell
        self.trouble = ""
        """The last failure of what is being retried; empty if nothing is."""
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semel-commit")
        self._deliverer = Deliverer(connector, guarantee, sink, index, tell, self._log)

    @property
    def deliveries(self) -> Deliveries:
        """The outcomes of its commits."""
        return self._deliverer.deliveries

    def submit(self, batch: Batch, confirm: Callable[[], None] | None = None) -> Future[None]:
        """Commit in the committer's thread, once ``confirm`` returns."""

        def deliver() -> None:
            if confirm is not None:
                confirm()
            self._deliverer.deliver(batch.advances, batch.commit)

        return self._thread.submit(lambda: self.retrying(deliver))

    def without_rejected(self, batch: Batch) -> Future[None]:
        """Commit a batch without the records that the sink has refused."""
        if self._deliverer.moves_first:
            facts = (batch.advances, batch.commit, batch.until)
            return self._thread.submit(self._deliverer.deliver, *facts)
        return self.submit(batch)

    def retrying(self, action: Callable[[], T]) -> T:
        """Run ``action``, and repeat it after transient failures; the ledger tells whether it took
        place.

        Raises:
            GaveUp: all ``max.retries`` retries have failed.
            TargetChanged: it would fail again.
            TransientError: the task was asked to stop meanwhile, or has ended.
        """

        def attempt() -> T:
            try:
                return action()
            except TargetChanged:
                raise
            except TransientError as error:
                self.trouble = str(error)
                raise

        retries = Retries(self._connector, self._tell, self._waits)
        found = retrying(attempt, retries, self._ends_within)
        self.trouble = ""
        return found

    def _ends_within(self, seconds: float) -> bool:
        """Wait ``seconds``, or until the driver or an error ends the task; returns whether it is
        ending."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._ended:
            self._line.stop.wait(min(left, _LOOK))
        return self._ended

    @property
    def _ended(self) -> bool:
        return self._closing or self._line.orphaned or self._line.stop.is_set()

    def close(self) -> None:
        """Wait for the commit in progress; it is not retried."""
        self._closing = True
        self._thread.shutdown(wait=True)

    def _log(self, letters: Sequence[DeadLetter]) -> None:
        for line in errors_log(self._connector, letters):
            self._tell(line)


def errors_log(connector: ConnectorConfig, letters: Sequence[DeadLetter]) -> Iterator[str]:
    """Bad records, each in one line; none without ``errors.log.enable``."""
    for letter in letters if connector.errors_log else ():
        shown = f": {letter.value!r}" if connector.errors_log_messages else ""
        yield (
            f"bad record at {letter.topic}-{letter.partition} offset {letter.offset} "
            f"({letter.stage}): {letter.message}{shown}"
        )
