"""Credentials inside texts that a user, a log or a ledger gets to see."""

from __future__ import annotations

import re

HIDDEN = "***"

# Everything up to the last @: a password may hold / and , and @ unescaped. A URL without a colon
# before its path has a user at most, so an @ further on belongs to the path.
_USER_INFO = re.compile(
    r"(\b[a-z][a-z0-9+.-]*:/{2,3})(?:[^\s@/:]*:[^\s'\"<>]*|[^\s@/'\"<>]+)@", re.I
)
_PARAMETER = re.compile(
    r"(\b[\w.-]*(?:password|passwd|secret|secret[._]?key|access[._]?key|account[._]?key|sas[._]?key"
    r"|(?<![a-z])token|session[._]?token|sas[._]?token|credential)=)"
    r"('[^']*'|\"[^\"]*\"|[^\s&;,'\"]+)",
    re.I,
)


def redacted(text: str) -> str:
    """The text without the user info of its URLs and without values of passwords and keys."""
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(rf"\g<1>{HIDDEN}@", text))
