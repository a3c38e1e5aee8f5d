"""What audits found: the report of a whole audit, and that of one that follows a connector."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from semel.core.delivery import Delivery
from semel.core.ledger import Hole, TopicPartition
from semel.core.quoting import all_named


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """What the audit found for one topic-partition.

    ``kafka``: the records that Kafka still has below the position. ``rows``: the rows, or the rows
    that the ledger counts. ``replaced``: the records whose row a later record of the key replaced.
    ``filtered`` and ``failed``: the records that were left out, and those that went to the dead
    letters. ``retention``: the offsets that retention removed before they were read (lost, but not
    by semel). ``behind``: the records that are not read yet. ``unknown``: the records or rows that
    cannot be judged (see :mod:`semel.audit`). ``ghosts``: the duplicated rows that come from no
    record in Kafka. ``expired``: the offsets that Kafka no longer has, so their rows are not
    judged. ``changed``: the rows whose values differ from their records', if values are compared.
    ``skipped``: the records that somebody has skipped by setting the position.
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
    ghosts: int = 0
    expired: int = 0
    changed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row whose values differ from its record's: the record's coordinates and the columns that
    differ, if they are known."""

    topic: str
    partition: int
    offset: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnplacedField:
    """A field of a topic's records whose ``values`` reached no column."""

    topic: str
    field: str
    values: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit's verdict. ``exact`` tells whether it compared record by record.

    ``broken`` tells whether it found what the declared guarantee rules out. ``not_judged`` lists
    the tables and offsets that it could not judge, with the reasons; ``gaps`` are the lines among
    these about offsets. ``changed_rows`` are the first changed rows. ``compared`` is the number of
    rows whose values were compared; None if none were. ``holes`` are those of the ledger.
    ``unplaced`` names the fields whose values reached no column, if values are compared.
    """

    connector: str
    delivery: str
    exact: bool
    partitions: list[PartitionAudit]
    broken: bool
    not_judged: tuple[str, ...] = ()
    changed_rows: tuple[ChangedRow, ...] = ()
    compared: int | None = None
    gaps: tuple[str, ...] = ()
    holes: tuple[Hole, ...] = ()
    unplaced: tuple[UnplacedField, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether everything was judged that the ledger knows, and nothing broke the guarantee."""
        return not self.broken and not self.not_judged

    @property
    def complete(self) -> bool:
        """Whether every record and every row was judged."""
        return not (self.not_judged or self.unknown or self.expired)

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
    def changed(self) -> int:
        return sum(p.changed for p in self.partitions)

    @property
    def unknown(self) -> int:
        return sum(p.unknown for p in self.partitions)

    @property
    def ghosts(self) -> int:
        return sum(p.ghosts for p in self.partitions)

    @property
    def expired(self) -> int:
        return sum(p.expired for p in self.partitions)


@dataclass(frozen=True, slots=True)
class IntervalReport:
    """The findings in one interval of offsets, ``[from_offset, until_offset)``.

    ``lost_offsets`` and ``duplicated_offsets`` name the records. A record without a row may be
    reported with a later interval, once nothing can account for it. ``changed`` counts the rows
    whose values differ from their records', and ``changed_rows`` holds the first of them.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    position: int
    records: int
    rows: int
    lost: int = 0
    duplicated: int = 0
    ghosts: int = 0
    unknown: int = 0
    expired: int = 0
    lost_offsets: tuple[int, ...] = ()
    duplicated_offsets: tuple[int, ...] = ()
    changed: int = 0
    changed_rows: tuple[ChangedRow, ...] = ()

    @property
    def has_findings(self) -> bool:
        return bool(self.lost or self.duplicated or self.changed)

    def __str__(self) -> str:
        """The findings, in words."""
        parts = []
        if self.lost:
            parts.append(f"{self.lost:,} lost{_among(self.lost, self.lost_offsets)}")
        if self.duplicated:
            ghosts = f", {self.ghosts:,} of them ghosts" if self.ghosts else ""
            where = _among(self.duplicated, self.duplicated_offsets)
            parts.append(f"{self.duplicated:,} duplicated{where}{ghosts}")
        if self.changed:
            first = self.changed_rows[0] if self.changed_rows else None
            where = ""
            if first is not None:
                columns = f": {all_named(first.columns)}" if first.columns else ""
                where = (
                    f" ({'offset' if self.changed == 1 else 'first at'} {first.offset}{columns})"
                )
            parts.append(f"{self.changed:,} changed{where}")
        return f"{self.topic}-{self.partition}: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class FollowReport:
    """The result of following a connector.

    ``broken`` tells whether it ended because the declared guarantee does not hold.
    """

    connector: str
    delivery: str
    exact: bool
    records: int
    lost: int
    duplicated: int
    unknown: int
    expired: int
    broken: bool
    not_judged: tuple[str, ...] = ()
    changed: int = 0

    @property
    def complete(self) -> bool:
        """Whether every record and every row was judged."""
        return not (self.not_judged or self.unknown or self.expired)


def together(parts: Sequence[Sequence[PartitionAudit]]) -> list[PartitionAudit]:
    """The findings in several targets, merged by topic-partition."""
    merged: dict[TopicPartition, PartitionAudit] = {}
    for p in itertools.chain.from_iterable(parts):
        tp = TopicPartition(p.topic, p.partition)
        before = merged.get(tp)
        merged[tp] = (
            p
            if before is None
            else replace(
                before,
                kafka=max(before.kafka, p.kafka),
                rows=before.rows + p.rows,
                lost=before.lost + p.lost,
                duplicated=before.duplicated + p.duplicated,
                filtered=max(before.filtered, p.filtered),
                behind=max(before.behind, p.behind),
                skipped=max(before.skipped, p.skipped),
                unknown=before.unknown + p.unknown,
                ghosts=before.ghosts + p.ghosts,
                expired=max(before.expired, p.expired),
                changed=before.changed + p.changed,
            )
        )
    return [merged[tp] for tp in sorted(merged)]


def breaks(promised: Delivery, lost: int, duplicated: int, changed: int) -> bool:
    """Whether a finding violates the declared guarantee."""
    return bool(
        (lost and promised is not Delivery.AT_MOST_ONCE)
        or (duplicated and promised is not Delivery.AT_LEAST_ONCE)
        or changed
    )


def spelled(offsets: Sequence[int] | np.ndarray, most: int = 5) -> str:
    """The first offsets as ranges: ``3, 7-9 and 4 more``."""
    numbers = np.unique(np.asarray(offsets, dtype=np.int64))
    if not len(numbers):
        return ""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    runs = [(int(r[0]), int(r[-1])) for r in np.split(numbers, breaks)]
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:most]]
    rest = sum(b - a + 1 for a, b in runs[most:])
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def _among(count: int, offsets: tuple[int, ...]) -> str:
    if not offsets:
        return ""
    several = len(set(offsets)) > 1
    if count < len(offsets):
        return f", among offsets {spelled(offsets)}"
    return f" (offset{'s' if several else ''} {spelled(offsets)})"
