"""Shows an audit the rows of SQL databases, as they are and as records would make them.

The database itself shows what it makes of values: they are written into a temporary table with the
types of the target's columns, and read back as rows are read from the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import OffsetRange
from semel.core.records import OFFSET, PARTITION, TOPIC, Records, some_rejected
from semel.databases.columns import Table
from semel.databases.errors import DataRefused
from semel.databases.names import Name, quote
from semel.sinks.base import Snapshot
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout, layout
from semel.sinks.rereading import HeldRows, SomeRefused, held_of, places
from semel.sinks.sql import snapshot
from semel.sinks.sql.database import Dialect, SinkDatabase
from semel.sinks.sql.ledger import Ledger, SqlLedger
from semel.sinks.sql.prepare import converted
from semel.sinks.unavailable import refusals, without

Ranges = Sequence[OffsetRange]


class TableView(ABC):
    """Looks at the database through one session, whose transaction holds the instant. See
    :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: JdbcConfig,
        database: SinkDatabase,
        ledger: Ledger,
        name: Callable[[str], Name],
        key_fields: Sequence[str] | None,
    ) -> None:
        self._connector = connector
        self._config = config
        self._database = database
        self._ledger = ledger
        self._name = name
        self._key_fields = key_fields
        self._tables: dict[str, Table | None] = {}

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return snapshot.take(
            self._database,
            self._ledger,
            {topic: [self._name(topic)] for topic in topics},
            self._connector.provenance_columns,
            self._connector.dead_letter_table,
            self._key_fields,
        )

    def target(self, topic: str) -> str:
        return str(self._name(topic))

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        table = self._table(topic)
        if table is not None:
            yield from self._rows(table, topic, columns, ranges)

    def held(self, records: Records) -> HeldRows:
        table = self._table(records.topic)
        if table is None:
            return HeldRows(places(records.rows.slice(0, 0)), pa.table({}))
        return held_of(records, partial(self._arranged, table))

    @abstractmethod
    def _rows(
        self, table: Table, topic: str, columns: Sequence[str], ranges: Ranges | None
    ) -> Iterator[pa.RecordBatch]:
        """A topic's rows in its table."""

    @abstractmethod
    def _held(self, table: Table, records: Records, arranged: Layout) -> HeldRows:
        """What the table would hold for the values that are ``arranged``, without provenance."""

    def _arranged(self, table: Table, records: Records) -> HeldRows:
        arranged = layout(self._config, {}, records, deletes=False)
        provenance = set(self._connector.provenance_columns.values())
        columns = {n: v for n, v in arranged.columns.items() if n not in provenance}
        gone = replace(arranged, columns=columns).unavailable()
        if gone and self._config.mode == "insert":
            raise some_rejected(records.rows, refusals(gone, arranged.placeholder))
        columns |= {name: without(columns[name], rows) for name, rows in gone.items()}
        held = self._held(table, records, replace(arranged, columns=columns))
        return replace(held, optional=held.optional | gone.keys() | arranged.absent.keys())

    def _table(self, topic: str) -> Table | None:
        if topic not in self._tables:
            self._tables[topic] = self._database.find(self._name(topic))
        return self._tables[topic]


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
            rows = pa.Table.from_batches([batch])
            for place, name in enumerate(_PLACE if provenance else ()):
                rows = rows.set_column(place, name, rows.column(place).cast(_PLACE[name]))
            yield from rows.to_batches()

    def _held(self, table: Table, records: Records, arranged: Layout) -> HeldRows:
        fit = self._instant.fit
        arrays, _ = converted(records, table, arranged.columns, arranged.key, fit, arranged.typed)
        unlike = {
            n: f"the audit cannot compare values of type {table.columns[n].type}"
            for n in arrays
            if self._instant.shown(table.columns[n], quote(n)) is None
        }
        values = pa.table({n: v for n, v in arrays.items() if n not in unlike})
        return HeldRows(
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
            with writing, writer.kept_rows(table.name, values) as kept:
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
    conditions = [
        f"({partition} = {r.partition} AND {offset} >= {r.from_offset} "
        f"AND {offset} < {r.until_offset})"
        for r in ranges
    ]
    return f"({' OR '.join(conditions) or '1 = 0'})"
