"""LOAD DATA, the fastest way into a table, from memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from semel.core.errors import ServiceError
from semel.core.quoting import named
from semel.sinks.sql.columns import is_binary
from semel.sinks.sql.mysql.text import lines
from semel.sinks.sql.names import Name, quote

_SWITCHED_OFF = (1148, 3948, 4166)
_NAME = b"semel"
"""The name that LOAD DATA gives to the rows. It is no file: see :func:`result_class`."""
_CHUNK = 16 * 1024
_OUT_OF_SYNC = 2014


class SwitchedOff(Exception):
    """The server's ``local_infile`` is off."""


def load(connection: Any, target: Name, rows: pa.Table) -> bool:
    """Insert rows within the transaction; returns whether that was possible.

    LOAD DATA turns errors into warnings and continues. If there are any, it is undone, and INSERT
    has to show which row is at fault.

    Raises:
        SwitchedOff: nothing can be loaded.
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
        raise SwitchedOff from error
    finally:
        connection.rows_to_send = None
    connection.query("ROLLBACK TO SAVEPOINT semel_load")
    return False


@cache
def result_class() -> Any:
    """The class of PyMySQL's results, of a connection with ``rows_to_send``.

    A server answers any statement it likes with the name of a file that it wants, and PyMySQL would
    open that file. This class sends the rows that are meant, or nothing.
    """
    import pymysql
    from pymysql.connections import MySQLResult
    from pymysql.protocol import LoadLocalPacketWrapper

    class Result(MySQLResult):  # type: ignore[misc]
        def _read_load_local_packet(self, first_packet: Any) -> None:
            connection = self.connection
            asked = LoadLocalPacketWrapper(first_packet).filename
            rows, connection.rows_to_send = connection.rows_to_send, None
            if rows is None or asked != _NAME:
                connection._force_close()
                raise ServiceError(
                    f"the server at {connection.host}:{connection.port} asks for the file "
                    f"{named(asked.decode(errors='replace'))} of this machine, which no statement "
                    "names. It gets nothing: check whether it is the server that you mean"
                )
            for start in range(0, len(rows), _CHUNK):
                connection.write_packet(rows[start : start + _CHUNK])
            connection.write_packet(b"")
            answer = connection._read_packet()
            if not answer.is_ok_packet():
                raise pymysql.err.OperationalError(_OUT_OF_SYNC, "Commands Out of Sync")
            self._read_ok_packet(answer)

    return Result


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
        f"LOAD DATA LOCAL INFILE '{_NAME.decode()}' INTO TABLE {target.quoted} "
        "CHARACTER SET utf8mb4 FIELDS TERMINATED BY X'09' ESCAPED BY '\\' "
        f"LINES TERMINATED BY X'090A' ({', '.join(names)})"
        + (f" SET {', '.join(sets)}" if sets else "")
    )
