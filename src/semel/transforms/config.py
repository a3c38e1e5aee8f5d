"""The keys of one transform or predicate, read like those of a connector."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semel.config import HIGH, Definition, Type, definitions, key, names, read, under
from semel.errors import ConfigError, Problem
from semel.problems import gathering


@dataclass(frozen=True)
class PredicateKeys:
    """Keys that all predicates have."""

    type: str = key("type", doc="The class.", type=Type.CLASS, importance=HIGH)


@dataclass(frozen=True)
class StageKeys(PredicateKeys):
    """Keys that all transforms have."""

    predicate: str = key("predicate", "", "The predicate that selects records.")
    negate: bool = key("negate", False, "Transform all other records instead.")


STAGE = tuple(names(StageKeys))
"""Their names."""


def below(prefix: str, group: str, *sections: type) -> Iterator[Definition]:
    """The keys of sections, by their full names."""
    for section in sections:
        for each in definitions(section):
            whole, *aliases = (prefix + name for name in each.names)
            shown = whole if each.display_name == each.name else each.display_name
            named = replace(each, name=whole, aliases=tuple(aliases), display_name=shown)
            yield replace(named, group=group)


def section_of(section: type, raw: Mapping[str, str], prefix: str) -> Any:
    """The keys below ``prefix``.

    Raises:
        ConfigError: every missing key and every value that cannot be used, by its whole name.
    """
    given = under(raw, prefix)
    with gathering() as problems:
        made: Any = read(section, given)
    if problems.found:
        raise named(problems.found, prefix)
    return made


def named(problems: Iterable[Problem], prefix: str) -> ConfigError:
    """The error for problems of one transform or predicate, with whole names of keys. Those that
    name no key are put down to its class."""
    return ConfigError(
        *(
            replace(p, key=prefix + (p.key or STAGE[0]), message=_whole(p.message, p.key, prefix))
            for p in problems
        )
    )


def _whole(message: str, name: str, prefix: str) -> str:
    """The message with the whole name of the key, or with the transform in front."""
    if name and message.startswith(name):
        return prefix + message
    return f"{prefix[:-1]}: {message}"


def unknown(section: type, raw: Mapping[str, str], prefix: str, own: Collection[str]) -> list[str]:
    """Warnings for unknown keys below ``prefix``."""
    known = {*names(section), *own}
    warnings = []
    for name in sorted(under(raw, prefix).keys() - known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {prefix}{near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {prefix}{name}{hint}")
    return warnings
