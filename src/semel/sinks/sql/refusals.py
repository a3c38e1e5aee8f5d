"""Finds the rows that a database refuses, after a whole commit has failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semel.core.records import Rejected, rejected
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.errors import DataRefused
from semel.sinks.sql.prepare import Prepared, Rows
from semel.sinks.sql.writer import delete, put

_MOST = 1000
"""The maximum number of rows to name at once; the engine calls again with the others."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a batch, or some keys to delete."""

    batch: Prepared
    rows: Rows
    deletes: bool


class Undo(Exception):
    """Ends a transaction without committing it."""


def find_refused(dialect: Dialect, batches: Sequence[Prepared]) -> list[Rejected]:
    """Find the records that the database refuses, by bisection, in transactions that never commit.

    Each row is tried after those before it: if two rows have one key, the second is refused.
    """
    found: list[Rejected] = []
    accepted: list[_Part] = []

    def search(part: _Part) -> None:
        if len(found) >= _MOST:
            return
        refusal = _attempt(dialect, [*accepted, part])
        if refusal is None:
            accepted.append(part)
        elif part.rows.count == 1:
            found.append(rejected(part.rows.places, 0, refusal))
        else:
            middle = part.rows.count // 2
            for half in (np.arange(middle), np.arange(middle, part.rows.count)):
                search(_Part(part.batch, part.rows.take(half), part.deletes))

    for batch in batches:
        if batch.deletes is not None and batch.deletes.count:
            search(_Part(batch, batch.deletes, deletes=True))
        if batch.rows.count:
            search(_Part(batch, batch.rows, deletes=False))
    return found


def _attempt(dialect: Dialect, parts: Sequence[_Part]) -> str | None:
    """Why the database refuses some of these rows; None if it takes all."""
    try:
        with dialect.transaction():
            for part in parts:
                (delete if part.deletes else put)(dialect, part.batch, part.rows)
            raise Undo
    except Undo:
        return None
    except DataRefused as refusal:
        return str(refusal)
