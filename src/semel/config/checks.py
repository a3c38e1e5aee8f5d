"""Checks for keys that are unknown, that have no effect, or that would change results."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from semel.config.definition import names

PREFIXES = (
    "key.converter.",
    "value.converter.",
    "consumer.override.",
    "producer.override.",
    "admin.override.",
    "storage.options.",
    "config.providers",
    "transforms.",
    "predicates.",
    "spark.",
    "semel.connectors.",
    "topic.creation.enable",
    *("group.id", "offsets.storage.topic", "offset.storage.", "semel.python.modules"),
)
"""Keys under these belong to a converter, a Kafka client, a store, Spark, a config provider or the
worker, and pass through."""

IGNORED = {
    "config.action.reload": "semel reads a configuration once, at start",
    "errors.retry.timeout": "conversion is deterministic; the store is retried by max.retries",
    "errors.retry.delay.max.ms": "conversion is deterministic; see retry.backoff.ms",
    "tasks.max.enforce": "no more than tasks.max tasks ever run",
    "header.converter": "headers are carried as they are, and transforms write text, as "
    "SimpleHeaderConverter does",
}
"""Kafka Connect's keys that have no effect here, with the reason."""

_HINTS, _LONGEST = 50, 200
"""Among how many warnings near keys are looked for, and for keys of which length: it is slow."""

VALUE_CONVERTER = (
    "value.converter is not set: values are JSON here. Kafka Connect's worker may have another "
    "default; set value.converter to it"
)
"""A warning."""


def check_keys(
    raw: Mapping[str, str],
    sections: Iterable[type],
    ignored: Mapping[str, str],
    prefixes: tuple[str, ...] = (),
    cutoff: float = 0.6,
) -> list[str]:
    """Warnings for keys that no section knows (with the nearest known one) or that are ignored."""
    known = {n for section in sections for n in names(section)}
    ignored = {**IGNORED, **ignored}
    warnings: list[str] = []
    for name in raw:
        if name in ignored and name not in known:
            warnings.append(f"{name} has no effect: {ignored[name]}")
            continue
        if name in known or name.startswith(PREFIXES + prefixes):
            continue
        may_hint = len(warnings) < _HINTS and len(name) < _LONGEST
        near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff) if may_hint else ()
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {name}{hint}")
    return warnings


def check_converter_keys(given: Mapping[str, str], section: type, where: str) -> list[str]:
    """Warnings for keys below ``where`` that its converter's section does not declare."""
    without_effect = {"replace.null.with.default", "schemas.cache.size"}
    warnings = []
    known = set(names(section))
    for name in sorted(set(given) - known - without_effect):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {where}.{near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {where}.{name}{hint}")
    return warnings
