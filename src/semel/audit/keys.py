"""Judges upserts without provenance: compares the keys that must be there with those of the rows
or, if the store does not show its keys, with the number of rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """The number of keys that have a row once all records are applied: ``least`` to ``most``.

    The two differ if one partition's last record of a key writes it and another one's deletes it,
    and if keys differ only in case or trailing spaces, which a store may treat as equal.
    """

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class KeyDifferences:
    """How the keys of rows differ from those that the records leave.

    ``missing`` keys must have a row and have none. ``stray`` rows have keys that no record writes.
    ``unsure`` keys may have a row or not: one partition's last record writes them, and another
    one's deletes them.
    """

    missing: int = 0
    stray: int = 0
    unsure: int = 0


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """The verdict on a table by its number of rows."""

    lost: int = 0
    unknown: int = 0
    why: str = ""


def judge_number(rows: int, live: LiveKeys, failed: int) -> TableVerdict:
    """Judge a table by its number of rows. ``failed`` unknown records may have left no row. Surplus
    rows are not duplicated, because they may have been there before. Keys that may or may not have
    a row are not judged."""
    missing = max(0, live.least - rows)
    excused = min(missing, failed)
    surplus = max(0, rows - live.most)
    why = ""
    if surplus:
        why = (
            f"{surplus} of its {rows} rows have keys that no record in Kafka writes, or the key of "
            "another row"
        )
    elif excused:
        why = f"{excused} rows are missing, but {failed} unknown records failed"
    return TableVerdict(missing - excused, surplus + excused + live.most - live.least, why)
