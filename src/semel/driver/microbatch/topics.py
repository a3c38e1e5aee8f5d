"""The topics of a micro-batch run, as its driver knows them: partitions entered, schemas found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from semel.core import failpoints
from semel.core.ledger import LedgerEntry, OffsetRange, TopicPartition
from semel.core.records import METADATA
from semel.driver import sample
from semel.driver.base import Run
from semel.tasks.control import Address
from semel.tasks.microbatch.commit import widened
from semel.tasks.microbatch.logs import KnownLogs, Pinned
from semel.tasks.microbatch.task import MicroSpec
from semel.tasks.ranges import entering
from semel.tasks.workers import new_run


class KnownTopics:
    """Grows while the connector runs; ``spec`` is the part that tasks get.

    With ``frames``, schemas are those of decoded rows with their metadata. A DataFrame has fixed
    columns, so a field that nobody has seen before widens the schema, and its batch is planned
    again.
    """

    def __init__(self, run: Run, *, frames: bool, control: Address | None = None) -> None:
        self._run = run
        self._partitions: set[TopicPartition] = set()
        self._prepared: set[str] = set()
        self._sampled: set[str] = set()
        self._schemas: dict[str, pa.Schema] = {}
        self._logs = KnownLogs(run.cluster)
        self.spec = MicroSpec(
            run=new_run(),
            connector=run.connector,
            environment=failpoints.environment(),
            guarantee=run.guarantee,
            frames=frames,
            control=control,
        )

    def begin_again(self) -> None:
        """Make worker processes recreate what they keep for the run."""
        self.spec = replace(self.spec, run=new_run())

    def schema(self, topic: str) -> pa.Schema | None:
        """The known columns of a topic's decoded rows."""
        return self._schemas.get(topic)

    def enter(self, entries: Iterable[LedgerEntry]) -> None:
        """The ledger's entries, of topics whose targets have been checked."""
        entries = list(entries)
        self._logs.expect(entries)
        self._partitions |= {e.topic_partition for e in entries}
        self._prepared |= {tp.topic for tp in self._partitions}

    def enter_new(self, ranges: Sequence[OffsetRange]) -> Pinned:
        """Enter partitions that appeared while the connector runs, where Spark reads them from,
        and look at a sample of each topic that is met for the first time. Returns the logs that
        the ranges are about to be read from.

        Raises:
            ConfigError: a new topic's target is missing and may not be created.
            LogChanged: the ranges are not of the logs that the ledger knows.
        """
        run = self._run
        starts = {r.topic_partition: r.from_offset for r in ranges}
        new = {tp: at for tp, at in starts.items() if tp not in self._partitions}
        if new:
            topics = {tp.topic for tp in new} - self._prepared
            if topics:
                run.sink.prepare(topics)
            entries = entering(run.sink, run.cluster, new, self._prepared)
            self._prepared |= topics
            run.sink.start(entries)
            stored = {e.topic_partition: e for e in run.sink.entries()}
            self._logs.add([stored.get(e.topic_partition, e) for e in entries])
            self._partitions |= {e.topic_partition for e in entries}
        pinned = self._logs.pin(ranges)
        self._sample(starts)
        return pinned

    def _sample(self, starts: Mapping[TopicPartition, int]) -> None:
        run = self._run
        unseen = {tp: at for tp, at in starts.items() if tp.topic not in self._sampled}
        if not unseen:
            return
        facts = (run.connector, run.sink, run.cluster)
        if self.spec.frames:
            found = sample.row_schemas(*facts, unseen)
        else:
            found = sample.schemas(*facts, None, unseen)
        self._sampled |= {tp.topic for tp in unseen}
        for topic, schema in found.items():
            self.learn(topic, schema)

    def learn(self, topic: str, schema: pa.Schema) -> None:
        """Add fields that have been found.

        Raises:
            ConfigError: they contradict what is known.
        """
        known = self._schemas.get(topic)
        if known is not None:
            schema = widened(topic, known, schema)
        if schema == known:
            return
        self._schemas[topic] = schema
        values = {
            name: pa.schema([f for f in fields if f.name not in METADATA])
            for name, fields in self._schemas.items()
        }
        self.spec = replace(self.spec, version=self.spec.version + 1, schemas=values)
