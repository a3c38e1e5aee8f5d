"""Names of tables and columns, and their quoting in SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from semel.core.errors import misconfigured


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name, in a schema or found by the search path."""

    schema: str | None
    table: str

    @property
    def quoted(self) -> str:
        return ".".join(quote(p) for p in (self.schema, self.table) if p)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


_PART = r'"(?:[^"]|"")+"|[^".]+'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")


_FORMAT = "table.name.format"


def parse_name(text: str, *, fold: bool, key: str = _FORMAT) -> Name:
    """Parse ``table``, ``schema.table`` or quoted parts; ``key`` is where the name comes from.

    Raises:
        ConfigError: more than two parts, or an empty one.
    """
    match = _NAME.fullmatch(text.strip())
    if match is None and key == _FORMAT:
        raise misconfigured(
            key,
            f"table name {text!r} is not table or schema.table. Does the topic's name contain a "
            f'dot? Set {key}, with quotes where a dot belongs to the name: "${{topic}}"',
        )
    if match is None:
        raise misconfigured(
            key,
            f"{key}={text} is not table or schema.table. Put quotes around a part with a dot in it",
        )
    schema, table = match.groups()
    return Name(_unquoted(schema, fold) if schema else None, _unquoted(table, fold))


def is_name(text: str) -> bool:
    """Whether a text is table, schema.table or quoted parts."""
    return _NAME.fullmatch(text) is not None


def _unquoted(part: str, fold: bool) -> str:
    if part.startswith('"'):
        return part[1:-1].replace('""', '"')
    return part.strip().lower() if fold else part.strip()


def quote(identifier: str) -> str:
    """A quoted SQL identifier."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted SQL string, for sessions in which a backslash is a character like any other."""
    return "'" + text.replace("'", "''") + "'"


def listed(names: Sequence[str]) -> str:
    """Quoted identifiers, in a list."""
    return ", ".join(map(quote, names))
