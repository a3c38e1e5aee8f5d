"""Tables of a lake, and what holds for all of their formats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from semel.core.ledger import LedgerEntry

log = logging.getLogger(__name__)

CONFLICTS = 50
"""A commit fails after losing to this many commits of other writers."""


class LakeTable(Protocol):
    """A table as it was when it was opened or last renewed."""

    where: str
    columns: pa.Schema

    def renew(self) -> None:
        """Read what others have committed."""

    def scanned(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows."""

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """The same, as one table."""


def lacked(table: LakeTable, fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Those of the fields for which the table has no column."""
    return [f for f in fields if f.name not in table.columns.names]


def same_but_for_case(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that many readers take for one column, if there are such names."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def delete(remove: Callable[[str], object], paths: Iterable[str]) -> None:
    """Delete files that no commit names; what cannot be deleted is left to the cleaning of the
    table, such as VACUUM or remove_orphan_files."""
    for path in paths:
        try:
            remove(path)
        except FileNotFoundError:
            continue
        except Exception as error:
            why = " ".join(str(error).split())[:500] or type(error).__name__
            log.info("staged file %s was not deleted: %s", path, why)


def positions_remain(entries: Iterable[LedgerEntry]) -> str:
    """The positions of a table that was set back, for its error."""
    return ", ".join(f"{e.topic_partition} at {e.position}" for e in entries)


def as_it_is(entries: Iterable[LedgerEntry], then: Iterable[str]) -> str:
    """How to continue with a table that was set back: ``then`` are the positions of the rows that
    it holds, as far as they are known."""
    positions = list(then)
    arguments = positions or [f"{e.topic_partition}=OFFSET" for e in entries]
    return (
        "To continue with the table as it is, set the positions to what it holds: semel offsets "
        f"set FILE {' '.join(arguments)}"
        + ("" if positions else "; or read everything again: semel offsets reset FILE")
    )
