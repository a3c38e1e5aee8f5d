"""Detects whether a branch still holds what a connector committed to it.

A rollback removes rows but leaves table properties, and so the positions, unchanged. Each commit
therefore also stores the id of the snapshot that it makes, and the next commit requires that the
branch descends from that snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyiceberg.table.metadata import TableMetadata

from semel.core.errors import RolledBack
from semel.core.ledger import LedgerEntry
from semel.core.quoting import named
from semel.sinks.iceberg.table import Table
from semel.sinks.lake.tables import as_it_is, positions_remain

Parents = Mapping[int, int]


def parents_in(metadata: TableMetadata) -> dict[int, int]:
    """The parents that snapshots name. Expiry may remove a parent, and with it the reference."""
    return {
        s.snapshot_id: s.parent_snapshot_id
        for s in metadata.snapshots
        if s.parent_snapshot_id is not None
    }


def ancestors(parents: Parents, head: int | None) -> Iterator[int]:
    """The snapshots of a branch from its head back to the first one whose parent is not known."""
    while head is not None:
        yield head
        head = parents.get(head)


def holds(table: Table, known: frozenset[int]) -> bool:
    """Whether the branch is seen to descend from one of these snapshots.

    Where snapshots have expired, older metadata files may still name their parents, and the files
    that they added may still be in the table.
    """
    head = table.snapshot_id
    parents = parents_in(table.metadata)
    if not known.isdisjoint(ancestors(parents, head)) or table.added_by(known):
        return True
    met = _has(table.metadata, known)
    for older in table.history():
        parents = parents_in(older) | parents
        if not known.isdisjoint(ancestors(parents, head)):
            return True
        has = _has(older, known)
        if met and not has:
            return False  # from before them; later ones may lack them because of expiry
        met = met or has
    return False


def _has(metadata: TableMetadata, snapshots: frozenset[int]) -> bool:
    return not snapshots.isdisjoint(s.snapshot_id for s in metadata.snapshots)


def position_texts(table: Table, mark: str) -> Mapping[str, str]:
    """The properties of the newest older state all of whose rows the branch still has."""
    parents = parents_in(table.metadata)
    for older in table.history():
        parents = parents_in(older) | parents
        here = set(ancestors(parents, table.snapshot_id))
        then = older.snapshot_by_name(table.branch)
        committed = older.properties.get(mark, "")
        if then is not None and then.snapshot_id in here and committed in map(str, here):
            return older.properties
    return {}


def rolled_back(
    connector: str,
    table: Table,
    mark: int,
    entries: Sequence[LedgerEntry],
    then: Iterable[LedgerEntry],
    *,
    several: bool,
) -> RolledBack:
    """The error for a branch that does not descend from a connector's last commit, with the ways to
    continue. ``then`` are the entries that belong to the rows that it has."""
    stands = positions_remain(entries)
    begin = f"connector {connector}: Iceberg table {table.where}: branch {named(table.branch)} "
    head = table.snapshot_id
    at = "holds no snapshot" if head is None else f"is at snapshot {head}"
    left = table.metadata.snapshot_by_id(mark)
    if left is None:
        same = " ".join(f"{e.topic_partition}={e.position}" for e in entries)
        return RolledBack(
            f"{begin}{at}, and the snapshots between it and {mark}, which is known to hold this "
            "connector's rows, have expired, so nobody can tell whether the table was rolled back "
            f"meanwhile. The positions remain ({stands}); nothing was written. If the table was "
            f"not rolled back, confirm them: semel offsets set FILE {same}; if it was, set them to "
            "what it holds, or read everything again: semel offsets reset FILE"
        )
    known = [f"{e.topic_partition}={e.position}" for e in then]
    return RolledBack(
        f"{begin}{at}, which does not descend from snapshot {mark}, this connector's last commit: "
        f"it was rolled back. Rows are gone, but the positions remain ({stands}), so nothing was "
        f"written. To bring the rows back, set the branch to snapshot {mark} again. "
        + as_it_is(entries, known)
        + (". The connector's other tables get those records again, too" if several else "")
    )
