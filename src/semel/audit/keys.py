"""Upserts without provenance: the keys that must be there against those that are, or their number
against the number of rows where the store does not show its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DELETED = "__deleted"
PARTITION = "__partition"
OFFSET = "__offset"


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


def live_keys(changes: pa.Table) -> LiveKeys:
    """Count the keys that have a row. ``changes`` holds the key's columns, then :data:`PARTITION`,
    :data:`OFFSET` and :data:`DELETED`, a row for each record."""
    keys, by_key = _by_key(changes)
    surely = by_key.filter(pc.equal(by_key.column("__alive_min"), 1))
    return LiveKeys(
        _distinct_when_folded(surely.select(keys)),
        pc.sum(by_key.column("__alive_max")).as_py() or 0,
    )


def compare(changes: pa.Table, stored: pa.Table) -> tuple[int, int]:
    """How many keys that surely have a row are not among the ``stored`` ones, and how many of these
    cannot have one. A key that one partition wrote last, and another deleted, may be there or not.

    Raises:
        ValueError: the keys cannot be compared; says why.
    """
    keys, by_key = _by_key(changes)
    surely = by_key.filter(pc.equal(by_key.column("__alive_min"), 1)).select(keys)
    maybe = by_key.filter(pc.equal(by_key.column("__alive_max"), 1)).select(keys)
    try:
        stored = stored.select(keys)
        surely, maybe = surely.cast(stored.schema), maybe.cast(stored.schema)
        missing = surely.join(stored, keys, join_type="left anti", use_threads=False)
        stray = stored.join(maybe, keys, join_type="left anti", use_threads=False)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return missing.num_rows, stray.num_rows


def _by_key(changes: pa.Table) -> tuple[list[str], pa.Table]:
    """Whether the last record of each key writes it, over the partitions: ``__alive_min`` and
    ``__alive_max``."""
    keys = [n for n in changes.column_names if n not in (PARTITION, OFFSET, DELETED)]
    ordered = changes.sort_by(OFFSET)
    index = pa.array(np.arange(ordered.num_rows, dtype=np.int64))
    last = (
        ordered.append_column("__index", index)
        .group_by([*keys, PARTITION], use_threads=False)
        .aggregate([("__index", "max")])
        .column("__index_max")
    )
    final = ordered.take(last)
    alive = pc.cast(pc.invert(final.column(DELETED)), pa.int64())
    by_key = (
        final.append_column("__alive", alive)
        .group_by(keys, use_threads=False)
        .aggregate([("__alive", "min"), ("__alive", "max")])
    )
    return keys, by_key


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


def _distinct_when_folded(keys: pa.Table) -> int:
    folded: list[pa.ChunkedArray] = []
    for column in keys.columns:
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        folded.append(pc.utf8_rtrim_whitespace(pc.utf8_lower(column)) if text else column)
    names: Sequence[str] = keys.column_names
    distinct = pa.table(dict(zip(names, folded, strict=True))).group_by(list(names))
    return int(distinct.aggregate([]).num_rows)
