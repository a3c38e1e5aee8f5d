"""Shows rows to an audit, as they are and as records would make them.

If Arrow alone determines a column's values, they are compared directly. The server casts all
others, in a staging table of another session, and so shows what it would store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TOPIC, Records
from semel.databases.columns import Column, Table
from semel.databases.errors import DataRefused
from semel.databases.names import Name, literal, quote
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout
from semel.sinks.postgresql.database import PostgresDialect
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.rereading import HeldRows, SomeRefused, places
from semel.sinks.sql.prepare import Rows, converted
from semel.sinks.sql.view import Ranges, TableView

_PLAIN = {
    *("int2", "int4", "int8", "float4", "float8", "bool", "bytea", "uuid"),
    *("date", "time", "timestamp", "timestamptz"),
}
"""Types that the driver reads in the form in which it writes them."""
_SAME_TEXT = {"text", "varchar", "citext", "json"}
"""Types that keep a text unchanged."""
ONE_INSTANT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT 1"
"""Begins the transaction of a view; its first query fixes the instant."""


class PostgresView(TableView):
    """A view through ``connection``, which holds the instant; ``other`` is asked what the server
    makes of values. See :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: JdbcConfig,
        connection: PostgresDialect,
        other: PostgresDialect,
        name: Callable[[str], Name],
        key_fields: Sequence[str] | None,
    ) -> None:
        ledger = PostgresLedger(connection, connector.name, 0)
        super().__init__(connector, config, connection, ledger, name, key_fields)
        self._connection = connection
        self._other = other

    def _rows(
        self, table: Table, topic: str, columns: Sequence[str], ranges: Ranges | None
    ) -> Iterator[pa.RecordBatch]:
        provenance = self._connector.provenance_columns
        chosen, where = [], ["true"]
        if provenance:
            partition, offset = quote(provenance[PARTITION]), quote(provenance[OFFSET])
            chosen = [
                f"{partition}::integer AS {PARTITION}",
                f"{offset}::bigint AS {OFFSET}",
                f"(extract(epoch FROM {quote(provenance[TIMESTAMP])}) * 1000)::bigint "
                f"AS {TIMESTAMP}",
            ]
            where = [f"{quote(provenance[TOPIC])} = {literal(topic)}"]
            if ranges is not None:
                conditions = [
                    f"({partition} = {r.partition} AND {offset} >= {r.from_offset} "
                    f"AND {offset} < {r.until_offset})"
                    for r in ranges
                    if r.topic == topic
                ]
                where.append(f"({' OR '.join(conditions) or 'false'})")
        shown = [f"{_shown(table.columns[n], quote(n))} AS {quote(n)}" for n in columns]
        yield from self._connection.stream(
            f"SELECT {', '.join(chosen + shown) or '1'} FROM {table.name.quoted} "
            f"WHERE {' AND '.join(where)}"
        )

    def _held(self, table: Table, records: Records, arranged: Layout) -> HeldRows:
        arrays, staged = converted(records, table, arranged.columns, arranged.key)
        rows = Rows(pa.table(arrays), staged, places(records.rows), records.rows.num_rows)
        return HeldRows(
            rows.places,
            self._as_shown(table, rows),
            frozenset(n for n in arrays if table.columns[n].has_default),
        )

    def _as_shown(self, table: Table, rows: Rows) -> pa.Table:
        columns = rows.columns
        asked = [n for n in columns.column_names if n in rows.staged or _asks(table.columns[n])]
        if asked:
            answers = self._said(
                table, Rows(columns.select(asked), rows.staged, rows.places, rows.count)
            )
        for place, name in enumerate(columns.column_names):
            if name in asked:
                values = answers.column(name)
            elif pa.types.is_decimal(columns.column(name).type):
                values = digits(columns.column(name))
            else:
                values = columns.column(name)
            columns = columns.set_column(place, name, values)
        return columns

    def _said(self, table: Table, rows: Rows) -> pa.Table:
        """The values as the server stores them."""
        chosen = []
        for name in rows.columns.column_names:
            column = table.columns[name]
            cast = f"s.{quote(name)}::{column.cast}::{column.type}"
            chosen.append(f"{_shown(column, cast)} AS {quote(name)}")
        try:
            return self._other.evaluate(table, rows, chosen)
        except DataRefused as error:
            raise SomeRefused(str(error)) from None


def _shown(column: Column, value: str) -> str:
    """The expression that reads a value: in an Arrow type, or as text."""
    return value if column.base in _PLAIN and column.element is None else f"({value})::text"


def _asks(column: Column) -> bool:
    """Whether only the server can tell how it shows a value."""
    if column.element is not None or column.copied is None:
        return True
    plain = column.base in _PLAIN or column.base in _SAME_TEXT
    return not plain and not (column.base == "numeric" and not column.any_numeric)


def digits(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals in digits, as many after the point as their scale; Arrow writes some as 1E-7."""
    import duckdb

    with duckdb.connect(config={"threads": 1}) as session:
        relation = session.from_arrow(pa.table({"v": values})).project("CAST(v AS VARCHAR) AS v")
        return relation.to_arrow_table().column("v").cast(pa.string())
