"""What the errors of PostgreSQL mean, by SQLSTATE."""

from __future__ import annotations

from semel.databases.errors import Nature, by_code

DENIED = "42501"
LOCK_TIMEOUT = "55P03"

NATURES = by_code(
    {
        Nature.DATA: [
            *("01", "02", "20"),  # a trigger may raise them, or lack a CASE
            *("09", "27", "2F", "38", "39", "P0"),  # triggers, in SQL and in other languages
            *("10", "21", "22", "23"),
            "44",  # a view's CHECK OPTION
            "54",  # too deep, too large a row or an index row
        ],
        Nature.CHANGED: [
            "42",
            *("08P01", "22P03"),  # a value in the binary form of another type than the column's
        ],
        Nature.PASSING: [
            *("40", "57", "72"),
            *("25P03", "25P04"),  # a session or a transaction took too long
            *("55006", LOCK_TIMEOUT, "55P04"),
        ],
        Nature.AWAY: [
            *("08", "53", "58"),  # connections, resources and the server's own files
            "25006",  # read-only: the server was demoted, or the session began while it was
            "57P01",  # terminated by an administrator
            "57P02",  # crashed
            "57P03",  # starting up, or shutting down
        ],
        Nature.MISTAKE: [
            *("00", "03", "0A", "0B", "0F", "0L", "0P", "0Z", "24", "25", "26", "28", "2B", "2D"),
            *("34", "3B", "3D", "3F", "55", "F0", "HV", "XX"),
            "2200H",  # a sequence has no more numbers, for any record
            DENIED,
        ],
    }
)
"""By whole states, or else by their classes. The codes of other classes are a trigger's own."""

_UNCONVERTIBLE = ("0A000", "cannot convert ")
"""What it says of NaN and infinities that an expression or a check makes whole numbers."""


def nature_of(state: str, message: str) -> Nature:
    """What follows from an error that the server has reported."""
    if state == _UNCONVERTIBLE[0] and message.startswith(_UNCONVERTIBLE[1]):
        return Nature.DATA
    return NATURES.get(state) or NATURES.get(state[:2], Nature.DATA)


def _listed(*, whole: bool) -> str:
    others = (c for c, n in NATURES.items() if n is not Nature.DATA and (len(c) == 5) is whole)
    return ", ".join(f"'{code}'" for code in others)


IS_DATA = (
    f"(SQLSTATE NOT IN ({_listed(whole=True)}) AND left(SQLSTATE, 2) NOT IN "
    f"({_listed(whole=False)})) OR (SQLSTATE = '{_UNCONVERTIBLE[0]}' AND "
    f"SQLERRM LIKE '{_UNCONVERTIBLE[1]}%')"
)
"""The same in PL/pgSQL: whether the error at hand is about a record."""
