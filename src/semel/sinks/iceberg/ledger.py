"""The ledger in an Iceberg table: properties, set by the commit that adds the files.

``semel:<connector>:<topic>:<partition>`` holds position, running counts and holes as JSON. Unlike
snapshots, table properties survive expiry and the rewriting of files and manifests. Each
topic-partition of each connector has its own property, so several connectors can write one table.

``semel-snapshot:<connector>`` is the last snapshot that is known to hold the connector's rows: its
last commit, or a later one that descends from it. ``semel-reset:<connector>:<topic>:<partition>``
holds the offsets that were read before positions were reset: it outlives the position.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from semel.core.errors import ConfigError, RolledBack, ServiceError
from semel.core.ledger import (
    RESET,
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    first,
    forgotten,
    holes_of,
    judge,
    pending,
    set_by_hand,
)
from semel.core.quoting import named
from semel.sinks.iceberg.table import Table
from semel.sinks.lake import as_it_is, positions_remain
from semel.sinks.ledger_json import dumped, entry_of, facts_of

_Parents = Mapping[int, int]
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What comes of reading a property that semel did not write."""


@dataclass(frozen=True, slots=True)
class _Entry:
    entry: LedgerEntry
    holes: tuple[Hole, ...] = ()
    elsewhere: int = 0

    def text(self) -> str:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        facts = {
            "position": self.entry.position,
            **facts_of(replace(self.entry, updated_at=at)),
        }
        if self.holes:
            facts["holes"] = [_facts_of(h) for h in self.holes]
        if self.elsewhere:
            facts["elsewhere"] = self.elsewhere
        return dumped(facts)


