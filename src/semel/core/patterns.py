"""Java's regular expressions, matched in bounded time.

RE2 runs them in linear time, and without the interpreter's lock. It has no lookaround, no
backreferences and no possessive quantifiers: patterns with these run in ``regex``, which also gives
the lock back, and which gives up after :data:`_PATIENCE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from semel.core.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_PATIENCE = 1.0
"""Seconds of CPU time that ``regex`` may take for one text."""
_LONGEST, _LONGEST_OTHER, _REPEATS = 20_000, 1000, 100_000
"""How long a pattern may be, how long one that RE2 does not take, and the largest product of its
counted repetitions: they bound the time to compile it."""

_NOWHERE = re.compile(r"\\[GX]|&&|\(\?[a-zA-Z]*[Ud]")
"""What only Java has, or what means something else elsewhere."""
_ONLY_RE2 = re.compile(r"\\(?:[pPQEhHRz]|x\{)")
"""What RE2 understands as Java does, and ``regex`` does not."""
_ONLY_REGEX = {
    "lookaround": re.compile(r"\(\?<?[=!]"),
    "backreferences": re.compile(r"\\(?:[1-9]|k<)"),
    "possessive quantifiers": re.compile(r"[*+?}]\+|\(\?>"),
}
_COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\[pP]\{\^?(?:Is)?\w+\}|\\u[0-9a-fA-F]{4}|\\.|\[\^?\]?|\]|\$|\\|[^\\\[\]$]+",
    re.S,
)
_POSIX = {
    name: f"[:{name.lower()}:]"
    for name in (
        *("Lower", "Upper", "ASCII", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print"),
        *("Blank", "Cntrl", "XDigit", "Space"),
    )
}
_BLANKS = r" \t\x{A0}\x{1680}\x{180e}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}"
_SPACES = r"\t-\r "
_LINE_END = r"(?:\r\n|[\n-\r\x{85}\x{2028}\x{2029}])"
_END: Final = r"(?:\n?\z)"
"""Java's ``$``, where it does not matter what exactly has matched."""

Template = tuple[str | int, ...]
"""A replacement: texts, and numbers of groups."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of Java's. ``flags`` are letters of ``imsx``."""

    text: str
    flags: str = ""

    @property
    def groups(self) -> int:
        """The number of its groups."""
        return int(self._engine.groups)

    @property
    def names(self) -> dict[str, int]:
        """The numbers of its named groups."""
        return dict(self._engine.groupindex)

    def fullmatch(self, text: str) -> bool:
        """Whether it matches the whole text.

        Raises:
            ConfigError: that takes too long to find out.
        """
        return next(self._matches(text, "fullmatch"), None) is not None

    def matches(self, texts: pa.Array) -> pa.Array:
        """For each text, whether it matches the whole of it; null for null.

        Raises:
            ConfigError: as :meth:`fullmatch`.
        """
        return self._each(texts, rf"\A(?:{self._as_re2()})\z", "fullmatch")

    def finds(self, texts: pa.Array) -> pa.Array:
        """For each text, whether it matches a part of it; null for null.

        Raises:
            ConfigError: as :meth:`fullmatch`.
        """
        return self._each(texts, self._as_re2(end=_END), "search")

    def first_replaced(self, template: Template, text: str) -> str:
        """The result of Java's ``replaceFirst``. A group that has not matched is empty."""
        return self._replaced(template, text, 1)

    def all_replaced(self, template: Template, text: str) -> str:
        """The result of Java's ``replaceAll``."""
        return self._replaced(template, text, 0)

    def template(self, text: str) -> Template:
        """Java's replacement: ``$1`` and ``${name}`` stand for groups, a backslash takes the next
        character as it is.

        Raises:
            ValueError: it names a group that the pattern does not have.
        """
        parts: list[str | int] = []
        at = 0
        while at < len(text):
            character = text[at]
            if character == "\\":
                if at + 1 == len(text):
                    raise ValueError("character to be escaped is missing")
                parts.append(text[at + 1])
                at += 2
            elif character == "$":
                group, at = self._group(text, at + 1)
                parts.append(group)
            else:
                parts.append(character)
                at += 1
        return tuple(parts)

    def _group(self, text: str, at: int) -> tuple[int, int]:
        if named := _NAMED.match(text, at):
            if named[1] not in self.names:
                raise ValueError(f"No group with name {{{named[1]}}}")
            return self.names[named[1]], named.end()
        digits = _DIGITS.match(text, at)
        if digits is None:
            raise ValueError("Illegal group reference")
        length = 1
        if int(digits[0][0]) > self.groups:
            raise ValueError(f"No group {digits[0][0]}")
        while length < len(digits[0]) and int(digits[0][: length + 1]) <= self.groups:
            length += 1
        return int(digits[0][:length]), at + length

    def _replaced(self, template: Template, text: str, most: int) -> str:
        pieces, at = [], 0
        for number, match in enumerate(self._matches(text, "finditer"), start=1):
            pieces.append(text[at : match.start()])
            pieces += [part if isinstance(part, str) else match[part] or "" for part in template]
            at = match.end()
            if number == most:
                break
        return "".join([*pieces, text[at:]])

    @property
    def _engine(self) -> Any:
        return _engine(self.text, self.flags)

    @property
    def _is_bounded(self) -> bool:
        """Whether RE2 runs it."""
        return type(self._engine).__module__.startswith("re2")

    def _as_re2(self, end: str = "$") -> str:
        return (f"(?{self.flags})" if self.flags else "") + _translated(self.text, end)

    def _matches(self, text: str, method: str) -> Iterator[Any]:
        call = getattr(self._engine, method)
        limits = {} if self._is_bounded else {"concurrent": True, "timeout": _PATIENCE}
        try:
            result = call(text, **limits)
            yield from result if method == "finditer" else () if result is None else (result,)
        except TimeoutError:
            raise ConfigError(
                f"the pattern {self.text!r} takes too long to match a text of {len(text)} "
                "characters. Write it without lookaround, backreferences and possessive "
                "quantifiers: then the time is linear"
            ) from None

    def _each(self, texts: pa.Array, as_re2: str, method: str) -> pa.Array:
        import pyarrow as pa  # slow to import, as are the engines
        import pyarrow.compute as pc

        if self._is_bounded:
            return pc.match_substring_regex(texts, as_re2)
        encoded = texts.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        fits = [next(self._matches(t, method), None) is not None for t in distinct]
        return pa.array(fits, pa.bool_()).take(encoded.indices)


