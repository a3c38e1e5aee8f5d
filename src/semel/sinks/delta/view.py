"""Shows an audit the rows of Delta tables, each at one version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.ledger import OffsetRange
from semel.core.records import Records
from semel.sinks import rows as made
from semel.sinks.base import Snapshot
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.table import Table, translated
from semel.sinks.rereading import Held, held_of, in_ranges, places


class DeltaView:
    """See :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: DeltaConfig,
        tables: Mapping[str, Table | None],
        take: Callable[[Collection[str]], Snapshot],
    ) -> None:
        self._connector = connector
        self._config = config
        self._tables = tables
        self._take = take

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return self._take(topics)

    def target(self, topic: str) -> str:
        return self._config.table(topic)

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        table = self._tables.get(topic)
        if table is None:
            return
        provenance = self._connector.provenance_columns
        wanted = list(dict.fromkeys([*columns, *provenance.values()]))
        with translated(table.where):
            scanned = pa.RecordBatchReader.from_stream(table.raw.scan(columns=wanted))
            for batch in scanned:
                found = made.shown(pa.Table.from_batches([batch]), topic, columns, provenance)
                yield from in_ranges(found, ranges, topic).to_batches()

    def held(self, records: Records) -> Held:
        table = self._tables.get(records.topic)
        if table is None:
            return Held(places(records.rows.slice(0, 0)), pa.table({}))
        provenance = self._connector.provenance_columns
        return held_of(records, partial(made.held, self._config, provenance, table.columns))
