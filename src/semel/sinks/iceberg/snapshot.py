"""What an audit needs of an Iceberg table: rows and ledger at one state of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import ConnectorConfig
from semel.errors import ServiceError
from semel.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.iceberg.catalog import reading, reason
from semel.sinks.iceberg.ledger import IcebergLedger
from semel.sinks.iceberg.table import Table


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
    if wanted and table.columns.names:
        found = scan(table, wanted)
        records = {t: _places(found, t) for t in topics}
    dead = {}
    if letters is not None:
        letters.renew()
        if letters.columns.names:
            found = scan(letters, ["connector", "topic", "partition", "offset"])
            mine = found.filter(pc.equal(found.column("connector"), connector.name))
            mine = mine.drop_columns(["connector"])
            dead = {t: _places(mine, t) for t in mine.column("topic").unique().to_pylist()}
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        {table.where: _count(table)},
        dict.fromkeys(topics, table.where),
        dead,
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


def _places(found: pa.Table, topic: str) -> pa.Table:
    """Partition and offset of the rows of a topic."""
    mine = found.filter(pc.equal(found.column(0), topic))
    columns = {
        "partition": mine.column(1).cast(pa.int32()),
        "offset": mine.column(2).cast(pa.int64()),
    }
    return pa.table(columns)
