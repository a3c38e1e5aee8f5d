"""The tables of a connector: they are found, checked, created and extended, and read for an audit;
and its positions in them, or in memory where a topic has no table yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from semel.config import ConnectorConfig
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
from semel.core.patterns import Pattern
from semel.core.quoting import all_named, named
from semel.core.records import Records
from semel.sinks.base import (
    EVOLVES_OR_EXCLUDES,
    Snapshot,
    StoredKeys,
    lacking,
    no_column,
    no_columns_yet,
)
from semel.sinks.convert import to_read
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.files import FileWriter
from semel.sinks.delta.ledger import DeltaLedger, Setback
from semel.sinks.delta.store import translated
from semel.sinks.delta.table import COMMENT, Table, column_type, names_no_feature, partitions
from semel.sinks.lake import (
    CONFLICTS,
    LetterTable,
    as_it_is,
    keys_in,
    lacked,
    places_in,
    positions_remain,
    same_but_for_case,
)
from semel.sinks.layout import layout, not_from_values
from semel.sinks.letters import SCHEMA
from semel.sinks.staging import CommitConflict


class Tables:
    """Keeps each table that was opened."""

    def __init__(
        self, connector: ConnectorConfig, config: DeltaConfig, options: Mapping[str, str]
    ) -> None:
        self._connector = connector
        self._config = config
        self._options = options
        self._open: dict[str, Table] = {}

    def where(self, topic: str) -> str:
        """The URL or directory of a topic's table."""
        return self._config.location(self._config.table(topic))

    def find(self, topic: str) -> Table | None:
        return self.at(self.where(topic))

    def at(self, where: str) -> Table | None:
        """The table at a place, if there is one."""
        if where not in self._open:
            table = Table.open(where, self._options)
            if table is None:
                return None
            self._open[where] = table
        return self._open[where]

    def reload(self, topic: str) -> Table | None:
        """A fresh copy of the topic's table, at its newest version."""
        return Table.open(self.where(topic), self._options)

    def check(self, topic: str) -> None:
        """Raises ConfigError: the topic's table cannot be written as configured."""
        table = self.find(topic)
        if table is None:
            if not self._config.auto_create:
                raise self.missing(topic)
            if self._connector.offset_reset == "latest":
                raise ConfigError(
                    f"connector {self._connector.name}: auto.offset.reset=latest needs a table "
                    f"that keeps the first positions, but there is none at {self.where(topic)} for "
                    f"topic {named(topic)}: records that come before its first row would be "
                    "skipped after a crash. Create it, or set auto.offset.reset=earliest"
                )
            return
        upserts = self._config.insert_mode == "upsert"
        why = table.refusal(merges=upserts)
        if why is not None:
            raise ConfigError(
                f"connector {self._connector.name}: table {table.where} of topic {named(topic)} "
                f"{why}"
            )
        key = self._config.pk_fields if upserts else ()
        missing = [n for n in key if n not in table.columns.names]
        if missing and not self._config.auto_evolve:
            raise ConfigError(
                f"connector {self._connector.name}: pk.fields={','.join(key)}: table "
                f"{table.where} (topic {named(topic)}) has no column {named(missing[0])}; it has "
                f"{all_named(table.columns.names)}"
            )

    def missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: there is no Delta table at {self.where(topic)} "
            f"for topic {named(topic)}. Create it, or set auto.create=true; "
            f"table.name.format={self._config.table_name_format!r} names it"
        )

    def schema(self, topic: str) -> pa.Schema | None:
        """The fields of values that the topic's table takes."""
        table = self.find(topic)
        if table is None:
            return None
        skip = {*self._connector.provenance_columns.values(), *not_from_values(self._config)}
        taken = self._config.takes
        fields = [f for f in table.columns if f.name not in skip and taken(topic, f.name)]
        return pa.schema([to_read(f, COMMENT) for f in fields])

    def lacking(self, topic: str, fields: Collection[str]) -> list[str]:
        """See :meth:`semel.sinks.base.Sink.lacking`."""
        table = None if self._config.auto_evolve else self.find(topic)
        if table is None:
            return []
        taken = [f for f in fields if self._config.takes(topic, f)]
        return lacking(taken, lambda: table.columns.names, table.renew)

    def no_column(self, topic: str, field: str) -> str:
        """See :meth:`semel.sinks.base.Sink.no_column`."""
        return no_column(f"table {self.where(topic)}", topic, field, **EVOLVES_OR_EXCLUDES)

    def target(self, records: Records) -> Table:
        """The topic's table, created or extended for records like these if it may be.

        Raises:
            ConfigError: it may not.
            RowsRejected: no field of theirs has a type yet.
        """
        topic = records.topic
        provenance = self._connector.provenance_columns
        arranged = layout(self._config, provenance, records, deletes=False)
        fields = arranged.fields()
        table = self.find(topic)
        if table is None:
            if not self._config.auto_create:
                raise self.missing(topic)
            if not fields and records.rows.num_rows:
                raise no_columns_yet(records.rows)
            table = self._create(topic, fields, arranged.key)
        if lacked(table, fields):
            table.renew()
        new = lacked(table, fields)
        if new:
            # If the table was created just now, a crash may have left these columns out.
            unfinished = self._config.auto_create and all(names_no_feature(f.type) for f in new)
            if not self._config.auto_evolve and not (unfinished and table.version < 2):
                what = self.no_column(topic, new[0].name)
                raise ConfigError(f"connector {self._connector.name}: {what}")
            self._check_case(topic, [*table.columns.names, *(f.name for f in new)])
            table.add_columns(new)
        return table

    def _check_case(self, topic: str, names: Sequence[str]) -> None:
        """Delta does not distinguish names that differ only in case."""
        same = same_but_for_case(names)
        if same is not None:
            raise ConfigError(
                f"connector {self._connector.name}: fields {named(same[0])} and {named(same[1])} "
                f"of topic {named(topic)} are one column to Delta. Leave one out with "
                "field.exclude.list"
            )

    def _create(self, topic: str, fields: Sequence[pa.Field], key: Sequence[str]) -> Table:
        by = self._config.partition_by
        names = [f.name for f in fields]
        missing = [n for n in by if n not in names]
        if missing:
            raise ConfigError(
                f"connector {self._connector.name}: partition.by={','.join(by)}: records of topic "
                f"{named(topic)} have no field {named(missing[0])}; they have {all_named(names)}"
            )
        if set(names) <= set(by):
            raise ConfigError(
                f"connector {self._connector.name}: partition.by={','.join(by)}: records of topic "
                f"{named(topic)} have no other field, and a data file has only the others. "
                "Partition by fewer, or set provenance=true"
            )
        unfit = [f for f in fields if f.name in by and not partitions(column_type(f.type))]
        if unfit:
            raise ConfigError(
                f"connector {self._connector.name}: partition.by={','.join(by)}: column "
                f"{named(unfit[0].name)} of topic {named(topic)} is of type "
                f"{column_type(unfit[0].type)}, which has no text in Delta's log. Partition by a "
                "number, a date or text, or by nothing"
            )
        self._check_case(topic, names)
        where = self.where(topic)
        table = self._open[where] = Table.create(where, self._options, fields, by, key)
        self.check(topic)
        return table


