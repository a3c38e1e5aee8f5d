"""The keys of the sink for DuckDB."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import connector_class_key
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.jdbc_keys import lock_key, url_key

CLASSES = ("duckdb",)


@dataclass(frozen=True)
class DuckdbConfig(JdbcConfig):
    """What the sink writes where, and under which key."""

    connector_class: str = connector_class_key("duckdb")
    connection_url: str = url_key("jdbc:duckdb:/path/to/file")
    lock_timeout_ms: int = lock_key()