_NAMED = re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}")
_DIGITS = re.compile(r"[0-9]+")


def compiled(text: str, flags: str = "") -> Pattern:
    """A pattern of Java's.

    Raises:
        ValueError: it is not a pattern, or it has no equivalent; the message continues after its
            value.
    """
    _engine(text, flags)
    return Pattern(text, flags)


def check(text: str) -> None:
    """Check a pattern; an empty one is none.

    Raises:
        ValueError: as :func:`compiled`.
    """
    if text:
        compiled(text)


@lru_cache(maxsize=256)
def _engine(text: str, flags: str) -> Any:
    import re2

    if len(text) > _LONGEST:
        raise ValueError(f"has more than {_LONGEST:,} characters")
    escaped = text.replace("\\\\", "")
    nowhere = _NOWHERE.search(escaped)
    if nowhere:
        raise ValueError(
            f"uses {nowhere[0]}, which only Java's regular expressions have. Write it in another "
            "way"
        )
    options = re2.Options()
    options.log_errors = False
    inline_flags = f"(?{flags})" if flags else ""
    try:
        return re2.compile(inline_flags + _translated(text, "$"), options)
    except re2.error as error:
        unknown = _ONLY_RE2.search(escaped)
        if unknown:
            uses = next((what for what, how in _ONLY_REGEX.items() if how.search(escaped)), None)
            together = f"uses {uses} together with {unknown[0]}, which is not available"
            raise ValueError(
                together if uses else f"is not a regular expression: {_said(error)}"
            ) from None
    if len(text) > _LONGEST_OTHER or math.prod(map(_count, _COUNTS.findall(text))) > _REPEATS:
        raise ValueError(
            "is too large for a pattern with lookaround, backreferences, possessive quantifiers or "
            f"more than 1000 repetitions: it may have {_LONGEST_OTHER} characters, and its counts "
            f"may multiply to {_REPEATS}"
        )
    import regex

    try:
        return regex.compile(inline_flags + text, regex.ASCII | regex.VERSION0)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def _count(bounds: tuple[str, str]) -> int:
    return max(1, *(int(bound) for bound in bounds if bound))


def _said(error: Exception) -> str:
    """RE2's reason, which it gives as bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _translated(text: str, end: str) -> str:
    """The pattern with what RE2 writes in another way than Java."""
    pieces: list[str] = []
    inside = False
    for token in _TOKEN.findall(text):
        if token[0] == "[" and inside:
            raise ValueError(
                "has a class inside a class, which only Java's regular expressions have. Write "
                r"[a-cx-z] for [a-c[x-z]], and \[ for a bracket"
            )
        pieces.append(_token(token, end, inside=inside))
        inside = token[0] == "[" or (inside and token != "]")
    return "".join(pieces)


def _token(token: str, end: str, *, inside: bool) -> str:
    if token == "$":
        return token if inside else end
    if len(token) < 2 or token[0] != "\\" or token[1] == "Q":
        return token
    if token[1] == "u":
        return rf"\x{{{token[2:]}}}"
    if token[1] in "pP" and len(token) > 2:
        name = token[3:-1].removeprefix("Is")
        if name not in _POSIX:
            return f"{token[:3]}{name}}}"
        named = _POSIX[name] if token[1] == "p" else _POSIX[name].replace("[:", "[:^")
        return named if inside else f"[{named}]"
    if token[1] in "hs":
        within = _BLANKS if token[1] == "h" else _SPACES
        return within if inside else f"[{within}]"
    if token[1] in "HS" and not inside:
        return f"[^{_BLANKS if token[1] == 'H' else _SPACES}]"
    return _LINE_END if token[1] == "R" and not inside else token
