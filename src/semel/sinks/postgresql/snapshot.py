"""What an audit needs of the database, read at one instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigError
from semel.records import OFFSET, PARTITION, TIMESTAMP, TOPIC
from semel.sinks.base import Snapshot
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.ledger import PostgresLedger
from semel.sinks.postgresql.tables import exists, find
from semel.sinks.sql.columns import Table
from semel.sinks.sql.names import Name, parse_name, quote

_LAX = """SELECT a.attname::text AS name FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = {oid} AND a.attnum > 0
    AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true))"""


def take(
    connection: Connection,
    ledger: PostgresLedger,
    tables: Mapping[str, Name],
    provenance: Mapping[str, str],
    dead_letter_table: str,
    key_fields: Sequence[str] | None,
) -> Snapshot:
    """Read ledger and results inside the open transaction, which must see one instant.

    Unless ``key_fields`` is None, the keys of the rows are read where provenance does not tell; if
    it is empty, the table's first unique key is meant.
    """
    records, rows, untraced = {}, {}, {}
    keys, unjudged = {}, {}
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
                f'{quote(provenance[OFFSET])}::bigint AS "offset", '
                f"(extract(epoch FROM {quote(provenance[TIMESTAMP])}) * 1000)::bigint AS timestamp "
                f"FROM {name.quoted} WHERE {quote(provenance[TOPIC])} = $1",
                (topic,),
            )
        elif key_fields is not None:
            try:
                keys[topic] = _keys(connection, table, key_fields)
            except ValueError as why:
                unjudged[topic] = str(why)
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        rows,
        untraced,
        {topic: str(name) for topic, name in tables.items()},
        _dead(connection, ledger.connector, dead_letter_table),
        keys=keys,
        unjudged=unjudged,
    )


def _keys(connection: Connection, table: Table, fields: Sequence[str]) -> pa.Table:
    """The key columns of all rows.

    Raises:
        ValueError: there is no key, or it treats different texts as equal.
    """
    chosen = table.key_columns(fields)
    lax = connection.query(_LAX.format(oid=table.oid)).column("name").to_pylist()
    loose = [n for n in chosen if n in lax]
    if loose:
        raise ValueError(f"column {loose[0]} treats different texts as equal; set provenance=true")
    return connection.query(f"SELECT {', '.join(map(quote, chosen))} FROM {table.name.quoted}")


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
