"""The sink for MariaDB and MySQL: LOAD DATA for inserts, multi-row INSERT for upserts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from semel.databases.columns import Column, Table
from semel.databases.errors import DataRefused
from semel.databases.mysql.session import LONGEST, Mysql
from semel.databases.mysql.types import check, shown
from semel.databases.names import Name, listed, quote
from semel.sinks.sql.config import MysqlConfig
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.database import KEPT, STAGE, Dialect, changed, no_rows, ranks, same
from semel.sinks.sql.mysql_rows import SwitchedOff, load, values
from semel.sinks.sql.prepare import Rows
from semel.sinks.sql.sink import SqlSink

_NUMBER = "semel row number"


class MysqlDialect(Dialect, Mysql):
    """See :class:`~semel.sinks.sql.database.Dialect`."""

    row_lock = "FOR UPDATE"
    compares_bytes = False
    compares_keys = True
    kept_order = quote(_NUMBER)
    reads_only = True
    _loads = True

    def rows_of(self, target: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        query = f"SELECT {listed(names)} FROM {target.name.quoted}"
        return self.stream(query, target.schema_of(names))

    def insert(self, target: Name, rows: pa.Table) -> None:
        if self._loads:
            try:
                if load(self._connection, target, rows):
                    return
            except SwitchedOff:
                self._loads = False
        self._insert(target, rows, "")

    def _insert(self, target: Name, rows: pa.Table, end: str) -> None:
        start = f"INSERT INTO {target.quoted} ({listed(rows.column_names)}) VALUES "
        room = self._packet - len(start) - len(end) - 1024
        for piece in values(rows, room):
            if len(piece) > room:
                raise DataRefused(
                    f"{self.where}: a row of {len(piece)} bytes is larger than "
                    f"max_allowed_packet={self._packet}"
                )
            self._run(start.encode() + piece + end.encode())

    def insert_defaults(self, target: Name, count: int) -> None:
        for _ in range(count):
            self.execute(f"INSERT INTO {target.quoted} () VALUES ()")

    def upsert(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        if len(target.keys) > 1:  # ON DUPLICATE KEY would update the row of another key, too
            self.update(target, rows, key)
            self._insert_new(target.name, rows, key)
            return
        others = changed(target, rows.column_names, key) or [key[0]]
        if self._mariadb:
            sets = ", ".join(f"{quote(n)} = VALUES({quote(n)})" for n in others)
            self._insert(target.name, rows, f" ON DUPLICATE KEY UPDATE {sets}")
        else:
            new = quote(f"new {target.name.table}")  # the table's own name would be ambiguous
            sets = ", ".join(f"{quote(n)} = {new}.{quote(n)}" for n in others)
            self._insert(target.name, rows, f" AS {new} ON DUPLICATE KEY UPDATE {sets}")

    def _insert_new(self, target: Name, rows: pa.Table, key: Sequence[str]) -> None:
        names = rows.column_names
        with self.staged(target, rows) as stage:
            self.execute(
                f"INSERT INTO {target.quoted} ({listed(names)}) "
                f"SELECT {', '.join(f's.{quote(n)}' for n in names)} FROM {stage} AS s "
                f"LEFT JOIN {target.quoted} AS t ON {same(key)} WHERE t.{quote(key[0])} IS NULL"
            )

    def update(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        names = changed(target, rows.column_names, key)
        sets = [f"t.{quote(n)} = s.{quote(n)}" for n in names]
        if sets:
            with self.staged(target.name, rows) as stage:
                self.execute(
                    f"UPDATE {target.name.quoted} AS t JOIN {stage} AS s ON {same(key)} "
                    f"SET {', '.join(sets)}"
                )

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        names = keys.columns.column_names
        try:
            with self.transaction(), self.staged(target.name, keys.columns) as stage:
                found = self.query(ranks(names, stage, _NUMBER))
        except DataRefused:  # writing them will tell which
            found = keys.columns
        return dict(zip(names, found.columns, strict=True))

    def delete(self, target: Name, keys: pa.Table) -> None:
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE t FROM {target.quoted} AS t JOIN {stage} AS s ON {same(keys.column_names)}"
            )

    @contextmanager
    def staged(self, target: Name, rows: pa.Table) -> Iterator[str]:
        # Left by a transaction that rolled back: temporary tables are not part of it.
        self._connection.query(f"DROP TEMPORARY TABLE IF EXISTS {STAGE}")
        self.execute(
            # The key numbers the rows; sql_require_primary_key may demand one, too.
            f"CREATE TEMPORARY TABLE {STAGE} ({quote(_NUMBER)} BIGINT AUTO_INCREMENT PRIMARY KEY) "
            "ENGINE=InnoDB "
            f"SELECT {listed(rows.column_names)} FROM {target.quoted} WHERE FALSE"
        )
        self.insert(Name(None, STAGE), rows)
        yield STAGE
        self.execute(f"DROP TEMPORARY TABLE {STAGE}")

    # For the audit

    @contextmanager
    def instant(self) -> Iterator[None]:
        self._idle = LONGEST  # Kafka is read meanwhile
        with self.transaction(reading=True):
            self.execute(f"SET SESSION net_write_timeout = {LONGEST}")
            yield

    def shown(self, column: Column, value: str) -> str | None:
        return shown(column, value)

    @contextmanager
    def kept(self, target: Name, rows: pa.Table) -> Iterator[str]:
        self._connection.query(f"DROP TEMPORARY TABLE IF EXISTS {KEPT}")
        self.execute(
            f"CREATE TEMPORARY TABLE {KEPT} ({self.kept_order} BIGINT AUTO_INCREMENT PRIMARY KEY) "
            f"ENGINE=InnoDB {no_rows(target, rows.column_names)}"
        )
        self.insert(Name(None, KEPT), rows)
        yield KEPT
        self.execute(f"DROP TEMPORARY TABLE {KEPT}")

    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        converted = super().fit(values, column)
        check(converted.values, column)
        return converted


class MysqlSink(SqlSink):
    """Rows and positions in one transaction of a MariaDB or MySQL database."""

    section = MysqlConfig
    database_class = MysqlDialect
