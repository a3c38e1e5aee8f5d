"""The audit of a source connector: compares its source with its topics.

The source is read again from its beginning, once as a whole and once from the stored offsets on:
the difference is what Kafka must hold. Both are compared record by record, in their encoded form.
Records from one source partition must also be in the same order in each partition of a topic;
records that occur more than once are not judged by their order. The audit needs a source that gives
the same records again, and topics that nobody else writes to and that have kept everything.

While the connector runs, it is judged by the offsets that were stored first: all before them must
be in Kafka. What it committed afterwards, up to the offsets that were stored last, may be there.

A source that revises its records no longer has their earlier versions. Each may be in Kafka once,
before the present version, if its key identifies the record.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from semel.audit.workspace import Workspace
from semel.core.delivery import Delivery
from semel.core.errors import NothingToAudit, NotJudged, TransientError
from semel.core.ledger import TopicPartition
from semel.core.quoting import named
from semel.driver.planning import SourcePlan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.reader import read_ranges
from semel.sources.base import Repeatable, Revising, SourceBatch, SourceOffset, SourcePartition
from semel.sources.offsets import SourceOffsets, StoredOffsets
from semel.tasks.source.encoder import Encoder, SourceChain

_PATIENCE, _PAUSE = 30.0, 0.01
"""Seconds for which to follow a source that grows, and between two reads."""
_SETTLES = 60.0
"""Seconds within which open transactions must end."""
_HELD = 16
"""Batches to read before they are counted, because a source grows in the meantime."""
_SHOWN = 5
"""Findings of each kind that are reported one by one."""
_TABLE = """
CREATE TABLE records (
    topic VARCHAR, key UBIGINT, hash UBIGINT, source TINYINT, kafka TINYINT, passing TINYINT,
    behind TINYINT, place INTEGER, number BIGINT
)
"""
"""One row for each record that was read. ``source`` adds up to the number of records before the
stored offsets, ``behind`` to the number after them, and ``passing`` to the number between the
offsets that were stored first and last: records that are read from an offset on are subtracted from
what was counted before. ``place`` is the source partition or the topic's partition; ``number`` is
the record's number in the former, or its offset in the latter."""
_COMPARED = """
CREATE TABLE compared AS
WITH counted AS (
    SELECT topic, hash, any_value(key) AS key, sum(source) AS source, sum(kafka) AS kafka,
        greatest(sum(passing), 0) AS passing, sum(behind) AS behind,
        least(greatest(sum(passing), 0), greatest(sum(kafka) - sum(source), 0)) AS arrived,
        arg_max(place, number) FILTER (source = 1) AS source_place,
        max(number) FILTER (source = 1) AS source_number,
        arg_max(place, number) FILTER (kafka = 1) AS kafka_place,
        max(number) FILTER (kafka = 1) AS kafka_number,
        count(*) FILTER (source = 1) = 1 AND sum(kafka) = 1 AND sum(passing) = 0
            AND sum(behind) = 0 AS once
    FROM records GROUP BY topic, hash
)
SELECT * EXCLUDE (passing, arrived)
    REPLACE (source + arrived AS source, behind + passing - arrived AS behind),
    greatest(source + arrived - kafka, 0) AS missing,
    greatest(kafka - source - arrived, 0) AS extra
FROM counted
"""
"""A passing record counts as read if Kafka has it, otherwise as behind. A record that was revised
since it was read is no longer there to be counted again."""
_DIFFERENCE = """
CREATE TABLE difference AS
SELECT * REPLACE (extra - replaced::INTEGER AS extra) FROM (
    SELECT *, {revises} AND kafka > 0 AND source + behind = 0 AND key IS NOT NULL
        AND bool_or(source + behind > 0) OVER (PARTITION BY topic, key) AS replaced
    FROM compared
)
"""
_TOPICS = """
WITH keys AS (
    SELECT topic, key, sum(source) AS source, sum(kafka) AS kafka, sum(behind) AS behind,
        sum(missing) AS missing, sum(extra) AS extra, count(*) FILTER (replaced) AS replaced,
        least(sum(missing), coalesce(sum(extra) FILTER (source <= 0), 0)) AS changed
    FROM difference GROUP BY topic, key
)
SELECT topic, sum(source) AS source, sum(kafka) AS kafka,
    sum(missing - changed) AS lost, sum(extra - changed) AS duplicated,
    sum(changed) AS changed, sum(behind) AS behind, sum(replaced) AS replaced
FROM keys GROUP BY topic ORDER BY topic
"""
_DISORDERED = """
SELECT topic, count(*) AS records FROM (
    SELECT topic, kafka_number < max(kafka_number) OVER (
        PARTITION BY topic, source_place, kafka_place ORDER BY source_number
    ) AS late
    FROM difference WHERE once AND {ordered}
    UNION ALL
    SELECT topic, replaced AND kafka_number > min(kafka_number) FILTER (source > 0) OVER (
        PARTITION BY topic, key, kafka_place
    ) AS late
    FROM difference WHERE {revises} AND kafka > 0
) WHERE late GROUP BY topic
"""


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """``source``: the records that the source holds before the stored offsets; ``kafka``: those
    that a ``read_committed`` consumer sees; ``changed``: those that the source does not have, where
    one with the same key is missing; ``disordered``: those that come after one that the source
    has later; ``behind``: those that were not read yet; ``replaced``: earlier versions of records
    that the source has revised."""

    topic: str
    source: int
    kafka: int
    lost: int
    duplicated: int
    changed: int
    disordered: int
    behind: int
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class SourceAuditReport:
    """The audit's verdict. ``broken`` tells whether it found what the declared guarantee rules
    out; ``skipped`` counts the records before the stored offsets that ``errors.tolerance=all``
    leaves out; ``findings`` say where the first wrong records are; ``not_judged`` lists
    the topics that it could not judge, with the reasons."""

    connector: str
    delivery: str
    topics: Sequence[TopicAudit]
    broken: bool
    skipped: int = 0
    findings: Sequence[str] = ()
    not_judged: Sequence[str] = ()

    @property
    def lost(self) -> int:
        return sum(t.lost for t in self.topics)

    @property
    def duplicated(self) -> int:
        return sum(t.duplicated for t in self.topics)

    @property
    def changed(self) -> int:
        return sum(t.changed for t in self.topics)

    @property
    def disordered(self) -> int:
        return sum(t.disordered for t in self.topics)

    @property
    def records(self) -> int:
        return sum(t.kafka for t in self.topics)