class IcebergLedger:
    """One connector's ledger in one table. It is read again when the table has changed."""

    def __init__(self, table: Table, connector: str) -> None:
        self._table = table
        self._connector = connector
        self._version = ""
        self._entries: dict[TopicPartition, _Entry] = {}
        self._seen: tuple[int, int] | None = None
        """The marked snapshot, and a later one that was seen to descend from it."""

    def _name(self, tp: TopicPartition) -> str:
        return f"semel:{self._connector}:{tp.topic}:{tp.partition}"

    @property
    def mark(self) -> str:
        """The property that names the last snapshot that is known to hold the rows."""
        return f"semel-snapshot:{self._connector}"

    def _known(self) -> Mapping[TopicPartition, _Entry]:
        if self._version != self._table.version:
            self._entries = dict(self._read())
            self._version = self._table.version
        return self._entries

    def _read(self) -> Iterable[tuple[TopicPartition, _Entry]]:
        return self._parsed(self._table.metadata.properties)

    def _parsed(self, properties: Mapping[str, str]) -> Iterable[tuple[TopicPartition, _Entry]]:
        prefix = f"semel:{self._connector}:"
        for name, text in properties.items():
            topic, colon, partition = name.removeprefix(prefix).rpartition(":")
            if not name.startswith(prefix) or not colon or ":" in topic:
                continue  # or of a connector whose name begins with ours
            try:
                tp = TopicPartition(topic, int(partition))
                facts = json.loads(text)
                entry = entry_of(*tp, facts["position"], facts)
                holes = tuple(_hole(tp, h) for h in facts.get("holes", ()))
                elsewhere = int(facts.get("elsewhere", 0))
            except _MALFORMED:
                raise self._changed(
                    name,
                    text,
                    "a ledger entry",
                    f" and run: semel offsets set FILE {topic}-PARTITION=OFFSET",
                ) from None
            yield tp, _Entry(entry, holes, elsewhere)

    def _changed(self, name: str, text: str, what: str, then: str) -> ServiceError:
        return ServiceError(
            f"Iceberg table {self._table.where}: property {name}={text!r} is not {what}. Was it "
            f"changed by hand? Correct it, or remove it{then}"
        )

    def entries(self) -> list[LedgerEntry]:
        """All entries, by topic and partition."""
        return [e.entry for _, e in sorted(self._known().items())]

    def holes(self) -> list[Hole]:
        """All holes, by topic and partition."""
        holes = [h for e in self._known().values() for h in e.holes]
        for name, text in self._table.metadata.properties.items():
            topic, _, partition = name.removeprefix(self._resets).rpartition(":")
            if not name.startswith(self._resets) or ":" in topic:
                continue
            try:
                holes.append(_hole(TopicPartition(topic, int(partition)), json.loads(text)))
            except _MALFORMED:
                then = ": then the audit does not know what was read before positions were reset"
                raise self._changed(name, text, "a hole of the ledger", then) from None
        return sorted(holes, key=lambda h: (h.topic_partition, h.from_offset))

    @property
    def _resets(self) -> str:
        return f"semel-reset:{self._connector}:"

    def elsewhere(self) -> dict[TopicPartition, int]:
        """The number of records whose rows are in other tables."""
        return {tp: e.elsewhere for tp, e in self._known().items()}

    def judge(self, advances: Sequence[Advance], *, lags: bool = False) -> Outcome:
        """Apply the ledger rule to one of several tables: a range that it holds already is a
        replay, even if it holds more than that. A table that lags got no rows from the offsets
        between its position and the range.

        Raises:
            ConfigError: it holds the offsets of another log.
            LedgerConflict: see :func:`semel.core.ledger.judge`.
        """
        stored = {tp: e.entry for tp, e in self._known().items()}
        for a in advances:
            e = stored.get(a.range.topic_partition)
            if e is not None and e.position > a.range.from_offset and e.log.contradicts(a.log):
                raise self._ahead(e, a)
        seen = [_seen(stored.get(a.range.topic_partition), a, lags=lags) for a in advances]
        return judge(self._connector, {e.topic_partition: e for e in seen if e}, advances)

    def _ahead(self, entry: LedgerEntry, advance: Advance) -> ConfigError:
        tp = entry.topic_partition
        return ConfigError(
            f"connector {self._connector}: table {self._table.where} is at {entry.position} for "
            f"{tp} in another log ({entry.log}) than the connector ({advance.log}): topic "
            f"{named(tp.topic)} was created again while the table was left out. To continue "
            "without what the table missed, run: semel offsets set FILE "
            f"{tp}={advance.range.from_offset}"
        )

    def moved(
        self, advances: Sequence[Advance], elsewhere: Mapping[TopicPartition, int]
    ) -> dict[str, str]:
        """The properties to set with the results of ``advances``."""
        properties = {}
        for a in advances:
            tp = a.range.topic_partition
            begun = _Entry(LedgerEntry(*tp, a.range.from_offset, a.range.from_offset))
            old = self._known().get(tp, begun)
            e = old.entry
            begins, ends = max(e.position, a.range.from_offset), a.range.until_offset
            entry = e.after(replace(a, lost=ends - begins if a.lost else 0), "")
            # The table may have been left out when the others learned of their log.
            entry = replace(entry, **a.log.completed(e.log)._asdict())
            new_holes = (replace(h, from_offset=begins) for h in holes_of([a]))
            holes = (*old.holes, *new_holes)
            more = old.elsewhere + elsewhere.get(tp, 0)
            properties[self._name(tp)] = _Entry(entry, holes, more).text()
        return properties

    def started(self, entries: Iterable[LedgerEntry]) -> dict[str, str]:
        """The properties that enter entries where there are none."""
        new = [e for e in entries if e.topic_partition not in self._known()]
        return {self._name(e.topic_partition): _Entry(e).text() for e in new}

    def set(self, entries: Iterable[LedgerEntry], by: str, reason: str) -> dict[str, str]:
        """The properties that set positions by hand, see :func:`semel.core.ledger.set_by_hand`."""
        stored = {tp: e.entry for tp, e in self._known().items()}
        moved, holes = set_by_hand(stored, self.holes(), entries, by, reason)
        properties = {}
        for e in moved:
            tp = e.topic_partition
            partition_holes = (h for h in holes if h.topic_partition == tp and h.reason != RESET)
            old = self._known().get(tp)
            elsewhere = old.elsewhere if old is not None else 0
            properties[self._name(tp)] = _Entry(e, tuple(partition_holes), elsewhere).text()
        return properties

    def forgotten(self, by: str) -> dict[str, str]:
        """The properties that remain once positions are reset, see
        :func:`semel.core.ledger.forgotten`."""
        stored = {tp: e.entry for tp, e in self._known().items()}
        return {
            f"{self._resets}{h.topic}:{h.partition}": json.dumps(_facts_of(h))
            for h in forgotten(stored, self.holes(), by)
        }

    def rebased(self, rebases: Iterable[Rebase]) -> dict[str, str]:
        """The properties that replace entries, and record the holes that this leaves.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.pending`.
        """
        stored = {tp: e.entry for tp, e in self._known().items()}
        properties = {}
        for r in pending(self._connector, stored, rebases):
            old = self._known()[r.old.topic_partition]
            holes = (*old.holes, *holes_of([r]))
            name = self._name(r.old.topic_partition)
            properties[name] = replace(old, entry=r.new, holes=holes).text()
        return properties

    def learned(self, rebases: Iterable[Rebase]) -> dict[str, str]:
        """The properties that add newly known ids of cluster and topic to the entries of one of
        several tables; each entry keeps its own position and counts."""
        properties = {}
        for r in rebases:
            tp = r.old.topic_partition
            old = self._known().get(tp)
            if old is None:
                continue
            log = {f: getattr(r.new, f) for f in ("cluster_id", "topic_id")}
            entry = replace(old.entry, **log)
            if entry != old.entry:
                properties[self._name(tp)] = replace(old, entry=entry).text()
        return properties

    def names(self) -> list[str]:
        """The properties that hold the connector's entries."""
        return [self._name(tp) for tp in self._known()]

    # Rollbacks

    def _marked(self) -> int | None:
        text = self._table.metadata.properties.get(self.mark)
        try:
            return None if text is None else int(text)
        except ValueError:
            then = ": then a rollback is noticed only after the next commit"
            raise self._changed(self.mark, str(text), "the id of a snapshot", then) from None

    def check(self, *, several: bool) -> None:
        """Raises RolledBack: the branch lacks, or may lack, what was committed to it."""
        mark, head = self._marked(), self._table.snapshot_id
        if mark is None:
            return  # no commit yet
        snapshots = frozenset(self._seen if self._seen and self._seen[0] == mark else [mark])
        if head not in snapshots and not holds(self._table, snapshots):
            entries = self.entries()
            then = self._parsed(_position_texts(self._table, self.mark)) if entries else ()
            raise _rolled_back(
                self._connector,
                self._table,
                mark,
                entries,
                [e.entry for _, e in sorted(then)],
                several=several,
            )
        if head is not None:
            self._seen = mark, head

    def remark(self) -> dict[str, str]:
        """The property that marks the branch's head, which was checked; none unless the marked
        snapshot has expired."""
        mark, head = self._marked(), self._table.snapshot_id
        if head is None or not self._known() or self._table.metadata.snapshot_by_id(mark or 0):
            return {}
        return {self.mark: str(head)}


