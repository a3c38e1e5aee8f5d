"""Warns of rows that are never read because they lack a number or a time."""

from __future__ import annotations

import logging

from semel.core.quoting import all_named
from semel.sources.jdbc.database import Database, TableId
from semel.sources.jdbc.queries import Shape, without

log = logging.getLogger(__name__)


class Nulls:
    """Looks for null in the columns that find new rows."""

    def __init__(self, connector: str, database: Database) -> None:
        self._name = connector
        self._database = database
        self._looked_at: set[TableId] = set()

    def look(self, table: TableId, found: Shape) -> None:
        """Look at a table once. Called in a snapshot."""
        if table in self._looked_at:
            return
        self._looked_at.add(table)
        for columns in filter(None, ([found.number] if found.number else [], found.times)):
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
