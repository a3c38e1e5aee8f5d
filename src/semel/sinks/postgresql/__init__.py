"""The PostgreSQL sink: rows and positions in one transaction of the database that holds the rows.

Rows travel as Arrow through COPY BINARY; there is no loop over rows. Inserts are copied straight
into their table, and so are upserts while their keys are new; other upserts, updates and deletes go
through a temporary table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from semel.core.ledger import SKIPPED, LedgerEntry, Outcome, Target
from semel.core.records import Commit, DeadLetter, RejectedRecord
from semel.databases.errors import DataRefused
from semel.databases.names import Name, parse_name
from semel.databases.postgresql.connection import LockTimeout
from semel.databases.postgresql.url import libpq_uri
from semel.sinks.jdbc import IGNORED
from semel.sinks.letters import rows
from semel.sinks.postgresql.database import ONE_INSTANT, PostgresDialect, PostgresView
from semel.sinks.postgresql.ledger import PostgresLedger, end_frozen
from semel.sinks.postgresql.writer import FreshKeys, find_refused, write
from semel.sinks.rereading import View
from semel.sinks.sql.base import DatabaseSink
from semel.sinks.sql.config import PostgresConfig
from semel.sinks.sql.prepare import TableChanges

_TYPES = (
    *("text", "text", "integer", "bigint", "timestamptz", "bytea", "bytea", "jsonb"),
    *("text", "text", "text", "integer"),
)
_KEY = 'connector, topic, partition, "offset"'
_REST = ('"timestamp"', "key", "value", "headers", "stage", "exception", "message", "format")
"""The columns of a dead letter, and their types."""


class PostgresSink(DatabaseSink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/postgresql.md."""

    section = PostgresConfig
    ignored = IGNORED | {
        "batch.size": "a commit's rows travel in one COPY; max.poll.records bounds a commit"
    }
    database_class = PostgresDialect
    _config: PostgresConfig

    def _open(self) -> tuple[PostgresDialect, PostgresLedger]:
        config, name = self._config, self._connector.name
        self._uri = libpq_uri(config.login, f"semel/{name}")
        self._connection = self._session(config.idle_timeout_ms)
        self._fresh_keys = FreshKeys()
        return self._connection, PostgresLedger(self._connection, name, config.idle_timeout_ms)

    def _session(self, idle_timeout_ms: int) -> PostgresDialect:
        connector = self._connector
        return PostgresDialect(
            self._uri, idle_timeout_ms, connector.name, connector.store_timeout_ms
        )

    def connect_early(self) -> None:
        """See :class:`semel.sinks.protocols.Connecting`."""
        with self._connection.transaction(reading=True):
            pass  # which sends nothing once the session is open

    def _create_dead_letters(self, table: str) -> None:
        connection = self._connection
        name = parse_name(table, fold=False)
        if connection.exists(name):
            return  # CREATE IF NOT EXISTS would still ask for the right to create
        connection.serialise(name)
        connection.execute(
            f"""CREATE TABLE IF NOT EXISTS {name.quoted} (
                connector text NOT NULL,
                topic text NOT NULL,
                partition integer NOT NULL,
                "offset" bigint NOT NULL,
                "timestamp" timestamptz,
                key bytea,
                value bytea,
                headers jsonb,
                stage text NOT NULL,
                exception text NOT NULL,
                message text NOT NULL,
                failed_at timestamptz NOT NULL DEFAULT now(),
                format integer NOT NULL,
                PRIMARY KEY ({_KEY})
            )"""
        )

    def _insert_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None:
        # A letter may exist already if positions were set back by hand; the last failure stays.
        connection = self._connection
        letter_rows = rows(self._connector.name, letters)
        letter_rows = letter_rows.drop_columns("failed_at")  # which is the server's time
        place = letter_rows.column_names.index("headers")
        headers = pa.ExtensionArray.from_storage(
            pa.json_(), letter_rows.column(place).combine_chunks()
        )
        stage = connection.stage(letter_rows.set_column(place, "headers", headers), _TYPES)
        sets = ", ".join(f"{c} = EXCLUDED.{c}" for c in _REST)
        connection.execute(
            f"INSERT INTO {parse_name(table, fold=False).quoted} ({_KEY}, {', '.join(_REST)}) "
            f"SELECT * FROM {stage} ON CONFLICT ({_KEY}) DO UPDATE SET {sets}, failed_at = now(); "
            f"{connection.emptied(stage)}"
        )

    def _find_refused(self, prepared: Sequence[TableChanges]) -> list[RejectedRecord]:
        return find_refused(self._connection, prepared)

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        if self._config.splits:
            return {}
        names = {topic: self._name(topic) for topic in topics}
        with self._connection.transaction():
            return self._connection.targets(names)

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        """Before a retry, end the sessions of frozen processes that hold the ledger's rows."""
        try:
            yield
        except LockTimeout:
            end_frozen(self._connection)
            raise

    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[TableChanges], commit: Commit
    ) -> Outcome:
        """Write, and write in another way if the server refuses a key that already exists."""
        upserts = {b.table.name for b in prepared if b.mode == "upsert"}
        merging = True
        while True:
            fresh = set(filter(self._fresh_keys.expected, upserts))

            def put(
                batch: TableChanges, fresh: Collection[Name] = fresh, merging: bool = merging
            ) -> None:
                is_fresh = batch.table.name in fresh
                write(self._connection, batch, fresh=is_fresh, merging=merging)

            try:
                outcome = self._apply(judge, prepared, commit, put)
            except DataRefused as error:
                if error.code == "23505" and fresh:
                    self._fresh_keys.refuted(fresh)
                elif error.code == "23505" and merging and upserts:
                    merging = False  # another writer's key, perhaps: ON CONFLICT takes it
                else:
                    raise
            else:
                if outcome is Outcome.APPLIED:
                    self._fresh_keys.confirmed(fresh)
                return outcome

    # For the audit

    @contextmanager
    def viewing(self, topics: Collection[str]) -> Iterator[Sequence[View]]:
        connection = self._session(0)
        try:
            with connection.transaction():
                connection.execute(ONE_INSTANT)
                yield [self._view(connection)]
        finally:
            connection.close()

    def _view(self, connection: PostgresDialect) -> View:
        keys = self._config.key_columns if self.capabilities.replaces else None
        return PostgresView(
            self._connector, self._config, connection, self._connection, self._name, keys
        )

    # The life of a run

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        self._open_ledger()
        with self._connection.transaction():
            if not self._connection.hold_off():
                raise self._is_running()
            self._set_positions(entries, by, reason)
