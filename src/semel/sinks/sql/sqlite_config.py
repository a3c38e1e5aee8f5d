"""The keys of the sink for SQLite."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import connector_class_key
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.jdbc_keys import lock_key, url_key

CLASSES = ("sqlite",)


@dataclass(frozen=True)
class SqliteConfig(JdbcConfig):
    """What the sink writes where, and under which key."""

    connector_class: str = connector_class_key("sqlite")
    connection_url: str = url_key("jdbc:sqlite:/path/to/file")
    lock_timeout_ms: int = lock_key()
