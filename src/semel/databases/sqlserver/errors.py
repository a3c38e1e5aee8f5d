"""Translates the errors of SQL Server and its driver."""

from __future__ import annotations

from collections.abc import Callable

from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.databases.errors import DataRefused, Nature, SchemaChanged, by_code
from semel.databases.sqlserver.client import is_broken, number_of
from semel.databases.sqlserver.rows import Unsendable

_RAISED = 50_000  # and above: by a trigger, in its own words
_DENIED = {229, 230, 262, 2760}

NATURES = by_code(
    {
        Nature.DATA: [
            *(220, 232, 234, 235, 236, 237, 238, 241, 242, 244, 245, 248, 293, 294, 295, 296),
            *(298, 304, 402, 409, 511, 512, 513, 515, 517, 518, 519, 520, 521, 522, 523, 524),
            *(527, 529, 535, 537, 542, 545, 547, 550, 681, 682, 1946, 2601, 2627, 2628, 3606),
            *(3607, 3608, 3609, 3616, 3623, 6522, 6569, 6573, 8114, 8115, 8134),
            *(8152, 8169, 9803, 9807, 9809, 9810, 9813, 9819, 33504, 33505),
            *range(9400, 9500),  # XML
            *range(13605, 13620),  # JSON
        ],
        Nature.CHANGED: [206, 207, 208, 213, 257, 271, 273, 3701, 4902, 4924, 8101],
        Nature.PASSING: [
            *(2705, 2714, 2759),  # another task has made the same column or table
            *(64, 121, 233, 596, 802, 845, 1204, 1205, 1211, 1222, 3635, 3950, 3951, 3960, 3961),
            *(3966, 8628, 8645, 8651, 10053, 10054),
            *(41301, 41302, 41305, 41325, 41839),
        ],
        Nature.AWAY: [
            *(922, 924, 927, 945, 976, 978, 983),  # the database recovers, or is another replica's
            *(701, 1101, 1105, 9001, 9002),  # no memory, no space, no log
            *(3906, 3908),  # read-only
            *(6001, 6002, 6005, 17142, 17188, 18401, 18451),  # starting up or shutting down
            *(10060, 10928, 10929, 17194, 40197, 40501, 40613, 49918, 49919, 49920),
        ],
        Nature.MISTAKE: [*_DENIED, 334, 339, 544, 1934, 3728, 5074, 4060, 8106, 18456],
    }
)
"""By SQL Server's numbers. Others are mistakes, unless a trigger has raised them."""
_STATES = by_code(
    {
        Nature.CHANGED: ["42"],
        Nature.PASSING: ["40", "55", "57"],
        Nature.AWAY: ["08", "53", "58"],
    }
)
"""By the classes of PostgreSQL's SQLSTATE, behind Babelfish."""
_WAITED = 1222
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
    return _nature(number, state).error(text)


def _nature(number: int, state: str) -> Nature:
    if not number:
        return Nature.PASSING
    if number in NATURES:
        return NATURES[number]
    if state:
        return _STATES.get(state[:2], Nature.MISTAKE if state == "XX000" else Nature.DATA)
    return Nature.DATA if number >= _RAISED else Nature.MISTAKE


def _state(number: int) -> str:
    """PostgreSQL's SQLSTATE, which Babelfish encodes in its numbers; empty for SQL Server's."""
    return "".join(chr((number >> 6 * i & 63) + 48) for i in range(5)) if number >> 24 else ""
