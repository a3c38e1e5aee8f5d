"""The PostgreSQL sink's keys."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import key
from semel.sinks import jdbc
from semel.sinks.jdbc import DEBEZIUM, JdbcConfig

__all__ = ["CLASSES", "DEBEZIUM", "IGNORED", "PostgresConfig"]

CLASSES = ("postgresql", *jdbc.CLASSES)
_PARAMETER = "As the parameter of connection.url."
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
    ssl: str = key("connection.ssl", "", _PARAMETER)
    sslmode: str = key("connection.sslmode", "", _PARAMETER)
    sslrootcert: str = key("connection.sslrootcert", "", _PARAMETER)
    sslcert: str = key("connection.sslcert", "", _PARAMETER)
    sslkey: str = key("connection.sslkey", "", _PARAMETER)
    current_schema: str = key("connection.currentSchema", "", _PARAMETER)
    login_timeout: str = key("connection.loginTimeout", "", _PARAMETER)

    def parameters(self) -> dict[str, str]:
        """The JDBC driver's parameters that are keys of their own, as in Confluent's sink."""
        given = {
            "ssl": self.ssl,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert,
            "sslcert": self.sslcert,
            "sslkey": self.sslkey,
            "currentSchema": self.current_schema,
            "loginTimeout": self.login_timeout,
        }
        return {name: value for name, value in given.items() if value}
