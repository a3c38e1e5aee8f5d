"""Names of tables and columns, and their quoting in SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass

from semel.config import ConnectorConfig
from semel.core.errors import misconfigured
from semel.core.quoting import named


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


_LEDGER = ("semel_offsets", "semel_holes")


def check_apart(connector: ConnectorConfig, topic: str, name: Name, *, fold: bool) -> None:
    """Raises ConfigError if a topic's rows would go to the ledger's tables or among dead letters.

    ``fold``: names that differ only in case are the same.
    """
    same = str.lower if fold else str
    holds = "the ledger" if same(name.table) in _LEDGER else ""
    if connector.dead_letter_table and same(str(name)) == same(
        str(parse_name(connector.dead_letter_table, fold=False))
    ):
        holds = f"dead letters: errors.deadletterqueue.table={connector.dead_letter_table}"
    if holds:
        raise misconfigured(
            _FORMAT,
            f"connector {connector.name}: topic {named(topic)} goes to table {named(name)}, which "
            f"holds {holds}. Name another one in table.name.format or topics.to.tables.mapping",
        )


def check_letters(connector: ConnectorConfig) -> None:
    """Raises ConfigError if dead letters do not have a table of their own."""
    table = connector.dead_letter_table
    where = f"connector {connector.name}: errors.deadletterqueue.table={table}"
    if table and _NAME.fullmatch(table) is None:
        raise misconfigured(
            "errors.deadletterqueue.table", f"{where} is not table or schema.table, or quoted parts"
        )
    if table and parse_name(table, fold=True).table in _LEDGER:
        raise misconfigured(
            "errors.deadletterqueue.table", f"{where} is a table of the ledger. Name another one"
        )


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
