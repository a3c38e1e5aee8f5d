"""The sink for MariaDB and MySQL."""

from __future__ import annotations

from semel.sinks.sql.mysql.config import MysqlConfig
from semel.sinks.sql.mysql.dialect import Mysql
from semel.sinks.sql.sink import SqlSink


class MysqlSink(SqlSink):
    """Rows and positions in one transaction of a MariaDB or MySQL database."""

    section = MysqlConfig
    database_class = Mysql
