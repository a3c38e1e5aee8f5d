"""Tables whose keys were written as the texts of JSON, when a sink without ``key.converter`` read
keys as text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigError, Problem
from semel.sinks.sql.columns import Table
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import quote

_ROWS = 1000
"""A sample shows it: all keys of such a table are texts of JSON."""
_JSON = r'^\s*(".*"|\{.*\}|\[.*\])\s*$'


def check(database: Database, table: Table, key: str, where: str) -> None:
    """Look at some keys, inside the open transaction.

    Raises:
        ConfigError: they are texts of JSON. Records read as JSON would have other keys.
    """
    column = table.columns.get(key)
    if column is None or not pa.types.is_string(column.arrow):
        return
    found = database.query(database.first(quote(key), table.name, _ROWS))
    texts = found.column(0).cast(pa.string())
    written = texts.filter(pc.match_substring_regex(texts, _JSON))
    if len(written):
        raise ConfigError(
            Problem(
                "key.converter",
                f"{where}: key.converter is not set, and table {table.name} holds keys that were "
                f"written as text, such as {written[0].as_py()[:60]} in column {key}. If read as "
                "JSON, keys would be others. To go on with these, set key.converter="
                "org.apache.kafka.connect.storage.StringConverter; else correct the column, and "
                "set key.converter=org.apache.kafka.connect.json.JsonConverter",
            )
        )
