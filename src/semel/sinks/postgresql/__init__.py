"""The PostgreSQL sink: rows and positions in one transaction of the database that holds the rows.

Rows travel as Arrow through COPY BINARY; there is no loop over rows. Inserts are copied straight
into their table, upserts, updates and deletes through a temporary one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from semel import failpoints
from semel.config import ConnectorConfig, read
from semel.delivery import Mechanism, Support
from semel.errors import ConfigError, ServiceError
from semel.ledger import Advance, LedgerEntry, OffsetRange, Outcome, TopicPartition
from semel.records import Commit, DeadLetter, Records, Rejected, RowsRejected
from semel.sinks.base import Sink, Snapshot
from semel.sinks.postgresql import dead_letters, snapshot, tables, writer
from semel.sinks.postgresql.config import IGNORED, PostgresConfig
from semel.sinks.postgresql.connection import (
    Connection,
    DataRefused,
    SchemaChanged,
    libpq_uri,
)
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.postgresql.rows import rejected
from semel.sinks.postgresql.tables import Name, Table


class PostgresSink(Sink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/postgresql.md."""

    section = PostgresConfig
    ignored = IGNORED

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._config = read(PostgresConfig, raw)
        uri = libpq_uri(
            self._config.connection_url,
            self._config.connection_user,
            self._config.connection_password,
        )
        self._connection = Connection(uri, connector.name, self._config.idle_timeout_ms)
        self._ledger = PostgresLedger(self._connection, connector.name)
        self._tables: dict[str, Table] = {}

    @property
    def uses_key(self) -> bool:
        return self._config.pk_mode == "record_key"

    @property
    def takes_tombstones(self) -> bool:
        return self._config.delete_enabled

    @property
    def replaces(self) -> bool:
        return self._config.insert_mode != "insert" or self._config.delete_enabled

    @property
    def evolves(self) -> bool:
        return self._config.evolves

    def support(self) -> Mapping[Mechanism, Support]:
        mode = self._config.insert_mode
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
        with self._connection.transaction():
            self._ledger.create()
            if self._connector.dead_letter_table:
                dead_letters.create(self._connection, self._connector.dead_letter_table)
        for topic in topics:
            with self._connection.transaction():
                table = tables.find(self._connection, self._name(topic))
            if table is None and not self._config.creates:
                raise self._missing(topic)
            if table is not None:
                self._check_key(table, self._declared_key(table), topic)

    def _name(self, topic: str) -> Name:
        return tables.parse_name(self._config.table(topic), fold=self._config.folds_names)

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: table {self._name(topic)} for topic {topic} does "
            f"not exist in {self._connection.where}. Create it, or set auto.create=true; "
            f"table.name.format={self._config.table_name_format!r} names it"
        )

    def _declared_key(self, table: Table) -> list[str]:
        fold = str.lower if self._config.folds_names else str
        if self._config.pk_mode == "kafka" and not self._config.pk_fields:
            return ["__connect_topic", "__connect_partition", "__connect_offset"]
        return [fold(f) for f in self._config.pk_fields]

    def _check_key(self, table: Table, key: list[str], topic: str) -> None:
        missing = [n for n in key if n not in table.columns]
        if missing and not self._config.evolves:
            raise ConfigError(
                f"connector {self._connector.name}: pk.fields={','.join(key)}: table {table.name} "
                f"(topic {topic}) has no column {missing[0]}; it has {', '.join(table.columns)}"
            )
        if key and self._config.insert_mode == "upsert" and frozenset(key) not in table.keys:
            found = "; ".join(", ".join(sorted(k)) for k in table.keys) or "none"
            raise ConfigError(
                f"connector {self._connector.name}: insert.mode=upsert needs a primary key or "
                f"unique index on ({', '.join(key)}) of table {table.name}; its unique keys: "
                f"{found}. Add one, or set pk.fields to an existing one"
            )

    def entries(self) -> list[LedgerEntry]:
        with self._connection.transaction():
            return self._ledger.entries()

    def holes(self) -> list[OffsetRange]:
        with self._connection.transaction():
            return self._ledger.holes()

    def start(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        with self._connection.transaction():
            return self._ledger.start(positions)

    def schema(self, topic: str) -> pa.Schema | None:
        table = self._find(topic)
        if table is None:
            return None
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
        provenance = self._connector.provenance_columns
        arranged = writer.layout(self._config, provenance, records, deletes=False)
        self._target(records.topic, arranged)

    # Committing

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        return self._transact(commit, lambda: self._ledger.advance(advances))

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        if guard is None:
            return self._transact(commit, lambda: Outcome.APPLIED)
        return self._transact(commit, lambda: self._ledger.guard(guard))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        with self._connection.transaction():
            return self._ledger.advance(advances)

    def _transact(self, commit: Commit, judge: Callable[[], Outcome]) -> Outcome:
        for attempt in (1, 2):
            prepared = [self._prepare(r) for r in commit.records if r.count]
            try:
                with self._connection.transaction():
                    outcome = judge()
                    failpoints.hit("sink.after_positions")
                    if outcome is Outcome.APPLIED:
                        for rows in prepared:
                            writer.write(self._connection, self._config, rows)
                        self._keep_dead_letters(commit.dead_letters)
                    failpoints.hit("sink.before_commit")
                failpoints.hit("sink.after_commit")
                return outcome
            except DataRefused as error:
                raise self._culprits(prepared, error) from None
            except SchemaChanged as error:
                self._tables.clear()  # somebody altered a table: look again, once
                if attempt == 2:
                    raise ServiceError(f"{self._connection.where}: {error}") from None
        raise AssertionError("unreachable")

    def _prepare(self, records: Records) -> writer.Prepared:
        arranged = writer.layout(
            self._config, self._connector.provenance_columns, records, deletes=False
        )
        table = self._target(records.topic, arranged)
        return writer.prepare(self._config, table, arranged, records)

    def _target(self, topic: str, arranged: writer.Layout) -> Table:
        """The topic's table, created or extended if it may be."""
        table = self._find(topic)
        fields = [pa.field(n, v.type) for n, v in arranged.columns.items()]
        if table is None:
            if not self._config.creates:
                raise self._missing(topic)
            with self._connection.transaction():
                tables.create(self._connection, self._name(topic), fields, arranged.key)
            table = self._find(topic)
            assert table is not None
        new = [f for f in fields if f.name not in table.columns]
        if new:
            if not self._config.evolves:
                raise ConfigError(
                    f"connector {self._connector.name}: table {table.name} has no column "
                    f"{new[0].name}, which records of topic {topic} hold. Add it, set "
                    "auto.evolve=true, or leave the field out with field.exclude.list"
                )
            with self._connection.transaction():
                tables.evolve(self._connection, table.name, new)
            del self._tables[topic]
            table = self._find(topic)
            assert table is not None
        self._check_key(table, arranged.key, topic)
        return table

    def _keep_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        if letters and self._connector.dead_letter_table:
            dead_letters.insert(
                self._connection,
                self._connector.dead_letter_table,
                self._connector.name,
                letters,
            )

    def _culprits(self, prepared: Sequence[writer.Prepared], error: DataRefused) -> Exception:
        """Find the rows that the server refuses by halving, in a transaction that never commits."""
        found: list[Rejected] = []
        connection = self._connection
        for batch in prepared:
            found.extend(self._refused(connection, batch))
        if found:
            return RowsRejected(found)
        return ServiceError(f"{connection.where}: {error} (SQLSTATE {error.sqlstate})")

    def _refused(self, connection: Connection, batch: writer.Prepared) -> list[Rejected]:
        rows: list[tuple[int, str]] = []

        def probe(start: int, length: int) -> None:
            try:
                with connection.transaction():
                    writer.write(connection, self._config, batch.only_rows(start, length))
                    raise _Undo
            except _Undo:
                return
            except DataRefused as error:
                if length == 1:
                    rows.append((start, f"{error} (SQLSTATE {error.sqlstate})"))
                    return
            probe(start, length // 2)
            probe(start + length // 2, length - length // 2)

        if batch.rows.num_rows:
            probe(0, batch.rows.num_rows)
        return rejected(batch.records, rows, "DataException")

    # For the audit

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        provenance = self._connector.provenance_columns
        with self._connection.transaction():
            return snapshot.take(
                self._connection,
                self._ledger,
                {topic: self._name(topic) for topic in topics},
                provenance,
                self._connector.dead_letter_table,
            )

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        rows = writer.layout(self._config, {}, records, deletes=False)
        keys = pa.table({n: rows.columns[n] for n in rows.key})
        if not self._config.delete_enabled or records.tombstones is None:
            return keys, None
        deletes = writer.layout(self._config, {}, records, deletes=True)
        return keys, pa.table({n: deletes.columns[n] for n in deletes.key})

    # The life of a run

    def claim(self) -> None:
        self._connection.on_connect(f"SELECT pg_advisory_lock_shared({self._lock_key()})")

    def set_positions(self, positions: Mapping[TopicPartition, int] | None) -> None:
        with self._connection.transaction():
            free = self._connection.query(
                f"SELECT pg_try_advisory_xact_lock({self._lock_key()}) AS free"
            )
            if not free.column("free")[0].as_py():
                raise ConfigError(
                    f"connector {self._connector.name} is running: stop it before its offsets are "
                    "changed"
                )
            self._ledger.create()
            if positions is None:
                self._ledger.forget()
            else:
                self._ledger.set(positions)

    def _lock_key(self) -> str:
        name = json.dumps(self._connector.name)[1:-1].replace("'", "''")
        return f"hashtextextended('semel run {name}', 2)"

    def close(self) -> None:
        self._connection.close()


class _Undo(Exception):
    """Ends a probing transaction without committing it."""
