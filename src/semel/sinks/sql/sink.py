"""The sink for SQL databases: rows and positions in one transaction of the database that holds the
rows. How the databases differ stands in their dialects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import ClassVar

import pyarrow as pa

from semel.errors import ConfigError, TransientError
from semel.ledger import LedgerEntry, Outcome, TopicPartition
from semel.records import Commit, DeadLetter, Rejected
from semel.sinks.base import Snapshot
from semel.sinks.sql import dead_letters, snapshot
from semel.sinks.sql.base import DatabaseSink
from semel.sinks.sql.columns import Column, Table
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.errors import DataRefused
from semel.sinks.sql.ledger import SqlLedger
from semel.sinks.sql.names import Name
from semel.sinks.sql.prepare import Prepared, Rows
from semel.sinks.sql.refusals import find_refused
from semel.sinks.sql.writer import write
from semel.targets import Target


class SqlSink(DatabaseSink):
    """See :class:`~semel.sinks.base.Sink`; configuration in docs/databases.md."""

    dialect_class: ClassVar[type[Dialect]]
    one_in_any_case = True

    def _open(self) -> None:
        self._dialect = self.dialect_class(self._config, self._connector.name)
        self._dialect.timeout = self._connector.store_timeout_ms / 1000
        self._ledger: SqlLedger = SqlLedger(self._dialect, self._connector.name)

    def _transaction(self, *, reading: bool = False) -> AbstractContextManager[None]:
        return self._dialect.transaction(reading=reading)

    @property
    def _system(self) -> str:
        return self._dialect.system

    @property
    def _where(self) -> str:
        return self._dialect.where

    def _find_table(self, name: Name) -> Table | None:
        return self._dialect.find(name)

    def _create(self, name: Name, fields: Sequence[pa.Field], key: list[str]) -> None:
        self._dialect.create(name, fields, key)

    def _add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None:
        self._dialect.add_columns(name, fields)

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

    def _compare(self, table: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        return self._dialect.compare(table, keys)

    def _convert(self, values: pa.ChunkedArray, column: Column) -> Converted:
        return self._dialect.fit(values, column)

    def _fills_in(self, column: str) -> str:
        return f"computes column {column} itself, so it cannot take a key"

    def _check_equality(self, table: Table, key: Sequence[str]) -> None:
        self._dialect.check_key(table, key)

    def _name(self, topic: str) -> Name:
        name = super()._name(topic)
        if name.schema and not self.dialect_class.has_schemas:
            raise ConfigError(
                f"connector {self._connector.name}: table {name} for topic {topic}: "
                f"{self.dialect_class.system} has no schemas. Where the dot belongs to the name, "
                'quote it: table.name.format="${topic}"'
            )
        return name

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        try:
            return super().start(entries)
        except DataRefused as error:  # another task has entered one meanwhile
            raise TransientError(str(error)) from None

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        found = {topic: self._look_up(topic) for topic in topics}
        return {topic: Target(str(t.name)) if t else None for topic, t in found.items()}

    def _check_columns(self, topic: str, names: Sequence[str]) -> None:
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
                self._config.pk_fields if self.capabilities.replaces else None,
            )

    # The life of a run

    def claim(self) -> None:
        self._dialect.claim()

    def set_positions(self, entries: Collection[LedgerEntry] | None) -> None:
        with self._dialect.alone() as alone:
            if not alone:
                raise self._is_running()
            self._open_ledger()
            with self._transaction():
                self._set_positions(entries)

    def close(self) -> None:
        self._dialect.close()
