"""The PostgreSQL sink's keys."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import key
from semel.sinks import jdbc
from semel.sinks.jdbc import DEBEZIUM, JdbcConfig

__all__ = ["CLASSES", "DEBEZIUM", "IGNORED", "PostgresConfig"]

CLASSES = ("postgresql", *jdbc.CLASSES)
IGNORED = jdbc.IGNORED | {
    "batch.size": "a commit's rows travel in one COPY; max.poll.records bounds a commit"
}


@dataclass(frozen=True)
class PostgresConfig(JdbcConfig):
    """What the sink writes where, and under which key."""

    connector_class: str = key("connector.class", "postgresql")
    connection_url: str = key(
        "connection.url", doc="jdbc:postgresql://host:port/database.", secret=True
    )
    idle_timeout_ms: int = key(
        "connection.idle.in.transaction.timeout.ms",
        30_000,
        "A transaction whose process is frozen for that long is ended.",
        at_least=100,
    )
