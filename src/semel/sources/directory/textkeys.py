"""The keys for the formats of text and CSV."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from semel.config import LOW, Type, key
from semel.core.errors import Problem
from semel.sources.directory.opencsv import Dialect


def _charset(name: str) -> None:
    try:
        codecs.lookup(name)
    except LookupError:
        raise ValueError("is not a character set, such as UTF-8 or ISO-8859-1") from None


@dataclass(frozen=True)
class TextKeys:
    """The format of text."""

    charset: str = key(
        "file.charset",
        "UTF-8",
        "The character set of text, JSON and CSV.",
        aliases=("csv.file.charset",),
        validator=_charset,
        importance=LOW,
        group="Text",
    )
    header: bool = key(
        "csv.first.row.as.header",
        False,
        "The first row names the columns; else they are the fields of value.schema.",
        group="CSV Parsing",
    )
    skip_lines: int = key(
        "csv.skip.lines",
        0,
        "Lines to skip at the beginning of a file.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
    )
    separator: str = key(
        "csv.separator.char",
        "44",
        "The character that separates columns, or its number; 0 for NUL, with the rules of "
        "RFC 4180.",
        importance=LOW,
    )
    quote: str = key(
        "csv.quote.char", "34", "The character that quotes a value, or its number.", importance=LOW
    )
    escape: str = key(
        "csv.escape.char",
        "92",
        "The character that escapes the next one, or its number; 0 for none.",
        importance=LOW,
    )
    rfc_4180: bool = key(
        "csv.rfc.4180.parser.enabled",
        False,
        "Read rows by RFC 4180: no character is an escape character.",
        importance=LOW,
    )
    nulls: str = key(
        "csv.null.field.indicator",
        "neither",
        "Which empty texts are null: neither, empty_separators (those without quotes), "
        "empty_quotes, both. Empty numbers and times are always null.",
        choices=("neither", "empty_separators", "empty_quotes", "both"),
        importance=LOW,
    )
    case_sensitive: bool = key(
        "csv.case.sensitive.field.names",
        False,
        "Whether the case of names matters when columns are matched to fields.",
        importance=LOW,
    )
    ignore_whitespace: bool = key(
        "csv.ignore.leading.whitespace",
        True,
        "Leave out blanks before a quote. Numbers and times may always have blanks around them.",
        importance=LOW,
    )
    ignore_quotations: bool = key(
        "csv.ignore.quotations",
        False,
        "Drop quotes; separators and line ends inside them count.",
        importance=LOW,
    )
    strict_quotes: bool = key(
        "csv.strict.quotes", False, "Leave out what stands outside of quotes.", importance=LOW
    )

    def problems(self) -> list[Problem]:
        """The problems with keys whose values are not characters."""
        found = []
        for name, given in (
            ("csv.separator.char", self.separator),
            ("csv.quote.char", self.quote),
            ("csv.escape.char", self.escape),
        ):
            try:
                _character(given)
            except ValueError:
                found.append(
                    Problem(name, f"{name}={given} must be a character of ASCII, or its number")
                )
        if not found and self._clash(self.dialect):
            found.append(
                Problem(
                    "csv.separator.char",
                    f"csv.separator.char={self.separator} must differ from csv.quote.char and "
                    "csv.escape.char",
                )
            )
        return found

    def _clash(self, of: Dialect) -> bool:
        return of.separator == of.quote or (of.separator == of.escape and not of.rfc_4180)

    @property
    def dialect(self) -> Dialect:
        separator, quote, escape = map(_character, (self.separator, self.quote, self.escape))
        return Dialect(
            separator,
            quote,
            "\0" if escape == quote else escape,
            self.rfc_4180 or separator == "\0",
            self.strict_quotes,
            self.ignore_quotations,
            self.ignore_whitespace,
            self.nulls,
        )


def _character(given: str) -> str:
    text = given.strip() or given
    if (text.isascii() and text.isdecimal()) or len(text) > 1:  # 9 is a tab, as in spooldir
        if not 0 <= (number := int(text)) < 128:
            raise ValueError(number)
        text = chr(number)
    if not text.isascii() or not text:
        raise ValueError
    return text
