"""What the continuous audit reports."""

from __future__ import annotations

from dataclasses import dataclass

from semel.audit.follow.progress import spelled
from semel.audit.hashes import ChangedRow
from semel.core.quoting import all_named


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


def _among(count: int, offsets: tuple[int, ...]) -> str:
    if not offsets:
        return ""
    several = len(set(offsets)) > 1
    if count < len(offsets):
        return f", among offsets {spelled(offsets)}"
    return f" (offset{'s' if several else ''} {spelled(offsets)})"


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
