"""Which database a URL names."""

from __future__ import annotations

import re
from collections.abc import Callable

from semel.core.errors import ConfigError, Problem
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import Database


def _postgresql(config: JdbcSourceConfig, connector: str) -> Database:
    from semel.sources.jdbc.postgresql import Postgresql

    return Postgresql(config, connector)


def _sqlite(config: JdbcSourceConfig, connector: str) -> Database:
    from semel.sources.jdbc.sqlite import Sqlite

    return Sqlite(config, connector)


def _duckdb(config: JdbcSourceConfig, connector: str) -> Database:
    from semel.sources.jdbc.duckdb import Duckdb

    return Duckdb(config, connector)


def _mysql(config: JdbcSourceConfig, connector: str) -> Database:
    from semel.sources.jdbc.mysql import Mysql

    return Mysql(config, connector)


def _sqlserver(config: JdbcSourceConfig, connector: str) -> Database:
    from semel.sources.jdbc.sqlserver import SqlServer

    return SqlServer(config, connector)


_BY_SCHEME: dict[str, Callable[[JdbcSourceConfig, str], Database]] = {
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "sqlite": _sqlite,
    "duckdb": _duckdb,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlserver": _sqlserver,
    "jtds": _sqlserver,
}


def database_of(config: JdbcSourceConfig, connector: str) -> Database:
    """The database of ``connection.url``; reaches nothing.

    Raises:
        ConfigError: semel does not read from it, or the URL is wrong.
    """
    bare = config.connection_url.strip().removeprefix("jdbc:")
    scheme = re.split(r"\W", bare)[0]
    make = _BY_SCHEME.get(scheme)
    if make is None:  # not the URL itself: it may hold a password
        raise ConfigError(
            Problem(
                "connection.url",
                f"connection.url=jdbc:{scheme}:... is not a database that semel reads. "
                "Those are PostgreSQL, MySQL, MariaDB, SQL Server, SQLite and DuckDB",
            )
        )
    return make(config, connector)
