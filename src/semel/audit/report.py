"""What an audit found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from semel.ledger import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """What the audit found for one topic-partition.

    ``kafka`` counts the records that Kafka still has below the position; ``rows`` the rows (or,
    by counts, the records read); ``replaced`` records whose row a later record of the same key
    has replaced; ``filtered`` and ``failed`` those that were left out or went to the dead letters;
    ``retention`` offsets that retention removed before they were read (lost, but not by semel);
    ``behind`` the records that are still to be read; ``unknown`` records or rows that cannot be
    judged (see :mod:`semel.audit`).
    """

    topic: str
    partition: int
    kafka: int
    rows: int
    lost: int
    duplicated: int
    replaced: int = 0
    filtered: int = 0
    failed: int = 0
    retention: int = 0
    behind: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit's verdict. ``exact`` tells whether it went record by record or by counts."""

    connector: str
    delivery: str
    exact: bool
    partitions: list[PartitionAudit]
    kept: bool

    @property
    def records(self) -> int:
        return sum(p.kafka for p in self.partitions)

    @property
    def lost(self) -> int:
        return sum(p.lost for p in self.partitions)

    @property
    def duplicated(self) -> int:
        return sum(p.duplicated for p in self.partitions)

    @property
    def unknown(self) -> int:
        return sum(p.unknown for p in self.partitions)


def together(parts: Sequence[Sequence[PartitionAudit]]) -> list[PartitionAudit]:
    """What was found in several targets, by topic-partition."""
    found: dict[TopicPartition, PartitionAudit] = {}
    for p in itertools.chain.from_iterable(parts):
        tp = TopicPartition(p.topic, p.partition)
        known = found.get(tp)
        found[tp] = (
            p
            if known is None
            else replace(
                known,
                kafka=max(known.kafka, p.kafka),
                rows=known.rows + p.rows,
                lost=known.lost + p.lost,
                duplicated=known.duplicated + p.duplicated,
                filtered=max(known.filtered, p.filtered),
                behind=max(known.behind, p.behind),
                unknown=known.unknown + p.unknown,
            )
        )
    return [found[tp] for tp in sorted(found)]
