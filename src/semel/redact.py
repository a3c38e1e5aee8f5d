"""Hides credentials in texts that are shown to users, logged or stored in a ledger."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

HIDDEN = "***"

# None of these may take time that grows with the square of a text, which may come from anywhere.

# Everything up to the last @: a password may hold / and , and @ unescaped. A URL without a colon
# before its path has a user at most, so an @ further on belongs to the path.
_USER_INFO = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,40}:/{2,3})(?:[^\s@/:]*:[^\s'\"<>]*|[^\s@/'\"<>]+)@", re.I
)
_WORD = re.compile(r"[^\s'\"<>]+")
_SECRET = (
    r"(?:password|passwd|passphrase|secret|credentials?|user[._-]?info"
    r"|(?:secret|access|account|sas|api|private|shared)[._-]?key"
    r"|(?<![a-z])token|(?:session|sas)[._-]?token)"
)
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PARAMETER = re.compile(rf"({_SECRET}=)({_QUOTED}|[^\s&;,'\"]+)", re.I)
_PAIR = re.compile(rf"(['\"][\w.-]*{_SECRET}['\"]\s*:\s*)({_QUOTED})", re.I)
"""As JSON and Python write it."""
_NAME = re.compile(rf"[\w.-]*{_SECRET}|.*\b(?:jaas\.config|keystore\.key|key\.pem)", re.I)


_SHORTEST, _LONG = 4, 8
_COMMON = ("true", "false")
_hidden: dict[str, str] = {}
_patterns: list[re.Pattern[str]] = []


def hide(value: str, shown: str) -> None:
    """From now on, show ``shown`` instead of this value, in any case, and of the items of a list.

    Values shorter than eight characters are hidden only where they are words of their own. Those
    shorter than four, and ``true`` and ``false``, are never hidden: they occur everywhere.
    """
    value = value.strip()
    if len(value) < _SHORTEST or value.lower() in _COMMON or value.lower() in _hidden:
        return
    items = [item for item in re.split(r"[\s,;]+", value) if len(item) >= _LONG]
    for each in (value, *items):
        for form in (each, quote(each, safe=""), json.dumps(each)[1:-1]):
            _hidden.setdefault(form.lower(), shown)
    forms = sorted(_hidden, key=len, reverse=True)
    _patterns[:] = [re.compile("|".join(map(_found, forms)), re.I)]


def without_pieces(text: str, value: str) -> str:
    """The text without anything that it shares with a value, in any case: runs of at least four
    characters."""
    value, folded = _folded(value), _folded(text)
    pieces = {value[at : at + _SHORTEST] for at in range(len(value) - _SHORTEST + 1)}
    shared = [folded[at : at + _SHORTEST] in pieces for at in range(len(text))]
    made, until = [], 0
    for at, character in enumerate(text):
        if shared[at]:
            if at >= until:
                made.append(HIDDEN)
            until = at + _SHORTEST
        elif at >= until:
            made.append(character)
    return "".join(made)


def _folded(text: str) -> str:
    """In lower case, character by character."""
    return "".join(c.lower()[:1] for c in text)


def _found(value: str) -> str:
    return re.escape(value) if len(value) >= _LONG else rf"(?<!\w){re.escape(value)}(?!\w)"


def names_secret(name: str) -> bool:
    """Whether a setting of this name is a secret."""
    return _NAME.fullmatch(name) is not None


def redacted(text: str) -> str:
    """The text without its credentials, and without the values given to :func:`hide`."""
    for hidden in _patterns:
        text = hidden.sub(lambda match: _hidden.get(match[0].lower(), HIDDEN), text)
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """The text without the user info of its URLs, and without values of passwords and keys.

    Unlike :func:`redacted`, it leaves text alone that merely equals a secret. It is for
    configurations as they were given, which hold references instead of the values.
    """
    if "@" in text:
        text = _WORD.sub(_without_user_info, text)
    for named in (_PARAMETER, _PAIR):
        text = named.sub(rf"\g<1>{HIDDEN}", text)
    return text


def _without_user_info(word: re.Match[str]) -> str:
    end = word[0].rfind("@") + 1
    return _USER_INFO.sub(rf"\g<1>{HIDDEN}@", word[0][:end]) + word[0][end:]


def plain(facts: Any) -> Any:
    """Facts for the user, without the credentials in their strings."""
    if isinstance(facts, str):
        return redacted(facts)
    if isinstance(facts, list):
        return [plain(f) for f in facts]
    if isinstance(facts, dict):
        return {name: plain(f) for name, f in facts.items()}
    return facts
