"""Recognises which errors of object stores, file systems and catalogs mean an outage.

Their clients differ, and most keep the cause only in the text of an error.
"""

from __future__ import annotations

import errno
import re

from semel.errors import TransientError, Unavailable

_ERRNOS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOTCONN, errno.ESTALE),
    *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT),
}
_WORDS = re.compile(
    r"no space left|disk (is )?full|quota|read-only file system|safe ?mode|standby"
    r"|connection refused|error trying to connect|could ?n.t connect|cannot connect"
    r"|failed to (establish|connect)|could not connect|dns error|name resolution|name or service"
    r"|no route to host|network is unreachable|NETWORK_CONNECTION|max retries exceeded"
    r"|error sending request|operation timed out|connection timed out|read timed out"
    r"|timeout was reached|timeout on endpoint|service unavailable|slow ?down|too many requests"
    r"|\b(429|503)\b",
    re.IGNORECASE,
)


def passing(message: str, error: BaseException) -> TransientError:
    """The error for a failure that may pass: an outage, or a failure of this attempt alone."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeoutError) or getattr(cause, "errno", None) in _ERRNOS:
            return Unavailable(message)
        cause = cause.__cause__ or cause.__context__
    return Unavailable(message) if _WORDS.search(message) else TransientError(message)
