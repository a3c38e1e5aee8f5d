"""The keys of the sink for DuckDB."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, key
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.jdbc_keys import url_key

CLASSES = ("duckdb",)


@dataclass(frozen=True)
class DuckdbConfig(JdbcConfig):
    """What the sink writes where, and under which key."""

    connector_class: str = key(
        "connector.class", "duckdb", importance=HIGH, group="Common", display="Connector class"
    )
    connection_url: str = url_key("jdbc:duckdb:/path/to/file.")
    lock_timeout_ms: int = key(
        "connection.lock.timeout.ms",
        10_000,
        "How long a commit waits for another process to close the file before it is tried again.",
        at_least=1,
        importance=LOW,
        group="Connection",
    )
