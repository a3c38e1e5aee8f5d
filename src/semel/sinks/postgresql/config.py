"""The PostgreSQL sink's keys."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import LOW, connector_class_key, key
from semel.sinks import jdbc
from semel.sinks.jdbc import DEBEZIUM, PARAMETER, JdbcConfig, idle_key, url_key

__all__ = ["CLASSES", "DEBEZIUM", "IGNORED", "LIKELY", "PostgresConfig"]

CLASSES = ("postgresql", *jdbc.CLASSES)
LIKELY = True
"""Workers import this sink before a connector asks for it."""
IGNORED = jdbc.IGNORED | {
    "batch.size": "a commit's rows travel in one COPY; max.poll.records bounds a commit"
}


@dataclass(frozen=True)
class PostgresConfig(JdbcConfig):
    """What the sink writes, where, and under which key."""

    connector_class: str = connector_class_key("postgresql")
    connection_url: str = url_key("jdbc:postgresql://host:port/database")
    idle_timeout_ms: int = idle_key(
        "The server ends a transaction whose process is frozen for this long.", at_least=100
    )
    ssl: str = key("connection.ssl", "", PARAMETER, importance=LOW, group="Connection")
    sslmode: str = key("connection.sslmode", "", PARAMETER)
    sslrootcert: str = key("connection.sslrootcert", "", PARAMETER)
    sslcert: str = key("connection.sslcert", "", PARAMETER, importance=LOW)
    sslkey: str = key("connection.sslkey", "", PARAMETER, importance=LOW)
    current_schema: str = key("connection.currentSchema", "", PARAMETER, importance=LOW)
    login_timeout: str = key("connection.loginTimeout", "", PARAMETER, importance=LOW)

    @property
    def parameters(self) -> dict[str, str]:
        parameters = {
            "ssl": self.ssl,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert,
            "sslcert": self.sslcert,
            "sslkey": self.sslkey,
            "currentSchema": self.current_schema,
            "loginTimeout": self.login_timeout,
        }
        return {name: value for name, value in parameters.items() if value}
