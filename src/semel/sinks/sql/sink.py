"""The sink for SQL databases: rows and positions in one transaction of the database that holds the
rows. Their dialects hold the differences between databases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import SKIPPED, LedgerEntry, Outcome, Target, TopicPartition
from semel.core.records import Commit, DeadLetter, RejectedRecord, rejected
from semel.databases.errors import DataRefused
from semel.databases.names import parse_name
from semel.sinks.letters import SCHEMA, rows
from semel.sinks.rereading import View
from semel.sinks.sql.base import DatabaseSink, Undo
from semel.sinks.sql.database import Dialect
from semel.sinks.sql.ledger import SqlLedger
from semel.sinks.sql.prepare import Rows, TableChanges
from semel.sinks.sql.view import SqlView

_OPTIONAL = ("timestamp", "key", "value", "headers")
_LETTER = [
    pa.field(f.name, pa.json_() if f.name == "headers" else f.type, f.name in _OPTIONAL)
    for f in SCHEMA
]
_KEY = ("connector", "topic", "partition", "offset")
"""The columns of a dead letter."""
_MOST = 1000
"""The maximum number of refused rows to name at once; the engine calls again with the others."""


class SqlSink(DatabaseSink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/databases.md."""

    database_class: ClassVar[type[Dialect]]

    def _open(self) -> tuple[Dialect, SqlLedger]:
        self._dialect = self._new_session()
        return self._dialect, SqlLedger(self._dialect, self._connector.name)

    def _new_session(self) -> Dialect:
        connector = self._connector
        timeouts = replace(self._config.timeouts, answer=connector.store_timeout_ms)
        return self.database_class(self._config.login, connector.name, timeouts)

    def _create_dead_letters(self, table: str) -> None:
        name = parse_name(table, fold=False)
        if self._dialect.find(name) is None:
            self._dialect.create(name, _LETTER, _KEY)

    def _insert_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None:
        # A letter may exist already if positions were set back by hand; the last failure stays.
        target = self._dialect.find(parse_name(table, fold=False))
        if target is None:
            raise ConfigError(
                f"errors.deadletterqueue.table={table} was dropped while it was in use"
            )
        self._dialect.upsert(target, rows(self._connector.name, letters), _KEY)

    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[TableChanges], commit: Commit
    ) -> Outcome:
        return self._apply(judge, prepared, commit, self._dialect.write)

    def _find_refused(self, prepared: Sequence[TableChanges]) -> list[RejectedRecord]:
        return _find_refused(self._dialect, prepared)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        try:
            return super().start(entries)
        except DataRefused as error:  # another task has entered one meanwhile
            raise TransientError(str(error)) from None

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        if self._config.splits:
            return {}
        tables = {topic: self._tables.look_up(topic) for topic in topics}
        return {topic: Target(str(t.name)) if t else None for topic, t in tables.items()}

    @contextmanager
    def viewing(self, topics: Collection[str]) -> Iterator[Sequence[View]]:
        """See :class:`~semel.sinks.rereading.Viewable`."""
        self._tables.look_for(topics)
        session = self._new_session()
        names = {topic: self._name(topic) for topic in topics}
        keys = self._config.key_columns if self.capabilities.replaces else None
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


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a batch, or some keys to delete."""

    batch: TableChanges
    rows: Rows
    deletes: bool

    def write(self, dialect: Dialect) -> None:
        if self.deletes:
            dialect.delete(self.batch.table.name, self.rows.columns)
        else:
            dialect.put(self.batch, self.rows)


def _find_refused(dialect: Dialect, batches: Sequence[TableChanges]) -> list[RejectedRecord]:
    """Find the records that the database refuses, by bisection, in transactions that never commit.

    Each row is tried after those before it: if two rows have one key, the second is refused.
    """
    refused: list[RejectedRecord] = []
    accepted: list[_Part] = []

    def search(part: _Part) -> None:
        if len(refused) >= _MOST:
            return
        refusal = _attempt(dialect, [*accepted, part])
        if refusal is None:
            accepted.append(part)
        elif part.rows.count == 1:
            refused.append(rejected(part.rows.places, 0, refusal))
        else:
            middle = part.rows.count // 2
            for half in (np.arange(middle), np.arange(middle, part.rows.count)):
                search(_Part(part.batch, part.rows.take(half), part.deletes))

    for batch in batches:
        if batch.deletes is not None and batch.deletes.count:
            search(_Part(batch, batch.deletes, deletes=True))
        if batch.rows.count:
            search(_Part(batch, batch.rows, deletes=False))
    return refused


def _attempt(dialect: Dialect, parts: Sequence[_Part]) -> str | None:
    """Why the database refuses some of these rows; None if it takes all."""
    try:
        with dialect.transaction():
            for part in parts:
                part.write(dialect)
            raise Undo
    except Undo:
        return None
    except DataRefused as refusal:
        return str(refusal)
