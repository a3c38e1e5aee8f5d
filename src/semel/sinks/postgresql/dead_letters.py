"""Dead letters in a table, committed with the results: raw record and reason, exactly once."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from semel.records import TIMESTAMP_TYPE, DeadLetter
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.tables import exists, serialise
from semel.sinks.sql.names import parse_name

_SCHEMA = pa.schema(
    [
        ("connector", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.json_()),
        ("stage", pa.string()),
        ("exception", pa.string()),
        ("message", pa.string()),
    ]
)
_TYPES = (
    *("text", "text", "integer", "bigint", "timestamptz", "bytea", "bytea", "jsonb"),
    *("text", "text", "text"),
)
_KEY = 'connector, topic, partition, "offset"'
_REST = ('"timestamp"', "key", "value", "headers", "stage", "exception", "message")


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
            PRIMARY KEY ({_KEY})
        )"""
    )


def insert(
    connection: Connection, table: str, connector: str, letters: Sequence[DeadLetter]
) -> None:
    """Write the dead letters inside the open transaction.

    One may be there already, if positions were set back by hand; the last failure stays.
    """
    headers = [json.dumps([[k, _text(v)] for k, v in letter.headers]) for letter in letters]
    columns = [
        pa.array([connector] * len(letters), pa.string()),
        pa.array([letter.topic for letter in letters], pa.string()),
        pa.array([letter.partition for letter in letters], pa.int32()),
        pa.array([letter.offset for letter in letters], pa.int64()),
        pa.array([letter.timestamp for letter in letters], TIMESTAMP_TYPE).cast(
            pa.timestamp("us", "UTC")
        ),
        pa.array([letter.key for letter in letters], pa.binary()),
        pa.array([letter.value for letter in letters], pa.binary()),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(headers, pa.string())),
        pa.array([letter.stage for letter in letters], pa.string()),
        pa.array([letter.exception for letter in letters], pa.string()),
        pa.array([_printable(letter.message) for letter in letters], pa.string()),
    ]
    stage = connection.stage(pa.Table.from_arrays(columns, schema=_SCHEMA), _TYPES)
    sets = ", ".join(f"{c} = EXCLUDED.{c}" for c in _REST)
    connection.execute(
        f"INSERT INTO {parse_name(table, fold=False).quoted} ({_KEY}, {', '.join(_REST)}) "
        f"SELECT * FROM {stage} ON CONFLICT ({_KEY}) DO UPDATE SET {sets}, failed_at = now(); "
        f"{connection.emptied(stage)}"
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else _printable(value.decode("utf-8", "backslashreplace"))


def _printable(text: str) -> str:
    """Without what PostgreSQL's text cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
