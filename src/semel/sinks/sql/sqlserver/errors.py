"""Translates the errors of SQL Server and its driver."""

from __future__ import annotations

from collections.abc import Callable

from semel.errors import ServiceError, TransientError, Unavailable
from semel.sinks.sql.errors import DataRefused, SchemaChanged
from semel.sinks.sql.sqlserver.client import is_broken, number_of
from semel.sinks.sql.sqlserver.rows import Unsendable

_REFUSED = {
    *(220, 232, 235, 236, 237, 238, 241, 242, 244, 245, 248, 295, 296, 298, 402, 511, 515, 517),
    *(547, 550, 1946, 2601, 2627, 2628, 3609, 8114, 8115, 8152, 8169, 33504, 33505),
    *range(9400, 9500),  # XML
    *range(13605, 13620),  # JSON
}
_RAISED = 50_000  # and above: by a trigger, in its own words
_DENIED = {229, 230, 262, 2760}
_SCHEMA = {207, 208, 213, 271, 3701, 4902, 4924}
_PASSING = {
    *(2705, 2714, 2759),  # another task has made the same column or table
    *(64, 233, 596, 802, 845, 1204, 1205, 1222, 3951, 3960, 3961, 3966, 8645, 8651, 10053, 10054),
    *(41301, 41302, 41305, 41325, 41839),
}
_AWAY = {
    *(922, 924, 927, 945, 976, 978, 983),  # the database is recovering, or is another replica's
    *(701, 1105, 9001, 9002),  # no memory, no space, no log
    *(3906, 3908),  # read-only
    *(6001, 6002, 6005, 17142, 17188, 18401, 18451),  # the server is starting up or shutting down
    *(10060, 10928, 10929, 17194, 40197, 40501, 40613, 49918, 49919, 49920),
}
_AWAY_STATES = {"08", "53", "58"}
_WAITED = 1222
_PASSING_STATES = {"40", "55", "57"}
_NOT_MAPPED = "YY002"
"""Babelfish's SQLSTATE for PostgreSQL errors without a counterpart in SQL Server, such as a server
that is shutting down and a column that is missing."""
_GONE = "does not exist"
_GOING = ("the database system is ", "terminating connection", "conflict with recovery")


def translated(
    where: str, error: BaseException, advice: Callable[[str], str] = lambda _: ""
) -> Exception | None:
    """One of semel's errors; None for an error that is not the driver's. ``advice`` says what helps
    if the message says that a permission is missing."""
    if isinstance(error, Unsendable):
        return DataRefused(f"{where}: {error}")
    if is_broken(error):
        return TransientError(f"{where}: {error}")
    number = number_of(error)
    if number is None:
        return None
    text = f"{where}: {error.args[0]}" + (f" ({number})" if number else "")
    state = _state(number)
    if number == _WAITED or "lock timeout" in text:
        return TransientError(f"{text}. If the process that holds the rows is frozen, end it")
    if state == _NOT_MAPPED and any(words in text for words in _GOING):
        return Unavailable(text)
    if state == _NOT_MAPPED and _GONE in text:
        return SchemaChanged(text)
    if number in _DENIED or state == "42501":
        return ServiceError(text + advice(str(error.args[0])))
    if number in _AWAY or state[:2] in _AWAY_STATES:
        return Unavailable(text)
    if number in _PASSING or state[:2] in _PASSING_STATES or not number:
        return TransientError(text)
    if number in _SCHEMA or state[:2] == "42":
        return SchemaChanged(text)
    if number in _REFUSED or (number >= _RAISED and state != "XX000"):
        return DataRefused(text)
    return ServiceError(text)


def _state(number: int) -> str:
    """PostgreSQL's SQLSTATE, which Babelfish encodes in its numbers; empty for SQL Server's."""
    return "".join(chr((number >> 6 * i & 63) + 48) for i in range(5)) if number >> 24 else ""
