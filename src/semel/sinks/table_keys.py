"""Keys that several kinds of sinks have, which mean the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.config import HIGH, MEDIUM, key

_MAPPING = "Data Mapping"


def table_name_format_key(doc: str, aliases: tuple[str, ...] = ()) -> Any:
    """``table.name.format``: the table of a topic."""
    return key(
        "table.name.format",
        "${topic}",
        doc,
        aliases=aliases,
        importance=MEDIUM,
        group=_MAPPING,
        display="Table Name Format",
    )


def table_mapping_key() -> Any:
    """``topics.to.tables.mapping``."""
    return key(
        "topics.to.tables.mapping",
        (),
        "topic:table pairs, which take precedence over table.name.format.",
        importance=MEDIUM,
        group=_MAPPING,
    )


def pk_mode_key(*others: str) -> Any:
    """``pk.mode``, with Debezium's name for it. ``others`` are modes that only some sinks have."""
    modes = ["record_key", "record_value", *others]
    return key(
        "pk.mode",
        "none",
        "Where the primary key comes from: none, kafka (topic, partition and offset), "
        f"{', '.join(modes[:-1])} or {modes[-1]}.",
        aliases=("primary.key.mode",),
        choices=("none", "kafka", *modes),
        importance=HIGH,
        group=_MAPPING,
        display="Primary Key Mode",
    )


def pk_fields_key() -> Any:
    """``pk.fields``, with Debezium's name for it."""
    return key(
        "pk.fields",
        (),
        "The key's columns.",
        aliases=("primary.key.fields",),
        importance=MEDIUM,
        group=_MAPPING,
        display="Primary Key Fields",
    )


def is_by_record_key(raw: Mapping[str, str]) -> bool:
    """Whether the primary key comes from record keys."""
    return _given(raw, "pk.mode", "primary.key.mode").lower() == "record_key"


def names_key_columns(raw: Mapping[str, str]) -> bool:
    """Whether the columns of the primary key are named."""
    return bool(_given(raw, "pk.fields", "primary.key.fields"))


def _given(raw: Mapping[str, str], *names: str) -> str:
    return next((raw[n].strip() for n in names if raw.get(n, "").strip()), "")


def delete_enabled_key(doc: str) -> Any:
    """``delete.enabled``; ``doc`` says what it needs."""
    return key(
        "delete.enabled",
        False,
        doc,
        importance=MEDIUM,
        group="Writes",
        display="Enable deletes",
    )


def auto_create_key() -> Any:
    """``auto.create``, of tables."""
    return key(
        "auto.create",
        False,
        "Create missing tables.",
        importance=MEDIUM,
        group="DDL",
        display="Auto-Create",
    )


def auto_evolve_key() -> Any:
    """``auto.evolve``, of tables."""
    return key(
        "auto.evolve",
        False,
        "Add missing columns.",
        importance=MEDIUM,
        group="DDL",
        display="Auto-Evolve",
    )


def include_key(aliases: tuple[str, ...] = (), group: str = _MAPPING) -> Any:
    """``fields.whitelist``."""
    return key(
        "fields.whitelist",
        (),
        "Value fields to write.",
        aliases=aliases,
        importance=MEDIUM,
        group=group,
        display="Fields Whitelist",
    )


def exclude_key(aliases: tuple[str, ...] = (), group: str = _MAPPING) -> Any:
    """``field.exclude.list``."""
    return key(
        "field.exclude.list",
        (),
        "Value fields to leave out.",
        aliases=aliases,
        importance=MEDIUM,
        group=group,
        display="Exclude Fields",
    )
