"""Notices a table whose numbers have begun again: its new rows are never read."""

from __future__ import annotations

import logging
import time

from semel.sinks.sql.names import quote
from semel.sources.jdbc.database import Column, Database, TableId

log = logging.getLogger(__name__)

_EVERY = 60.0
"""Seconds between two looks at a table."""


class Numbering:
    """Compares the largest number of a table with the one that was read last."""

    def __init__(self, connector: str, database: Database) -> None:
        self._name = connector
        self._database = database
        self._due: dict[TableId, float] = {}
        self._told: dict[TableId, int] = {}

    def look(self, table: TableId, number: Column, stored: int) -> None:
        """Warn, once for each stored number, if a table has only smaller ones. Called where nothing
        is above it; does not ask the database more than once a minute."""
        if self._told.get(table) == stored or time.monotonic() < self._due.get(table, 0.0):
            return
        self._due[table] = time.monotonic() + _EVERY
        largest = self._largest(table, number)
        if largest is None or largest >= stored:
            return
        self._told[table] = stored
        log.warning(
            "connector %s: table %s: the largest %s is %d, but rows were read up to %d. If the "
            "table was emptied or restored and its numbers began again, new rows up to %d are not "
            "read: stop the connector, and set where to begin with semel offsets set. If rows were "
            "deleted, nothing is missing",
            *(self._name, table, number.name, largest, stored, stored),
        )

    def _largest(self, table: TableId, number: Column) -> int | None:
        sql = f"SELECT max({quote(number.name)}) AS n FROM {table.quoted}"
        batches = list(self._database.stream(sql))
        found = [value for batch in batches for value in batch.column(0).to_pylist()]
        return max((int(value) for value in found if value is not None), default=None)
