"""The keys of the sink for SQLite."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, key
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.jdbc_keys import url_key

CLASSES = ("sqlite",)


@dataclass(frozen=True)
class SqliteConfig(JdbcConfig):
    """What the sink writes where, and under which key."""

    connector_class: str = key(
        "connector.class", "sqlite", importance=HIGH, group="Common", display="Connector class"
    )
    connection_url: str = url_key("jdbc:sqlite:/path/to/file.")
    lock_timeout_ms: int = key(
        "connection.lock.timeout.ms",
        10_000,
        "How long a commit waits for another process to end its own before it is tried again.",
        at_least=1,
        importance=LOW,
        group="Connection",
    )
