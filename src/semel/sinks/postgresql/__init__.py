"""The PostgreSQL sink: rows and positions in one transaction of the database that holds the rows.

Rows travel as Arrow through COPY BINARY; there is no loop over rows. Inserts are copied straight
into their table, and so are upserts while their keys are new; other upserts, updates and deletes go
through a temporary table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from semel import failpoints
from semel.config import ConnectorConfig, read
from semel.delivery import Mechanism, Support
from semel.errors import ConfigError, ServiceError, TargetChanged, TransientError
from semel.ledger import Advance, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.problems import together
from semel.records import Commit, DeadLetter, Records, RowsRejected
from semel.sinks import jdbc
from semel.sinks.base import Sink, Snapshot
from semel.sinks.jdbc import check_key, upgrade_refused
from semel.sinks.layout import KAFKA_KEY, Layout, check_provenance, keys_of, layout
from semel.sinks.postgresql import dead_letters, tables
from semel.sinks.postgresql.config import IGNORED, PostgresConfig
from semel.sinks.postgresql.connection import Connection, DataRefused, LockTimeout, SchemaChanged
from semel.sinks.postgresql.frozen import end_frozen
from semel.sinks.postgresql.ledger import OFFSETS, PostgresLedger
from semel.sinks.postgresql.refusals import find_refused
from semel.sinks.postgresql.url import libpq_uri
from semel.sinks.postgresql.view import ONE_INSTANT, PostgresView
from semel.sinks.postgresql.writer import Hope, compare, write
from semel.sinks.rereading import View
from semel.sinks.sql.columns import Table
from semel.sinks.sql.names import Name, check_apart, check_letters, literal, parse_name
from semel.sinks.sql.prepare import Prepared, prepare
from semel.targets import Target


class PostgresSink(Sink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/postgresql.md."""

    section = PostgresConfig
    ignored = IGNORED

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._config = read(PostgresConfig, raw)
        mine = f"connector {connector.name}"
        uri, *_ = together(
            lambda: libpq_uri(
                self._config.connection_url,
                self._config.connection_user,
                self._config.connection_password,
                f"semel/{connector.name}",
                self._config.parameters(),
            ),
            lambda: check_key(connector, self._config),
            lambda: check_letters(connector),
            lambda: check_provenance(self._config, connector.provenance_columns, mine),
            *(partial(self._name, topic) for topic in connector.topics),
        )
        self._uri = uri
        self._connection = Connection(
            uri, self._config.idle_timeout_ms, connector.name, connector.store_timeout_ms
        )
        self._ledger = PostgresLedger(
            self._connection, connector.name, self._config.idle_timeout_ms
        )
        self._tables: dict[str, Table] = {}
        self._unmade: set[str] = set()
        self._hope = Hope()

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
        where = self._connection.where
        return {
            "writes": f"table {self._config.table_name_format} in {where} ({self._config.mode})",
            "ledger": f"table {OFFSETS} in {where}",
        }

    def support(self) -> Mapping[Mechanism, Support]:
        mode = self._config.mode
        keyed = mode != "insert"
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                "rows and positions are committed in one PostgreSQL transaction, under a "
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
            with self._connection.transaction():
                dead_letters.create(self._connection, self._connector.dead_letter_table)
        for topic in topics:
            with self._connection.transaction():
                table = tables.find(self._connection, self._name(topic))
            if table is None and not self._config.creates:
                raise self._missing(topic)
            if table is not None:
                self._check_key(table, self._declared_key(table), topic)

    def _open_ledger(self) -> None:
        try:
            with self._connection.transaction():
                self._ledger.create()
        except ServiceError as error:
            if not self._ledger.upgrade:
                raise
            raise upgrade_refused(
                self._connector.name, OFFSETS, self._ledger.upgrade, error
            ) from None

    def _name(self, topic: str) -> Name:
        name = parse_name(self._config.table(topic), fold=self._config.folds_names)
        check_apart(self._connector, topic, name, fold=False)
        return name

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: table {self._name(topic)} for topic {topic} does "
            f"not exist in {self._connection.where}. Create it, or set auto.create=true; "
            f"table.name.format={self._config.table_name_format!r} names it"
        )

    def _declared_key(self, table: Table) -> list[str]:
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
                f"{where} fills in column {generated[0]} itself (GENERATED ALWAYS), so it cannot "
                "take a key. Make it GENERATED BY DEFAULT, or choose another key"
            )
        if key and self._config.mode == "upsert" and frozenset(key) not in table.keys:
            found = "; ".join(", ".join(sorted(k)) for k in table.keys) or "none"
            raise ConfigError(
                f"connector {self._connector.name}: insert.mode=upsert needs a primary key or "
                f"unique index on ({', '.join(key)}) of table {table.name}; its unique keys: "
                f"{found}. Add one, or set pk.fields to an existing one"
            )

    def entries(self) -> list[LedgerEntry]:
        with self._connection.transaction():
            return self._ledger.entries()

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        with self._connection.transaction():
            return self._ledger.start(entries)

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        with self._freeing(), self._connection.transaction():
            self._ledger.rebase(rebases)

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        names = {topic: self._name(topic) for topic in topics}
        with self._connection.transaction():
            return tables.targets(self._connection, names, OFFSETS)

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
            with self._connection.transaction():
                table = tables.find(self._connection, self._name(topic))
            if table is None:
                return None
            self._tables[topic] = table
        return self._tables[topic]

    def accommodate(self, records: Records) -> None:
        self._target(records.topic, self._layout(records))

    # Committing

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        with self._freeing():
            return self._transact(commit, lambda: self._ledger.advance(advances))

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        if guard is None:
            return self._transact(commit, lambda: Outcome.APPLIED)
        with self._freeing():
            return self._transact(commit, lambda: self._ledger.guard(guard))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        with self._freeing(), self._connection.transaction():
            return self._ledger.advance(advances)

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        """Whoever holds the ledger's rows because it is frozen loses them, before the next try."""
        try:
            yield
        except LockTimeout:
            end_frozen(self._connection)
            raise

    def _transact(self, commit: Commit, judge: Callable[[], Outcome]) -> Outcome:
        """Judge and write in one transaction, in another way if the first turns out wrong."""
        merging = True
        while True:
            prepared: list[Prepared] = []
            upserts: set[Name] = set()
            hopeful: set[Name] = set()
            try:
                prepared = [self._prepare(r) for r in commit.records if r.count]
                upserts = {b.table.name for b in prepared if b.mode == "upsert"}
                hopeful = set(filter(self._hope.of, upserts))
                return self._write(judge, prepared, commit.dead_letters, hopeful, merging)
            except DataRefused as error:
                if error.sqlstate == "23505" and hopeful:
                    self._hope.failed(hopeful)
                elif error.sqlstate == "23505" and merging and upserts:
                    merging = False  # another writer's key, perhaps: ON CONFLICT takes it
                else:
                    rejected = find_refused(self._connection, prepared)
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
        self,
        judge: Callable[[], Outcome],
        prepared: Sequence[Prepared],
        letters: Sequence[DeadLetter],
        hopeful: Collection[Name],
        merging: bool,
    ) -> Outcome:
        with self._connection.transaction():
            outcome = judge()
            failpoints.hit("sink.after_positions")
            if outcome is Outcome.APPLIED:
                for batch in prepared:
                    hopes = batch.table.name in hopeful
                    write(self._connection, batch, hopeful=hopes, merging=merging)
                self._keep_dead_letters(letters)
            failpoints.hit("sink.before_commit")
        failpoints.hit("sink.after_commit")
        if outcome is Outcome.APPLIED:
            self._hope.fulfilled(hopeful)
        return outcome

    def _prepare(self, records: Records) -> Prepared:
        arranged = self._layout(records)
        table = self._target(records.topic, arranged)
        return prepare(self._config, table, arranged, records, partial(compare, self._connection))

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
            with self._connection.transaction():
                tables.create(self._connection, self._name(topic), fields, arranged.key)
        if table is None or any(f.name not in table.columns for f in fields):
            table = self._look_again(topic)
        new = [f for f in fields if f.name not in table.columns]
        if new:
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
            with self._connection.transaction():
                tables.evolve(self._connection, table.name, new)
            table = self._look_again(topic)
        self._check_key(table, arranged.key, topic)
        return table

    def _look_again(self, topic: str) -> Table:
        self._tables.pop(topic, None)
        table = self._find(topic)
        if table is None:
            raise self._missing(topic)
        return table

    def _keep_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        if letters and self._connector.dead_letter_table:
            dead_letters.insert(
                self._connection,
                self._connector.dead_letter_table,
                self._connector.name,
                letters,
            )

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        with self._connection.transaction():
            self._connection.execute(ONE_INSTANT)
            return self._view(self._connection).snapshot(topics)

    @contextmanager
    def viewing(self, topics: Collection[str]) -> Iterator[Sequence[View]]:
        connection = Connection(
            self._uri, 0, self._connector.name, self._connector.store_timeout_ms
        )
        try:
            with connection.transaction():
                connection.execute(ONE_INSTANT)
                yield [self._view(connection)]
        finally:
            connection.close()

    def _view(self, connection: Connection) -> View:
        keys = self._config.pk_fields if self.replaces else None
        return PostgresView(
            self._connector, self._config, connection, self._connection, self._name, keys
        )

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        return keys_of(self._config, records)

    # The life of a run

    def claim(self) -> None:
        self._connection.on_connect(f"SELECT pg_advisory_lock_shared({self._lock_key()})")

    def set_positions(self, entries: Collection[LedgerEntry] | None) -> None:
        self._open_ledger()
        with self._connection.transaction():
            if not self._is_alone():
                raise ConfigError(
                    f"connector {self._connector.name} is running: stop it before its offsets are "
                    "changed"
                )
            if entries is None:
                self._ledger.forget()
            else:
                self._ledger.set(entries)

    def _is_alone(self) -> bool:
        """Hold off runs of the connector until the transaction ends, unless one is alive."""
        take = f"SELECT pg_try_advisory_xact_lock({self._lock_key()}) AS free"
        deadline = time.monotonic() + jdbc.RELEASE_TIME
        while not self._connection.query(take).column("free")[0].as_py():
            if time.monotonic() >= deadline:
                return False
            time.sleep(jdbc.RELEASE_PAUSE)
        return True

    def _lock_key(self) -> str:
        return f"hashtextextended({literal(f'semel run {self._connector.name}')}, 2)"

    def close(self) -> None:
        self._connection.close()