class DeadLetterTable(LetterTable[Table]):
    """The dead letters in a table of their own."""

    def __init__(self, where: str, options: Mapping[str, str], connector: str, codec: str) -> None:
        super().__init__(where, connector)
        self._options = options
        self._codec = codec
        self._kept: DeltaLedger | None = None

    def _open(self) -> Table | None:
        return Table.open(self._where, self._options)

    def _create(self) -> Table:
        return Table.create(self._where, self._options, list(SCHEMA))

    def _ledger(self, table: Table) -> DeltaLedger:
        if self._kept is None:
            self._kept = DeltaLedger(table, self._connector)
        return self._kept

    def _check(self, table: Table) -> None:
        ledger = self._ledger(table)
        setback = ledger.setback()
        if setback is None:
            return
        raise RolledBack(
            f"connector {self._connector}: Delta table {self._where}, which holds dead letters: "
            f"{setback.said}, after version {ledger.committed}, which holds this connector's last "
            f"commit there. {setback.undone('letters')}To continue without them, confirm the "
            "connector's positions: semel offsets show FILE, then semel offsets set FILE "
            "TOPIC-PARTITION=OFFSET for each"
        )

    def _behind(self, table: Table, name: str) -> int | None:
        return table.transaction(name)

    def _commit(self, table: Table, letters: pa.Table | None, behind: Mapping[str, int]) -> None:
        writer = FileWriter(table, "", "semel-dead-letters-", 1 << 62, self._codec)
        if letters is not None:
            writer.write(letters)
        # If an answer is lost, delta-rs sends the request again and conflicts with itself: the file
        # may be part of the table. Otherwise it is garbage.
        self._ledger(table).commit([f.action() for f in writer.finish()], behind)


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
        entries = []
        for topic in sorted(topics):
            table = self._tables.find(topic)
            if table is None:
                entries += [e for tp, e in sorted(self._uncreated.items()) if tp.topic == topic]
            elif self.runs:
                ledger = self.current(table)
                entries += ledger.entries(topic)
                self._keep_mark(table, ledger)
            else:
                entries += self._newest(table).entries(topic)
        return entries

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
        setback = self.ledger(table).setback()
        if setback is not None:
            topics = self._topics_of(table)
            raise restored(self._connector, table, self.ledger(table), setback, topics)

    def _topics_of(self, table: Table) -> list[str]:
        return [t for t in sorted(self._topics) if self._tables.where(t) == table.where]

    def _newest(self, table: Table) -> DeltaLedger:
        """The ledger at the table's newest version, with entries from before the table existed."""
        table.renew()
        uncreated = {
            tp: e
            for tp, e in self._uncreated.items()
            if self._tables.where(tp.topic) == table.where
        }
        if uncreated:
            self._move(
                table, partial(DeltaLedger.started, entries=uncreated.values()), checked=True
            )
            self._uncreated = {tp: e for tp, e in self._uncreated.items() if tp not in uncreated}
        return self.ledger(table)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        by_partition = {e.topic_partition: e for e in entries}
        self._topics |= {tp.topic for tp in by_partition}
        for tp, e in by_partition.items():
            if self._tables.find(tp.topic) is None:
                self._uncreated.setdefault(tp, e)
        for table, table_entries in self._by_table(entries):
            self._move(table, partial(DeltaLedger.started, entries=table_entries), checked=True)
        stored = {
            e.topic_partition: e.position for e in self.entries({tp.topic for tp in by_partition})
        }
        return {tp: stored[tp] for tp in by_partition if tp in stored}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        """Replace entries, table by table. If a table fails, those before it keep their new
        entries, and a retry finds them replaced."""
        of = {r.old.topic_partition: r for r in rebases}
        uncreated = [r for tp, r in of.items() if self._tables.find(tp.topic) is None]
        for r in pending(self._connector, self._uncreated, uncreated):
            self._uncreated[r.new.topic_partition] = r.new
        for table, table_entries in self._by_table([r.old for r in rebases]):
            table_rebases = [of[e.topic_partition] for e in table_entries]
            self._move(table, partial(DeltaLedger.rebased, rebases=table_rebases), checked=True)

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
        for table, table_entries in self._by_table(entries):
            ledger = self._newest(table)
            named = {e.topic_partition for e in table_entries}
            every = [e for t in self._topics_of(table) for e in ledger.entries(t)]
            others = [e for e in every if e.topic_partition not in named]
            setback = ledger.setback() if others else None
            if setback is not None:
                raise ConfigError(
                    f"connector {self._connector}: Delta table {table.where}: {setback.said}, so "
                    "every position must be set again. Name the others too: "
                    + " ".join(f"{e.topic_partition}={e.position}" for e in others)
                )
        for table, table_entries in self._by_table(entries):
            self._move(table, partial(DeltaLedger.set, entries=table_entries, by=by, reason=reason))

    def forget(self, topics: Collection[str], by: str) -> None:
        for topic in topics:
            table = self._tables.find(topic)
            if table is not None:
                self._move(table, partial(DeltaLedger.forget, topics=[topic], by=by))

    def _by_table(self, entries: Iterable[LedgerEntry]) -> list[tuple[Table, list[LedgerEntry]]]:
        """Entries by table; those without one are left out."""
        by_table: dict[Table, list[LedgerEntry]] = {}
        for e in entries:
            table = self._tables.find(e.topic)
            if table is not None:
                by_table.setdefault(table, []).append(e)
        return list(by_table.items())

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
    connector: str, table: Table, ledger: DeltaLedger, setback: Setback, topics: Iterable[str]
) -> RolledBack:
    """The error for a table that lacks commits of the connector, with the ways to continue."""
    entries = [e for t in topics for e in ledger.entries(t)]
    stands = positions_remain(entries)
    then = {} if setback.base is None else ledger.entries_at(setback.base, topics)
    positions = [f"{tp}={at}" for tp, at in sorted(then.items())]
    return RolledBack(
        f"connector {connector}: Delta table {table.where}: {setback.said}, after version "
        f"{ledger.committed}, which holds this connector's last commit. Rows may be gone, but "
        f"the positions remain ({stands}), so nothing was written. {setback.undone('rows')}"
        + as_it_is(entries, positions)
    )


def busy(table: Table) -> TransientError:
    return TransientError(
        f"Delta table {table.where}: {CONFLICTS} commits of other writers came first"
    )


# For the audit


def take_snapshot(
    connector: ConnectorConfig,
    names: Mapping[str, str],
    tables: Mapping[str, Table | None],
    dead: Mapping[str, pa.Table],
    key_fields: Sequence[str] | None,
) -> Snapshot:
    """Read ledger and results. Each table is read at one version; a topic's positions are in the
    table that holds its rows. Rows are read only for the topics in ``names``.

    Unless ``key_fields`` is None, the keys of the rows are read if there is no provenance.
    """
    entries: list[LedgerEntry] = []
    holes: list[Hole] = []
    records: dict[str, pa.Table] = {}
    rows: dict[str, int] = {}
    untraced: dict[str, int] = {}
    keys: dict[str, StoredKeys] = {}
    unjudged: dict[str, str] = {}
    for topic, table in tables.items():
        if table is None:
            continue
        ledger = DeltaLedger(table, connector.name)
        entries += ledger.entries(topic)
        holes += ledger.holes(topic)
        if topic not in names:
            continue
        rows[names[topic]], untraced[names[topic]] = table.count(), 0
        if connector.provenance_columns:
            places, untraced[names[topic]] = places_in(
                connector, table, [topic], partial(_lacks, table)
            )
            records |= places
        elif key_fields:
            keys[topic] = keys_in(table, key_fields)
        elif key_fields is not None:
            unjudged[topic] = "pk.fields does not name them; set provenance=true"
    return Snapshot(
        entries,
        holes,
        records,
        rows,
        untraced,
        dict(names),
        dead,
        keys=keys,
        unjudged=unjudged,
    )


def _lacks(table: Table, column: str) -> str:
    return (
        f"table {table.where} has no column {named(column)}, which provenance=true asks for: was "
        "that set after the table was made? Run the connector with auto.evolve=true, add the "
        "column, or audit by counts with provenance=false"
    )


def topics_of_tables(
    config: DeltaConfig, options: Mapping[str, str], pattern: Pattern
) -> Iterator[str]:
    """The topics whose tables exist, by the tables' names."""
    mapped = [pair.split(":", maxsplit=1)[0] for pair in config.table_mapping]
    yield from filter(pattern.fullmatch, mapped)
    parent, _, last = config.table_name_format.rpartition("/")
    root = config.location(parent).rstrip("/")
    name = re.compile("(?P<topic>.+)".join(map(re.escape, last.split("${topic}", 1))))
    with translated(root):
        store = fs.PyFileSystem(DeltaStorageHandler(root, dict(options)))
        listed = store.get_file_info(fs.FileSelector("", recursive=False, allow_not_found=True))
    for entry in listed:
        match = name.fullmatch(entry.base_name)
        if match and pattern.fullmatch(match["topic"]):
            yield match["topic"]
