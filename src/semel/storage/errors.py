"""What the errors of object stores, file systems and catalogs mean.

Their clients differ, and most keep the cause only in the text of an error.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection

from semel.core.errors import SemelError, ServiceError, TransientError, Unavailable

_ERRNOS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOTCONN, errno.ESTALE),
    *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT),
}
_REFUSED = re.compile(
    r"access ?denied|account ?problem|invalid ?access ?key|signature ?does ?not ?match"
    r"|no ?such ?bucket|bucket does not exist|invalid ?bucket ?name|container ?not ?found"
    r"|container does not exist|authentication ?failed|authorization ?header ?malformed"
    r"|permanent ?redirect|invalid_grant|invalid endpoint|relative URL without a base"
    r"|\b401 unauthorized|\b403 forbidden|(?:expired|invalid) ?token|token (?:has|is) expired"
    r"|token ?refresh ?required|request ?time ?too ?skewed|request has expired"
    r"|authorization ?failure|authorization ?permission ?mismatch|not authorized to perform"
    r"|account ?is ?disabled|invalid ?credentials|credentials? (?:has|have|is|are) expired",
    re.IGNORECASE,
)
"""A mistake in credentials, names or addresses: it does not pass. A client renews credentials that
can be renewed, so those that have expired do not come back either."""
_THROTTLED = re.compile(
    r"\b(?:\w*RateLimitExceeded|SlowDown|Throttl(?:ed|ing)\w*|ServerBusy|TooManyRequests\w*"
    r"|RequestLimitExceeded)\b",
    re.IGNORECASE,
)
"""Codes of stores that are asked too often, some of which come with status 403."""
_WORDS = re.compile(
    r"no space left|disk (is )?full|quota|read-only file system|safe ?mode|standby"
    r"|connection refused|error trying to connect|could ?n.t connect|cannot connect"
    r"|failed to (establish|connect)|could not connect|dns error|name resolution|name or service"
    r"|no route to host|network is unreachable|NETWORK_CONNECTION|max retries exceeded"
    r"|error sending request|operation timed out|connection timed out|read timed out"
    r"|failed to find datanode|could only be (written|replicated) to 0\b"
    r"|timeout was reached|timeout on endpoint|service unavailable|slow ?down|too many requests"
    r"|\b(429|503)\b",
    re.IGNORECASE,
)


def judged(message: str, error: BaseException) -> SemelError:
    """The error for a failure: a mistake, an outage, or a failure of this attempt alone."""
    if _THROTTLED.search(message):
        return Unavailable(message)
    if _REFUSED.search(message):
        return ServiceError(
            f"{message}. Check the address, the names and the credentials of the store"
        )
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeoutError) or getattr(cause, "errno", None) in _ERRNOS:
            return Unavailable(message)
        cause = cause.__cause__ or cause.__context__
    return Unavailable(message) if _WORDS.search(message) else TransientError(message)


def is_of(error: BaseException, packages: Collection[str]) -> bool:
    """Whether an error's class belongs to one of these packages."""
    return type(error).__module__.partition(".")[0] in packages


def comes_from(error: BaseException, packages: Collection[str]) -> bool:
    """Whether an error of Python's own was raised in one of these packages, or below it: about what
    the package was given."""
    inside, trace = False, error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        inside = package != "semel" and (inside or package in packages)
        trace = trace.tb_next
    return inside
