"""Reads an Iceberg table's rows and ledger at one state, for an audit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.quoting import named
from semel.sinks.base import Snapshot, StoredKeys
from semel.sinks.iceberg.ledger import IcebergLedger
from semel.sinks.iceberg.table import Table
from semel.sinks.lake import keys_in, places_in
from semel.sinks.rereading import below


def take(
    connector: ConnectorConfig,
    topics: Collection[str],
    table: Table,
    dead: Mapping[str, pa.Table],
    key_fields: Sequence[str] = (),
) -> Snapshot:
    """Read ledger and results of one state of the table; also the keys of its rows, if
    ``key_fields`` names them and there is no provenance."""
    ledger = IcebergLedger(table, connector.name)
    records: dict[str, pa.Table] = {}
    untraced = 0
    keys: dict[str, StoredKeys] = {}
    if table.columns.names and connector.provenance_columns:
        records, untraced = places_in(connector, table, topics, partial(_lacks, table))
    elif table.columns.names and key_fields:
        keys = dict.fromkeys(topics, keys_in(table, key_fields))
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        {table.where: table.count()},
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
    dead: Mapping[str, pa.Table],
) -> Snapshot:
    """The ledger of ``home``, and the rows of all tables as if they were one table."""
    at = take(connector, topics, home, dead)
    parts = [take(connector, topics, table, {}) for table in tables]
    name = f"the tables of {home.where}"
    # A table may hold more than home by now: such rows are not judged yet.
    ends = {e.topic_partition: e.position for e in at.entries}
    records = {t: [below(p.records[t], t, ends) for p in parts if t in p.records] for t in topics}
    # Each table is judged by its own ledger, which moves with its rows.
    written = sum(e.rows_written for e in at.entries)
    written -= sum(e.rows_written for p in parts for e in p.entries)
    return Snapshot(
        at.entries,
        at.holes,
        {t: pa.concat_tables(pieces) for t, pieces in records.items() if pieces},
        {name: written + sum(n for p in parts for n in p.rows.values())},
        {name: sum(n for p in parts for n in p.untraced.values())},
        dict.fromkeys(topics, name),
        dead,
    )


def _lacks(table: Table, column: str) -> str:
    return (
        f"provenance=true, but Iceberg table {table.where} has no column {named(column)}. Add it, "
        "or audit with provenance=false, by counts"
    )
