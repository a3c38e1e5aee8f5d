"""Tables whose keys were written as JSON texts, when a sink without ``key.converter`` read
keys as text."""

from __future__ import annotations

import json

import pyarrow as pa

from semel.core.errors import ConfigError, Problem
from semel.core.quoting import named
from semel.sinks.sql.columns import Table
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import quote

_ROWS = 1000
"""How many keys to look at: in such a table, all of them are JSON texts."""


def check(database: Database, table: Table, key: str, where: str) -> None:
    """Look at some keys, inside the open transaction.

    Raises:
        ConfigError: they are texts of JSON. Records read as JSON would have other keys.
    """
    column = table.columns.get(key)
    if column is None or not pa.types.is_string(column.arrow):
        return
    found = database.query(database.first(quote(key), table.name, _ROWS))
    written = found.column(0).cast(pa.string()).drop_null()
    if len(written) and all(_is_text_of_json(text) for text in written.to_pylist()):
        raise ConfigError(
            Problem(
                "key.converter",
                f"{where}: key.converter is not set, and table {named(table.name)} holds keys that "
                f"were written as text, such as {written[0].as_py()[:60]} in column {named(key)}. "
                "Read as JSON, the same records would get different keys. To keep these, set "
                "key.converter=org.apache.kafka.connect.storage.StringConverter; else correct the "
                "column, and set key.converter=org.apache.kafka.connect.json.JsonConverter",
            )
        )


def _is_text_of_json(text: str) -> bool:
    """Whether a key is a JSON string, object or array: a number is the same as text and as JSON."""
    try:
        return isinstance(json.loads(text), str | dict | list)
    except (ValueError, RecursionError):
        return False
