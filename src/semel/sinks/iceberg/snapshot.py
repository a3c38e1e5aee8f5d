"""What an audit needs of an Iceberg table: rows and ledger at one state of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.errors import ConfigError, ServiceError
from semel.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.iceberg.catalog import reading, reason
from semel.sinks.iceberg.ledger import IcebergLedger
from semel.sinks.iceberg.table import Table
from semel.sinks.letters import PLACES, places_of
from semel.sinks.rows import places


def take(
    connector: ConnectorConfig,
    topics: Collection[str],
    table: Table,
    letters: Table | None,
) -> Snapshot:
    """Read ledger and results of one state of the table."""
    ledger = IcebergLedger(table, connector.name)
    provenance = connector.provenance_columns
    wanted = [provenance[n] for n in (TOPIC, PARTITION, OFFSET)] if provenance else []
    records: dict[str, pa.Table] = {}
    untraced = 0
    if wanted and table.columns.names:
        _check_provenance(connector, table)
        found = scan(table, wanted)
        records = {t: places(found, t) for t in topics}
        untraced = found.column(0).null_count
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
    )


def _check_provenance(connector: ConnectorConfig, table: Table) -> None:
    missing = [c for c in connector.provenance_columns.values() if c not in table.columns.names]
    if missing:
        raise ConfigError(
            f"connector {connector.name}: provenance=true, but Iceberg table {table.where} has no "
            f"column {missing[0]}. Add it, or audit with provenance=false, by counts"
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


def _count(table: Table) -> int:
    if table.snapshot_id is None:
        return 0
    with reading(table.where):
        return int(table.raw.scan(snapshot_id=table.snapshot_id).count())
