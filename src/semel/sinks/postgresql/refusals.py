"""Finds the rows that the server refuses, one by one, after a whole batch has failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import named
from semel.core.records import RejectedRecord, rejected
from semel.databases.columns import is_list, is_text
from semel.databases.names import literal, quote
from semel.databases.postgresql.connection import IS_DATA, Connection
from semel.sinks.postgresql.writer import ROW, delete, put, stage_rows, value_of
from semel.sinks.sql.base import Undo
from semel.sinks.sql.convert import json_text
from semel.sinks.sql.prepare import Rows, TableChanges, by_given_columns

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
