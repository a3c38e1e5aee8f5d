"""A configuration judged key by key, as Kafka Connect answers it, without touching a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.config import ConnectorConfig
from semel.config.infos import ConfigInfos, config_infos
from semel.errors import ConfigError, Problem
from semel.plan import plan, sink_of


def validate(raw: Mapping[str, str]) -> tuple[ConfigInfos, Sequence[str]]:
    """The answer, and the warnings, for which Kafka Connect's answer has no place."""
    problems: Sequence[Problem] = ()
    try:
        planned = plan(raw)
        planned.sink.close()
        warnings: Sequence[str] = planned.warnings
    except ConfigError as error:
        problems, warnings = error.problems, error.warnings
    sink = sink_of(raw)
    if sink is None:
        return config_infos([ConnectorConfig], raw, problems, {}), warnings
    return config_infos([ConnectorConfig, sink.section], raw, problems, sink.defaults), warnings
