"""Writing prepared rows: deletes first, then rows according to ``insert.mode``."""

from __future__ import annotations

from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.prepare import Prepared, Rows, by_given_columns


def write(dialect: Dialect, prepared: Prepared) -> None:
    """Write inside the open transaction."""
    if prepared.deletes is not None and prepared.deletes.count:
        delete(dialect, prepared, prepared.deletes)
    put(dialect, prepared, prepared.rows)


def put(dialect: Dialect, prepared: Prepared, rows: Rows) -> None:
    """Insert, upsert or update rows."""
    target = prepared.table
    for part in by_given_columns(rows):
        if not part.columns.column_names:
            dialect.insert_defaults(target.name, part.count)
        elif prepared.mode == "insert":
            dialect.insert(target.name, part.columns)
        elif prepared.mode == "upsert":
            dialect.upsert(target, part.columns, prepared.key)
        else:
            dialect.update(target, part.columns, prepared.key)


def delete(dialect: Dialect, prepared: Prepared, keys: Rows) -> None:
    """Delete the rows of these keys."""
    dialect.delete(prepared.table.name, keys.columns)
