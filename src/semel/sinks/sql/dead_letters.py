"""Dead letters in a table, committed with the results: raw record and reason, exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semel.core.errors import ConfigError
from semel.core.records import DeadLetter
from semel.sinks.letters import SCHEMA, rows
from semel.sinks.sql.dialect import Dialect
from semel.sinks.sql.names import parse_name

_OPTIONAL = ("timestamp", "key", "value", "headers")
_FIELDS = [
    pa.field(f.name, pa.json_() if f.name == "headers" else f.type, f.name in _OPTIONAL)
    for f in SCHEMA
]
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
