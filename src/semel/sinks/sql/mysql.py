"""The sink for MariaDB and MySQL: LOAD DATA for inserts, multi-row INSERT for upserts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.records import one_array
from semel.databases.columns import Column, Table, is_binary, is_text
from semel.databases.errors import DataRefused
from semel.databases.mysql import LONGEST, Mysql
from semel.databases.mysql.driver import ROWS
from semel.databases.mysql.types import check, shown
from semel.databases.names import Name, listed, quote
from semel.sinks.sql.config import MysqlConfig
from semel.sinks.sql.convert import ConvertedValues
from semel.sinks.sql.database import KEPT, STAGE, Dialect, changed, no_rows, ranks, same
from semel.sinks.sql.prepare import Rows
from semel.sinks.sql.sink import SqlSink

_NUMBER = "semel row number"
_SWITCHED_OFF = (1148, 3948, 4166)
_HEX = np.frombuffer(b"".join(b"%02X" % i for i in range(256)), np.dtype("S2"))


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
                if _load(self._connection, target, rows):
                    return
            except _SwitchedOff:
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
                ranked = self.query(ranks(names, stage, _NUMBER))
        except DataRefused:  # writing them will tell which
            ranked = keys.columns
        return dict(zip(names, ranked.columns, strict=True))

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
    def kept_rows(self, target: Name, rows: pa.Table) -> Iterator[str]:
        self._connection.query(f"DROP TEMPORARY TABLE IF EXISTS {KEPT}")
        self.execute(
            f"CREATE TEMPORARY TABLE {KEPT} ({self.kept_order} BIGINT AUTO_INCREMENT PRIMARY KEY) "
            f"ENGINE=InnoDB {no_rows(target, rows.column_names)}"
        )
        self.insert(Name(None, KEPT), rows)
        yield KEPT
        self.execute(f"DROP TEMPORARY TABLE {KEPT}")

    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        if pa.types.is_boolean(values.type) and column.type.startswith("bit("):
            values = _bits(values, int(column.type[4:-1]))
        converted = super().fit(values, column)
        check(converted.values, column)
        return converted


class MysqlSink(SqlSink):
    """Rows and positions in one transaction of a MariaDB or MySQL database."""

    section = MysqlConfig
    database_class = MysqlDialect


def _bits(flags: pa.ChunkedArray, length: int) -> pa.ChunkedArray:
    """Booleans as the bytes of a BIT of this length."""
    size = (length + 7) // 8
    one, zero = (pa.scalar(n.to_bytes(size, "big"), pa.binary()) for n in (1, 0))
    return pc.if_else(flags, one, zero)


def values(rows: pa.Table, most: int) -> Iterator[bytes]:
    """``(1,'a'),(2,NULL)``, in pieces of at most ``most`` bytes (or one row)."""
    parts = [_literals(one_array(v)) for v in rows.columns]
    tuples = pc.binary_join_element_wise("(", pc.binary_join_element_wise(*parts, ","), ")", "")
    sizes = np.cumsum(pc.binary_length(tuples).to_numpy().astype(np.int64) + 1)
    start = 0
    while start < len(tuples):
        before = sizes[start - 1] if start else 0
        end = max(int(np.searchsorted(sizes, before + most, side="right")), start + 1)
        piece = tuples.slice(start, end - start)
        whole = pa.ListArray.from_arrays(pa.array([0, len(piece)], pa.int32()), piece)
        yield pc.binary_join(whole, ",")[0].as_buffer().to_pybytes()
        start = end


def lines(rows: pa.Table) -> pa.Buffer:
    """Fields that end with a tab, lines that end with a tab and a newline; null is ``\\N``."""
    parts = [_field(one_array(v)) for v in rows.columns]
    texts = pc.binary_join_element_wise(
        *parts, "\n", "\t", null_handling="replace", null_replacement="\\N"
    )
    _, offsets, text = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return text.slice(ends[texts.offset], ends[texts.offset + len(texts)] - ends[texts.offset])


def _literals(column: pa.Array) -> pa.Array:
    """Values as SQL, quoted if they could be mistaken for a name, such as ``nan``, or a decimal for
    a float, as ``1E-7`` is."""
    quoted = (pa.types.is_temporal, pa.types.is_floating, pa.types.is_decimal)
    if is_binary(column.type):
        text = _around("X'", _hex(column))
    elif is_text(column.type):
        text = _around("'", pc.replace_substring(column.cast(pa.string()), "'", "''"))
    elif any(matches(column.type) for matches in quoted):
        text = _around("'", _plain(column))
    else:
        text = _plain(column)
    return text.fill_null("NULL")


def _around(before: str, text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(before, text, "'", "")


def _field(column: pa.Array) -> pa.Array:
    if is_binary(column.type):
        return _hex(column)
    if not is_text(column.type):
        return _plain(column)
    text = column.cast(pa.string())
    for character, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0")):
        text = pc.replace_substring(text, character, escaped)
    return text


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_timestamp(column.type) and column.type.tz:
        column = column.cast(pa.timestamp(column.type.unit, "UTC")).cast(
            pa.timestamp(column.type.unit)
        )
    return column.cast(pa.string())


def _hex(column: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits."""
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    first = ends[0] if len(ends) else 0
    raw = (
        np.frombuffer(data, np.uint8)[first : ends[-1]] if data and len(ends) else np.empty(0, "u1")
    )
    digits = pa.py_buffer(_HEX[raw].tobytes())
    doubled = pa.py_buffer(((ends - first) * 2).astype(np.int32).tobytes())
    valid = column.is_valid()
    text = pa.StringArray.from_buffers(len(column), doubled, digits)
    return text if not column.null_count else pc.if_else(valid, text, pa.scalar(None, pa.string()))


class _SwitchedOff(Exception):
    """The server's ``local_infile`` is off."""


def _load(connection: Any, target: Name, rows: pa.Table) -> bool:
    """Insert rows within the transaction; returns whether that was possible.

    LOAD DATA turns errors into warnings and continues. If there are any, it is undone, and INSERT
    has to show which row is at fault.

    Raises:
        _SwitchedOff: nothing can be loaded.
    """
    import pymysql

    try:
        connection.query("SAVEPOINT semel_load")
        connection.rows_to_send = memoryview(lines(rows))
        cursor = connection.cursor()
        loaded = cursor.execute(_statement(target, rows.schema))
        if loaded == rows.num_rows and not cursor.warning_count:
            return True
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _SWITCHED_OFF:
            raise
        connection.query("ROLLBACK TO SAVEPOINT semel_load")
        raise _SwitchedOff from error
    finally:
        connection.rows_to_send = None
    connection.query("ROLLBACK TO SAVEPOINT semel_load")
    return False


def _statement(target: Name, columns: pa.Schema) -> str:
    names: list[str] = []
    sets: list[str] = []
    for field in columns:
        if is_binary(field.type):
            names.append(f"@b{len(sets)}")
            sets.append(f"{quote(field.name)} = UNHEX(@b{len(sets)})")
        else:
            names.append(quote(field.name))
    return (
        f"LOAD DATA LOCAL INFILE '{ROWS.decode()}' INTO TABLE {target.quoted} "
        "CHARACTER SET utf8mb4 FIELDS TERMINATED BY X'09' ESCAPED BY '\\' "
        f"LINES TERMINATED BY X'090A' ({', '.join(names)})"
        + (f" SET {', '.join(sets)}" if sets else "")
    )
