"""Writes prepared rows: by COPY, or by COPY into a temporary table and one statement that reads
it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from semel.core.quoting import named
from semel.databases.columns import Table
from semel.databases.errors import SchemaChanged
from semel.databases.names import Name, literal, quote
from semel.databases.postgresql.connection import Connection
from semel.sinks.sql.prepare import Rows, TableChanges, by_given_columns, patterns_of

MERGE_FROM = 1000
"""From this many rows on, MERGE, which is planned as a join, is quicker than ON CONFLICT."""
_MERGES_SINCE = 15
_MANY_PATTERNS = 4
"""From this many patterns of given columns on, a statement for each would take too long."""

ROW = "__semel_row"


def write(connection: Connection, prepared: TableChanges, *, fresh: bool, merging: bool) -> None:
    """Write inside the open transaction; deletes first.

    With ``fresh`` the keys of an upsert are assumed to be new. That is much quicker if it is true;
    otherwise the server refuses a row with SQLSTATE 23505. With ``merging`` large upserts go by
    MERGE, which locks and logs less than ON CONFLICT, but is refused in the same way if somebody
    else inserts one of the keys meanwhile.
    """
    table, deletes = prepared.table, prepared.deletes
    if deletes is not None and deletes.count:
        stage = stage_rows(connection, table, deletes)
        connection.execute(f"{delete(prepared, deletes, stage)}; {connection.emptied(stage)}")
    straight = prepared.mode == "insert" or (prepared.mode == "upsert" and fresh)
    patterns = patterns_of(prepared.rows)
    if patterns.max(initial=0) >= _MANY_PATTERNS:
        _write_together(connection, prepared, patterns)
        return
    for rows in by_given_columns(prepared.rows, patterns):
        names = rows.columns.column_names
        if not names:
            connection.execute(
                f"INSERT INTO {table.name.quoted} SELECT FROM generate_series(1, {rows.count})"
            )
        elif straight and table.copyable and not rows.staged.intersection(names):
            _copy(connection, table, rows)
        else:
            stage = stage_rows(connection, table, rows)
            merges = merging and prepared.mode == "upsert" and rows.count >= MERGE_FROM
            how = merge if merges and connection.server_version >= _MERGES_SINCE else put
            connection.execute(f"{how(prepared, rows, stage)}; {connection.emptied(stage)}")


def _write_together(connection: Connection, prepared: TableChanges, patterns: np.ndarray) -> None:
    """Write rows of many patterns with one COPY and one round trip."""
    stage = stage_rows(connection, prepared.table, prepared.rows, numbers=patterns)
    statements = []
    for number, rows in enumerate(by_given_columns(prepared.rows, patterns)):
        part = f"(SELECT * FROM {stage} WHERE {ROW} = {number})"
        if rows.columns.column_names:
            statements.append(put(prepared, rows, part))
        else:
            statements.append(f"INSERT INTO {prepared.table.name.quoted} SELECT FROM {part} AS s")
    connection.execute("; ".join([*statements, connection.emptied(stage)]))


def _copy(connection: Connection, table: Table, rows: Rows) -> None:
    """COPY straight into the table, once it is certain that its columns are what they were.

    The server reads binary values as the types that its columns have now: 8 bytes of a bigint
    would become a timestamp without an error.
    """
    names = rows.columns.column_names
    expected = ", ".join(f"({literal(n)}, {table.columns[n].oid})" for n in names)
    unchanged = connection.execute(
        f"LOCK TABLE ONLY {table.name.quoted} IN ROW EXCLUSIVE MODE; "
        f"SELECT FROM pg_attribute WHERE attrelid = {table.oid} AND NOT attisdropped "
        f"AND (attname, atttypid) IN ({expected})"
    )
    if unchanged != len(names):
        raise SchemaChanged(f"table {named(table.name)} was altered or recreated")
    assert table.name.schema is not None
    connection.copy(table.name.table, rows.columns, table.name.schema)


class FreshKeys:
    """The tables whose upserts probably bring only new keys, and so are tried as inserts.

    A key that is there already costs a failed COPY, so the table is then not tried for a while: for
    16 commits, and for twice as many each time it fails again.
    """

    _SHORTEST, _LONGEST = 16, 1024

    def __init__(self) -> None:
        self._pauses: dict[Name, int] = {}
        self._waits: dict[Name, int] = {}

    def expected(self, table: Name) -> bool:
        """Whether to try now; call it once for each commit."""
        wait = self._waits.get(table, 0)
        self._waits[table] = max(0, wait - 1)
        return not wait

    def confirmed(self, tables: Iterable[Name]) -> None:
        for table in tables:
            self._pauses.pop(table, None)

    def refuted(self, tables: Iterable[Name]) -> None:
        for table in tables:
            pause = min(2 * self._pauses.get(table, self._SHORTEST // 2), self._LONGEST)
            self._pauses[table] = self._waits[table] = pause


def stage_rows(
    connection: Connection, table: Table, rows: Rows, *, numbers: np.ndarray | None = None
) -> str:
    """COPY rows into a staging table; returns its name. They have their ``numbers``, if given, in
    the column ROW."""
    columns = rows.columns
    types = ["text" if n in rows.staged else table.columns[n].cast for n in columns.column_names]
    if numbers is not None:
        columns = columns.append_column(ROW, pa.array(numbers))
        types.append("bigint")
    return connection.stage(columns, types)


# Statements. Each reads all rows ``s`` of a staging table, or the one row ``s`` of a PL/pgSQL loop.


def put(prepared: TableChanges, rows: Rows, stage: str | None) -> str:
    """Insert, upsert or update rows."""
    names = rows.columns.column_names
    target = prepared.table.name.quoted
    if not names:
        return f"INSERT INTO {target} DEFAULT VALUES"
    values = {n: value_of(prepared.table, rows, n) for n in names}
    others = prepared.changed(names)
    if prepared.mode == "update":
        if not others:
            return "SELECT"  # nothing but the key: nothing to update
        sets = ", ".join(f"{quote(n)} = {values[n]}" for n in others)
        read = f" FROM {stage} AS s" if stage else ""
        return f"UPDATE {target} AS t SET {sets}{read} WHERE {_match(prepared, rows)}"
    listed = ", ".join(values.values())
    read = f"SELECT {listed} FROM {stage} AS s" if stage else f"VALUES ({listed})"
    insert = f"INSERT INTO {target} ({_names(names)}) OVERRIDING SYSTEM VALUE {read}"
    if prepared.mode == "insert":
        return insert
    sets = ", ".join(f"{quote(n)} = EXCLUDED.{quote(n)}" for n in others)
    action = f"UPDATE SET {sets}" if others else "NOTHING"
    return f"{insert} ON CONFLICT ({_names(prepared.key)}) DO {action}"


def merge(prepared: TableChanges, rows: Rows, stage: str) -> str:
    """Upsert rows with a statement that looks each key up once.

    Staging tables have no statistics: without these settings, the planner might read all of the
    target.
    """
    names = rows.columns.column_names
    values = {n: value_of(prepared.table, rows, n) for n in names}
    sets = ", ".join(f"{quote(n)} = {values[n]}" for n in prepared.changed(names))
    matched = f"UPDATE SET {sets}" if sets else "DO NOTHING"
    return (
        "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; "
        f"MERGE INTO {prepared.table.name.quoted} AS t USING {stage} AS s "
        f"ON {_match(prepared, rows)} WHEN MATCHED THEN {matched} "
        f"WHEN NOT MATCHED THEN INSERT ({_names(names)}) OVERRIDING SYSTEM VALUE "
        f"VALUES ({', '.join(values.values())})"
    )


def delete(prepared: TableChanges, rows: Rows, stage: str | None) -> str:
    """Delete the rows of these keys."""
    read = f" USING {stage} AS s" if stage else ""
    return f"DELETE FROM {prepared.table.name.quoted} AS t{read} WHERE {_match(prepared, rows)}"


def value_of(table: Table, rows: Rows, name: str) -> str:
    """A column's value of the row ``s``, in the column's type."""
    source, column = f"s.{quote(name)}", table.columns[name]
    if name not in rows.staged:
        return source
    value = f"{source}::{column.cast}"
    if not column.rounds:
        return value
    # A text that the type does not accept makes the server refuse the row.
    refused = f"({source} || {literal(f' does not fit {column.type}')})::{column.cast}"
    kept = f"{value} IS NOT DISTINCT FROM {value}::{column.type}"
    return f"CASE WHEN {kept} THEN {value} ELSE {refused} END"


def _match(prepared: TableChanges, rows: Rows) -> str:
    return " AND ".join(f"t.{quote(n)} = {value_of(prepared.table, rows, n)}" for n in prepared.key)


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))