def audit_source(planned: SourcePlan) -> SourceAuditReport:
    """Audit a source connector.

    Raises:
        NothingToAudit: no offset of the connector is stored.
        NotJudged: the source grows too fast to be compared.
        SemelError: configuration, Kafka or the source.
    """
    connector = planned.connector
    cluster = Cluster(client_config(connector, "admin"))
    offsets = SourceOffsets(connector, cluster)
    with closing(planned.source), closing(offsets), closing(Workspace()) as workspace:
        auditor = _Auditor(planned, cluster, workspace)
        stored = offsets.read(expected=False)
        if not stored.offsets:
            raise NothingToAudit(
                f"{offsets.where} holds nothing of connector "
                f"{connector.name}, so there is nothing to compare. Has it run under this name?"
            )
        auditor.source(stored)
        ends = auditor.ends()
        auditor.passing(stored, offsets.read())
        auditor.kafka(ends)
        return auditor.report()


@dataclass(slots=True)
class _Reader:
    """Continues to read a source partition; ``counts`` is what each record adds."""

    batches: Iterator[SourceBatch | None]
    reached: SourceOffset | None
    counts: Mapping[str, int]


class _Auditor:
    def __init__(self, planned: SourcePlan, cluster: Cluster, workspace: Workspace) -> None:
        self._planned = planned
        self._cluster = cluster
        self._workspace = workspace
        self._chain = SourceChain(planned.connector)
        self._encoder = Encoder(planned.connector)
        self._shortened: set[str] = set()
        """The topics whose first records are gone."""
        self._places: dict[str, int] = {}
        """The source partitions, and their numbers in the order in which they are read."""
        self._place = 0
        """The number of the present one."""
        self._read = 0
        """The number of its records read so far."""
        self._skipped: Counter[int] = Counter()
        workspace.execute(_TABLE)

    def ends(self) -> dict[TopicPartition, int]:
        """The present ends of the topics of the source and its records, once the transactions that
        are open have ended: their markers may arrive there later than in the offsets topic.

        Raises:
            TransientError: they do not end.
        """
        topics = self._workspace.query("SELECT DISTINCT topic FROM records").column("topic")
        there = self._cluster.topics()
        chosen = there.keys() & {*self._planned.source.topics(), *topics.to_pylist()}
        partitions = [TopicPartition(t, p) for t in chosen for p in range(there[t])]
        ends = {tp: end for tp, (end, _) in self._cluster.ends(partitions).items()}
        until = time.monotonic() + _SETTLES
        while open_ := [tp for tp, at in self._cluster.latest(ends).items() if at < ends[tp]]:
            if time.monotonic() > until:
                raise TransientError(
                    f"connector {self._planned.connector.name}: {min(open_)}: a transaction has "
                    f"not ended for {_SETTLES:.0f} s, and the records after it cannot be read yet"
                )
            time.sleep(_PAUSE)
        return ends

    def source(self, stored: StoredOffsets) -> None:
        """Count the records before the stored offsets, and those after them."""
        for partition, offset in stored.offsets:
            self._begin(partition)
            if (batches := self._before(partition, offset)) is not None:
                for batch in batches:
                    self._take(batch, source=1)
                self._read_behind(partition, offset)
                continue
            whole = self._reader(partition, None, source=1)
            self._read_on([whole, self._reader(partition, offset, source=-1, behind=1)])

    def passing(self, stored: StoredOffsets, last: StoredOffsets) -> None:
        """Count again what was committed meanwhile."""
        first = stored.lookup()
        for partition, offset in last.offsets:
            before = first(partition)
            if before == offset:
                continue
            place = self._begin(partition)
            if (batches := self._before(partition, offset)) is not None:
                self._workspace.session.execute(
                    "UPDATE records SET passing = -1 WHERE source = 1 AND place = ?", [place]
                )
                self._workspace.session.execute(
                    "DELETE FROM records WHERE behind = 1 AND place = ?", [place]
                )
                for batch in batches:
                    self._take(batch, passing=1)
                self._read_behind(partition, offset)
                continue
            self._workspace.session.execute("DELETE FROM records WHERE place = ?", [place])
            del self._skipped[place]
            readers = [self._reader(partition, offset, passing=-1, behind=1)]
            if before is None:
                readers.append(self._reader(partition, None, passing=1))
            else:
                readers.append(self._reader(partition, before, source=-1, passing=1))
                readers.append(self._reader(partition, None, source=1))
            self._read_on(readers[::-1])

    def _before(
        self, partition: SourcePartition, offset: SourceOffset
    ) -> Iterator[SourceBatch] | None:
        source = self._planned.source
        return source.before(partition, offset) if isinstance(source, Repeatable) else None

    def _read_behind(self, partition: SourcePartition, offset: SourceOffset) -> None:
        """Count what comes after an offset, if a record that was before it may have been revised
        since and come after it now."""
        source = self._planned.source
        if source.revises and isinstance(source, Revising):
            for batch in source.after(partition, offset):
                self._take(batch, behind=1)

    def _begin(self, partition: SourcePartition) -> int:
        """Read this source partition from now on; returns its number."""
        self._place = self._places.setdefault(_text(partition), len(self._places))
        self._read = 0
        return self._place

    def _read_on(self, readers: Sequence[_Reader]) -> None:
        """Count what there is until all readers have reached the same offset."""
        until = 0.0
        batches: list[tuple[_Reader, SourceBatch]] = []
        while True:
            counted = len(batches)
            for reader in readers:
                while (batch := next(reader.batches, None)) is not None:
                    reader.reached = batch.offset
                    batches.append((reader, batch))
                    if len(batches) >= _HELD:
                        counted = self._count_all(batches)
            if len({_text(reader.reached) for reader in readers}) == 1:
                self._count_all(batches)
                return
            until = until or time.monotonic() + _PATIENCE  # the first round may take long
            if time.monotonic() > until:
                raise NotJudged(
                    f"connector {self._planned.connector.name}: source partition "
                    f"{[*self._places][self._place]} grows too fast to be audited, or does not "
                    "give the same records again. Stop what writes to it"
                )
            if len(batches) == counted:
                time.sleep(_PAUSE)

    def _count_all(self, batches: list[tuple[_Reader, SourceBatch]]) -> int:
        """Count batches; returns how many are left."""
        for reader, batch in batches:
            self._take(batch, **reader.counts)
        batches.clear()
        return 0

    def _reader(
        self, partition: SourcePartition, offset: SourceOffset | None, **counts: int
    ) -> _Reader:
        return _Reader(self._planned.source.read(partition, offset), offset, counts)

    def _take(self, batch: SourceBatch, **counts: int) -> None:
        """Count what the source has given."""
        source = counts.get("source", 0)
        skipped = self._chain.unread(batch.unread)
        for records in (r for read in batch.records for r in self._chain.applied(read, skipped)):
            _, keys, values = self._encoder.encoded(records, skipped)
            table = pa.table({"key": keys, "value": values})
            numbers = pa.array(np.arange(self._read, self._read + len(table)))
            place = pa.repeat(self._place, len(table))
            self._count(table, records.topic, place, numbers, **counts)
            self._read += len(table) if source > 0 else 0
        self._skipped[self._place] += source * len(skipped)

    def kafka(self, ends: Mapping[TopicPartition, int]) -> None:
        """Count what a read_committed consumer sees."""
        starts = self._cluster.earliest(ends)
        self._shortened = {tp.topic for tp, start in starts.items() if start}
        for messages in read_ranges(self._planned.connector, starts, ends):
            for topic in {str(m.topic()) for m in messages}:
                of_topic = [m for m in messages if m.topic() == topic]
                keys = pa.array([m.key() for m in of_topic], pa.binary())
                values = pa.array([m.value() for m in of_topic], pa.binary())
                place = pa.array([m.partition() for m in of_topic], pa.int32())
                numbers = pa.array([m.offset() for m in of_topic], pa.int64())
                table = pa.table({"key": keys, "value": values})
                self._count(table, topic, place, numbers, kafka=1)

    def _count(
        self,
        table: pa.Table,
        topic: str,
        place: pa.Array,
        numbers: pa.Array,
        *,
        source: int = 0,
        kafka: int = 0,
        passing: int = 0,
        behind: int = 0,
    ) -> None:
        placed = table.append_column("place", place).append_column("number", numbers)
        with self._workspace.named("batch", placed):
            self._workspace.session.execute(
                "INSERT INTO records SELECT ?, if(key IS NULL, NULL, hash(key)), hash(key, value), "
                f"{source}, {kafka}, {passing}, {behind}, place, number FROM batch",
                [topic],
            )

    def report(self) -> SourceAuditReport:
        source = self._planned.source
        revises, ordered = str(source.revises).lower(), str(source.ordered).lower()
        self._workspace.execute(_COMPARED)
        self._workspace.execute(_DIFFERENCE.format(revises=revises))
        late = self._workspace.query(
            _DISORDERED.format(revises=revises, ordered=ordered)
        ).to_pylist()
        disordered = {row["topic"]: int(row["records"]) for row in late}
        topics = [
            TopicAudit(
                topic := row.pop("topic"),
                **{name: int(n) for name, n in row.items()},
                disordered=disordered.get(topic, 0),
            )
            for row in self._workspace.query(_TOPICS).to_pylist()
        ]
        not_judged = {t.topic: why for t in topics if (why := self._why_not(t))}
        for topic in not_judged:
            self._workspace.session.execute("DELETE FROM difference WHERE topic = ?", [topic])
        topics = [
            replace(t, lost=0, duplicated=0, changed=0, disordered=0)
            if t.topic in not_judged
            else t
            for t in topics
        ]
        guarantee = self._planned.guarantee
        exactly_once = guarantee.delivery is Delivery.EXACTLY_ONCE
        return SourceAuditReport(
            self._planned.connector.name,
            str(guarantee),
            topics,
            broken=any(
                t.lost or t.changed or (exactly_once and (t.duplicated or t.disordered))
                for t in topics
            ),
            skipped=self._skipped.total(),
            findings=self._findings(),
            not_judged=tuple(not_judged.values()),
        )

    def _why_not(self, topic: TopicAudit) -> str | None:
        """Why what was found in a topic shows nothing; None if it shows something."""
        name = topic.topic
        if name in self._shortened:
            return f"topic {named(name)}: its first records are gone (retention)"
        config = (self._cluster.topic_config(name) if topic.lost or topic.changed else None) or {}
        if "compact" in config.get("cleanup.policy", ""):
            return f"topic {named(name)}: records may be missing because it is compacted"
        return None

    def _findings(self) -> list[str]:
        """Where the first records are that one side has and the other lacks."""
        places = [*self._places]
        missing = self._workspace.query(
            "SELECT topic, source_place AS place, source_number AS number FROM difference "
            f"WHERE missing > 0 ORDER BY ALL LIMIT {_SHOWN}"
        )
        extra = self._workspace.query(
            "SELECT topic, kafka_place AS place, kafka_number AS number, source FROM difference "
            f"WHERE extra > 0 ORDER BY ALL LIMIT {_SHOWN}"
        )
        return [
            *(
                f"topic {named(r['topic'])} lacks record {r['number'] + 1} of source partition "
                f"{places[r['place']]}"
                for r in missing.to_pylist()
            ),
            *(
                f"{r['topic']}-{r['place']} offset {r['number']}: "
                + ("comes once more" if r["source"] > 0 else "the source has no such record")
                for r in extra.to_pylist()
            ),
        ]


def _text(facts: Mapping[str, Any] | None) -> str:
    return json.dumps(None if facts is None else dict(facts), sort_keys=True)
