"""Hides credentials in texts that are shown to users, logged or stored in a ledger."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, urlsplit

HIDDEN = "***"

_SCHEME = r"(?<![a-z0-9+.-])[a-z0-9+.-]*:/{2,3}"
_NO_PORT = r"(?!\d{1,5}(?:[/?#,;\s'\"]|$))"
_RUN = re.compile(r"[^\s'\"<>]+")
_USER_INFO = re.compile(rf"({_SCHEME})(?:([^@/:]*:)|[^@/]+@)", re.I)
"""Everything up to the last @ of a run: a password may hold / and , and @ unescaped. A URL without
a colon before its path has a user at most, so an @ further on belongs to the path."""
_BROKEN = re.compile(rf"({_SCHEME})[^\s@/:'\"]*:{_NO_PORT}", re.I)
"""What may come before what must not stand unescaped in a password: a blank or a quotation mark."""
_FARTHEST = 2000
"""How far away the @ may be then."""
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)(?:=|\s+=\s*)")
_ASSIGNABLE = re.compile(rf"{_QUOTED}|\{{[^}}]*(?:\}}|$)|[^\s&;,'\"]+")
_PAIR = re.compile(rf"(['\"])([\w.-]+)(\1\s*:\s*)({_QUOTED}|\[[^\]]*(?:\]|$)|[\w.+-]+)")
_PAIR_WITHIN = re.compile(r"(?<!\\)(\\+['\"])([\w.-]+)(\1\s*:\s*)(\1(?s:.*?)(?:\1|\Z)|[\w.+-]+)")
"""As JSON and Python write it, and within a text of theirs."""
_HEADER = re.compile(
    r"((?<![\w-])(?:[\w-]*(?:authorization|cookie)|[\w-]+-(?:api-?key|token))\s*:\s*)"
    r"[^\s'\"][^\n'\"]*",
    re.I,
)
_SCHEMED = re.compile(
    r"\b((?:[Bb]earer|[Bb]asic|BEARER|BASIC)\s+)(?=\S+[A-Z0-9=])[\w+/=.~-]{8,}", re.A
)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]*", re.A)
_PEM = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END|$)", re.S)

_NAME = re.compile(
    r"""pass\.?(?:word|wd|phrase|code) | pwd | secret | credential | user\.?info | token(?!i[sz])
    | jwt | cookie | authori[sz]ation | jaas | signature | keystore\.key | key\.pem
    | (?:secret|access|account|api|private|shared|sign(?:ing)?|encrypt(?:ion)?|master|storage
        |session|subscription|customer|sas|auth|hmac|ssh|tls|license)\.?key
    | session\.?id | hmac | otp\.
    | (?:\.|key|store)pass\. | \.(?:pw|sig|sas)\. | \.(?:bearer|basic\.auth)\.$""",
    re.X,
)
_ABOUT = re.compile(
    r"""\.(?:class|type|providers?|source|path|files?|dir|location|ur[il]|endpoint|ms|seconds|names?
    |fields?|enabled?|algorithm|scope|format|mode|version|timeout|interval|client\.id|key\.id)\.$""",
    re.X,
)
"""The ends of names of what is known about a secret, such as the file that holds it."""
_ALIAS = re.compile(r"^(?:transforms|predicates)\.[^.]+\.")


_SHORTEST, _LONG = 4, 8
_COMMON = ("true", "false", "required", "requisite", "sufficient", "optional")
"""Words that are never hidden: the last four are in any JAAS configuration."""
_hidden: dict[str, str] = {}
_patterns: list[re.Pattern[str]] = []


def hide(value: str, shown: str) -> None:
    """From now on, show ``shown`` instead of this value, in any case, and of the items of a list.

    Values shorter than eight characters are hidden only where they are words of their own. Those
    shorter than four, and some common words, are never hidden: they occur everywhere.
    """
    value = value.strip()
    if len(value) < _SHORTEST or value.lower() in _COMMON or value.lower() in _hidden:
        return
    items = [item for item in re.split(r"[\s,;]+", value) if len(item) >= _LONG]
    for secret in (value, *items):
        if secret.lower() in _COMMON:
            continue
        for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
            _hidden.setdefault(form.lower(), shown)
    forms = sorted(_hidden, key=len, reverse=True)
    _patterns[:] = [re.compile("|".join(map(_pattern_of, forms)), re.I)]


def without_pieces(text: str, value: str) -> str:
    """The text without anything that it shares with a value, in any case: runs of at least four
    characters."""
    value, folded = _folded(value), _folded(text)
    pieces = {value[at : at + _SHORTEST] for at in range(len(value) - _SHORTEST + 1)}
    shared = [folded[at : at + _SHORTEST] in pieces for at in range(len(text))]
    output, until = [], 0
    for at, character in enumerate(text):
        if shared[at]:
            if at >= until:
                output.append(HIDDEN)
            until = at + _SHORTEST
        elif at >= until:
            output.append(character)
    return "".join(output)


def _folded(text: str) -> str:
    """In lower case, character by character."""
    return "".join(c.lower()[:1] for c in text)


def _pattern_of(value: str) -> str:
    return re.escape(value) if len(value) >= _LONG else rf"(?<!\w){re.escape(value)}(?!\w)"


def names_secret(name: str) -> bool:
    """Whether a setting of this name is a secret: it has a word for one somewhere, and does not end
    with what is merely known about it. The alias of a transform tells nothing."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", ".", _ALIAS.sub("", name))
    dotted = "." + re.sub(r"[\W_]+", ".", words.lower()) + "."
    return _NAME.search(dotted) is not None and _ABOUT.search(dotted) is None


