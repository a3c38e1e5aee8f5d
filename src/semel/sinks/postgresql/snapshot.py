"""What an audit needs of the database, read at one instant."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigError
from semel.records import OFFSET, PARTITION, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.postgresql.connection import Connection, quote
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.postgresql.tables import Name, exists, find, parse_name


def take(
    connection: Connection,
    ledger: PostgresLedger,
    tables: Mapping[str, Name],
    provenance: Mapping[str, str],
    dead_letter_table: str,
) -> Snapshot:
    """Read ledger and results inside the open transaction, at one instant."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    records, rows, untraced = {}, {}, {}
    for topic, name in tables.items():
        table = find(connection, name)
        if table is None:
            continue
        missing = [c for c in provenance.values() if c not in table.columns]
        if missing:
            raise ConfigError(
                f"connector {ledger.connector}: table {name} has no column {missing[0]}, which "
                "provenance=true asks for: was that set after the table was made? Run the "
                "connector with auto.evolve=true, add the column, or audit by counts with "
                "provenance=false"
            )
        traced = f"count({quote(provenance[TOPIC])})" if provenance else "count(*)"
        counted = connection.query(
            f"SELECT count(*) AS n, count(*) - {traced} AS untraced FROM {name.quoted}"
        ).to_pylist()[0]
        rows[str(name)], untraced[str(name)] = counted["n"], counted["untraced"]
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
        untraced,
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
