"""Which tables of a database a connector reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import TableId


def chosen(config: JdbcSourceConfig, connector: str, there: Sequence[TableId]) -> list[TableId]:
    """Those that the configuration takes.

    Raises:
        ConfigError: two of them would go to the same topic.
    """
    found = [t for t in there if config.takes(t.name, str(t))]
    by_topic: dict[str, TableId] = {}
    for table in found:
        other = by_topic.setdefault(table.name, table)
        if other != table:
            raise ConfigError(
                f"connector {connector}: tables {named(other)} and {named(table)} would go to the "
                f"same topic, {config.topic_prefix}{table.name}. Choose one with table.whitelist "
                "or schema.pattern, and read the other with a connector that has another "
                "topic.prefix"
            )
    return found


def absent(config: JdbcSourceConfig, there: Sequence[TableId]) -> list[str]:
    """The entries of ``table.whitelist`` that name no table."""
    each = [replace(config, whitelist=(entry,)) for entry in config.whitelist]
    return [c.whitelist[0] for c in each if not any(c.takes(t.name, str(t)) for t in there)]
