"""The tables of a connector, its positions in them, and what an audit reads of them.

Listed tables all take the same ranges: each one's ledger moves with every range, and the
connector's position is that of the table that is furthest behind. They differ only after a crash
between two tables' commits, or if a table was left out of the configuration for a while.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, RolledBack
from semel.core.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
    judge,
    pending,
)
from semel.core.quoting import named, typed
from semel.core.records import Records
from semel.sinks.base import Snapshot, StoredKeys, lacking, no_column
from semel.sinks.iceberg.catalog import check_commits
from semel.sinks.iceberg.config import Settings
from semel.sinks.iceberg.files import FileWriter
from semel.sinks.iceberg.ledger import IcebergLedger, holds
from semel.sinks.iceberg.routing import Counts, by_regex
from semel.sinks.iceberg.table import Table
from semel.sinks.iceberg.target import EVOLVES, TargetTable
from semel.sinks.lake import LetterTable, keys_in, places_in
from semel.sinks.letters import SCHEMA
from semel.sinks.rereading import below
from semel.sinks.staging import CommitConflict

TableLedger = Mapping[TopicPartition, LedgerEntry]
"""The entries of one table's ledger."""

_WIDER = {
    frozenset((pa.int32(), pa.int64())): pa.int64(),
    frozenset((pa.float32(), pa.float64())): pa.float64(),
}
"""Types that can be read as one type without changing any value."""

ReadDeadLetters = Callable[[], Mapping[str, pa.Table]]
"""Reads the places of dead letters, by topic."""


