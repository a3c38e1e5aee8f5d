"""Shows an audit the rows of an Iceberg table, at one snapshot of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.errors import ServiceError
from semel.core.ledger import OffsetRange
from semel.core.records import Records
from semel.sinks import rows as made
from semel.sinks.base import Snapshot
from semel.sinks.iceberg.catalog import reading, reason
from semel.sinks.iceberg.projection import read_rows
from semel.sinks.iceberg.table import Table
from semel.sinks.layout import Deleting
from semel.sinks.rereading import Held, held_of, in_ranges
from semel.sinks.rows import shown


class IcebergView:
    """See :class:`~semel.sinks.rereading.View`; it reads one file of the table at a time."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: Deleting,
        table: Table,
        take: Callable[[Collection[str]], Snapshot],
    ) -> None:
        self._connector = connector
        self._config = config
        self._table = table
        self._take = take

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return self._take(topics)

    def target(self, topic: str) -> str:
        return self._table.where

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        table, provenance = self._table, self._connector.provenance_columns
        if table.snapshot_id is None:
            return
        wanted = tuple(dict.fromkeys([*columns, *provenance.values()]))
        with reading(table.where):
            try:
                scan = table.raw.scan(selected_fields=wanted, snapshot_id=table.snapshot_id)
                for task in scan.plan_files():
                    rows = read_rows(table.metadata, table.io, scan.projection(), task)
                    found = shown(rows, topic, columns, provenance)
                    yield from in_ranges(found, ranges, topic).to_batches()
            except ValueError as error:
                raise ServiceError(f"Iceberg table {table.where}: {reason(error)}") from None

    def held(self, records: Records) -> Held:
        provenance = self._connector.provenance_columns
        return held_of(records, partial(made.held, self._config, provenance, self._table.columns))
