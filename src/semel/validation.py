"""Validates a configuration key by key, as Kafka Connect does, without contacting any service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel import transforms
from semel.config import ConnectorConfig, SourceConnectorConfig
from semel.config.infos import ConfigInfos, config_infos
from semel.errors import ConfigError, Problem
from semel.planning import plan_any, sink_of, source_of


def validate(
    raw: Mapping[str, str], *, elsewhere: bool = False, known: Sequence[Problem] = ()
) -> tuple[ConfigInfos, Sequence[str]]:
    """Kafka Connect's answer, and the warnings, which that answer has no place for.

    Args:
        elsewhere: see :func:`semel.planning.plan`.
        known: what is already known to be wrong with it.
    """
    problems = known
    try:
        planned = plan_any(raw, elsewhere=elsewhere)
        planned.close()
        warnings: Sequence[str] = planned.warnings
    except ConfigError as error:
        problems, warnings = [*known, *error.problems], error.warnings
    sections, defaults = _sections(raw)
    return config_infos(sections, raw, problems, defaults, transforms.declared(raw)), warnings


def _sections(raw: Mapping[str, str]) -> tuple[Sequence[type], Mapping[str, str]]:
    """What declares the keys of a connector, and the defaults that it sets instead of theirs."""
    source = source_of(raw)
    if source is not None:
        return [SourceConnectorConfig, source.section], source.defaults
    sink = sink_of(raw)
    if sink is None:
        return [ConnectorConfig], {}
    return [ConnectorConfig, sink.section], sink.defaults
