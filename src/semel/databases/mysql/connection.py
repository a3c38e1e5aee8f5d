"""PyMySQL's connections: their silence is noticed, and servers get no files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any

from semel.core.errors import ServiceError
from semel.core.quoting import named
from semel.core.watchdog import Watchdog

_PATIENCE = 5
_FOR_CLIENT = re.compile(r"\bnet\b|client", re.IGNORECASE)
"""States of a thread that waits for its client: reading from net, Sending to client, ..."""
_STATE = "SELECT COMMAND, STATE FROM information_schema.PROCESSLIST WHERE ID = {id}"

ROWS = b"semel"
"""The name that LOAD DATA gives to the rows. It is no file: see :func:`_result_class`."""
_CHUNK = 16 * 1024
_OUT_OF_SYNC = 2014


@cache
def _result_class() -> Any:
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
            if rows is None or asked != ROWS:
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


def connection_class(watchdog: Watchdog) -> Any:
    """The class of PyMySQL's connections, whose reads and writes are watched, and which send no
    files."""
    from pymysql.connections import Connection

    class WatchedConnection(Connection):  # type: ignore[misc]
        rows_to_send: memoryview | None = None

        def _get_server_information(self) -> None:
            watchdog.attach(self._sock)
            super()._get_server_information()

        def _read_bytes(self, num_bytes: int) -> Any:
            with watchdog.call():
                return super()._read_bytes(num_bytes)

        def _write_bytes(self, data: bytes) -> None:
            with watchdog.call():
                super()._write_bytes(data)

        def _read_query_result(self, unbuffered: bool = False) -> Any:
            self._result = None
            result = _result_class()(self)
            if unbuffered:
                result.init_unbuffered_query()
            else:
                result.read()
            self._result = result
            if result.server_status is not None:
                self.server_status = result.server_status
            return result.affected_rows

    return WatchedConnection


def end(connection: Any, arguments: Mapping[str, Any]) -> str:
    """What the session is doing, according to the server. If it only waits for its client, it is
    ended together with its locks, and the answer is empty."""
    import pymysql

    if connection is None:
        return ""
    number = int(connection.thread_id())
    patience = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), _PATIENCE)
    with closing(pymysql.connect(**{**arguments, **patience})) as other, other.cursor() as cursor:
        cursor.execute(_STATE.format(id=number))
        row = cursor.fetchone()
        if row is None:
            return ""
        command, state = row[0], row[1] or ""
        if command != "Sleep" and not _FOR_CLIENT.search(state):
            return state or command
        cursor.execute(f"KILL {number}")
    return ""
