"""Shows an audit the rows of SQL databases, as they are and as records would make them.

The database itself shows what it makes of values: they are written into a temporary table with the
types of the target's columns, and read back as rows are read from the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import OffsetRange
from semel.core.records import OFFSET, PARTITION, TOPIC, Records
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout
from semel.sinks.rereading import Held, SomeRefused, places
from semel.sinks.sql.columns import Table
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.errors import DataRefused
from semel.sinks.sql.ledger import SqlLedger
from semel.sinks.sql.names import Name, quote
from semel.sinks.sql.prepare import converted
from semel.sinks.sql.tableview import Ranges, TableView

_PLACE = {PARTITION: pa.int32(), OFFSET: pa.int64()}


class SqlView(TableView):
    """A view through the session ``instant``. Values are written by ``writer``, which is the same
    session or another one. See :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: JdbcConfig,
        instant: Dialect,
        writer: Dialect,
        names: Mapping[str, Name],
        key_fields: Sequence[str] | None,
    ) -> None:
        ledger = SqlLedger(instant, connector.name)
        super().__init__(connector, config, instant, ledger, names.__getitem__, key_fields)
        self._instant = instant
        self._writer = writer

    def _rows(
        self, table: Table, topic: str, columns: Sequence[str], ranges: Ranges | None
    ) -> Iterator[pa.RecordBatch]:
        provenance = self._connector.provenance_columns
        chosen = [f"{self._shown(table, n)} AS {quote(n)}" for n in columns]
        where = ["1 = 1"]
        if provenance:
            chosen = [f"{quote(provenance[n])} AS {quote(n)}" for n in _PLACE] + chosen
            where.append(f"{quote(provenance[TOPIC])} = {self._instant.literal(topic)}")
            if ranges is not None:
                where.append(_within([r for r in ranges if r.topic == topic], provenance))
        batches = self._instant.stream(
            f"SELECT {', '.join(chosen) or '1 AS one'} FROM {table.name.quoted} "
            f"WHERE {' AND '.join(where)}"
        )
        for batch in batches:
            found = pa.Table.from_batches([batch])
            for place, name in enumerate(_PLACE if provenance else ()):
                found = found.set_column(place, name, found.column(place).cast(_PLACE[name]))
            yield from found.to_batches()

    def _held(self, table: Table, records: Records, given: Layout) -> Held:
        fit = self._instant.fit
        arrays, _ = converted(records, table, given.columns, given.key, fit, given.typed)
        unlike = {
            n: f"the audit cannot compare values of type {table.columns[n].type}"
            for n in arrays
            if self._instant.shown(table.columns[n], quote(n)) is None
        }
        values = pa.table({n: v for n, v in arrays.items() if n not in unlike})
        return Held(
            places(records.rows),
            self._kept(table, values) if values.num_columns else values,
            frozenset(n for n in values.column_names if table.columns[n].has_default),
            unlike,
        )

    def _kept(self, table: Table, values: pa.Table) -> pa.Table:
        """The values as the database stores them."""
        chosen = [f"{self._shown(table, n)} AS {quote(n)}" for n in values.column_names]
        writer, together = self._writer, self._writer is self._instant
        writing = writer.translating() if together else writer.transaction()
        try:
            with writing, writer.kept(table.name, values) as kept:
                query = f"SELECT {', '.join(chosen)} FROM {kept} ORDER BY {writer.kept_order}"
                return pa.Table.from_batches(writer.stream(query))
        except DataRefused as error:
            raise SomeRefused(str(error)) from None

    def _shown(self, table: Table, name: str) -> str:
        shown = self._instant.shown(table.columns[name], quote(name))
        assert shown is not None
        return shown


def _within(ranges: Sequence[OffsetRange], provenance: Mapping[str, str]) -> str:
    partition, offset = quote(provenance[PARTITION]), quote(provenance[OFFSET])
    each = [
        f"({partition} = {r.partition} AND {offset} >= {r.from_offset} "
        f"AND {offset} < {r.until_offset})"
        for r in ranges
    ]
    return f"({' OR '.join(each) or '1 = 0'})"
