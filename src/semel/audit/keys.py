"""Upserts without provenance where the store does not show its keys: the number of keys that must
be there against the number of rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """How many keys have a row once all records are applied: between ``least`` and ``most``.

    They differ where one partition's last record of a key writes it and another's deletes it, and
    where keys differ only in case or trailing spaces, which a store may take for the same.
    """

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What the number of a table's rows shows."""

    lost: int = 0
    unknown: int = 0
    why: str = ""


def judge(rows: int, live: LiveKeys, failed: int) -> TableVerdict:
    """Judge a table by its number of rows. ``failed`` records may have left no row, and nobody
    knows which. A surplus is never called duplicated: it may have been there before."""
    missing = max(0, live.least - rows)
    excused = min(missing, failed)
    surplus = max(0, rows - live.most)
    why = ""
    if surplus:
        why = (
            f"{surplus} of its {rows} rows have keys that no record in Kafka writes, or that "
            "another row has"
        )
    elif excused:
        why = f"{excused} rows are missing, but {failed} records failed, and which is not known"
    return TableVerdict(missing - excused, surplus + excused, why)
