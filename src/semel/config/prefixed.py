"""Sections whose keys have a prefix in a connector's configuration: those of its converters,
transforms and predicates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semel.config.definition import Definition, definitions
from semel.config.reading import read
from semel.core.errors import prefixed
from semel.core.problems import gathering


@dataclass(frozen=True)
class NoKeys:
    """The section of a converter, a transform or a predicate without keys."""


def below(prefix: str, group: str | None, *sections: type) -> Iterator[Definition]:
    """The keys of sections, by their full names; in their own groups if ``group`` is None."""
    for section in sections:
        for each in definitions(section):
            whole, *aliases = (prefix + name for name in each.names)
            heading = group or each.group
            yield replace(each, name=whole, aliases=tuple(aliases), group=heading)


def section_of(section: type, given: Mapping[str, str], prefix: str, *, otherwise: str) -> Any:
    """A section, read from the keys below ``prefix``, which are given without it.

    Args:
        otherwise: the key of problems that name none.

    Raises:
        ConfigError: every missing key and every value that cannot be used, by its whole name.
    """
    with gathering() as problems:
        made: Any = read(section, given)
    if problems.found:
        raise prefixed(problems.found, prefix, otherwise=otherwise)
    return made
