"""The sink for SQL Server."""

from __future__ import annotations

from semel.sinks.sql.sink import SqlSink
from semel.sinks.sql.sqlserver.config import SqlServerConfig
from semel.sinks.sql.sqlserver.dialect import SqlServer


class SqlServerSink(SqlSink):
    """Rows and positions in one transaction of a SQL Server database."""

    section = SqlServerConfig
    database_class = SqlServer
