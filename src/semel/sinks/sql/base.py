"""What the sinks of all SQL databases share: rows and positions in one transaction of the database
that holds the rows. Each sink says in a few methods how its database differs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar, Protocol

import pyarrow as pa

from semel import failpoints
from semel.config import ConnectorConfig, read
from semel.delivery import Mechanism, Support
from semel.errors import ConfigError, ServiceError, TargetChanged, TransientError
from semel.ledger import Advance, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.problems import together
from semel.records import Commit, DeadLetter, Records, Rejected, RowsRejected
from semel.sinks.base import Sink
from semel.sinks.capabilities import Capabilities
from semel.sinks.jdbc import IGNORED, JdbcConfig, check_key, upgrade_refused
from semel.sinks.layout import (
    KAFKA_KEY,
    Layout,
    check_provenance,
    key_metadata,
    keys_of,
    layout,
    not_from_values,
)
from semel.sinks.sql.columns import Column, Table
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.errors import DataRefused, SchemaChanged
from semel.sinks.sql.names import Name, check_apart, check_letters, parse_name
from semel.sinks.sql.prepare import Prepared, Rows, prepare

OFFSETS = "semel_offsets"


class Ledger(Protocol):
    """The ledger of one connector, in transactions that the caller opens."""

    upgrade: str
    """What the tables' owner can run, where :meth:`create` could not."""

    def create(self) -> None: ...
    def entries(self) -> list[LedgerEntry]: ...
    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]: ...
    def rebase(self, rebases: Sequence[Rebase]) -> None: ...
    def advance(self, advances: Sequence[Advance]) -> Outcome: ...
    def guard(self, advances: Sequence[Advance]) -> Outcome: ...
    def set(self, entries: Collection[LedgerEntry]) -> None: ...
    def forget(self) -> None: ...


