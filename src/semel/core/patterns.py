"""Java's regular expressions, matched in bounded time.

RE2 runs them in linear time, and without the interpreter's lock. It has no lookaround, no
backreferences and no possessive quantifiers, and knows one line end only: patterns that need more
run in ``regex``, which also gives the lock back, and which gives up after :data:`_PATIENCE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from semel.core.errors import ConfigError
from semel.core.java_syntax import Anchor, Translation, translated

if TYPE_CHECKING:
    import pyarrow as pa

_PATIENCE = 1.0
"""Seconds of CPU time that ``regex`` may take for one text."""
_LONGEST, _LONGEST_OTHER, _REPEATS = 20_000, 1000, 100_000
"""How long a pattern may be, how long one that RE2 does not take, and the largest product of its
counted repetitions: they bound the time to compile it."""
_COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_OTHERS = "lookaround, backreferences, possessive quantifiers and ^ or $ with the flag m"
"""What RE2 does not have."""

_LINE_END = r"(?:\r\n|[\n\r\x85\u2028\u2029])"
_BY_RE2: Final = {
    Anchor.END: r"\z",
    Anchor.TEXT_END: r"\z",
    Anchor.BOUNDARY: r"\b",
    Anchor.NO_BOUNDARY: r"\B",
}
_FINDING: Final = {**_BY_RE2, Anchor.END: r"(?:(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z)"}
"""Java's ``$``, where it does not matter what exactly has matched."""
_BY_REGEX: Final = {
    Anchor.END: rf"(?=(?!(?<=\r)\n){_LINE_END}?\Z)",
    Anchor.TEXT_END: r"\Z",
    Anchor.LINE_START: r"(?:\A|(?<=[\n\x85\u2028\u2029])|(?<=\r)(?!\n))(?!\Z)",
    Anchor.LINE_END: rf"(?:(?!(?<=\r)\n)(?={_LINE_END})|\Z)",
    Anchor.BOUNDARY: r"(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))",
    Anchor.NO_BOUNDARY: r"(?:(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<![0-9A-Za-z_])(?![0-9A-Za-z_]))",
}

Template = tuple[str | int, ...]
"""A replacement: texts, and numbers of groups."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of Java's. ``flags`` are letters of ``imsux``."""

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
        return self._match(text, "fullmatch") is not None

    def matches(self, texts: pa.Array) -> pa.Array:
        """For each text, whether it matches the whole of it; null for null.

        Raises:
            ConfigError: as :meth:`fullmatch`.
        """
        return self._each(texts, _BY_RE2, "fullmatch")

    def finds(self, texts: pa.Array) -> pa.Array:
        """For each text, whether it matches a part of it; null for null.

        Raises:
            ConfigError: as :meth:`fullmatch`.
        """
        return self._each(texts, _FINDING, "search")

    def first_replaced(self, template: Template, text: str) -> str:
        """The result of Java's ``replaceFirst``. A group that has not matched is empty."""
        return self._replaced(template, text, only_first=True)

    def all_replaced(self, template: Template, text: str) -> str:
        """The result of Java's ``replaceAll``."""
        return self._replaced(template, text, only_first=False)

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

    def _replaced(self, template: Template, text: str, *, only_first: bool) -> str:
        pieces, at, begin = [], 0, 0
        while begin <= len(text) and (match := self._match(text, "search", begin)):
            pieces.append(text[at : match.start()])
            pieces += [part if isinstance(part, str) else match[part] or "" for part in template]
            at = match.end()
            begin = at + (match.start() == at)
            if only_first:
                break
        return "".join([*pieces, text[at:]])

    @property
    def _engine(self) -> Any:
        return _engine(self.text, self.flags)

    @property
    def _is_bounded(self) -> bool:
        """Whether RE2 runs it."""
        return type(self._engine).__module__.startswith("re2")

    def _match(self, text: str, method: str, begin: int = 0) -> Any:
        call = getattr(self._engine, method)
        limits = {} if self._is_bounded else {"concurrent": True, "timeout": _PATIENCE}
        try:
            return call(text, pos=begin, **limits)
        except TimeoutError:
            raise ConfigError(
                f"the pattern {self.text!r} takes too long to match a text of {len(text)} "
                f"characters. Write it without {_OTHERS}: then the time is linear"
            ) from None

    def _each(self, texts: pa.Array, anchors: Mapping[Anchor, str], method: str) -> pa.Array:
        import pyarrow as pa  # slow to import, as are the engines
        import pyarrow.compute as pc

        if self._is_bounded:
            as_re2 = _translation(self.text, self.flags).text(anchors)
            whole = rf"\A(?:{as_re2})\z" if method == "fullmatch" else as_re2
            return pc.match_substring_regex(texts, whole)
        encoded = texts.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        fits = [self._match(t, method) is not None for t in distinct]
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
def _translation(text: str, flags: str) -> Translation:
    if len(text) > _LONGEST:
        raise ValueError(f"has more than {_LONGEST:,} characters")
    return translated(text, flags)


@lru_cache(maxsize=256)
def _engine(text: str, flags: str) -> Any:
    translation = _translation(text, flags)
    if not translation.needs:
        import re2

        options = re2.Options()
        options.log_errors = False
        with suppress(re2.error):  # too many repetitions, or a property that only regex knows
            return re2.compile(translation.text(_BY_RE2), options)
    if len(text) > _LONGEST_OTHER or math.prod(map(_count, _COUNTS.findall(text))) > _REPEATS:
        raise ValueError(
            f"is too large for a pattern with {_OTHERS}, or with more than 1000 repetitions: it "
            f"may have {_LONGEST_OTHER} characters, and its counts may multiply to {_REPEATS}"
        )
    import regex

    try:
        return regex.compile(translation.text(_BY_REGEX), regex.VERSION0)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def _count(bounds: tuple[str, str]) -> int:
    return max(1, *(int(bound) for bound in bounds if bound))
