"""A connector's positions in all of its tables, and those of topics that have no table yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from semel.core.errors import ConfigError, RolledBack, TransientError
from semel.core.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    judge,
    now,
    pending,
)
from semel.sinks.delta.ledger import DeltaLedger
from semel.sinks.delta.restores import Setback
from semel.sinks.delta.table import Table
from semel.sinks.delta.tables import Tables
from semel.sinks.lake.tables import CONFLICTS, as_it_is, positions_remain
from semel.sinks.staging import CommitConflict


class Positions:
    """The ledgers of a connector. A topic's positions are in the table that holds its rows.

    While there is no table, positions are kept in memory: no row has been written, so after a crash
    the same records are read again with the same result.
    """

    def __init__(self, connector: str, tables: Tables) -> None:
        self._connector = connector
        self._tables = tables
        self._ledgers: dict[Table, DeltaLedger] = {}
        self._uncreated: dict[TopicPartition, LedgerEntry] = {}
        self._topics: set[str] = set()
        self.runs = False
        """Whether this is the driver of a run, which keeps watch over the tables."""

    def ledger(self, table: Table) -> DeltaLedger:
        """The ledger in a table."""
        if table not in self._ledgers:
            self._ledgers[table] = DeltaLedger(table, self._connector)
        return self._ledgers[table]

    def entries(self, topics: Iterable[str]) -> list[LedgerEntry]:
        found = []
        for topic in sorted(topics):
            table = self._tables.find(topic)
            if table is None:
                found += [e for tp, e in sorted(self._uncreated.items()) if tp.topic == topic]
            elif self.runs:
                ledger = self.current(table)
                found += ledger.entries(topic)
                self._keep_mark(table, ledger)
            else:
                found += self._newest(table).entries(topic)
        return found

    def _keep_mark(self, table: Table, ledger: DeltaLedger) -> None:
        """Keep a log cleanup from removing the entries that prove that the rows are there."""
        renamed = ledger.remark()
        if renamed:
            with suppress(CommitConflict):  # the next check will do it
                table.append([], renamed)

    def check(self, topics: Iterable[str]) -> None:
        """Raises RolledBack: a table lacks what the connector has committed to it."""
        self._topics |= set(topics)
        for table in filter(None, {self._tables.find(t) for t in self._topics}):
            self.current(table)

    def current(self, table: Table) -> DeltaLedger:
        """The ledger at the table's newest version, which holds everything that the ledger claims.

        Raises:
            RolledBack: the table was restored to an older version, or replaced.
        """
        ledger = self._newest(table)
        self._check(table)
        return ledger

    def _check(self, table: Table) -> None:
        found = self.ledger(table).setback()
        if found is not None:
            topics = self._topics_of(table)
            raise restored(self._connector, table, self.ledger(table), found, topics)

    def _topics_of(self, table: Table) -> list[str]:
        return [t for t in sorted(self._topics) if self._tables.where(t) == table.where]

    def _newest(self, table: Table) -> DeltaLedger:
        """The ledger at the table's newest version, with entries from before the table existed."""
        table.renew()
        held = {
            tp: e
            for tp, e in self._uncreated.items()
            if self._tables.where(tp.topic) == table.where
        }
        if held:
            self._move(table, partial(DeltaLedger.started, entries=held.values()), checked=True)
            self._uncreated = {tp: e for tp, e in self._uncreated.items() if tp not in held}
        return self.ledger(table)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        wanted = {e.topic_partition: e for e in entries}
        self._topics |= {tp.topic for tp in wanted}
        for tp, e in wanted.items():
            if self._tables.find(tp.topic) is None:
                self._uncreated.setdefault(tp, e)
        for table, mine in self._by_table(entries):
            self._move(table, partial(DeltaLedger.started, entries=mine), checked=True)
        stored = {e.topic_partition: e.position for e in self.entries({tp.topic for tp in wanted})}
        return {tp: stored[tp] for tp in wanted if tp in stored}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries, table by table. If a table fails, those before it keep their new
        entries, and a retry finds them replaced."""
        of = {r.old.topic_partition: r for r in rebases}
        uncreated = [r for tp, r in of.items() if self._tables.find(tp.topic) is None]
        for r in pending(self._connector, self._uncreated, uncreated):
            self._uncreated[r.new.topic_partition] = r.new
        for table, mine in self._by_table([r.old for r in rebases]):
            wanted = [of[e.topic_partition] for e in mine]
            self._move(table, partial(DeltaLedger.rebased, rebases=wanted), checked=True)

    def judge(self, where: str, advances: Sequence[Advance]) -> Outcome:
        """Apply the ledger rule to the table's present state, or to what is held for it."""
        table = self._tables.at(where)
        if table is not None:
            return self.current(table).judge(advances)
        return judge(self._connector, self._uncreated, advances)

    def advance_uncreated(self, advances: Iterable[Advance]) -> None:
        """Move positions of topics that still have no table."""
        for a in advances:
            e = self._uncreated[a.range.topic_partition]
            self._uncreated[a.range.topic_partition] = e.after(a, now())

    def holes(self, topics: Iterable[str]) -> list[Hole]:
        tables = {t: self._tables.find(t) for t in sorted(topics)}
        return [h for t, table in tables.items() if table for h in self._newest(table).holes(t)]

    def set(
        self, entries: Collection[LedgerEntry], topics: Iterable[str], by: str, reason: str
    ) -> None:
        """Set positions of topics whose tables exist.

        Raises:
            ConfigError: a table was restored, and its other positions would count as correct.
        """
        self._topics |= set(topics)
        for table, mine in self._by_table(entries):
            ledger = self._newest(table)
            named = {e.topic_partition for e in mine}
            every = [e for t in self._topics_of(table) for e in ledger.entries(t)]
            others = [e for e in every if e.topic_partition not in named]
            found = ledger.setback() if others else None
            if found is not None:
                raise ConfigError(
                    f"connector {self._connector}: Delta table {table.where}: {found.said}, so "
                    "every position must be set again. Name the others too: "
                    + " ".join(f"{e.topic_partition}={e.position}" for e in others)
                )
        for table, mine in self._by_table(entries):
            self._move(table, partial(DeltaLedger.set, wanted=mine, by=by, reason=reason))

    def forget(self, topics: Collection[str], by: str) -> None:
        for topic in topics:
            table = self._tables.find(topic)
            if table is not None:
                self._move(table, partial(DeltaLedger.forget, topics=[topic], by=by))

    def _by_table(self, entries: Iterable[LedgerEntry]) -> list[tuple[Table, list[LedgerEntry]]]:
        """Entries by table; those without one are left out."""
        found: dict[Table, list[LedgerEntry]] = {}
        for e in entries:
            table = self._tables.find(e.topic)
            if table is not None:
                found.setdefault(table, []).append(e)
        return list(found.items())

    def _move(
        self,
        table: Table,
        identifiers: Callable[[DeltaLedger], Mapping[str, int]],
        *,
        checked: bool = False,
    ) -> None:
        """Commit identifiers computed from the ledger's present state."""
        ledger = self.ledger(table)
        for _ in range(CONFLICTS):
            table.renew()
            if checked:
                self._check(table)
            moved = identifiers(ledger)
            if not moved:
                return
            try:
                ledger.commit([], moved)
                return
            except CommitConflict:
                continue
        raise busy(table)


def restored(
    connector: str, table: Table, ledger: DeltaLedger, found: Setback, topics: Iterable[str]
) -> RolledBack:
    """The error for a table that lacks commits of the connector, with the ways to continue."""
    entries = [e for t in topics for e in ledger.entries(t)]
    stands = positions_remain(entries)
    then = {} if found.base is None else ledger.entries_at(found.base, topics)
    undo = (
        ""
        if found.undo is None
        else f"To bring the rows back, restore the table to version {found.undo}. "
    )
    known = [f"{tp}={at}" for tp, at in sorted(then.items())]
    return RolledBack(
        f"connector {connector}: Delta table {table.where}: {found.said}, after version "
        f"{ledger.committed}, which holds this connector's last commit. Rows may be gone, but "
        f"the positions remain ({stands}), so nothing was written. {undo}"
        + as_it_is(entries, known)
    )


def busy(table: Table) -> TransientError:
    return TransientError(
        f"Delta table {table.where}: {CONFLICTS} commits of other writers came first"
    )
