"""PostgreSQL as a database of the sink: its values, and what the ledger and an audit ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from semel.core.ledger import Target
from semel.core.records import TIMESTAMP
from semel.databases.columns import Column, Table
from semel.databases.errors import DataRefused
from semel.databases.names import Name, literal, quote
from semel.databases.postgresql.database import Postgres
from semel.sinks.postgresql.writer import ROW, stage_rows, value_of
from semel.sinks.sql.convert import ConvertedValues, convert
from semel.sinks.sql.database import SinkDatabase
from semel.sinks.sql.ledger import OFFSETS
from semel.sinks.sql.prepare import Rows

_LOOSE = """SELECT a.attname::text AS name FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = {oid} AND a.attnum > 0
    AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true))"""


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
        time = f"(extract(epoch FROM {quote(provenance[TIMESTAMP])}) * 1000)::bigint"
        return [*super().places(provenance), f"{time} AS timestamp"]

    def loose_columns(self, target: Table, names: Sequence[str]) -> list[str]:
        loose = self.query(_LOOSE.format(oid=target.oid)).column("name").to_pylist()
        return [n for n in names if n in loose]
