"""Sessions of MariaDB and MySQL that no longer answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from semel.core.watchdog import Watchdog
from semel.sinks.sql.mysql.load import result_class

_PATIENCE = 5
_FOR_CLIENT = re.compile(r"\bnet\b|client", re.IGNORECASE)
"""States of a thread that waits for its client: reading from net, Sending to client, ..."""
_STATE = "SELECT COMMAND, STATE FROM information_schema.PROCESSLIST WHERE ID = {id}"


def session(watchdog: Watchdog) -> Any:
    """The class of PyMySQL's connections, whose reads and writes are watched, and which send no
    files."""
    from pymysql.connections import Connection

    class Watched(Connection):  # type: ignore[misc]
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
            result = result_class()(self)
            if unbuffered:
                result.init_unbuffered_query()
            else:
                result.read()
            self._result = result
            if result.server_status is not None:
                self.server_status = result.server_status
            return result.affected_rows

    return Watched


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
        found = cursor.fetchone()
        if found is None:
            return ""
        command, state = found[0], found[1] or ""
        if command != "Sleep" and not _FOR_CLIENT.search(state):
            return state or command
        cursor.execute(f"KILL {number}")
    return ""
