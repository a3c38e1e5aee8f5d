"""Checks of keys that several sinks have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from semel.core.errors import Problem

HTTP = ("http", "https")


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
