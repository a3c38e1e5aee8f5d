"""Dead letters in a table, committed with the results: raw record and reason, exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semel.core.records import DeadLetter
from semel.sinks.letters import rows
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.tables import exists, serialise
from semel.sinks.sql.names import parse_name

_TYPES = (
    *("text", "text", "integer", "bigint", "timestamptz", "bytea", "bytea", "jsonb"),
    *("text", "text", "text", "integer"),
)
_KEY = 'connector, topic, partition, "offset"'
_REST = ('"timestamp"', "key", "value", "headers", "stage", "exception", "message", "format")


def create(connection: Connection, table: str) -> None:
    """Create the table inside the open transaction, if it is missing."""
    name = parse_name(table, fold=False)
    if exists(connection, name):
        return  # CREATE IF NOT EXISTS would still ask for the right to create
    serialise(connection, name)
    connection.execute(
        f"""CREATE TABLE IF NOT EXISTS {name.quoted} (
            connector text NOT NULL,
            topic text NOT NULL,
            partition integer NOT NULL,
            "offset" bigint NOT NULL,
            "timestamp" timestamptz,
            key bytea,
            value bytea,
            headers jsonb,
            stage text NOT NULL,
            exception text NOT NULL,
            message text NOT NULL,
            failed_at timestamptz NOT NULL DEFAULT now(),
            format integer NOT NULL,
            PRIMARY KEY ({_KEY})
        )"""
    )


def insert(
    connection: Connection, table: str, connector: str, letters: Sequence[DeadLetter]
) -> None:
    """Write the dead letters inside the open transaction.

    A letter may exist already if positions were set back by hand; the last failure stays.
    """
    found = rows(connector, letters).drop_columns("failed_at")  # which is the server's time
    place = found.column_names.index("headers")
    headers = pa.ExtensionArray.from_storage(pa.json_(), found.column(place).combine_chunks())
    stage = connection.stage(found.set_column(place, "headers", headers), _TYPES)
    sets = ", ".join(f"{c} = EXCLUDED.{c}" for c in _REST)
    connection.execute(
        f"INSERT INTO {parse_name(table, fold=False).quoted} ({_KEY}, {', '.join(_REST)}) "
        f"SELECT * FROM {stage} ON CONFLICT ({_KEY}) DO UPDATE SET {sets}, failed_at = now(); "
        f"{connection.emptied(stage)}"
    )