def _hole(tp: TopicPartition, facts: Sequence[Any]) -> Hole:
    start, until, *texts = facts
    return Hole(*tp, int(start), int(until), *map(str, texts))


def _facts_of(hole: Hole) -> list[object]:
    return [hole.from_offset, hole.until_offset, hole.reason, hole.by, hole.at]


def _seen(stored: LedgerEntry | None, advance: Advance, *, lags: bool) -> LedgerEntry | None:
    """A table's entry for the ledger rule: its position is not beyond the range's end and, if the
    table lags, not before its beginning. A hole may begin before the table's position. Its log is
    left out, because a table that is not ahead may still have to learn of it."""
    span = advance.range
    if stored is None:
        return first(span.topic_partition, span.from_offset) if lags else None
    position = max(stored.position, span.from_offset) if lags else stored.position
    if advance.lost and span.from_offset < position < span.until_offset:
        position = span.from_offset
    return first(span.topic_partition, min(position, span.until_offset))


def _parents_in(metadata: TableMetadata) -> dict[int, int]:
    """The parents that snapshots name. Expiry may remove a parent, and with it the reference."""
    return {
        s.snapshot_id: s.parent_snapshot_id
        for s in metadata.snapshots
        if s.parent_snapshot_id is not None
    }


def _ancestors(parents: _Parents, head: int | None) -> Iterator[int]:
    """The snapshots of a branch from its head back to the first one whose parent is not known."""
    while head is not None:
        yield head
        head = parents.get(head)


def holds(table: Table, snapshots: frozenset[int]) -> bool:
    """Whether the branch is seen to descend from one of these snapshots.

    Where snapshots have expired, older metadata files may still name their parents, and the files
    that they added may still be in the table.
    """
    head = table.snapshot_id
    parents = _parents_in(table.metadata)
    if not snapshots.isdisjoint(_ancestors(parents, head)) or table.added_by(snapshots):
        return True
    seen = _has(table.metadata, snapshots)
    for older in table.history():
        parents = _parents_in(older) | parents
        if not snapshots.isdisjoint(_ancestors(parents, head)):
            return True
        has = _has(older, snapshots)
        if seen and not has:
            return False  # from before them; later ones may lack them because of expiry
        seen = seen or has
    return False


def _has(metadata: TableMetadata, snapshots: frozenset[int]) -> bool:
    return not snapshots.isdisjoint(s.snapshot_id for s in metadata.snapshots)


def _position_texts(table: Table, mark: str) -> Mapping[str, str]:
    """The properties of the newest older state all of whose rows the branch still has."""
    parents = _parents_in(table.metadata)
    for older in table.history():
        parents = _parents_in(older) | parents
        ancestors = set(_ancestors(parents, table.snapshot_id))
        then = older.snapshot_by_name(table.branch)
        committed = older.properties.get(mark, "")
        if then is not None and then.snapshot_id in ancestors and committed in map(str, ancestors):
            return older.properties
    return {}


def _rolled_back(
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
    marked = table.metadata.snapshot_by_id(mark)
    if marked is None:
        same = " ".join(f"{e.topic_partition}={e.position}" for e in entries)
        return RolledBack(
            f"{begin}{at}, and the snapshots between it and {mark}, which is known to hold this "
            "connector's rows, have expired, so nobody can tell whether the table was rolled back "
            f"meanwhile. The positions remain ({stands}); nothing was written. If the table was "
            f"not rolled back, confirm them: semel offsets set FILE {same}; if it was, set them to "
            "what it holds, or read everything again: semel offsets reset FILE"
        )
    positions = [f"{e.topic_partition}={e.position}" for e in then]
    return RolledBack(
        f"{begin}{at}, which does not descend from snapshot {mark}, this connector's last commit: "
        f"it was rolled back. Rows are gone, but the positions remain ({stands}), so nothing was "
        f"written. To bring the rows back, set the branch to snapshot {mark} again. "
        + as_it_is(entries, positions)
        + (". The connector's other tables get those records again, too" if several else "")
    )
