"""Dead letters in a table, committed with the results: raw record and reason, exactly once."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from semel.records import TIMESTAMP_TYPE, DeadLetter
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.tables import parse_name

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


def create(connection: Connection, table: str) -> None:
    """Create the table inside the open transaction."""
    connection.execute(
        f"""CREATE TABLE IF NOT EXISTS {parse_name(table, fold=False).quoted} (
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
            PRIMARY KEY (connector, topic, partition, "offset")
        )"""
    )


def insert(
    connection: Connection, table: str, connector: str, letters: Sequence[DeadLetter]
) -> None:
    """COPY the dead letters inside the open transaction."""
    name = parse_name(table, fold=False)
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
        pa.array([letter.message.replace("\0", "\\0") for letter in letters], pa.string()),
    ]
    connection.copy(
        name.table, pa.Table.from_arrays(columns, schema=_SCHEMA), name.schema, temporary=False
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace").replace("\0", "\\0")
