"""Names and texts from outside, as messages and logs show them: in one line, and not too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NAME, _LINE, _TEXT, _NAMES = 100, 4_000, 32_000, 20
_SAID, _END = 40, 600
PATH = 1_000
"""How much of a file's name is shown: as much as is needed to find it."""
_PLAIN = re.compile(r"[\w.:/#\[\]-]+")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that move a terminal's cursor, end lines, or change the direction of text."""


def named(name: object, most: int = _NAME) -> str:
    """A name that a message mentions: in quotation marks unless it is a plain word, and cut."""
    text = str(name)
    if len(text) <= most:
        return text if _PLAIN.fullmatch(text) else repr(text)
    return f"{text[:most]!r}... ({len(text):,} characters)"


def in_field(path: str) -> str:
    """How a message about a field begins; empty for what is in no field."""
    return f"field {named(path)}: " if path else ""


def typed(kind: object) -> str:
    """A column's type that a message mentions, in one line, and cut: a nested one holds names."""
    text = one_line(str(kind))
    most = 2 * _NAME
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def all_named(names: Iterable[object]) -> str:
    """The first of some names, and how many more there are."""
    return listed([named(n) for n in names])


def listed(texts: Sequence[str]) -> str:
    """The first of some texts, and how many more there are."""
    more = f" and {len(texts) - _NAMES:,} more" if len(texts) > _NAMES else ""
    return ", ".join(texts[:_NAMES]) + more


def harmless(text: str) -> str:
    """A text whose control characters other than line ends and tabs are escaped, and whose lines
    are cut in the middle where they are longer than a reader would follow: a message ends with its
    reason."""
    if len(text) <= _LINE and text.isprintable():
        return text
    lines = [_cut(line, _LINE) for line in text.split("\n")]
    return on_terminal(_cut("\n".join(lines), _TEXT))


def one_line(text: str) -> str:
    """The same in one line, for a message that is stored with a record."""
    return harmless(text.replace("\n", r"\n").replace("\t", r"\t"))


def on_terminal(text: str) -> str:
    """A text of any length, without what would control the terminal."""
    return text if text.isprintable() else _CONTROL.sub(_escaped, text)


def indented(text: str) -> str:
    """A text whose further lines cannot be taken for lines of their own."""
    return text.replace("\n", "\n  ")


def _cut(text: str, most: int) -> str:
    """A text that has been cut stays as it is."""
    if len(text) <= most + _SAID:
        return text
    return f"{text[: most - _END]}... ({len(text):,} characters) ...{text[-_END:]}"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")
