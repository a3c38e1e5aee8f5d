"""What the audit of a source connector finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