def redacted(text: str) -> str:
    """The text without its credentials, and without the values given to :func:`hide`."""
    for hidden in _patterns:
        text = hidden.sub(lambda match: _hidden.get(match[0].lower(), HIDDEN), text)
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """The text without the user info of its URLs, and without passwords, keys and tokens.

    Unlike :func:`redacted`, it leaves text alone that merely equals a secret. It is for
    configurations as they were given, which hold references instead of the values.
    """
    if "@" in text and ":/" in text:
        text = _RUN.sub(_without_user, text)
        text = _without_broken(text)
    text = _without_assigned(text)
    for pair in (_PAIR, _PAIR_WITHIN):
        text = pair.sub(_unpaired, text)
    for shown in (_HEADER, _SCHEMED, _PEM):
        text = shown.sub(rf"\g<1>{HIDDEN}", text)
    return _JWT.sub(HIDDEN, text)


def _without_user(run: re.Match[str]) -> str:
    text, pieces, at = run[0], [], 0
    last = text.rfind("@")
    for url in _USER_INFO.finditer(text, 0, last + 1):
        pieces += [text[at : url.end(1)], HIDDEN]
        at = last if url[2] else url.end() - 1
        if at == last:
            break
    return "".join([*pieces, text[at:]])


def _without_broken(text: str) -> str:
    pieces, at = [], 0
    for url in _BROKEN.finditer(text):
        start = url.end()
        end = text.find("@", start, start + _FARTHEST)
        if at <= url.start() and start < end and "\n" not in text[start:end]:
            pieces += [text[at : url.end(1)], HIDDEN]
            at = end
    return "".join([*pieces, text[at:]])


def _without_assigned(text: str) -> str:
    pieces, at = [], 0
    for match in _ASSIGNED.finditer(text):
        if match.start() >= at and names_secret(match[1]):
            value = _ASSIGNABLE.match(text, match.end())
            if value is not None:
                pieces += [text[at : match.end()], HIDDEN]
                at = value.end()
    return "".join([*pieces, text[at:]])


def _unpaired(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{match[3]}{HIDDEN}" if names_secret(match[2]) else match[0]


def setting(name: str, value: str, hidden: str = HIDDEN) -> str:
    """The value of a setting as it may be shown.

    It is hidden whole if its name is that of a secret, and where it is unclear how far a credential
    in it reaches: in a URL that cannot be parsed, and in a text with blanks.
    """
    if names_secret(name):
        return hidden if value.strip() else value
    shown = without_credentials(value)
    is_unclear = shown != value and len(value.split()) > 1
    return hidden if is_unclear or ("://" in shown and not _is_clear(shown)) else shown


def _is_clear(address: str) -> bool:
    """Whether no @ that is left can end a password."""
    rest = address.replace(f"{HIDDEN}@", "")
    if "@" not in rest:
        return True
    try:
        parts = urlsplit(rest)
        return "@" not in parts.netloc and (parts.port or 1) > 0 and not re.search(r"[\s'\"]", rest)
    except ValueError:
        return False


def plain(facts: Any) -> Any:
    """Facts for the user, without the credentials in their strings."""
    if isinstance(facts, str):
        return redacted(facts)
    if isinstance(facts, list):
        return [plain(f) for f in facts]
    if isinstance(facts, dict):
        return {name: plain(f) for name, f in facts.items()}
    return facts
