"""The keys for the formats of text and CSV."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass

from semel.config import LOW, MEDIUM, Type, key
from semel.errors import Problem


def _charset(name: str) -> None:
    try:
        codecs.lookup(name)
    except LookupError:
        raise ValueError("is not a character set, such as UTF-8 or ISO-8859-1") from None


def _never(what: str) -> Callable[[bool], None]:
    def check(given: bool) -> None:
        if given:
            raise ValueError(f"is not available: {what}. Remove it")

    return check


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
        importance=MEDIUM,
        group="CSV Parsing",
    )
    skip_lines: int = key(
        "csv.skip.lines",
        0,
        "Lines to skip at the beginning of a file.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
        group="CSV Parsing",
    )
    separator: str = key(
        "csv.separator.char",
        "44",
        "The character that separates columns, or its number.",
        importance=LOW,
        group="CSV Parsing",
    )
    quote: str = key(
        "csv.quote.char",
        "34",
        "The character that quotes a value, or its number.",
        importance=LOW,
        group="CSV Parsing",
    )
    escape: str = key(
        "csv.escape.char",
        "92",
        "The character that escapes the next one, or its number; 0 for none.",
        importance=LOW,
        group="CSV Parsing",
    )
    rfc_4180: bool = key(
        "csv.rfc.4180.parser.enabled",
        False,
        "No character is an escape character.",
        importance=LOW,
        group="CSV Parsing",
    )
    nulls: str = key(
        "csv.null.field.indicator",
        "neither",
        "Which empty texts are null: neither, empty_separators (those without quotes), both. "
        "Empty numbers and times are always null.",
        choices=("neither", "empty_separators", "both"),
        importance=LOW,
        group="CSV Parsing",
    )
    case_sensitive: bool = key(
        "csv.case.sensitive.field.names",
        False,
        "Whether the case of names matters when columns are matched to fields.",
        importance=LOW,
        group="CSV Parsing",
    )
    ignore_whitespace: bool = key(
        "csv.ignore.leading.whitespace",
        True,
        "Numbers and times may always have blanks around them.",
        importance=LOW,
        group="CSV Parsing",
    )
    ignore_quotations: bool = key(
        "csv.ignore.quotations",
        False,
        "Treat quotes like any other character.",
        importance=LOW,
        group="CSV Parsing",
    )
    strict_quotes: bool = key(
        "csv.strict.quotes",
        False,
        "Only false.",
        validator=_never("text outside of quotes would be lost"),
        importance=LOW,
        group="CSV Parsing",
    )

    def problems(self) -> list[Problem]:
        """The problems with keys whose values are not characters."""
        found = []
        for name, given, optional in (
            ("csv.separator.char", self.separator, False),
            ("csv.quote.char", self.quote, True),
            ("csv.escape.char", self.escape, True),
        ):
            try:
                if not (_character(given) or optional):
                    raise ValueError
            except ValueError:
                found.append(
                    Problem(name, f"{name}={given} must be a character of ASCII, or its number")
                )
        return found

    @property
    def csv_separator(self) -> str:
        return _character(self.separator)

    @property
    def csv_quote(self) -> str:
        """Empty for none."""
        return "" if self.ignore_quotations else _character(self.quote)

    @property
    def csv_escape(self) -> str:
        """Empty for none."""
        return "" if self.rfc_4180 else _character(self.escape)


def _character(given: str) -> str:
    text = given.strip() or given
    if (text.isascii() and text.isdecimal()) or len(text) > 1:  # 9 is a tab, as in spooldir
        if not 0 <= (number := int(text)) < 128:
            raise ValueError(number)
        text = chr(number)
    if not text.isascii():
        raise ValueError
    return "" if text == "\0" else text
