"""Which database a URL names."""

from __future__ import annotations

import re
from importlib import import_module

from semel.core.errors import ConfigError, Problem
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import Database

_BY_SCHEME = {
    "postgresql": "postgresql:Postgresql",
    "postgres": "postgresql:Postgresql",
    "sqlite": "sqlite:Sqlite",
    "duckdb": "duckdb:Duckdb",
    "mysql": "mysql:Mysql",
    "mariadb": "mysql:Mysql",
    "sqlserver": "sqlserver:SqlServer",
    "jtds": "sqlserver:SqlServer",
}
"""The module and the class of a database; its driver need not be installed."""


def database_of(config: JdbcSourceConfig, connector: str) -> Database:
    """The database of ``connection.url``; reaches nothing.

    Raises:
        ConfigError: semel does not read from it, or the URL is wrong.
    """
    bare = config.connection_url.strip().removeprefix("jdbc:")
    scheme = re.split(r"\W", bare)[0]
    module, _, name = _BY_SCHEME.get(scheme, "").partition(":")
    if not module:  # not the URL itself: it may hold a password
        raise ConfigError(
            Problem(
                "connection.url",
                f"connection.url=jdbc:{scheme}:... is not a database that semel reads. "
                "Those are PostgreSQL, MySQL, MariaDB, SQL Server, SQLite and DuckDB",
            )
        )
    made: Database = getattr(import_module(f"{__package__}.{module}"), name)(config, connector)
    return made
