"""Rows of CSV as opencsv reads them, which spooldir uses: the default parser, and that of RFC 4180.

Both read line by line. Quotes may open and close anywhere in a value, and what that means depends
on the characters around them. These are the rules of opencsv 4.6.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

_NOT_WHITESPACE = "\x85\xa0\u2007\u202f"
"""Blanks of Unicode that are no whitespace to Java."""

Row = list[str | None]
_State = tuple[bool, bool]
"""Whether a second quote is expected, and whether none was found since the value began."""
_FRESH = (False, True)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The characters of a file, and how they are taken. ``\\0`` is such a character too; a file
    rarely has it."""

    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    rfc_4180: bool = False
    strict_quotes: bool = False
    ignore_quotations: bool = False
    ignore_whitespace: bool = True
    nulls: str = "neither"

    @property
    def parser(self) -> RowParser:
        return Rfc4180Parser(self) if self.rfc_4180 else DefaultParser(self)


class RowParser(ABC):
    """Parses rows out of lines."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @abstractmethod
    def row(self, lines: Sequence[str], at: int) -> tuple[Row, int] | None:
        """The row that begins at a line, and the index of the line after it; None if a quote is
        not closed."""


class DefaultParser(RowParser):
    """``com.opencsv.CSVParser``."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._escapable = dialect.quote + dialect.escape
        self._next = re.compile(f"[{re.escape(self._escapable + dialect.separator)}]")

    def row(self, lines: Sequence[str], at: int) -> tuple[Row, int] | None:
        of = self._dialect
        row: Row = []
        parts: list[str] = []
        in_field = pending = False
        while at < len(lines):
            if pending and (until := self._passed(lines, at)) > at:
                in_field = in_field or any(lines[at:until])
                parts += ("\n".join(lines[at:until]), "\n")
                at = until
                continue
            line, position, at = lines[at], 0, at + 1
            opened = pending
            quoted = False
            while position < len(line):
                match = self._next.search(line, position)
                until = match.start() if match else len(line)
                inside = opened and not of.ignore_quotations
                until += inside and until == position and line[position] == of.separator
                if until > position:
                    if inside or not of.strict_quotes:
                        parts.append(line[position:until])
                        in_field = quoted = True
                    position = until
                    continue
                after = line[position + 1 : position + 2]
                if line[position] == of.escape:
                    if after and after in self._escapable and (inside or in_field):
                        parts.append(after)
                        position += 1
                elif line[position] == of.quote:
                    if after == of.quote and (inside or in_field):
                        parts.append(after)
                        position += 1
                    else:
                        opened = not opened
                        quoted = quoted or not any(parts)
                        self._embed(parts, line, position)
                    in_field = not in_field
                else:
                    row.append(self._value(parts, quoted=quoted))
                    parts, quoted, in_field = [], False, False
                position += 1
            if not opened or of.ignore_quotations:
                row.append(self._value(parts, quoted=quoted))
                return row, at
            parts.append("\n")
            pending = True
        return None

    def _passed(self, lines: Sequence[str], at: int) -> int:
        """The next line that has a quote or an escape character."""
        many = 1
        while many and at < len(lines):
            some = "\n".join(lines[at : at + many])
            if self._dialect.quote in some or self._dialect.escape in some:
                many //= 2
            else:
                at, many = min(at + many, len(lines)), 2 * many
        return at

    def _embed(self, parts: list[str], line: str, position: int) -> None:
        """Keep a quote that is part of the value: it stands between other characters than
        separators, and not at the beginning of the line."""
        of = self._dialect
        next_to = line[position - 1 : position], line[position + 1 : position + 2]
        if of.strict_quotes or position <= 2 or of.separator in next_to or not next_to[1]:
            return
        blank = bool(parts) and all(map(_is_blank, parts))
        if blank and of.ignore_whitespace:
            parts.clear()
        else:
            parts.append(of.quote)

    def _value(self, parts: list[str], *, quoted: bool) -> str | None:
        nulls = self._dialect.nulls
        null = nulls in ("both", "empty_quotes" if quoted else "empty_separators")
        return "".join(parts) or (None if null else "")


class Rfc4180Parser(RowParser):
    """``com.opencsv.RFC4180Parser``."""

    def row(self, lines: Sequence[str], at: int) -> tuple[Row, int] | None:
        of = self._dialect
        row: Row = []
        parts: list[str] = []
        state, odd = _FRESH, False
        for number in range(at, len(lines)):
            line, position = lines[number], 0
            if not parts and of.quote not in line:
                row += map(self._value, line.split(of.separator))
                return row, number + 1
            while position < len(line) or parts:
                if parts:
                    parts.append("\n")
                    opened = parts[0].startswith(of.quote)
                else:
                    opened, state, odd = line[position] == of.quote, _FRESH, False
                if opened:
                    skipped = position if parts else position + 1
                    end, state = self._end(line, skipped, state)
                else:
                    end = line.find(of.separator, position)
                part = line[position : end if end >= 0 else None]
                parts.append(part)
                odd ^= bool(part.count(of.quote) % 2)
                position = len(line) if end < 0 else end + 1
                if position >= len(line) and (odd or (opened and not part.endswith(of.quote))):
                    break  # the value continues in the next line
                row.append(self._value("".join(parts)))
                parts = []
            else:
                if line.endswith(of.separator):
                    row.append(self._value(""))
                return row, number + 1
        return None

    def _end(self, line: str, position: int, state: _State) -> tuple[int, _State]:
        """Where a value that began with a quote ends, -1 if not in this line, and the state in
        which it continues then."""
        of = self._dialect
        inside, fresh = state
        last = len(line) - 1
        at = line.find(of.quote, position)
        if at < 0:
            return -1, state
        while True:
            while not fresh and at not in (-1, last) and line[at + 1] == of.quote:
                at = line.find(of.quote, at + 1)
                inside = not inside
            if at in (-1, last):
                return -1, (inside ^ (at == last), False)
            if not inside and line[at + 1] == of.separator:
                return at + 1, _FRESH
            at = line.find(of.quote, at + 1)
            inside, fresh = not inside, False

    def _value(self, text: str) -> str | None:
        of = self._dialect
        if not text:
            return None if of.nulls in ("empty_separators", "both") else ""
        if of.quote not in text:
            return text
        if text.startswith(of.quote) and text.count(of.quote) > 1:
            text = text.removeprefix(of.quote).removesuffix(of.quote)
        text = text.replace(of.quote * 2, of.quote)
        return text or (None if of.nulls in ("empty_quotes", "both") else "")


def _is_blank(text: str) -> bool:
    return text.isspace() and not any(c in _NOT_WHITESPACE for c in text)


def lines_of(text: str) -> list[str]:
    """The lines of a text without their ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines
