"""The sink for SQL databases: rows and positions in one transaction of the database that holds the
rows. How the databases differ stands in their dialects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar

import pyarrow as pa

from semel import failpoints
from semel.config import ConnectorConfig, read
from semel.delivery import Mechanism, Support
from semel.errors import ConfigError, ServiceError, TargetChanged, TransientError
from semel.ledger import Advance, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.problems import together
from semel.records import Commit, Records, RowsRejected
from semel.sinks.base import Sink, Snapshot
from semel.sinks.jdbc import IGNORED, JdbcConfig, check_key, upgrade_refused
from semel.sinks.layout import KAFKA_KEY, Layout, check_provenance, keys_of, layout
from semel.sinks.sql import dead_letters, snapshot
from semel.sinks.sql.columns import Table
from semel.sinks.sql.dialect import DataRefused, Dialect, SchemaChanged
from semel.sinks.sql.ledger import OFFSETS, SqlLedger
from semel.sinks.sql.names import Name, check_apart, check_letters, parse_name
from semel.sinks.sql.prepare import Prepared, prepare
from semel.sinks.sql.refusals import find_refused
from semel.sinks.sql.writer import write
from semel.targets import Target


class SqlSink(Sink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/databases.md."""

    ignored = IGNORED
    section: ClassVar[type[JdbcConfig]]
    dialect_class: ClassVar[type[Dialect]]

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._config: JdbcConfig = read(self.section, raw)
        mine = f"connector {connector.name}"
        self._dialect: Dialect
        self._dialect, *_ = together(
            lambda: self.dialect_class(self._config, connector.name),
            lambda: check_key(connector, self._config),
            lambda: check_letters(connector),
            lambda: check_provenance(self._config, connector.provenance_columns, mine),
        )
        together(*(partial(self._name, topic) for topic in connector.topics))
        self._dialect.timeout = connector.store_timeout_ms / 1000
        self._ledger = SqlLedger(self._dialect, connector.name)
        self._tables: dict[str, Table] = {}
        self._unmade: set[str] = set()

    @property
    def uses_key(self) -> bool:
        return self._config.pk_mode == "record_key"

    @property
    def key_metadata(self) -> frozenset[str]:
        if self._config.pk_mode == "kafka":
            return frozenset(KAFKA_KEY)
        return super().key_metadata

    @property
    def takes_tombstones(self) -> bool:
        return self._config.delete_enabled

    @property
    def replaces(self) -> bool:
        return self._config.mode != "insert" or self._config.delete_enabled

    @property
    def only_updates(self) -> bool:
        return self._config.mode == "update"

    @property
    def evolves(self) -> bool:
        return self._config.evolves

    def describe(self) -> dict[str, str]:
        where = self._dialect.where
        return {
            "writes": f"table {self._config.table_name_format} in {where} ({self._config.mode})",
            "ledger": f"table {OFFSETS} in {where}",
        }

    def support(self) -> Mapping[Mechanism, Support]:
        mode, system = self._config.mode, self._dialect.system
        keyed = mode != "insert"
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                f"rows and positions are committed in one {system} transaction, under a "
                "compare-and-set on the old position",
            ),
            Mechanism.IDEMPOTENT: Support(
                keyed,
                f"insert.mode={mode} by key writes the same rows again on a replay; positions "
                "follow in a transaction of their own"
                if keyed
                else "insert.mode=insert would insert the rows of a replay twice. Set "
                "insert.mode=upsert and pk.mode, or delivery.mechanism=transactional",
            ),
        }

    def prepare(self, topics: Collection[str]) -> None:
        self._open_ledger()
        if self._connector.dead_letter_table:
            with self._dialect.transaction():
                dead_letters.create(self._dialect, self._connector.dead_letter_table)
        for topic in topics:
            table = self._look_up(topic)
            if table is None and not self._config.creates:
                raise self._missing(topic)
            if table is not None:
                self._check_key(table, self._declared_key(), topic)

    def _open_ledger(self) -> None:
        try:
            with self._dialect.transaction():
                self._ledger.create()
        except ServiceError as error:
            if not self._ledger.upgrade:
                raise
            raise upgrade_refused(
                self._connector.name, str(OFFSETS), self._ledger.upgrade, error
            ) from None

    def _name(self, topic: str) -> Name:
        name = parse_name(self._config.table(topic), fold=self._config.folds_names)
        if name.schema and not self._dialect.has_schemas:
            raise ConfigError(
                f"connector {self._connector.name}: table {name} for topic {topic}: "
                f"{self._dialect.system} has no schemas. Where the dot belongs to the name, quote "
                'it: table.name.format="${topic}"'
            )
        check_apart(self._connector, topic, name, fold=True)
        return name

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: table {self._name(topic)} for topic {topic} does "
            f"not exist in {self._dialect.where}. Create it, or set auto.create=true; "
            f"table.name.format={self._config.table_name_format!r} names it"
        )

    def _declared_key(self) -> list[str]:
        fold = str.lower if self._config.folds_names else str
        if self._config.pk_mode == "kafka" and not self._config.pk_fields:
            return [fold(n) for n in KAFKA_KEY]
        return [fold(f) for f in self._config.pk_fields]

    def _check_key(self, table: Table, key: list[str], topic: str) -> None:
        where = f"connector {self._connector.name}: pk.fields={','.join(key)}: table {table.name}"
        missing = [n for n in key if n not in table.columns]
        if missing and not self._config.evolves:
            raise ConfigError(
                f"{where} (topic {topic}) has no column {missing[0]}; it has "
                f"{', '.join(table.columns)}"
            )
        generated = [n for n in key if n in table.columns and table.columns[n].generated]
        if generated:
            raise ConfigError(
                f"{where} computes column {generated[0]} itself, so it cannot take a key"
            )
        self._dialect.check_key(table, key)
        if key and self._config.mode == "upsert" and frozenset(key) not in table.keys:
            found = "; ".join(", ".join(sorted(k)) for k in table.keys) or "none"
            raise ConfigError(
                f"connector {self._connector.name}: insert.mode=upsert needs a primary key or "
                f"unique index on ({', '.join(key)}) of table {table.name}; its unique keys: "
                f"{found}. Add one, or set pk.fields to an existing one"
            )

    def entries(self) -> list[LedgerEntry]:
        with self._dialect.transaction(reading=True):
            return self._ledger.entries()

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        try:
            with self._dialect.transaction():
                return self._ledger.start(entries)
        except DataRefused as error:  # another task has entered one meanwhile
            raise TransientError(str(error)) from None

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        with self._dialect.transaction():
            self._ledger.rebase(rebases)

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        found = {topic: self._look_up(topic) for topic in topics}
        return {topic: Target(str(t.name)) if t else None for topic, t in found.items()}

    def schema(self, topic: str) -> pa.Schema | None:
        if self._config.folds_names:
            return None  # the values' own names, in upper and lower case, are unknown
        table = self._find(topic)
        if table is None:
            self._unmade.add(topic)
            return None
        self._unmade.discard(topic)
        skip = set(self._connector.provenance_columns.values())
        return pa.schema(
            [
                (n, c.arrow)
                for n, c in table.writable.items()
                if n not in skip and self._config.takes(topic, n)
            ]
        )

    def _find(self, topic: str) -> Table | None:
        if topic not in self._tables:
            table = self._look_up(topic)
            if table is None:
                return None
            self._tables[topic] = table
        return self._tables[topic]

    def _look_up(self, topic: str) -> Table | None:
        name = self._name(topic)
        with self._dialect.transaction(reading=True):
            return self._dialect.find(name)

    def accommodate(self, records: Records) -> None:
        self._target(records.topic, self._layout(records))

    # Committing

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        return self._transact(commit, lambda: self._ledger.advance(advances))

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        if guard is None:
            return self._transact(commit, lambda: Outcome.APPLIED)
        return self._transact(commit, lambda: self._ledger.guard(guard))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        with self._dialect.transaction():
            return self._ledger.advance(advances)

    def _transact(self, commit: Commit, judge: Callable[[], Outcome]) -> Outcome:
        """Judge and write in one transaction; again if a table is not what it was."""
        while True:
            prepared: list[Prepared] = []
            try:
                prepared = [self._prepare(r) for r in commit.records if r.count]
                return self._write(judge, prepared, commit)
            except DataRefused as error:
                rejected = find_refused(self._dialect, prepared)
                if self._altered(commit):
                    continue
                if rejected:
                    raise RowsRejected(rejected) from None
                # Nothing refused any more: another writer's rows came and went.
                raise TransientError(str(error)) from None
            except (SchemaChanged, RowsRejected):
                if not self._altered(commit):
                    raise

    def _altered(self, commit: Commit) -> bool:
        """Whether somebody has altered a table since it was looked up; looks again."""
        known = {r.topic: self._tables.get(r.topic) for r in commit.records if r.count}
        self._tables.clear()
        return any(self._find(topic) != table for topic, table in known.items())

    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[Prepared], commit: Commit
    ) -> Outcome:
        with self._dialect.transaction():
            outcome = judge()
            failpoints.hit("sink.after_positions")
            if outcome is Outcome.APPLIED:
                for batch in prepared:
                    write(self._dialect, batch)
                if commit.dead_letters and self._connector.dead_letter_table:
                    dead_letters.insert(
                        self._dialect,
                        self._connector.dead_letter_table,
                        self._connector.name,
                        commit.dead_letters,
                    )
            failpoints.hit("sink.before_commit")
        failpoints.hit("sink.after_commit")
        return outcome

    def _prepare(self, records: Records) -> Prepared:
        arranged = self._layout(records)
        table = self._target(records.topic, arranged)
        return prepare(
            self._config, table, arranged, records, self._dialect.compare, self._dialect.fit
        )

    def _layout(self, records: Records) -> Layout:
        try:
            return layout(self._config, self._connector.provenance_columns, records, deletes=False)
        except ConfigError as error:
            raise ConfigError(f"connector {self._connector.name}: {error}") from None

    def _target(self, topic: str, arranged: Layout) -> Table:
        """The topic's table, created or extended if it may be."""
        fields = [
            pa.field(n, v.type)
            for n, v in arranged.columns.items()
            if not pa.types.is_null(v.type)  # only nulls so far: of what type is not known yet
        ]
        table = self._find(topic)
        if table is None:
            if not self._config.creates:
                raise self._missing(topic)
            self._check_case(topic, [f.name for f in fields])
            with self._dialect.transaction():
                self._dialect.create(self._name(topic), fields, arranged.key)
        if table is None or any(f.name not in table.columns for f in fields):
            table = self._look_again(topic)
        new = [f for f in fields if f.name not in table.columns]
        if new:
            self._check_case(topic, [*table.columns, *(f.name for f in new)])
            if topic in self._unmade:
                self._unmade.discard(topic)
                if not self._config.evolves:
                    raise TargetChanged(f"another task has made table {table.name} meanwhile")
            if not self._config.evolves:
                raise ConfigError(
                    f"connector {self._connector.name}: table {table.name} has no column "
                    f"{new[0].name}, which records of topic {topic} hold. Add it, set "
                    "auto.evolve=true, or leave the field out with field.exclude.list"
                )
            with self._dialect.transaction():
                self._dialect.add_columns(table.name, new)
            table = self._look_again(topic)
        self._check_key(table, arranged.key, topic)
        return table

    def _check_case(self, topic: str, names: Sequence[str]) -> None:
        """These databases do not tell columns apart by the case of A to Z."""
        seen: dict[bytes, str] = {}
        for name in names:
            other = seen.setdefault(name.encode().lower(), name)
            if other != name:
                raise ConfigError(
                    f"connector {self._connector.name}: fields {other} and {name} of topic {topic} "
                    f"are one column to {self._dialect.system}. Leave one out with "
                    "field.exclude.list"
                )

    def _look_again(self, topic: str) -> Table:
        self._tables.pop(topic, None)
        table = self._find(topic)
        if table is None:
            raise self._missing(topic)
        return table

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        names = {topic: self._name(topic) for topic in topics}
        with self._dialect.transaction(reading=True):
            return snapshot.take(
                self._dialect,
                self._ledger,
                names,
                self._connector.provenance_columns,
                self._connector.dead_letter_table,
                self._config.pk_fields if self.replaces else None,
            )

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        return keys_of(self._config, records)

    # The life of a run

    def claim(self) -> None:
        self._dialect.claim()

    def set_positions(self, entries: Collection[LedgerEntry] | None) -> None:
        with self._dialect.alone() as alone:
            if not alone:
                raise ConfigError(
                    f"connector {self._connector.name} is running: stop it before its offsets are "
                    "changed"
                )
            self._open_ledger()
            with self._dialect.transaction():
                if entries is None:
                    self._ledger.forget()
                else:
                    self._ledger.set(entries)

    def close(self) -> None:
        self._dialect.close()
