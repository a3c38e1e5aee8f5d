"""Reads a lake's tables for an audit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError
from semel.core.ledger import OffsetRange
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TOPIC, Records
from semel.sinks import rows as sink_rows
from semel.sinks.base import Snapshot
from semel.sinks.lake.tables import LakeTable
from semel.sinks.layout import DeletionKeys
from semel.sinks.rereading import HeldRows, held_of, in_ranges, places
from semel.sinks.storedkeys import StoredKeys


def places_in(
    connector: ConnectorConfig,
    table: LakeTable,
    topics: Collection[str],
    lacks: Callable[[str], str],
) -> tuple[dict[str, pa.Table], int]:
    """Where the rows of each topic were read, and how many rows do not say where.

    Raises:
        ConfigError: the table has no column for that; ``lacks`` says so.
    """
    provenance = connector.provenance_columns
    for name in provenance.values():
        if name not in table.columns.names:
            raise ConfigError(f"connector {connector.name}: {lacks(name)}")
    rows = table.scan([provenance[n] for n in (TOPIC, PARTITION, OFFSET, TIMESTAMP)])
    return {t: sink_rows.places(rows, t) for t in topics}, rows.column(0).null_count


def keys_in(table: LakeTable, columns: Sequence[str]) -> StoredKeys:
    """The keys of all rows."""
    return StoredKeys(table.scanned(columns))


class LakeView:
    """See :class:`~semel.sinks.rereading.View`; each table is read at one version, in parts."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: DeletionKeys,
        of: Callable[[str], LakeTable | None],
        name: Callable[[str], str],
        take: Callable[[Collection[str]], Snapshot],
    ) -> None:
        self._connector = connector
        self._config = config
        self._of = of
        self.target = name
        self.snapshot = take

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        table = self._of(topic)
        if table is None:
            return
        provenance = self._connector.provenance_columns
        for batch in table.scanned(list(dict.fromkeys([*columns, *provenance.values()]))):
            rows = sink_rows.shown(pa.Table.from_batches([batch]), topic, columns, provenance)
            yield from in_ranges(rows, ranges, topic).to_batches()

    def held(self, records: Records) -> HeldRows:
        table = self._of(records.topic)
        if table is None:
            return HeldRows(places(records.rows.slice(0, 0)), pa.table({}))
        provenance = self._connector.provenance_columns
        return held_of(records, partial(sink_rows.held, self._config, provenance, table.columns))
