"""The audit of a source connector: compares its source with its topics.

The source is read again from its beginning, once as a whole and once from the stored offsets on:
the difference is what Kafka must hold. Both are compared record by record, in their encoded form.
What came from one source partition must also stand in the same order in each partition of a topic;
records that are there more than once are not judged for that. The audit needs a source that gives
the same records again, and topics that nobody else writes to and that have kept everything.

Where a source revises its records, it no longer has their earlier versions. Each may stand in Kafka
once, before the present one, if its key says what it is a version of.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semel.audit.workspace import Workspace
from semel.delivery import Delivery
from semel.engine.source.chain import SourceChain
from semel.engine.source.encoder import Encoder
from semel.engine.source.skipped import Skipped
from semel.errors import NothingToAudit, SemelError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.reader import read_ranges
from semel.ledger import TopicPartition
from semel.planning import SourcePlan
from semel.sources.base import Repeatable, SourceBatch
from semel.sources.offsets.store import SourceOffsets, StoredOffsets

_TRIES = 5
"""Looks at a connector that commits, or at a source that grows, before the audit gives up."""
_SHOWN = 5
"""Findings of each kind that are told one by one."""

_TABLE = """
CREATE TABLE records (
    topic VARCHAR, key UBIGINT, hash UBIGINT, source TINYINT, kafka TINYINT, behind TINYINT,
    place INTEGER, number BIGINT
)
"""
"""One row for each record that was read. ``source`` is -1, and ``behind`` 1, for what lies behind
the stored offsets, which was counted once more with what lies before them. ``place`` is the source
partition or the partition of the topic, ``number`` the record's in the one, its offset in the
other."""

_COMPARED = """
CREATE TABLE compared AS
SELECT topic, hash, any_value(key) AS key, sum(source) AS source, sum(kafka) AS kafka,
    sum(behind) AS behind, greatest(sum(source) - sum(kafka), 0) AS missing,
    greatest(sum(kafka) - sum(source), 0) AS extra,
    arg_max(place, number) FILTER (source = 1) AS source_place,
    max(number) FILTER (source = 1) AS source_number,
    arg_max(place, number) FILTER (kafka = 1) AS kafka_place,
    max(number) FILTER (kafka = 1) AS kafka_number,
    count(*) FILTER (source = 1) = 1 AND sum(kafka) = 1 AND sum(behind) = 0 AS once
FROM records GROUP BY topic, hash
"""
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
    one with the same key is missing; ``disordered``: those that stand behind one that the source
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
    leaves out; ``findings`` say of the first wrong records where they stand; ``not_judged`` lists
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
        SemelError: configuration, Kafka or the source; or it changes too fast to be compared.
    """
    connector = planned.connector
    cluster = Cluster(client_config(connector, "admin"))
    offsets = SourceOffsets(connector, cluster)
    with closing(planned.source), closing(offsets), closing(Workspace()) as workspace:
        auditor = _Auditor(planned, cluster, workspace)
        for _ in range(_TRIES):
            stored = offsets.read(expected=False)
            if not stored.offsets:
                raise NothingToAudit(
                    f"{offsets.where} holds nothing of connector "
                    f"{connector.name}, so there is nothing to compare. Has it run under this name?"
                )
            ends = auditor.ends(planned.source.topics())
            if offsets.read().offsets == stored.offsets:
                break
        else:
            raise SemelError(
                f"connector {connector.name} commits too fast to be audited. Stop it first"
            )
        auditor.source(stored)
        auditor.kafka({**auditor.ends(auditor.topics()), **ends})
        return auditor.report()


