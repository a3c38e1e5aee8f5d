"""Lists the keys of classes, and validates a configuration key by key, as Kafka Connect does,
without contacting any service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from semel import converters, transforms
from semel.config import ConnectorConfig, SourceConnectorConfig
from semel.config.infos import ConfigInfos, ConfigKeyInfo, config_infos
from semel.core.errors import ConfigError, Problem
from semel.core.problems import located
from semel.core.quoting import harmless
from semel.core.redact import redacted
from semel.driver.planning import plan_any
from semel.sinks import sink_class
from semel.sources import is_source, source_class

_MOST = 100
"""Warnings that an answer has."""
_STAGES = ("transforms", "predicates")
"""What records pass through."""


def validate(
    raw: Mapping[str, str],
    *,
    elsewhere: bool = False,
    resolves: bool = True,
    known: Sequence[Problem] = (),
) -> tuple[ConfigInfos, Sequence[str]]:
    """Kafka Connect's answer, and the warnings, which that answer has no place for.

    Args:
        elsewhere, resolves: see :func:`semel.driver.planning.plan`.
        known: what is already known to be wrong with it.
    """
    problems = known
    try:
        planned = plan_any(raw, elsewhere=elsewhere, resolves=resolves)
        planned.close()
        warnings: Sequence[str] = planned.warnings
    except ConfigError as error:
        problems, warnings = [*known, *error.problems], error.warnings
    sections, defaults = _sections(raw)
    more = [*converters.declared(raw), *transforms.declared(raw)]
    return config_infos(sections, raw, problems, defaults, more), warnings


def located_warnings(warnings: Sequence[str], raw: Mapping[str, str]) -> list[dict[str, str]]:
    """Warnings as answers have them: the key that each is about, its value, and the message."""
    shown = list(warnings[:_MOST])
    if len(warnings) > _MOST:
        shown.append(f"{len(warnings) - _MOST:,} more warnings")
    entries = [located(Problem("", warning), raw, raw.keys(), ()) for warning in shown]
    return [
        {"key": w.key, "value": w.value, "message": redacted(harmless(w.message))} for w in entries
    ]


def keys_of(name: str) -> Sequence[ConfigKeyInfo]:
    """The keys of a connector's class, or of a converter's, a transform's or a predicate's.

    Raises:
        ConfigError: there is no such class.
    """
    others = {class_name: cls for kind in _STAGES for class_name, cls in transforms.classes(kind)}
    if name not in others and converters.full_name(name) in converters.names():
        others[name] = converters.find(name, where="converter")
    sections, defaults = ([others[name].section], {}) if name in others else declared(name)
    infos = config_infos(sections, {}, (), defaults)
    return [info.definition for info in infos.configs if info.definition is not None]


def declared(
    name: str, raw: Mapping[str, str] | None = None
) -> tuple[Sequence[type], Mapping[str, str]]:
    """The sections that declare the keys of a connector's class, and the defaults that it sets
    instead of theirs. For a JDBC sink's class, ``raw`` may say which database is meant.

    Raises:
        ConfigError: there is no such class.
    """
    if is_source(name):
        source = source_class(name)
        return [SourceConnectorConfig, source.section], source.defaults
    sink = sink_class(name, raw)
    return [ConnectorConfig, sink.section], sink.defaults


def _sections(raw: Mapping[str, str]) -> tuple[Sequence[type], Mapping[str, str]]:
    with suppress(ConfigError):
        return declared(raw.get("connector.class", "").strip(), raw)
    return [ConnectorConfig], {}
