"""PyMySQL: connections whose silence is noticed and which send servers no files, and what errors
mean, by the servers' numbers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from typing import Any

from semel.core.errors import ServiceError, TransientError
from semel.core.quoting import named
from semel.core.watchdog import Watchdog
from semel.databases.errors import Nature, by_code

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


# Errors

_LOGIN = {1045, 1049, 1698}
_DENIED = {1044, 1142, 1143}

NATURES = by_code(
    {
        Nature.DATA: [
            *(1022, 1048, 1062, 1118, 1138, 1139, 1169, 1216, 1217, 1242, 1263, 1264, 1265, 1292),
            *(1300, 1301, 1339),  # the last: a CASE of a trigger without an ELSE
            *(1364, 1365, 1366, 1367, 1369, 1406, 1411, 1416, 1425, 1426, 1441, 1451, 1452, 1456),
            *(1526, 1557, 1586, 1591, 1642, 1643, 1644, 1645, 1690, 1748, 1761, 1762, 1859),
            *(3032, 3037, 3055, 3064, 3105, 3134, 3140, 3141, 3143, 3144, 3146, 3147, 3149, 3150),
            *(3151, 3154, 3155, 3156, 3157, 3158, 3548, 3616, 3617, 3618, 3643, 3685, 3696, 3697),
            *(3698, 3699, 3700, 3751, 3752, 3819, 3854, 3903, 3904, 3906, 3907, 3988),
            # MariaDB's own
            *(1906, 1918, 1976, 1977, 4025, 4035, 4036, 4037, 4038, 4039, 4040, 4041, 4042),
        ],
        Nature.CHANGED: [1051, 1054, 1091, 1136, 1146, 1356],
        Nature.PASSING: [
            *(1050, 1060),  # another task has made the same table or column
            1412,  # somebody has altered a table that the snapshot shows
            *(1180, 3100, 3101),  # of a cluster: another server's transaction came first
            *(1020, 1158, 1159, 1160, 1161, 1184, 1205, 1213, 1317),
            *(1969, 2006, 2013, 2014, 2055, 3024, 4031),
        ],
        Nature.AWAY: [
            *(3, 28, 1021, 1026, 1030, 1114, 3675),  # no space is left
            *(1037, 1038, 1041),  # no memory is left
            *(1040, 1203, 1226),  # too many connections
            *(1290, 1792, 1836),  # read-only
            *(1053, 1927, 2002, 2003, 3169),  # the server is shutting down or down
            1047,  # of a cluster: the server is not part of it now
        ],
        Nature.MISTAKE: [
            *_LOGIN,
            *_DENIED,
            *(1070, 1071, 1072, 1074, 1075, 1113, 1117, 1153, 1227, 1267, 1288, 1348, 1394, 1442),
            *(1467, 1471, 1819, 4084),
        ],
    }
)
"""By the servers' numbers. In strict mode what concerns a value is an error; as a warning, too, it
says that a value was changed. Other numbers are mistakes, unless no server has them."""
_OWN = 6_000
"""Numbers from here on are a trigger's own, by SIGNAL: servers use those before."""


def nature_of(code: int) -> Nature:
    """What follows from an error or a warning with this number."""
    return NATURES.get(code, Nature.DATA if code >= _OWN else Nature.MISTAKE)


_LOST = (2006, 2013)


def is_lost(error: BaseException) -> bool:
    """Whether an error of PyMySQL says that a connection has ended."""
    import pymysql

    lost = isinstance(error, pymysql.err.OperationalError)
    return lost and bool(error.args) and error.args[0] in _LOST


def translated(
    where: str, error: BaseException, advice: Callable[[str], str] = lambda _: ""
) -> Exception | None:
    """An error of PyMySQL as one of semel's; None for any other. ``advice`` says what helps if the
    message says that a privilege is missing."""
    import pymysql

    # PyMySQL has one number for whatever keeps it from connecting.
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ServiceError(
            f"{where}: the server's certificate is not trusted: {cause}. Set "
            "connection.serverSslCert to a PEM file of its authority, or connection.sslMode to "
            "verify-ca, which does not check the host's name, or trust, which checks nothing"
        )
    if isinstance(error, (OSError, EOFError)):
        return TransientError(f"{where}: {error}")
    if not isinstance(error, pymysql.err.MySQLError):
        return None
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = error.args[1] if len(error.args) > 1 else str(error)
    text = f"{where}: {message} ({code})"
    if code in _LOGIN:
        return ServiceError(
            f"{text}. Check connection.url, connection.user and connection.password"
        )
    if code in _DENIED:
        return ServiceError(f"{text}{advice(message)}")
    if not code and isinstance(error, pymysql.err.InterfaceError):
        return TransientError(text)
    return nature_of(code).error(text)