class _Auditor:
    def __init__(self, planned: SourcePlan, cluster: Cluster, workspace: Workspace) -> None:
        self._planned = planned
        self._cluster = cluster
        self._workspace = workspace
        self._chain = SourceChain(planned.connector)
        self._encoder = Encoder(planned.connector)
        self._not_judged: list[str] = []
        self._places: list[str] = []
        """The source partitions, in the order in which they are read."""
        self._read = 0
        """Records of the present one."""
        self._skipped = 0
        workspace.execute(_TABLE)

    def ends(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        """The present ends of those topics that exist."""
        there = self._cluster.topics()
        chosen = [t for t in topics if t in there]
        return self._cluster.latest([TopicPartition(t, p) for t in chosen for p in range(there[t])])

    def topics(self) -> list[str]:
        """The topics that records of the source go to."""
        found = self._workspace.asked("SELECT DISTINCT topic FROM records")
        names: list[str] = found.column("topic").to_pylist()
        return names

    def source(self, stored: StoredOffsets) -> None:
        """Count the records before the stored offsets, and those after them."""
        source = self._planned.source
        for partition, offset in stored.offsets:
            self._places.append(_text(partition))
            self._read = 0
            if isinstance(source, Repeatable):
                for batch in source.before(partition, offset):
                    self._take(batch, source=1, behind=0)
                continue
            whole, rest = source.read(partition, None), source.read(partition, offset)
            end: Mapping[str, Any] | None = None
            reached: Mapping[str, Any] = offset
            for _ in range(_TRIES):
                end = self._drain(whole, end, source=1, behind=0)
                reached = self._drain(rest, reached, source=-1, behind=1) or reached
                if _text(end) == _text(reached):
                    break
            else:
                raise SemelError(
                    f"connector {self._planned.connector.name}: source partition "
                    f"{_text(partition)} grows too fast to be audited, or does not give the same "
                    "records again. Stop what writes to it"
                )

    def _drain(
        self,
        batches: Iterator[SourceBatch | None],
        reached: Mapping[str, Any] | None,
        *,
        source: int,
        behind: int,
    ) -> Mapping[str, Any] | None:
        """Count what is there now; the offset that is reached."""
        while (batch := next(batches, None)) is not None:
            reached = batch.offset
            self._take(batch, source=source, behind=behind)
        return reached

    def _take(self, batch: SourceBatch, *, source: int, behind: int) -> None:
        """Count what the source has given."""
        skipped: list[Skipped] = []
        for records in (r for read in batch.records for r in self._chain.applied(read, skipped)):
            _, keys, values = self._encoder.encoded(records, skipped)
            table = pa.table({"key": keys, "value": values})
            numbers = pa.array(np.arange(self._read, self._read + len(table)))
            place = pa.repeat(len(self._places) - 1, len(table))
            self._count(table, records.topic, source, 0, behind, place, numbers)
            self._read += len(table) if source > 0 else 0
        self._skipped += source * len(skipped)

    def kafka(self, ends: Mapping[TopicPartition, int]) -> None:
        """Count what a read_committed consumer sees."""
        starts = self._cluster.earliest(ends)
        for topic in sorted({tp.topic for tp, start in starts.items() if start}):
            self._not_judged.append(f"topic {topic}: its first records are gone (retention)")
        for messages in read_ranges(self._planned.connector, starts, ends):
            for topic in {str(m.topic()) for m in messages}:
                found = [m for m in messages if m.topic() == topic]
                keys = pa.array([m.key() for m in found], pa.binary())
                values = pa.array([m.value() for m in found], pa.binary())
                place = pa.array([m.partition() for m in found], pa.int32())
                numbers = pa.array([m.offset() for m in found], pa.int64())
                table = pa.table({"key": keys, "value": values})
                self._count(table, topic, 0, 1, 0, place, numbers)

    def _count(
        self,
        table: pa.Table,
        topic: str,
        source: int,
        kafka: int,
        behind: int,
        place: pa.Array,
        numbers: pa.Array,
    ) -> None:
        placed = table.append_column("place", place).append_column("number", numbers)
        with self._workspace.named("batch", placed):
            self._workspace.session.execute(
                "INSERT INTO records SELECT ?, if(key IS NULL, NULL, hash(key)), hash(key, value), "
                f"{source}, {kafka}, {behind}, place, number FROM batch",
                [topic],
            )

    def report(self) -> SourceAuditReport:
        source = self._planned.source
        revises, ordered = str(source.revises).lower(), str(source.ordered).lower()
        self._workspace.execute(_COMPARED)
        self._workspace.execute(_DIFFERENCE.format(revises=revises))
        late = self._workspace.asked(
            _DISORDERED.format(revises=revises, ordered=ordered)
        ).to_pylist()
        disordered = {row["topic"]: int(row["records"]) for row in late}
        topics = [
            TopicAudit(
                topic := row.pop("topic"),
                **{name: int(n) for name, n in row.items()},
                disordered=disordered.get(topic, 0),
            )
            for row in self._workspace.asked(_TOPICS).to_pylist()
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
            skipped=self._skipped,
            findings=self._findings(),
            not_judged=tuple(self._not_judged),
        )

    def _findings(self) -> list[str]:
        """Where the first records stand that one side has and the other has not."""
        missing = self._workspace.asked(
            "SELECT topic, source_place AS place, source_number AS number FROM difference "
            f"WHERE missing > 0 ORDER BY ALL LIMIT {_SHOWN}"
        )
        extra = self._workspace.asked(
            "SELECT topic, kafka_place AS place, kafka_number AS number, source FROM difference "
            f"WHERE extra > 0 ORDER BY ALL LIMIT {_SHOWN}"
        )
        return [
            *(
                f"topic {r['topic']} lacks record {r['number'] + 1} of source partition "
                f"{self._places[r['place']]}"
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
