"""The keys of one transform or predicate, read like those of a connector."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from semel.config import Type, key, names, under


@dataclass(frozen=True)
class PredicateKeys:
    """Keys that all predicates have."""

    type: str = key("type", doc="The class.", type=Type.CLASS)


@dataclass(frozen=True)
class StageKeys(PredicateKeys):
    """Keys that all transforms have."""

    predicate: str = key("predicate", "", "The predicate that selects records.")
    negate: bool = key("negate", False, "Transform all other records instead.")


STAGE = tuple(names(StageKeys))
"""Their names."""


def unknown(section: type, raw: Mapping[str, str], prefix: str, own: Collection[str]) -> list[str]:
    """Warnings for unknown keys below ``prefix``."""
    known = {*names(section), *own}
    warnings = []
    for name in sorted(under(raw, prefix).keys() - known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {prefix}{near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {prefix}{name}{hint}")
    return warnings
