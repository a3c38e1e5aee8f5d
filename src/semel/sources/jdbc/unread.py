"""Looks for rows that are never read: those that lack a number or a time, and those whose numbers
began again. Counts the numbers that are left."""

from __future__ import annotations

import logging
import time

from semel.core.quoting import all_named
from semel.databases.names import quote
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import Column, Database, TableId
from semel.sources.jdbc.queries import Shape, shape, whole, without

log = logging.getLogger(__name__)

_EVERY = 60.0
"""Seconds between two looks at a table."""


class Nulls:
    """Looks for null in the columns that find new rows."""

    def __init__(self, connector: str, database: Database) -> None:
        self._name = connector
        self._database = database
        self._looked_at: set[TableId] = set()

    def look(self, table: TableId, layout: Shape) -> None:
        """Look at a table once. Called in a snapshot."""
        if table in self._looked_at:
            return
        self._looked_at.add(table)
        numbers = [layout.number] if layout.number else []
        for columns in filter(None, (numbers, layout.times)):
            if all(c.nullable for c in columns) and self._any(table, without(columns)):
                names = all_named(c.name for c in columns)
                log.warning(
                    "connector %s: table %s: rows with null in %s are not read",
                    *(self._name, table, names),
                )

    def _any(self, table: TableId, condition: str) -> bool:
        there = f"EXISTS (SELECT 1 FROM {table.quoted} WHERE {condition})"
        sql = f"SELECT CASE WHEN {there} THEN 1 ELSE 0 END AS n"
        return any(batch.column(0)[0].as_py() for batch in list(self._database.stream(sql)))


class Numbering:
    """Tells how many numbers are left, and notices a table whose numbers have begun again: its new
    rows are never read."""

    def __init__(self, connector: str, database: Database) -> None:
        self._name = connector
        self._database = database
        self._due: dict[TableId, float] = {}
        self._warned: dict[TableId, int] = {}

    def look(self, table: TableId, number: Column, stored: int) -> None:
        """Warn, once for each stored number, if a table has only smaller ones. Called where nothing
        is above it; does not ask the database more than once a minute."""
        if self._warned.get(table) == stored or time.monotonic() < self._due.get(table, 0.0):
            return
        self._due[table] = time.monotonic() + _EVERY
        largest = self._bound("max", table, number)
        if largest is None or largest >= stored:
            return
        self._warned[table] = stored
        log.warning(
            "connector %s: table %s: the largest %s is %d, but rows were read up to %d. If the "
            "table was emptied or restored and its numbers began again, new rows up to %d are not "
            "read: stop the connector, and set where to begin with semel offsets set. If rows were "
            "deleted, nothing is missing",
            *(self._name, table, number.name, largest, stored, stored),
        )

    def lag(self, table: TableId, config: JdbcSourceConfig, after: int | None) -> int:
        """How many numbers a table has after one, or from its first one onwards; gaps count, too.

        Raises:
            Unreadable: as :func:`~semel.sources.jdbc.queries.shape`.
        """
        with self._database.snapshot():
            columns = self._database.columns(table)
            number = shape(config, columns, of_query=False).number if columns else None
            last = None if number is None else self._bound("max", table, number)
            if number is None or last is None:
                return 0
            if after is None:
                first = self._bound("min", table, number)
                after = last if first is None else first - 1
            return max(0, last - after)

    def _bound(self, which: str, table: TableId, number: Column) -> int | None:
        sql = f"SELECT {which}({quote(number.name)}) AS n FROM {table.quoted}"
        batches = list(self._database.stream(sql))
        values = [value for batch in batches for value in batch.column(0).to_pylist()]
        return next((whole(number, value) for value in values if value is not None), None)