class Tables:
    """The tables that are listed. Each commit of the connector moves the ledgers of all of them."""

    lags = False
    """Whether the ledger of a table stays behind when the table gets no rows of a range."""

    def __init__(
        self, connector: ConnectorConfig, settings: Settings, catalog: Callable[[], Catalog]
    ) -> None:
        self._connector = connector
        self._settings = settings
        self._catalog = catalog
        self._targets = {t: self._target(t) for t in settings.config.tables}
        self.runs = False
        """Whether this is the driver of a run, which keeps watch over the tables."""

    def _target(self, name: str) -> TargetTable:
        return TargetTable(self._connector, self._settings, self._settings.of(name), self._catalog)

    def of(self, name: str) -> TargetTable:
        return self._targets[name]

    def all(self) -> list[TargetTable]:
        return list(self._targets.values())

    def describe(self) -> dict[str, str]:
        regexes = {t: self._settings.of(t).route for t in self._targets}
        routes = [n if r is None else f"{n} ({r.text})" for n, r in regexes.items()]
        field = self._settings.config.route_field
        tables = ", ".join(routes) + (f" by {field}" if field else "")
        return {
            "writes": f"Iceberg table {tables}",
            "ledger": f"properties of {', '.join(self._targets)}",
        }

    def prepare(self) -> None:
        """Create tables, if they may be, and check them.

        Raises:
            ConfigError: one of them cannot be written as configured.
        """
        for target in self.all():
            target.prepare()
        self.check_commits()
        self.schema()
        for target in self.all():
            target.keep_mark()

    def check_commits(self) -> None:
        """Raises ConfigError: the catalog may accept a commit that is based on an older state."""
        self._check_commits(self.all()[0])

    def _check_commits(self, target: TargetTable) -> None:
        if target.find() is not None:
            check_commits(self._catalog(), target.name)

    def schema(self) -> pa.Schema | None:
        """The columns of all tables together that values fill, if each table has columns."""
        if not all(t.fields() for t in self.all()):
            return None
        columns = [t.read_from_values() for t in self.all()]
        return pa.schema(columns[0]) if not self._settings.config.several else self._union(columns)

    def lacking(self, topic: str, fields: Collection[str]) -> list[str]:
        """See :meth:`semel.sinks.base.Sink.lacking`: the fields that none of the tables has."""
        config = self._settings.config
        takes_all = config.auto_evolve or (config.dynamic and config.auto_create)
        if takes_all or not self.all() or not all(t.fields() for t in self.all()):
            return []
        routing = config.route_field.split(".")[:1]
        tables = [t.table for t in self.all()]

        def renew() -> None:
            for table in tables:
                table.renew()

        taken = [f for f in fields if config.takes(topic, f) and f not in routing]
        return lacking(taken, lambda: _names(tables), renew)

    def no_column(self, topic: str, field: str) -> str:
        """See :meth:`semel.sinks.base.Sink.no_column`."""
        names = " or ".join(named(t.name) for t in self.all()) or "of any name"
        return no_column(f"Iceberg table {names}", topic, field, grow=EVOLVES)

    def _union(self, columns: Sequence[Sequence[pa.Field]]) -> pa.Schema:
        kinds: dict[str, pa.DataType] = {}
        for f in itertools.chain.from_iterable(columns):
            kind = kinds.setdefault(f.name, f.type)
            common = f.type if f.type == kind else _WIDER.get(frozenset((kind, f.type)))
            if common is None:
                raise ConfigError(
                    f"connector {self._connector.name}: iceberg.tables={','.join(self._targets)} "
                    f"have a column with the same name but different types ({named(f.name)}: "
                    f"{typed(kind)} and {typed(f.type)}). Run a connector for each"
                )
            kinds[f.name] = common
        return self._with_route(pa.schema(list(kinds.items())))

    def _with_route(self, whole: pa.Schema) -> pa.Schema:
        field = self._settings.config.route_field
        if not field or "." in field or field in whole.names:
            return whole
        return whole.append(pa.field(field, pa.string()))

    def routed(self, records: Records) -> tuple[list[tuple[TargetTable, Records]], Counts]:
        """The records of each table that gets some, and the number that go nowhere."""
        field = self._settings.config.route_field
        if not field:
            return [(target, records) for target in self.all()], Counts()
        routes = {t: self._settings.of(t).route for t in self._targets}
        parts, nowhere = by_regex(field, routes, records)
        return [(self._targets[name], part) for name, part in parts], nowhere

    # The ledgers

    def _ledgers(self, *, newest: bool = True) -> list[TableLedger]:
        """The entries of all tables' ledgers; nothing if a table is missing."""
        if any(t.find() is None for t in self.all()):
            return []
        return [t.entries(newest=newest) for t in self.all()]

    def entries(self) -> list[LedgerEntry]:
        ledgers = self._ledgers()
        if self.runs and ledgers:
            for target in self.all():
                target.keep_mark()
        return together(ledgers)

    def known_topics(self) -> set[str]:
        """The topics that any of the tables knows. A table that is new to the connector knows
        none."""
        return {tp.topic for ledger in self._ledgers() for tp in ledger}

    def uneven(self, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        ledgers = self._ledgers(newest=False)
        return ahead(together(ledgers), ledgers, among)

    def start(self, entries: Collection[LedgerEntry]) -> None:
        """Enter first entries; a table that is new to the connector starts where others are."""
        ledgers = self._ledgers()
        first = []
        for e in entries:
            tp = e.topic_partition
            at = min((s[tp].position for s in ledgers if tp in s), default=e.position)
            first.append(replace(e, position=at, start_position=at))
        for target in self.all():
            target.move(partial(target.ledger.started, first))

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries that have been checked.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.pending`.
        """
        if not self._settings.config.several:
            (target,) = self.all()
            target.move(partial(target.ledger.rebased, rebases))
            return
        todo = pending(
            self._connector.name, {e.topic_partition: e for e in self.entries()}, rebases
        )
        for target in self.all():
            target.move(partial(target.ledger.learned, todo))

    def check_rebases(self, rebases: Sequence[Rebase]) -> None:
        """Raises ConfigError: several tables would have to go back together. Some may be ahead of
        the position."""
        if not self._settings.config.several:
            return
        ledgers = [target.entries() for target in self.all()]
        for r in rebases:
            tp = r.old.topic_partition
            highest = max([r.old.position, *(s[tp].position for s in ledgers if tp in s)])
            if r.renews and highest > r.new.position:
                reason = r.hole.reason if r.hole is not None else "the log has changed"
                raise ConfigError(
                    f"connector {self._connector.name}: {tp} must go back from offset {highest} to "
                    f"{r.new.position} ({reason}), and several tables cannot do that in one "
                    "commit: after a crash in between, one would mistake the new records for "
                    "those that it has. Set it while the connector is stopped, and again if that "
                    f"is interrupted: semel offsets set FILE {tp}={r.new.position}"
                )

    def judge(self, advances: Sequence[Advance]) -> Outcome:
        """Read the newest states, and apply the ledger rule to the connector's positions there.

        Raises:
            LedgerConflict: see :func:`semel.core.ledger.judge`.
        """
        return self._judged(self.entries(), advances)

    def _judged(self, at: Iterable[LedgerEntry], advances: Sequence[Advance]) -> Outcome:
        if not advances:
            return Outcome.APPLIED
        return judge(self._connector.name, {e.topic_partition: e for e in at}, advances)

    def touched(self, _filled: Collection[str]) -> list[TargetTable]:
        """The tables that a commit with rows for these tables moves, at their newest states."""
        return self.all()

    def settle(self, advances: Sequence[Advance]) -> None:
        """Note that all tables hold the ranges.

        Raises:
            CommitConflict, LedgerConflict: another run of the connector is at work.
        """

    def holes(self) -> list[Hole]:
        """The holes of all tables, each once."""
        holes = [h for t in self.all() if t.find() is not None for h in t.ledger.holes()]
        return list(dict.fromkeys(holes))

    def set(self, entries: Collection[LedgerEntry] | None, by: str, reason: str) -> None:
        """Set positions by hand, or forget them."""
        for target in self.all():
            if entries is not None:
                target.check_set(list(entries))
        for target in self.all():
            if entries is not None:
                target.move(partial(target.ledger.set, entries, by, reason), checked=False)
            elif target.find() is not None:
                target.move(partial(target.ledger.forgotten, by), forget=True, checked=False)

    def snapshots(self, topics: Collection[str], dead: ReadDeadLetters) -> list[Snapshot]:
        """The snapshot of each table. Letters are read after their table: they are committed before
        the positions that count them."""
        snapshots = []
        for target in self.all():
            table = target.reload()
            if table is None:
                raise target.missing()
            config = target.keyed()
            keys = config.pk_fields if config.upsert else ()
            snapshots.append(take_snapshot(self._connector, topics, table, dead(), keys))
        return snapshots


def _names(tables: Collection[Table]) -> set[str]:
    return {name for table in tables for name in table.columns.names}


def together(ledgers: Sequence[TableLedger]) -> list[LedgerEntry]:
    """One entry for each topic-partition that all tables know; it counts the rows of all tables."""
    if not ledgers:
        return []
    entries = []
    for tp in sorted(frozenset.intersection(*(frozenset(s) for s in ledgers))):
        least = min((s[tp] for s in ledgers), key=lambda e: e.position)
        entries.append(replace(least, rows_written=sum(s[tp].rows_written for s in ledgers)))
    return entries


def ahead(
    at: Sequence[LedgerEntry], ledgers: Sequence[TableLedger], among: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The topic-partitions for which the same tables are ahead, each with their lowest position."""
    which: dict[TopicPartition, frozenset[int]] = {}
    limits: dict[TopicPartition, int] = {}
    partitions = frozenset(among)
    for entry in at:
        tp = entry.topic_partition
        if tp not in partitions:
            continue
        further = {n: s[tp].position for n, s in enumerate(ledgers) if tp in s}
        further = {n: position for n, position in further.items() if position > entry.position}
        if further:
            which[tp], limits[tp] = frozenset(further), min(further.values())
    first = next(iter(which.values()), None)
    return {tp: limits[tp] for tp, tables in which.items() if tables == first}


class DeadLetterTable(LetterTable[Table]):
    """The dead letters in a table of their own."""

    def __init__(self, catalog: Callable[[], Catalog], name: str, connector: str) -> None:
        super().__init__(name, connector)
        self._catalog = catalog

    def _open(self) -> Table | None:
        return Table.open(self._catalog(), self._where)

    def _create(self) -> Table:
        Table.create(self._catalog(), self._where, {})
        table = self._open()
        assert table is not None
        return table

    @property
    def _mark(self) -> str:
        return f"semel-snapshot:{self._connector}"

    def _check(self, table: Table) -> None:
        mark = table.metadata.properties.get(self._mark)
        if mark is None or holds(table, frozenset({int(mark)})):
            return
        raise RolledBack(
            f"connector {self._connector}: Iceberg table {self._where}, which holds dead letters, "
            f"does not descend from snapshot {mark}, this connector's last commit there, as far as "
            "its snapshots tell: it was rolled back. To bring the letters back, set it to that "
            "snapshot again. To continue without them, confirm the connector's positions: semel "
            "offsets show FILE, then semel offsets set FILE TOPIC-PARTITION=OFFSET for each"
        )

    def _behind(self, table: Table, name: str) -> int | None:
        text = table.metadata.properties.get(name)
        return None if text is None else int(text)

    def _commit(self, table: Table, letters: pa.Table | None, behind: Mapping[str, int]) -> None:
        if not table.columns.names:
            table.define(list(SCHEMA))
        writer = FileWriter(table, "semel-dead-letters-")
        try:
            if letters is not None:
                writer.write(letters.select(table.columns.names).cast(table.columns))
            files = [f.data_file() for f in writer.finish()]
            table.commit(files, {n: str(at) for n, at in behind.items()}, mark=self._mark)
        except CommitConflict:
            writer.discard()
            raise


# For the audit


def take_snapshot(
    connector: ConnectorConfig,
    topics: Collection[str],
    table: Table,
    dead: Mapping[str, pa.Table],
    key_fields: Sequence[str] = (),
) -> Snapshot:
    """Read ledger and results of one state of the table; also the keys of its rows, if
    ``key_fields`` names them and there is no provenance."""
    ledger = IcebergLedger(table, connector.name)
    records: dict[str, pa.Table] = {}
    untraced = 0
    keys: dict[str, StoredKeys] = {}
    if table.columns.names and connector.provenance_columns:
        records, untraced = places_in(connector, table, topics, partial(_lacks, table))
    elif table.columns.names and key_fields:
        keys = dict.fromkeys(topics, keys_in(table, key_fields))
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        {table.where: table.count()},
        {table.where: untraced},
        dict.fromkeys(topics, table.where),
        dead,
        elsewhere=ledger.elsewhere(),
        keys=keys,
    )


def gathered_snapshot(
    connector: ConnectorConfig,
    topics: Collection[str],
    home: Table,
    tables: Sequence[Table],
    dead: Mapping[str, pa.Table],
) -> Snapshot:
    """The ledger of ``home``, and the rows of all tables as if they were one table."""
    at = take_snapshot(connector, topics, home, dead)
    parts = [take_snapshot(connector, topics, table, {}) for table in tables]
    name = f"the tables of {home.where}"
    # A table may hold more than home by now: such rows are not judged yet.
    ends = {e.topic_partition: e.position for e in at.entries}
    records = {t: [below(p.records[t], t, ends) for p in parts if t in p.records] for t in topics}
    # Each table is judged by its own ledger, which moves with its rows.
    written = sum(e.rows_written for e in at.entries)
    written -= sum(e.rows_written for p in parts for e in p.entries)
    return Snapshot(
        at.entries,
        at.holes,
        {t: pa.concat_tables(pieces) for t, pieces in records.items() if pieces},
        {name: written + sum(n for p in parts for n in p.rows.values())},
        {name: sum(n for p in parts for n in p.untraced.values())},
        dict.fromkeys(topics, name),
        dead,
    )


def _lacks(table: Table, column: str) -> str:
    return (
        f"provenance=true, but Iceberg table {table.where} has no column {named(column)}. Add it, "
        "or audit with provenance=false, by counts"
    )
