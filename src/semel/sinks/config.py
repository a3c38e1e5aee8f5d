"""What the configurations of several sinks share: keys that mean the same everywhere, checks of
them, and where transforms route."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from semel.config import HIGH, MEDIUM, key
from semel.core.errors import Problem
from semel.transforms import known_chain, routed

HTTP = ("http", "https")
_MAPPING = "Data Mapping"


@dataclass(frozen=True)
class RoutedConfig:
    """A section that knows the connector's transforms."""

    originals: Mapping[str, str] = dataclasses.field(
        default_factory=dict, kw_only=True, repr=False, compare=False
    )

    @property
    def routes(self) -> bool:
        """Whether transforms change where the records of a topic go."""
        return bool(known_chain(self.originals).routers)

    @property
    def splits(self) -> bool:
        """Whether the records of one topic go to several targets, which they name themselves."""
        return not known_chain(self.originals).goes_by_topic

    def routed(self, topic: str) -> str:
        """The name by which a topic's target is named: its own, unless a router changes it."""
        return routed(self.originals, topic)


# Keys


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


# What keys say


def selects(
    include: Collection[str],
    exclude: Collection[str],
    topic: str,
    field: str,
    key: Collection[str] = (),
) -> bool:
    """Whether a value field is written, by a list of fields to write and one to leave out. They may
    hold ``field`` or ``topic:field``. Fields of the ``key`` need not be in the first list:
    ``pk.fields`` is applied independently."""
    names = {field, f"{topic}:{field}"}
    if include:
        return field in key or not names.isdisjoint(include)
    return names.isdisjoint(exclude)


def is_by_record_key(raw: Mapping[str, str]) -> bool:
    """Whether the primary key comes from record keys."""
    return _given(raw, "pk.mode", "primary.key.mode").lower() == "record_key"


def names_key_columns(raw: Mapping[str, str]) -> bool:
    """Whether the columns of the primary key are named."""
    return bool(_given(raw, "pk.fields", "primary.key.fields"))


def _given(raw: Mapping[str, str], *names: str) -> str:
    return next((raw[n].strip() for n in names if raw.get(n, "").strip()), "")


# Checks


def problems_of_endpoint(key: str, url: str, schemes: Sequence[str] = HTTP) -> Iterator[Problem]:
    """The problem of the address of a service: it must be a URL with a host."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        shown = url.rpartition("@")[2]
        yield Problem(
            key,
            f"{key}={shown} must be a URL with its scheme, such as {schemes[0]}://host:9000",
        )


def problems_of_key(pk_mode: str, pk_fields: Sequence[str]) -> Iterator[Problem]:
    """The problems of ``pk.fields``."""
    listed = ",".join(pk_fields)
    if len(set(pk_fields)) < len(pk_fields):
        yield Problem("pk.fields", f"pk.fields={listed} names a column twice")
    if pk_mode == "kafka" and len(pk_fields) not in (0, 3):
        yield Problem(
            "pk.fields",
            f"pk.fields={listed} must name three columns with pk.mode=kafka: for topic, partition "
            "and offset",
        )


def problems_of_field_lists(include: Sequence[str], exclude: Sequence[str]) -> Iterator[Problem]:
    """The problem of two lists of fields, one to write and one to leave out."""
    if include and exclude:
        yield Problem(
            "fields.whitelist",
            "fields.whitelist and field.exclude.list exclude each other: set one",
        )


def left_out_of_the_key(key: Sequence[str], exclude: Sequence[str]) -> list[Problem]:
    """The problem of a list of fields to leave out that contains a field of the key."""
    gone = set(key) & {name.rpartition(":")[2] for name in exclude}
    return [
        Problem(
            "field.exclude.list",
            f"field.exclude.list={','.join(exclude)} leaves out {name}, which "
            f"pk.fields={','.join(key)} names: remove it from one of them",
        )
        for name in sorted(gone)[:1]
    ]


def problems_of_names(
    key: str, template: str, mapping_key: str, mapping: Sequence[str], target: str
) -> Iterator[Problem]:
    """The problems of the keys that say where a topic goes: a template of names, and a list of
    pairs of a topic and a ``target``."""
    if any(":" not in pair for pair in mapping):
        yield Problem(mapping_key, f"{mapping_key} must hold topic:{target} pairs")
    if "${" in template.replace("${topic}", ""):
        yield Problem(key, f"{key}={template!r}: only ${{topic}} can be filled in")
