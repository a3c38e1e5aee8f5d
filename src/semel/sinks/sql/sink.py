"""The sink for SQL databases: rows and positions in one transaction of the database that holds the
rows. Their dialects hold the differences between databases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from semel.core.errors import TransientError
from semel.core.ledger import SKIPPED, LedgerEntry, Outcome, Target, TopicPartition
from semel.core.records import Commit, DeadLetter, Rejected
from semel.sinks.rereading import View
from semel.sinks.sql import dead_letters
from semel.sinks.sql.base import DatabaseSink
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.errors import DataRefused
from semel.sinks.sql.ledger import SqlLedger
from semel.sinks.sql.prepare import Prepared
from semel.sinks.sql.refusals import find_refused
from semel.sinks.sql.view import SqlView
from semel.sinks.sql.writer import write


class SqlSink(DatabaseSink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/databases.md."""

    database_class: ClassVar[type[Dialect]]

    def _open(self) -> tuple[Dialect, SqlLedger]:
        self._dialect = self._new_session()
        return self._dialect, SqlLedger(self._dialect, self._connector.name)

    def _new_session(self) -> Dialect:
        session = self.database_class(self._config, self._connector.name)
        session.timeout = self._connector.store_timeout_ms / 1000
        return session

    def _create_dead_letters(self, table: str) -> None:
        dead_letters.create(self._dialect, table)

    def _insert_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None:
        dead_letters.insert(self._dialect, table, self._connector.name, letters)

    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[Prepared], commit: Commit
    ) -> Outcome:
        return self._apply(judge, prepared, commit, partial(write, self._dialect))

    def _find_refused(self, prepared: Sequence[Prepared]) -> list[Rejected]:
        return find_refused(self._dialect, prepared)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        try:
            return super().start(entries)
        except DataRefused as error:  # another task has entered one meanwhile
            raise TransientError(str(error)) from None

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        if self._config.splits:
            return {}
        found = {topic: self._tables.look_up(topic) for topic in topics}
        return {topic: Target(str(t.name)) if t else None for topic, t in found.items()}

    @contextmanager
    def viewing(self, topics: Collection[str]) -> Iterator[Sequence[View]]:
        """See :class:`~semel.sinks.rereading.ShowsRows`."""
        session = self._new_session()
        names = {topic: self._name(topic) for topic in topics}
        keys = self._config.pk_fields if self.capabilities.replaces else None
        writer = self._dialect if session.reads_only else session
        try:
            with session.instant():
                yield [SqlView(self._connector, self._config, session, writer, names, keys)]
        finally:
            session.close()

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        with self._dialect.alone() as alone:
            if not alone:
                raise self._is_running()
            self._open_ledger()
            with self._dialect.transaction():
                self._set_positions(entries, by, reason)
