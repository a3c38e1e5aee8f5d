"""One task of the source engine: fence, read offsets, then read, encode and commit, in a loop.

While one batch is being committed by a second thread, the next one is read and encoded; batches
commit in order, one at a time. After any error whose outcome is unknown, what is in hand is
dropped, a new producer fences the old one, and reading continues from the stored offsets. Nothing
that the task remembers is needed to continue, so killing it is always safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.config import SourceConnectorConfig
from semel.core import abandoned
from semel.core.delivery import Guarantee
from semel.core.errors import Fenced, LedgerConflict, SemelError, ServiceError, TransientError
from semel.core.failpoints import hit
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.sources import source_class
from semel.sources.base import Sharded, Source, SourceBatch
from semel.sources.offsets import (
    Owner,
    SourceOffsets,
    StoredOffsets,
    canonical,
    stored_offset,
    taken_over,
)
from semel.tasks import memory
from semel.tasks.attempt import Reporter, TaskSpec
from semel.tasks.control import STOP_DELAY, ControlLine
from semel.tasks.retry import OverdueWarning, Retries
from semel.tasks.source.commit import EncodedBatch, SourceCommitter
from semel.tasks.source.encoder import Encoder, SkipLog, SourceChain
from semel.tasks.source.topics import Topics

log = logging.getLogger(__name__)

_CONFLICTS = 5
"""Conflicts in a row that may be a coincidence."""
_GIVES_BACK = 1.0
"""How often, in seconds, a busy task returns memory to the system."""
_SHORTEST, _LONGEST = 0.01, 0.25
"""Seconds between polls of a source that has nothing new."""


@dataclass(frozen=True, kw_only=True)
class SourceSpec(TaskSpec):
    """Everything a task needs: ``parts`` are the source partitions of each, ``owner`` is the run
    that the tasks belong to."""

    connector: SourceConnectorConfig
    guarantee: Guarantee
    owner: Owner
    parts: Sequence[Sequence[Mapping[str, Any]]]
    until_caught_up: bool = False

    def task(self, index: int, attempt: int, line: ControlLine) -> SourceTask:
        return SourceTask(self, index, attempt, line)


class SourceTask:
    """Lives for as long as the connector runs, or until it is restarted elsewhere."""

    heartbeats = STOP_DELAY

    def __init__(self, spec: SourceSpec, index: int, attempt: int, line: ControlLine) -> None:
        connector = spec.connector
        self._spec = spec
        self._connector = connector
        self._partitions = spec.parts[index]
        self._line = line
        self._reporter = Reporter(line, index, attempt)
        tell = self._reporter.tell
        self._source = source_class(connector.connector_class.strip())(connector)
        self._log = _ForwardingHandler(type(self._source), tell)
        self._skip_log = SkipLog(connector)
        cluster = Cluster(client_config(connector, "admin"))
        self._topics = Topics(connector, cluster, tell)
        self._offsets = SourceOffsets(connector, cluster)
        counter = self._reporter.counter
        self._committer = SourceCommitter(connector, spec.guarantee, self._offsets, index, counter)
        self._chain = SourceChain(connector)
        self._encoder = Encoder(connector)
        self._retries = Retries(connector, tell, self._reporter.waits)
        self._overdue = OverdueWarning(tell, lambda: "the task reads and encodes")
        self._garbage = memory.Garbage(_GIVES_BACK)
        self._stored = StoredOffsets(connector.name)
        self._readers: Readers | None = None
        self._of_source = connector.transaction_boundary == "connector"
        self._waiting = EncodedBatch()
        self._batch_limit: int | None = None
        """The largest batch that the committer was told of."""
        self._due = 0.0
        self._pause = _SHORTEST
        self._conflicts = 0

    def false_fence_reason(self, error: Fenced) -> str | None:
        """Always None: a fence does prove a takeover, because the stored owner was compared."""
        return None

    def run(self) -> None:
        """Loop until the driver says stop; commits what is in hand.

        Raises:
            SemelError: what ends the connector.
        """
        self._reporter.report("started")
        try:
            while not self._line.stop.is_set():
                try:
                    self._attempt()
                except TransientError as error:
                    self._drop()
                    if self._line.stop.wait(self._retries.failed(error)):
                        break
            if self._waiting.is_whole:
                self._submit()
            self._settle()
            self._reporter.report("progress")
        except (LedgerConflict, TransientError) as error:
            if isinstance(error, Fenced) or not self._line.stop.is_set():
                raise
            log.info("%s", error)  # it is read again after the restart
        finally:
            self._close()

    def _attempt(self) -> None:
        """A step, and what a conflict demands: Kafka may not answer in either."""
        try:
            self._step()
        except LedgerConflict as conflict:
            self._conflict(conflict)
        except _ProducerGone:
            self._drop()

    def _step(self) -> None:
        """One round over the partitions, encoded while the one before it commits."""
        abandoned.check()
        if self._line.paused.is_set():
            self._hold()
            return
        readers = self._readers or self._begin()
        has_records = self._read(readers)
        if self._waiting.is_whole and (
            self._is_due or (not has_records and self._spec.until_caught_up)
        ):
            self._submit()
        if has_records:
            self._pause = _SHORTEST
            self._reporter.caught_up(False)
            return
        self._settle()
        if not self._waiting.reached:
            self._retries.succeeded()  # else failures would add up until there is a commit
        if not self._waiting.reached or self._waiting.begun:
            self._reporter.caught_up(True)
            self._garbage.collect()
        self._reporter.report_in_time()
        self._line.stop.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST)

    def _begin(self) -> Readers:
        """Fence, then read the offsets, then read on from them.

        Raises:
            Fenced: another run owns the connector.
        """
        self._committer.open()
        self._stored = self._offsets.read()
        self._check_owner(self._stored.owner)
        self._offsets.check_writable()
        self._readers = Readers(self._source, self._partitions, self._stored)
        self._due = time.monotonic() + self._connector.transaction_interval_ms / 1000
        self._reporter.report("assigned")
        return self._readers

    def _check_owner(self, owner: Owner) -> None:
        if owner.run != self._spec.owner.run:
            raise taken_over(self._connector, owner, self._spec.owner)

    def _read(self, readers: Readers) -> bool:
        """Read and encode one round; returns whether anything was there."""
        has_records, encoded = False, self._waiting
        room = self._connector.transaction_bytes - (0 if encoded.begun else encoded.nbytes)
        for number, batch in readers.round(room, encoded.begun):
            self._overdue.begin()
            hit("task.after_poll")
            encoded.skipped += self._chain.unread(batch.unread)
            for read in batch.records:
                for records in self._chain.applied(read, encoded.skipped):
                    self._ensure(records.topic)
                    encoded.messages.append(self._encoder.messages(records, encoded.skipped))
            encoded.reached.update(readers.reached(number, batch))
            if self._of_source:
                begun = encoded.begun
                begun.discard(number) if batch.ends_transaction else begun.add(number)
            encoded.records += len(batch)
            encoded.nbytes += nbytes(batch)
            has_records = True
        if has_records:
            hit("task.after_convert")
        return has_records

    def _ensure(self, topic: str) -> None:
        """Prepare a topic for its first record, and respect the largest batch that it accepts.

        Raises:
            _ProducerGone: its batches were larger.
        """
        self._topics.ensure(topic)
        largest = self._topics.largest
        if largest != self._batch_limit:
            self._settle()
            self._batch_limit = largest
            if self._committer.limit(largest):
                raise _ProducerGone

    @property
    def _is_due(self) -> bool:
        if self._connector.transaction_boundary != "interval":
            return True
        full = self._waiting.nbytes >= self._connector.transaction_bytes
        return full or time.monotonic() >= self._due

    def _submit(self) -> None:
        """Begin to commit what waits, once the commit before it has ended."""
        self._settle()
        encoded, self._waiting = self._waiting, EncodedBatch()
        self._due = time.monotonic() + self._connector.transaction_interval_ms / 1000
        records = [self._stored.record(*reached) for reached in encoded.reached.values()]
        self._committer.begin(encoded, records)

    def _settle(self) -> None:
        """Let the open commit end, and note what it has written."""
        encoded = self._committer.wait()
        if encoded is None:
            return
        self._overdue.end()
        self._retries.succeeded()
        self._conflicts = 0
        for line in self._skip_log.lines(encoded.skipped):
            self._reporter.tell(line)
        self._reporter.sent(encoded.records, encoded.by_topic, len(encoded.skipped))
        self._garbage.note(encoded.nbytes)
        for partition, offset in encoded.reached.values():
            self._source.committed(partition, offset)

    def _hold(self) -> None:
        """Commit what is in hand, then read nothing until the driver resumes the task. It continues
        from the stored offsets, which may have changed by then."""
        if self._waiting.is_whole:
            self._submit()
        self._settle()
        self._drop()
        self._reporter.report("paused")
        while self._line.paused.is_set() and not self._line.stop.wait(_LONGEST):
            pass

    def _conflict(self, conflict: LedgerConflict) -> None:
        """This producer has lost its place to a task that has replaced this one or to another run;
        or the broker has ended a transaction that lasted too long.

        Raises:
            Fenced: another run has taken over.
            ServiceError: the brokers have ended too many transactions in a row.
        """
        if isinstance(conflict, Fenced):
            raise conflict
        self._drop()
        if self._line.stop.wait(STOP_DELAY):
            return
        self._check_owner(self._offsets.owner())
        self._conflicts += 1
        if self._conflicts > _CONFLICTS:
            why = f"{conflict}; {self._conflicts} times in a row"
            if self._offsets.in_transactions:
                why = (
                    f"{self._conflicts} transactions in a row were aborted by the brokers, and no "
                    f"other run has taken over. Each may last for {self._committer.seconds:g} s: "
                    "is that too short? Raise producer.override.transaction.timeout.ms"
                )
            raise ServiceError(f"connector {self._connector.name}: {why}") from None
        self._reporter.tell(f"{conflict}; continuing from the stored offsets")

    def _drop(self) -> None:
        """Forget what is in hand: it is read again from the stored offsets."""
        try:
            self._committer.wait()
        except SemelError as error:
            log.info("%s", error)
        self._committer.drop()
        self._waiting = EncodedBatch()
        self._overdue.end()
        if self._readers is not None:
            self._readers.close()
            self._readers = None

    def _close(self) -> None:
        """Never raises: it would hide what ended the task."""
        try:
            self._settle()
        except Exception as error:
            log.info("closing: %s", error)
        self._reporter.report_rest()
        try:
            self._drop()
            self._committer.close()
            self._offsets.close()
            self._source.close()
        except Exception as error:
            log.info("closing: %s", error)
        self._log.close()


class _ProducerGone(Exception):
    """A new producer is needed. It fences others, perhaps a successor, so the offsets must be read
    after that: what is in hand may be written already."""


class _ForwardingHandler(logging.Handler):
    """Takes the warnings of a source's package to the driver's log."""

    def __init__(self, source: type, tell: Any) -> None:
        super().__init__(logging.WARNING)
        module = source.__module__
        self._logger = logging.getLogger(module.rpartition(".")[0] or module)
        self._tell = tell
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()


class Readers:
    """Reads some partitions in turn."""

    def __init__(
        self, source: Source, partitions: Sequence[Mapping[str, Any]], stored: StoredOffsets
    ) -> None:
        self._partitions = partitions
        self._sharded = isinstance(source, Sharded)
        lookup = stored.lookup()
        if isinstance(source, Sharded):
            self._open = {n: source.read_shard(p, lookup) for n, p in enumerate(partitions)}
            return
        self._open = {
            n: source.read(partition, stored_offset(source, partition, lookup))
            for n, partition in enumerate(partitions)
        }

    def round(self, room: int, only: Collection[int] = ()) -> Iterator[tuple[int, SourceBatch]]:
        """One batch of each partition that has one, with the partition's number, until they hold
        ``room`` bytes. Partitions that had no turn come first in the next round. If ``only`` holds
        partitions, no others are read."""
        chosen = [(n, r) for n, r in self._open.items() if not only or n in only]
        for number, reader in chosen:
            if room <= 0:
                return
            del self._open[number]
            try:
                batch = next(reader)
            except StopIteration:  # it will never have more
                continue
            self._open[number] = reader  # behind the others
            if batch is not None:
                room -= nbytes(batch)
                yield number, batch

    def reached(
        self, number: int, batch: SourceBatch
    ) -> Iterator[tuple[object, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
        """The source partitions of a batch with their offsets, each under a name of its own."""
        if not batch.reached and not self._sharded:
            yield number, (self._partitions[number], batch.offset)
        for partition, offset in batch.reached:
            yield canonical(partition), (partition, offset)

    def close(self) -> None:
        """Let each free what it holds."""
        for reader in self._open.values():
            close = getattr(reader, "close", None)
            if close is not None:
                close()
        self._open.clear()


def nbytes(batch: SourceBatch) -> int:
    """The bytes that a batch holds in memory."""
    return sum(int(r.values.nbytes) + int(r.keys.nbytes) for r in batch.records)
