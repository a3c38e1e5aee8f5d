"""Dead letters in a table, committed with the results: raw record and reason, exactly once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from semel.errors import ConfigError
from semel.records import TIMESTAMP_TYPE, DeadLetter
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.names import parse_name

_TIME = pa.timestamp("us", "UTC")
_FIELDS = (
    pa.field("connector", pa.string(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", _TIME),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.json_()),
    pa.field("stage", pa.string(), nullable=False),
    pa.field("exception", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("failed_at", _TIME, nullable=False),
)
_KEY = ("connector", "topic", "partition", "offset")


def create(dialect: Dialect, table: str) -> None:
    """Create the table, if it is missing."""
    name = parse_name(table, fold=False)
    if dialect.find(name) is None:
        dialect.create(name, _FIELDS, _KEY)


def insert(dialect: Dialect, table: str, connector: str, letters: Sequence[DeadLetter]) -> None:
    """Write the dead letters inside the open transaction.

    A letter may exist already if positions were set back by hand; the last failure stays.
    """
    target = dialect.find(parse_name(table, fold=False))
    if target is None:
        raise ConfigError(f"errors.deadletterqueue.table={table} was dropped while it was in use")
    dialect.upsert(target, rows(connector, letters), _KEY)


def rows(connector: str, letters: Sequence[DeadLetter]) -> pa.Table:
    """Dead letters as rows of the table."""
    now, size = datetime.now(UTC), len(letters)
    columns = [
        pa.array([connector] * size, pa.string()),
        pa.array([x.topic for x in letters], pa.string()),
        pa.array([x.partition for x in letters], pa.int32()),
        pa.array([x.offset for x in letters], pa.int64()),
        pa.array([x.timestamp for x in letters], TIMESTAMP_TYPE).cast(_TIME),
        pa.array([x.key for x in letters], pa.binary()),
        pa.array([x.value for x in letters], pa.binary()),
        pa.array([json.dumps([[k, _text(v)] for k, v in x.headers]) for x in letters], pa.string()),
        pa.array([x.stage for x in letters], pa.string()),
        pa.array([x.exception for x in letters], pa.string()),
        pa.array([_printable(x.message) for x in letters], pa.string()),
        pa.array([now] * size, _TIME),
    ]
    return pa.table(dict(zip((f.name for f in _FIELDS), columns, strict=True)))


def _text(value: bytes | None) -> str | None:
    return None if value is None else _printable(value.decode("utf-8", "backslashreplace"))


def _printable(text: str) -> str:
    """Without what databases' texts cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
