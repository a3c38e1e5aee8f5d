"""A task's commits, in a thread of their own: one at a time, in order, and again if that helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from semel.config import ConnectorConfig
from semel.delivery import Delivery, Guarantee
from semel.engine.batch import Batch
from semel.engine.control import ControlLine
from semel.engine.deadletters import DeadLetterProducer
from semel.engine.deliver import deliver
from semel.errors import ServiceError, TransientError
from semel.kafka import client_config
from semel.ledger import Outcome
from semel.records import DeadLetter
from semel.sinks.base import Sink

T = TypeVar("T")


class Committer:
    """Delivers batches to the sink, and their dead letters to a topic if they go to one.

    ``tell`` brings a line to the driver's log.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        raw: Mapping[str, str],
        guarantee: Guarantee,
        sink: Sink,
        line: ControlLine,
        index: int,
        tell: Callable[[str], None],
    ) -> None:
        self._connector = connector
        self._raw = raw
        self._guarantee = guarantee
        self._sink = sink
        self._line = line
        self._index = index
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semel-commit")
        self._letters: DeadLetterProducer | None = None
        self._sent: set[tuple[str, int, int]] = set()

    def submit(self, batch: Batch) -> Future[None]:
        """Commit in the committer's thread."""
        return self._thread.submit(self._commit, batch)

    def without_rejected(self, batch: Batch) -> Future[None]:
        """Commit what is left of a batch after the sink has refused some of its records."""
        if self._guarantee.delivery is Delivery.AT_MOST_ONCE:
            return self._thread.submit(self._write_once, batch)
        return self.submit(batch)

    def retrying(self, action: Callable[[], T]) -> T:
        """Run ``action`` again after transient failures; the ledger tells what took place.

        Raises:
            ServiceError: it has failed ``max.retries`` times more.
            TransientError: the task was asked to stop meanwhile.
        """
        attempt = 0
        while True:
            try:
                return action()
            except TransientError as error:
                if self._line.orphaned:
                    raise
                if attempt == self._connector.max_retries:
                    raise ServiceError(
                        f"connector {self._connector.name}: gave up after {attempt} retries "
                        f"(max.retries): {error}"
                    ) from None
                attempt += 1
                self._tell(f"{error}; trying again")
                if self._line.stop.wait(self._connector.retry_backoff_ms / 1000):
                    raise

    def close(self) -> None:
        """Wait for the commit in hand."""
        self._thread.shutdown(wait=True)

    def _commit(self, batch: Batch) -> None:
        if batch.advances:
            self.retrying(lambda: self._deliver(batch))
        self._sent.clear()

    def _deliver(self, batch: Batch) -> None:
        letters = batch.commit.dead_letters
        after = self._guarantee.delivery is Delivery.AT_MOST_ONCE
        if not after:
            self._send(letters)
        outcome = deliver(self._sink, self._guarantee, batch.advances, batch.commit)
        if after and outcome is Outcome.APPLIED:
            self._send(letters)

    def _write_once(self, batch: Batch) -> None:
        """At-most-once: the refused batch has moved the positions already, and has written nothing.

        A failure whose outcome is unknown is not tried again.
        """
        try:
            self._sink.write(batch.commit)
            self._send(batch.commit.dead_letters)
        except TransientError as error:
            self._tell(f"{error}; at-most-once: not tried again")
        self._sent.clear()

    def _send(self, letters: Sequence[DeadLetter]) -> None:
        """Log and send those that were not sent before a failure of the same batch."""
        places = [(x.topic, x.partition, x.offset) for x in letters]
        new = [x for x, place in zip(letters, places, strict=True) if place not in self._sent]
        if not new:
            return
        if self._connector.dead_letter_topic:
            if self._letters is None:
                config = client_config(self._connector, self._raw, "producer")
                self._letters = DeadLetterProducer(self._connector, config, self._index)
            self._letters.send(new)
        if self._connector.errors_log:
            for letter in new:
                self._tell(described(letter, content=self._connector.errors_log_messages))
        self._sent.update(places)


def described(letter: DeadLetter, *, content: bool) -> str:
    """A bad record in one line of the log."""
    shown = f": {letter.value!r}" if content else ""
    return (
        f"bad record at {letter.topic}-{letter.partition} offset {letter.offset} "
        f"({letter.stage}): {letter.message}{shown}"
    )
