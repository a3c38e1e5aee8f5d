"""What the views of all databases have in common: one table per topic, and one ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import OffsetRange
from semel.core.records import Records, some_rejected
from semel.sinks.base import Snapshot
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout, layout
from semel.sinks.rereading import Held, held_of, places
from semel.sinks.sql import snapshot
from semel.sinks.sql.columns import Table
from semel.sinks.sql.database import Database
from semel.sinks.sql.ledger_tables import Ledger
from semel.sinks.sql.names import Name
from semel.sinks.unavailable import refusals, without

Ranges = Sequence[OffsetRange]


class TableView(ABC):
    """Looks at the database through one session, whose transaction holds the instant. See
    :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: JdbcConfig,
        database: Database,
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

    def held(self, records: Records) -> Held:
        table = self._table(records.topic)
        if table is None:
            return Held(places(records.rows.slice(0, 0)), pa.table({}))
        return held_of(records, partial(self._arranged, table))

    @abstractmethod
    def _rows(
        self, table: Table, topic: str, columns: Sequence[str], ranges: Ranges | None
    ) -> Iterator[pa.RecordBatch]:
        """A topic's rows in its table."""

    @abstractmethod
    def _held(self, table: Table, records: Records, given: Layout) -> Held:
        """What the table would hold for the values ``given``, without provenance."""

    def _arranged(self, table: Table, records: Records) -> Held:
        arranged = layout(self._config, {}, records, deletes=False)
        provenance = set(self._connector.provenance_columns.values())
        given = {n: v for n, v in arranged.columns.items() if n not in provenance}
        gone = replace(arranged, columns=given).unavailable()
        if gone and self._config.mode == "insert":
            raise some_rejected(records.rows, refusals(gone, arranged.placeholder))
        given |= {name: without(given[name], rows) for name, rows in gone.items()}
        held = self._held(table, records, replace(arranged, columns=given))
        return replace(held, optional=held.optional | gone.keys() | arranged.absent.keys())

    def _table(self, topic: str) -> Table | None:
        if topic not in self._tables:
            self._tables[topic] = self._database.find(self._name(topic))
        return self._tables[topic]
