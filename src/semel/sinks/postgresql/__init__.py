"""The PostgreSQL sink: rows and positions in one transaction of the database that holds the rows.

Rows travel as Arrow through COPY BINARY; there is no loop over rows. Inserts are copied straight
into their table, and so are upserts while their keys are new; other upserts, updates and deletes go
through a temporary table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from semel.core.ledger import SKIPPED, LedgerEntry, Outcome, Target
from semel.core.records import Commit, DeadLetter, Rejected
from semel.sinks.postgresql import dead_letters, tables
from semel.sinks.postgresql.config import IGNORED, PostgresConfig
from semel.sinks.postgresql.connection import LockTimeout
from semel.sinks.postgresql.database import Postgres
from semel.sinks.postgresql.frozen import end_frozen
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.postgresql.refusals import find_refused
from semel.sinks.postgresql.url import libpq_uri
from semel.sinks.postgresql.view import ONE_INSTANT, PostgresView
from semel.sinks.postgresql.writer import FreshKeys, write
from semel.sinks.rereading import View
from semel.sinks.sql.base import DatabaseSink
from semel.sinks.sql.errors import DataRefused
from semel.sinks.sql.ledger_tables import OFFSETS
from semel.sinks.sql.names import Name
from semel.sinks.sql.prepare import Prepared


class PostgresSink(DatabaseSink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/postgresql.md."""

    section = PostgresConfig
    ignored = IGNORED
    database_class = Postgres
    _config: PostgresConfig

    def _open(self) -> tuple[Postgres, PostgresLedger]:
        config, name = self._config, self._connector.name
        self._uri = libpq_uri(
            config.connection_url,
            config.connection_user,
            config.connection_password,
            f"semel/{name}",
            config.parameters(),
        )
        self._connection = self._session(config.idle_timeout_ms)
        self._fresh_keys = FreshKeys()
        return self._connection, PostgresLedger(self._connection, name, config.idle_timeout_ms)

    def _session(self, idle_timeout_ms: int) -> Postgres:
        connector = self._connector
        return Postgres(self._uri, idle_timeout_ms, connector.name, connector.store_timeout_ms)

    def connect_early(self) -> None:
        """See :class:`semel.sinks.protocols.Connecting`."""
        with self._connection.transaction(reading=True):
            pass  # which sends nothing once the session is open

    def _create_dead_letters(self, table: str) -> None:
        dead_letters.create(self._connection, table)

    def _insert_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None:
        dead_letters.insert(self._connection, table, self._connector.name, letters)

    def _find_refused(self, prepared: Sequence[Prepared]) -> list[Rejected]:
        return find_refused(self._connection, prepared)

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        if self._config.splits:
            return {}
        names = {topic: self._name(topic) for topic in topics}
        with self._connection.transaction():
            return tables.targets(self._connection, names, str(OFFSETS))

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        """Before a retry, end the sessions of frozen processes that hold the ledger's rows."""
        try:
            yield
        except LockTimeout:
            end_frozen(self._connection)
            raise

    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[Prepared], commit: Commit
    ) -> Outcome:
        """Write, and write in another way if the server refuses a key that already exists."""
        upserts = {b.table.name for b in prepared if b.mode == "upsert"}
        merging = True
        while True:
            fresh = set(filter(self._fresh_keys.expected, upserts))

            def put(
                batch: Prepared, fresh: Collection[Name] = fresh, merging: bool = merging
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

    def _view(self, connection: Postgres) -> View:
        keys = self._config.pk_fields if self.capabilities.replaces else None
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
