"""Writes prepared rows: by COPY, or by COPY into a temporary table and one statement that reads it.
Finds the rows among them that the server refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import named
from semel.core.records import RejectedRecord, rejected
from semel.databases.columns import Table, is_list, is_text
from semel.databases.errors import SchemaChanged
from semel.databases.names import Name, literal, quote
from semel.databases.postgresql.connection import IS_DATA, Connection
from semel.sinks.sql.base import Undo
from semel.sinks.sql.convert import json_text
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


# What the server refuses, found row by row after a whole batch has failed

_REFUSED = "pg_temp.semel_refused"

_LOOP = """DO $semel$
DECLARE s record; detail text; named text;
BEGIN
    FOR s IN SELECT * FROM {stage} ORDER BY {row} LOOP
        {one}
    END LOOP;
END $semel$"""

_GUARDED = """BEGIN
            {statement};
        EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
            IF NOT ({data}) THEN RAISE; END IF;
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            named := '';
            {naming}
            INSERT INTO {refused}
            VALUES (s.{row}, SQLSTATE, named || rtrim(SQLERRM || '. ' || detail, '. '));
        END;"""
_NAMING = """IF named = '' THEN
                DECLARE tried {table}.{column}%TYPE;
                BEGIN
                    tried := {value};
                EXCEPTION WHEN OTHERS THEN
                    named := {text};
                END;
            END IF;"""
"""The server does not say which column a value is for that it refuses by its type alone."""

Statement = Callable[[TableChanges, Rows, str | None], str]


def find_refused(connection: Connection, batches: Sequence[TableChanges]) -> list[RejectedRecord]:
    """Name the records that the server refuses, in a transaction that never commits.

    Each row is tried after those before it: if two rows have one key, the second is refused.
    """
    for deferred in (True, False):
        rejections: list[RejectedRecord] = []
        try:
            with connection.transaction():
                if not deferred:  # a constraint that failed at COMMIT
                    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                connection.execute(
                    f"CREATE TEMPORARY TABLE {_REFUSED.removeprefix('pg_temp.')} "
                    "(row bigint, state text, message text) ON COMMIT DROP"
                )
                for batch in batches:
                    rejections.extend(_try(connection, batch))
                raise Undo
        except Undo:
            if rejections:
                return rejections
    return []


def _try(connection: Connection, batch: TableChanges) -> list[RejectedRecord]:
    rejections = []
    if batch.deletes is not None and batch.deletes.count:
        rejections += _refused(connection, batch, batch.deletes, delete)
    for rows in by_given_columns(batch.rows):
        rejections += _refused(connection, batch, rows, put)
    return rejections


def _refused(
    connection: Connection, batch: TableChanges, rows: Rows, statement: Statement
) -> list[RejectedRecord]:
    rows = _as_text(rows)
    nul = _with_nul(rows.columns)
    rejections = [
        rejected(
            rows.places, row, f"column {named(name)}: text cannot hold a NUL character (22021)"
        )
        for row, name in sorted(nul.items())
    ]
    if rejections:
        rows = rows.take(np.delete(np.arange(rows.count), list(nul)))
    _try_each(connection, batch, rows, statement)
    refused = connection.query(f"SELECT row, state, message FROM {_REFUSED} ORDER BY row")
    connection.execute(f"DELETE FROM {_REFUSED}")
    return rejections + [
        rejected(rows.places, r["row"], f"{r['message']} ({r['state']})")
        for r in refused.to_pylist()
    ]


def _try_each(
    connection: Connection, batch: TableChanges, rows: Rows, statement: Statement
) -> None:
    numbers, row = np.arange(rows.count), quote(ROW)
    stage = stage_rows(connection, batch.table, rows, numbers=numbers)
    naming = [
        _NAMING.format(
            table=batch.table.name.quoted,
            column=quote(name),
            value=value_of(batch.table, rows, name),
            text=literal(f"column {named(name)}: "),
        )
        for name in rows.columns.column_names
    ]
    guarded = _GUARDED.format(
        statement=statement(batch, rows, None),
        refused=_REFUSED,
        row=row,
        data=IS_DATA,
        naming="\n            ".join(naming),
    )
    connection.execute(_LOOP.format(stage=stage, row=row, one=guarded))
    connection.execute(connection.emptied(stage))


def _as_text(rows: Rows) -> Rows:
    """Stage as text whatever the server could refuse during COPY."""
    columns, staged = rows.columns, set(rows.staged)
    for place, (name, kind) in enumerate(
        zip(columns.column_names, columns.schema.types, strict=True)
    ):
        if is_text(kind) or isinstance(kind, pa.JsonType):
            values = columns.column(name)
            text = values if is_text(kind) else json_text(values)
            columns = columns.set_column(place, name, text)
            staged.add(name)
    return Rows(columns, frozenset(staged), rows.places, rows.count)


def _with_nul(columns: pa.Table) -> dict[int, str]:
    """The rows that contain a NUL character, each with the first column that does."""
    by_row: dict[int, str] = {}
    for name, values in zip(columns.column_names, columns.columns, strict=True):
        if is_text(values.type):
            has = pc.match_substring(values, "\0")
        elif is_list(values.type) and is_text(values.type.value_type):
            has = pc.match_substring(pc.binary_join(values, ""), "\0")
        else:
            continue
        for row in pc.indices_nonzero(pc.fill_null(has, False)).to_pylist():
            by_row.setdefault(row, name)
    return by_row
