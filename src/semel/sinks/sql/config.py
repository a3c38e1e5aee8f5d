"""The keys of the sinks for PostgreSQL, SQLite, DuckDB, MariaDB and MySQL, and SQL Server."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import LOW, connector_class_key, key
from semel.databases.login import Timeouts
from semel.sinks.jdbc import CLASSES, PARAMETER, JdbcConfig, idle_key, lock_key, url_key

POSTGRESQL = ("postgresql", *CLASSES)
SQLITE, DUCKDB, MYSQL, SQLSERVER = ("sqlite",), ("duckdb",), ("mysql", "mariadb"), ("sqlserver",)
"""Their names in ``connector.class``."""


@dataclass(frozen=True)
class PostgresConfig(JdbcConfig):
    """The keys of the sink for PostgreSQL."""

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

    @property
    def folds_names(self) -> bool:
        return self.unquoted


@dataclass(frozen=True)
class LockingConfig(JdbcConfig):
    """The keys of a database in which a commit may wait for another process's lock."""

    lock_timeout_ms: int = lock_key()

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(lock=self.lock_timeout_ms)


@dataclass(frozen=True)
class SqliteConfig(LockingConfig):
    """The keys of the sink for SQLite."""

    connector_class: str = connector_class_key("sqlite")
    connection_url: str = url_key("jdbc:sqlite:/path/to/file")


@dataclass(frozen=True)
class DuckdbConfig(LockingConfig):
    """The keys of the sink for DuckDB."""

    connector_class: str = connector_class_key("duckdb")
    connection_url: str = url_key("jdbc:duckdb:/path/to/file")


@dataclass(frozen=True)
class MysqlConfig(JdbcConfig):
    """The keys of the sink for MariaDB and MySQL."""

    connector_class: str = connector_class_key("mysql")
    connection_url: str = url_key(
        "jdbc:mysql://host:port/database or jdbc:mariadb://host:port/database"
    )
    idle_timeout_ms: int = idle_key(
        "The server ends a transaction whose process is frozen for this long, in whole seconds.",
        at_least=1000,
    )
    ssl_mode: str = key("connection.sslMode", "", PARAMETER, group="Connection")
    ssl_certificate: str = key("connection.serverSslCert", "", PARAMETER)
    use_ssl: bool | None = key("connection.useSSL", None, PARAMETER, importance=LOW)
    require_ssl: bool | None = key("connection.requireSSL", None, PARAMETER, importance=LOW)

    @property
    def parameters(self) -> dict[str, str]:
        flags = {"useSSL": self.use_ssl, "requireSSL": self.require_ssl}
        return {
            "sslMode": self.ssl_mode,
            "serverSslCert": self.ssl_certificate,
            **{name: str(flag).lower() for name, flag in flags.items() if flag is not None},
        }

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(idle=self.idle_timeout_ms)


@dataclass(frozen=True)
class SqlServerConfig(LockingConfig):
    """The keys of the sink for SQL Server."""

    connector_class: str = connector_class_key("sqlserver")
    connection_url: str = url_key("jdbc:sqlserver://host:port;databaseName=name")
    encrypt: str = key("connection.encrypt", "true", PARAMETER, group="Connection")
    trust_certificate: bool = key("connection.trustServerCertificate", False, PARAMETER)
    certificate: str = key("connection.serverCertificate", "", PARAMETER)

    @property
    def parameters(self) -> dict[str, str]:
        return {
            "encrypt": self.encrypt,
            "trustServerCertificate": str(self.trust_certificate).lower(),
            "serverCertificate": self.certificate,
        }
