"""Reads an Iceberg table's rows and ledger at one state, for an audit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import TopicPartition
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.iceberg.catalog import reading, reason
from semel.sinks.iceberg.ledger import IcebergLedger
from semel.sinks.iceberg.projection import read_rows
from semel.sinks.iceberg.table import Table
from semel.sinks.letters import PLACES, places_of
from semel.sinks.rows import places
from semel.sinks.storedkeys import StoredKeys


def take(
    connector: ConnectorConfig,
    topics: Collection[str],
    table: Table,
    letters: Table | None,
    key_fields: Sequence[str] = (),
) -> Snapshot:
    """Read ledger and results of one state of the table; also the keys of its rows, if
    ``key_fields`` names them and there is no provenance."""
    ledger = IcebergLedger(table, connector.name)
    provenance = connector.provenance_columns
    coordinates = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
    wanted = [provenance[n] for n in coordinates] if provenance else []
    records: dict[str, pa.Table] = {}
    untraced = 0
    if wanted and table.columns.names:
        _check_provenance(connector, table)
        found = scan(table, wanted)
        records = {t: places(found, t) for t in topics}
        untraced = found.column(0).null_count
    keys: dict[str, StoredKeys] = {}
    if key_fields and not provenance and table.columns.names:
        keys = dict.fromkeys(topics, StoredKeys(_scanned(table, key_fields)))
    dead = {}
    if letters is not None:
        letters.renew()
        if letters.columns.names:
            dead = places_of(connector.name, scan(letters, PLACES))
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        {table.where: _count(table)},
        {table.where: untraced},
        dict.fromkeys(topics, table.where),
        dead,
        elsewhere=ledger.elsewhere(),
        keys=keys,
    )


def gathered(
    connector: ConnectorConfig,
    topics: Collection[str],
    home: Table,
    tables: Sequence[Table],
    letters: Table | None,
) -> Snapshot:
    """The ledger of ``home``, and the rows of all tables as if they were one table."""
    at = take(connector, topics, home, letters)
    parts = [take(connector, topics, table, None) for table in tables]
    name = f"the tables of {home.where}"
    # A table may hold more than home by now: such rows are not judged yet.
    ends = {e.topic_partition: e.position for e in at.entries}
    records = {t: [_below(p.records[t], t, ends) for p in parts if t in p.records] for t in topics}
    # Each table is judged by its own ledger, which moves with its rows.
    written = sum(e.rows_written for e in at.entries)
    written -= sum(e.rows_written for p in parts for e in p.entries)
    return Snapshot(
        at.entries,
        at.holes,
        {t: pa.concat_tables(found) for t, found in records.items() if found},
        {name: written + sum(n for p in parts for n in p.rows.values())},
        {name: sum(n for p in parts for n in p.untraced.values())},
        dict.fromkeys(topics, name),
        at.dead,
    )


def _below(rows: pa.Table, topic: str, ends: Mapping[TopicPartition, int]) -> pa.Table:
    keep = np.zeros(rows.num_rows, dtype=bool)
    partitions, offsets = (rows.column(n).to_numpy() for n in ("partition", "offset"))
    for tp, end in ends.items():
        if tp.topic == topic:
            keep |= (partitions == tp.partition) & (offsets < end)
    return rows.filter(pa.array(keep))


def _check_provenance(connector: ConnectorConfig, table: Table) -> None:
    missing = [c for c in connector.provenance_columns.values() if c not in table.columns.names]
    if missing:
        raise ConfigError(
            f"connector {connector.name}: provenance=true, but Iceberg table {table.where} has no "
            f"column {named(missing[0])}. Add it, or audit with provenance=false, by counts"
        )


def scan(table: Table, columns: Sequence[str]) -> pa.Table:
    """Some columns of all rows."""
    if table.snapshot_id is None:
        return pa.schema([table.columns.field(c) for c in columns]).empty_table()
    with reading(table.where):
        try:
            scanned = table.raw.scan(selected_fields=tuple(columns), snapshot_id=table.snapshot_id)
            return scanned.to_arrow().select(list(columns))
        except ValueError as error:
            raise ServiceError(f"Iceberg table {table.where}: {reason(error)}") from None


def _scanned(table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of all rows, a file at a time."""
    if table.snapshot_id is None:
        return
    with reading(table.where):
        try:
            scan = table.raw.scan(selected_fields=tuple(columns), snapshot_id=table.snapshot_id)
            for task in scan.plan_files():
                rows = read_rows(table.metadata, table.io, scan.projection(), task)
                yield from rows.select(list(columns)).to_batches()
        except ValueError as error:
            raise ServiceError(f"Iceberg table {table.where}: {reason(error)}") from None


def _count(table: Table) -> int:
    if table.snapshot_id is None:
        return 0
    with reading(table.where):
        return int(table.raw.scan(snapshot_id=table.snapshot_id).count())
