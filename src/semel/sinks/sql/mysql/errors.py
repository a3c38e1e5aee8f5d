"""What the errors of MySQL and MariaDB mean, by their numbers."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from semel.errors import ServiceError, TransientError, Unavailable
from semel.sinks.sql.errors import DataRefused, SchemaChanged

REFUSED = {
    *(1048, 1062, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1416, 1451, 1452, 1526, 1586),
    *(1138, 1216, 1217, 1300, 1369, 1441, 1557, 1761, 1762),  # 1369: a view's CHECK OPTION
    *(1644, 1690, 3037, 3105, 3140, 3141, 3156, 3157, 3819, 4025),
}
"""A value or a row does not fit. In strict mode these are errors; as warnings, too, they say that a
value was changed."""
_SCHEMA = {1054, 1136, 1146, 1051, 1091}
_LOGIN = {1045, 1049, 1698}
_DENIED = {1044, 1142, 1143}
_AWAY = {
    *(3, 1021, 1026, 1030, 1114, 3675),  # no space is left
    *(1040, 1203),  # too many connections
    *(1290, 1792, 1836),  # read-only
    *(1053, 1927, 2002, 2003, 3169),  # the server is shutting down or down, or ends the session
    1047,  # of a cluster: the server is not part of it now
}
_PASSING = {
    *(1050, 1060),  # another task has made the same table or column
    1412,  # somebody has altered a table that the snapshot shows
    *(1180, 3100, 3101),  # of a cluster: another server's transaction came first
    *(1020, 1158, 1159, 1160, 1161, 1184, 1205, 1213, 1317),
    *(1969, 2006, 2013, 2014, 2055, 3024, 4031),
}


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
    if code in REFUSED:
        return DataRefused(text)
    if code in _SCHEMA:
        return SchemaChanged(text)
    if code in _AWAY:
        return Unavailable(text)
    if code in _PASSING or (not code and isinstance(error, pymysql.err.InterfaceError)):
        return TransientError(text)
    return ServiceError(text)
