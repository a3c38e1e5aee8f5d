"""The PostgreSQL sink's keys."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import HIGH, LOW, MEDIUM, key
from semel.sinks import jdbc
from semel.sinks.jdbc import DEBEZIUM, JdbcConfig
from semel.sinks.jdbc_keys import idle_key, url_key

__all__ = ["CLASSES", "DEBEZIUM", "IGNORED", "LIKELY", "PostgresConfig"]

CLASSES = ("postgresql", *jdbc.CLASSES)
LIKELY = True
"""Workers import this sink before a connector asks for it."""
_PARAMETER = "The same as the parameter of connection.url."
IGNORED = jdbc.IGNORED | {
    "batch.size": "a commit's rows travel in one COPY; max.poll.records bounds a commit"
}


@dataclass(frozen=True)
class PostgresConfig(JdbcConfig):
    """What the sink writes, where, and under which key."""

    connector_class: str = key(
        "connector.class", "postgresql", importance=HIGH, group="Common", display="Connector class"
    )
    connection_url: str = url_key("jdbc:postgresql://host:port/database.")
    idle_timeout_ms: int = idle_key(
        "A transaction whose process is frozen for that long is ended.", at_least=100
    )
    ssl: str = key("connection.ssl", "", _PARAMETER, importance=LOW, group="Connection")
    sslmode: str = key("connection.sslmode", "", _PARAMETER, importance=MEDIUM, group="Connection")
    sslrootcert: str = key(
        "connection.sslrootcert", "", _PARAMETER, importance=MEDIUM, group="Connection"
    )
    sslcert: str = key("connection.sslcert", "", _PARAMETER, importance=LOW, group="Connection")
    sslkey: str = key("connection.sslkey", "", _PARAMETER, importance=LOW, group="Connection")
    current_schema: str = key(
        "connection.currentSchema", "", _PARAMETER, importance=LOW, group="Connection"
    )
    login_timeout: str = key(
        "connection.loginTimeout", "", _PARAMETER, importance=LOW, group="Connection"
    )

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
