"""PostgreSQL as a database of the sink: its values, what the ledger asks and what an audit sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import Target
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TOPIC, Records
from semel.databases.columns import Column, Table
from semel.databases.errors import DataRefused
from semel.databases.names import Name, literal, quote
from semel.databases.postgresql.database import Postgres
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.postgresql.writer import ROW, stage_rows, value_of
from semel.sinks.rereading import HeldRows, SomeRefused, places
from semel.sinks.sql.convert import ConvertedValues, convert
from semel.sinks.sql.database import SinkDatabase
from semel.sinks.sql.ledger import OFFSETS
from semel.sinks.sql.prepare import Rows, converted, is_optional
from semel.sinks.sql.view import Ranges, TableView, within

_LOOSE = """SELECT a.attname::text AS name FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = {oid} AND a.attnum > 0
    AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true))"""
ONE_INSTANT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT 1"
"""Begins the transaction of a view; its first query fixes the instant."""


class PostgresDialect(SinkDatabase, Postgres):
    """See :class:`~semel.sinks.sql.database.SinkDatabase`."""

    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        return convert(values, column)

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        names = keys.columns.column_names
        ranks = []
        for name in names:
            collation = target.columns[name].collation
            by = value_of(target, keys, name) + (f" COLLATE {collation}" if collation else "")
            ranks.append(f"dense_rank() OVER (ORDER BY {by}) AS {quote(name)}")
        try:
            ranked = self.evaluate(target, keys, ranks)
        except DataRefused:  # writing them will tell which
            ranked = keys.columns
        return {n: ranked.column(n) for n in names}

    def evaluate(self, target: Table, rows: Rows, expressions: Sequence[str]) -> pa.Table:
        """The values of expressions for each row ``s``, in the order of the rows, as the server
        computes them in a transaction of its own."""
        with self.transaction():
            stage = stage_rows(self, target, rows, numbers=np.arange(rows.count))
            answers = self.query(
                f"SELECT {', '.join(expressions)} FROM {stage} AS s ORDER BY {quote(ROW)}"
            )
            self.execute(self.emptied(stage))
        return answers

    def targets(self, names: Mapping[str, Name]) -> dict[str, Target | None]:
        """The tables of topics as entries of the ledger remember them, inside the open transaction.

        A restored dump has different oids, but its ledger's table is a different one, too.
        """
        if not names:
            return {}
        values = ", ".join(
            f"({literal(topic)}, to_regclass({literal(name.quoted)}))"
            for topic, name in names.items()
        )
        rows = self.query(
            f"""SELECT t.topic, format('%s.%s', n.nspname, c.relname) AS name,
                c.oid::text AS id, to_regclass('{OFFSETS}')::oid::text AS store
            FROM (VALUES {values}) AS t(topic, oid)
            JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace"""
        ).to_pylist()
        targets = {r["topic"]: Target(r["name"], r["id"], r["store"] or "") for r in rows}
        return {topic: targets.get(topic) for topic in names}

    # For the audit

    def places(self, provenance: Mapping[str, str]) -> list[str]:
        return [*super().places(provenance), f"{_millis(provenance[TIMESTAMP])} AS timestamp"]

    def loose_columns(self, target: Table, names: Sequence[str]) -> list[str]:
        loose = self.query(_LOOSE.format(oid=target.oid)).column("name").to_pylist()
        return [n for n in names if n in loose]


def _millis(column: str) -> str:
    return f"(extract(epoch FROM {quote(column)}) * 1000)::bigint"


_PLAIN = {
    *("int2", "int4", "int8", "float4", "float8", "bool", "bytea", "uuid"),
    *("date", "time", "timestamp", "timestamptz"),
}
"""Types that the driver reads in the form in which it writes them."""
_SAME_TEXT = {"text", "varchar", "citext", "json"}
"""Types that keep a text unchanged."""


class PostgresView(TableView):
    """A view through ``connection``, which holds the instant; ``other`` is asked what the server
    makes of values. See :class:`~semel.sinks.rereading.View`.

    If Arrow alone determines a column's values, they are compared directly. The server casts all
    others, in a staging table of another session, and so shows what it would store.
    """

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
            chosen = [
                f"{quote(provenance[PARTITION])}::integer AS {PARTITION}",
                f"{quote(provenance[OFFSET])}::bigint AS {OFFSET}",
                f"{_millis(provenance[TIMESTAMP])} AS {TIMESTAMP}",
            ]
            where = [f"{quote(provenance[TOPIC])} = {literal(topic)}"]
            if ranges is not None:
                where.append(within([r for r in ranges if r.topic == topic], provenance))
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
            frozenset(n for n in arrays if is_optional(table.columns[n], records)),
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