class DatabaseSink(Sink):
    """See :class:`~semel.sinks.base.Sink`."""

    ignored = IGNORED
    section: ClassVar[type[JdbcConfig]]
    one_in_any_case: ClassVar[bool]
    """Whether names of tables that differ in case only are one."""

    _ledger: Ledger

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._config: JdbcConfig = read(self.section, raw)
        mine = f"connector {connector.name}"
        together(
            self._open,
            lambda: check_key(connector, self._config),
            lambda: check_letters(connector),
            lambda: check_provenance(self._config, connector.provenance_columns, mine),
            *(partial(self._name, topic) for topic in connector.topics),
        )
        self._tables: dict[str, Table] = {}
        self._unmade: set[str] = set()

    # What each database gives, inside an open transaction where nothing else is said

    @abstractmethod
    def _open(self) -> None:
        """Make the session and the ledger. Raises ConfigError; reaches nothing."""

    @abstractmethod
    def _transaction(self, *, reading: bool = False) -> AbstractContextManager[None]:
        """Commit at the end; roll back on any error."""

    @property
    @abstractmethod
    def _system(self) -> str:
        """The database's name, for people."""

    @property
    @abstractmethod
    def _where(self) -> str:
        """The database, without credentials."""

    @abstractmethod
    def _find_table(self, name: Name) -> Table | None: ...

    @abstractmethod
    def _create(self, name: Name, fields: Sequence[pa.Field], key: list[str]) -> None: ...

    @abstractmethod
    def _add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None: ...

    @abstractmethod
    def _create_dead_letters(self, table: str) -> None: ...

    @abstractmethod
    def _insert_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None: ...

    @abstractmethod
    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[Prepared], commit: Commit
    ) -> Outcome:
        """Judge and write with :meth:`_apply`; outside of a transaction."""

    @abstractmethod
    def _find_refused(self, prepared: Sequence[Prepared]) -> list[Rejected]:
        """Name the records that the database refuses; outside of a transaction."""

    @abstractmethod
    def _compare(self, table: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        """Numbers for the values of key columns, equal where the database takes the values for
        equal; outside of a transaction."""

    @abstractmethod
    def _convert(self, values: pa.ChunkedArray, column: Column) -> Converted:
        """Values in the type that the database takes for a column."""

    @abstractmethod
    def _fills_in(self, column: str) -> str:
        """Says that a generated column cannot be in a key."""

    def _check_equality(self, table: Table, key: Sequence[str]) -> None:
        """Raises ConfigError: the database takes values of the key for equal in one place only."""

    def _check_columns(self, topic: str, names: Sequence[str]) -> None:
        """Raises ConfigError: the database takes two of these columns for one."""

    def _freeing(self) -> AbstractContextManager[None]:
        """Wraps what waits for the ledger's rows."""
        return nullcontext()

    # What a configuration means

    @property
    def capabilities(self) -> Capabilities:
        config = self._config
        return Capabilities(
            uses_key=config.pk_mode == "record_key",
            key_metadata=key_metadata(config),
            takes_tombstones=config.delete_enabled,
            replaces=config.mode != "insert" or config.delete_enabled,
            only_updates=config.mode == "update",
            evolves=config.evolves,
        )

    def describe(self) -> dict[str, str]:
        where = self._where
        return {
            "writes": f"table {self._config.table_name_format} in {where} ({self._config.mode})",
            "ledger": f"table {OFFSETS} in {where}",
        }

    def support(self) -> Mapping[Mechanism, Support]:
        mode, system = self._config.mode, self._system
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
            with self._transaction():
                self._create_dead_letters(self._connector.dead_letter_table)
        for topic in topics:
            table = self._look_up(topic)
            if table is None and not self._config.creates:
                raise self._missing(topic)
            if table is not None:
                self._check_key(table, self._declared_key(), topic)

    def _open_ledger(self) -> None:
        try:
            with self._transaction():
                self._ledger.create()
        except ServiceError as error:
            if not self._ledger.upgrade:
                raise
            raise upgrade_refused(
                self._connector.name, OFFSETS, self._ledger.upgrade, error
            ) from None

    def _name(self, topic: str) -> Name:
        name = parse_name(self._config.table(topic), fold=self._config.folds_names)
        check_apart(self._connector, topic, name, fold=self.one_in_any_case)
        return name

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: table {self._name(topic)} for topic {topic} does "
            f"not exist in {self._where}. Create it, or set auto.create=true; "
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
            raise ConfigError(f"{where} {self._fills_in(generated[0])}")
        self._check_equality(table, key)
        if key and self._config.mode == "upsert" and frozenset(key) not in table.keys:
            found = "; ".join(", ".join(sorted(k)) for k in table.keys) or "none"
            raise ConfigError(
                f"connector {self._connector.name}: insert.mode=upsert needs a primary key or "
                f"unique index on ({', '.join(key)}) of table {table.name}; its unique keys: "
                f"{found}. Add one, or set pk.fields to an existing one"
            )

    def schema(self, topic: str) -> pa.Schema | None:
        if self._config.folds_names:
            return None  # the values' own names, in upper and lower case, are unknown
        table = self._find(topic)
        if table is None:
            self._unmade.add(topic)
            return None
        self._unmade.discard(topic)
        skip = {*self._connector.provenance_columns.values(), *not_from_values(self._config)}
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
        with self._transaction(reading=True):
            return self._find_table(name)

    def accommodate(self, records: Records) -> None:
        self._target(records.topic, self._layout(records))

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
            self._check_columns(topic, [f.name for f in fields])
            with self._transaction():
                self._create(self._name(topic), fields, arranged.key)
        if table is None or any(f.name not in table.columns for f in fields):
            table = self._look_again(topic)
        new = [f for f in fields if f.name not in table.columns]
        if new:
            self._check_columns(topic, [*table.columns, *(f.name for f in new)])
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
            with self._transaction():
                self._add_columns(table.name, new)
            table = self._look_again(topic)
        self._check_key(table, arranged.key, topic)
        return table

    def _look_again(self, topic: str) -> Table:
        self._tables.pop(topic, None)
        table = self._find(topic)
        if table is None:
            raise self._missing(topic)
        return table

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        return keys_of(self._config, records)

    # The ledger and committing

    def entries(self) -> list[LedgerEntry]:
        with self._transaction(reading=True):
            return self._ledger.entries()

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        with self._transaction():
            return self._ledger.start(entries)

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        with self._freeing(), self._transaction():
            self._ledger.rebase(rebases)

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        with self._freeing():
            return self._transact(commit, lambda: self._ledger.advance(advances))

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        if guard is None:
            return self._transact(commit, lambda: Outcome.APPLIED)
        with self._freeing():
            return self._transact(commit, lambda: self._ledger.guard(guard))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        with self._freeing(), self._transaction():
            return self._ledger.advance(advances)

    def _transact(self, commit: Commit, judge: Callable[[], Outcome]) -> Outcome:
        """Judge and write; again if a table is not what it was."""
        while True:
            prepared: list[Prepared] = []
            try:
                prepared = [self._prepare(r) for r in commit.records if r.count]
                return self._write(judge, prepared, commit)
            except DataRefused as error:
                rejected = self._find_refused(prepared)
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

    def _apply(
        self,
        judge: Callable[[], Outcome],
        prepared: Sequence[Prepared],
        commit: Commit,
        put: Callable[[Prepared], None],
    ) -> Outcome:
        """Judge and write in one transaction; ``put`` writes a batch inside it."""
        with self._transaction():
            outcome = judge()
            failpoints.hit("sink.after_positions")
            if outcome is Outcome.APPLIED:
                for batch in prepared:
                    put(batch)
                if commit.dead_letters and self._connector.dead_letter_table:
                    self._insert_dead_letters(
                        self._connector.dead_letter_table, commit.dead_letters
                    )
            failpoints.hit("sink.before_commit")
        failpoints.hit("sink.after_commit")
        return outcome

    def _prepare(self, records: Records) -> Prepared:
        arranged = self._layout(records)
        table = self._target(records.topic, arranged)
        return prepare(self._config, table, arranged, records, self._compare, self._convert)

    def _set_positions(self, entries: Collection[LedgerEntry] | None) -> None:
        if entries is None:
            self._ledger.forget()
        else:
            self._ledger.set(entries)

    def _is_running(self) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name} is running: stop it before its offsets are changed"
        )
