"""What an audit needs of the database, read at one instant."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from semel.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.postgresql.connection import Connection, quote
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.postgresql.tables import Name, exists, parse_name


def take(
    connection: Connection,
    ledger: PostgresLedger,
    tables: Mapping[str, Name],
    provenance: Mapping[str, str],
    dead_letter_table: str,
) -> Snapshot:
    """Read ledger and results inside the open transaction, at one instant."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    records, rows = {}, {}
    for topic, name in tables.items():
        if not exists(connection, name):
            continue
        counted = connection.query(f"SELECT count(*) AS n FROM {name.quoted}")
        rows[str(name)] = counted.column("n")[0].as_py()
        if provenance:
            records[topic] = connection.query(
                f"SELECT {quote(provenance[PARTITION])}::integer AS partition, "
                f'{quote(provenance[OFFSET])}::bigint AS "offset" '
                f"FROM {name.quoted} WHERE {quote(provenance[TOPIC])} = $1",
                (topic,),
            )
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        rows,
        {topic: str(name) for topic, name in tables.items()},
        _dead(connection, ledger.connector, dead_letter_table),
    )


def _dead(connection: Connection, connector: str, table: str) -> dict[str, pa.Table]:
    if not table:
        return {}
    name = parse_name(table, fold=False)
    if not exists(connection, name):
        return {}
    found = connection.query(
        f'SELECT topic, partition, "offset" FROM {name.quoted} WHERE connector = $1', (connector,)
    )
    topics = found.column("topic")
    return {
        topic: found.filter(pc.equal(topics, topic)).select(["partition", "offset"])
        for topic in topics.unique().to_pylist()
    }
