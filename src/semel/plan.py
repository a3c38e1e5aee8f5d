"""Planning a connector: check its configuration, decide guarantee and engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel import converters, delivery
from semel.config import (
    ConnectorConfig,
    check_converter_keys,
    check_keys,
    check_refused,
    definitions,
    load,
    read,
    title,
    under,
)
from semel.delivery import Guarantee
from semel.engine.triggers import seconds
from semel.errors import ConfigError
from semel.kafka.clients import check_clients
from semel.problems import Problems, gathering, located
from semel.sinks import sink_class
from semel.sinks.base import Sink
from semel.sinks.protocols import transactional
from semel.sinks.staging import StagingSink


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration that has been checked without touching any service."""

    connector: ConnectorConfig
    sink: Sink
    guarantee: Guarantee
    engine: str
    warnings: list[str]


def plan(
    source: str | Path | Mapping[str, Any],
    transform: Callable[..., Any] | None = None,
    **overrides: str,
) -> Plan:
    """Check a configuration and decide guarantee and engine.

    Args:
        source: a file (Connect's JSON, flat JSON, ``.properties``) or a mapping.
        transform: see :func:`run`.
        overrides: keys that win over the file's, with ``_`` for ``.``.

    Raises:
        ConfigError: names each field, its value and what to set.
    """
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform={transform!r} must be a function of a batch")
    raw = load(source) | {k.replace("_", "."): v for k, v in overrides.items() if v}
    with gathering() as problems:
        planned = _gathered(raw, transform, problems)
    if planned is None or problems.found:
        raise _refusal(raw, problems)
    return planned


def _gathered(
    raw: dict[str, str], transform: Callable[..., Any] | None, problems: Problems
) -> Plan | None:
    """The plan, as far as there is one, and all problems that can be found."""
    mine = title(raw)
    found = sink = guarantee = engine = None
    with problems.caught(mine):
        given = raw.get("connector.class", "").strip()
        found = sink_class(given, raw) if given else None
    if found is not None:
        raw = {**found.defaults, **raw}
        raw |= found.anchored(raw)
    connector = read(ConnectorConfig, raw)
    warnings = _unknown(raw, found)
    with problems.caught(mine):
        check_refused(raw)
    with problems.caught(mine):
        check_clients(connector)
    for where, name in (
        ("key.converter", connector.key_converter),
        ("value.converter", connector.value_converter),
    ):
        with problems.caught(mine):
            below = under(raw, f"{where}.")
            made = converters.create(name, below, is_key=where == "key.converter", where=where)
            warnings += check_converter_keys(below, made.KEYS, where)
    with problems.caught(mine):
        _check_dead_letter_topic(connector)
    with problems.caught(mine):
        seconds(connector.processing_time)
    if found is not None:
        with problems.caught(mine):
            sink = found(connector)
    if sink is not None:
        with problems.caught(mine):
            guarantee = delivery.resolve(
                connector.delivery, connector.delivery_mechanism, sink.support()
            )
            if guarantee.mechanism is delivery.Mechanism.TRANSACTIONAL:
                transactional(sink)
        with problems.caught(mine):
            engine = _checked_engine(connector, sink, transform)
            warnings += _without_effect(connector, engine)
    problems.warnings = warnings
    if sink is None or guarantee is None or engine is None or problems.found:
        if sink is not None:
            sink.close()
        return None
    return Plan(connector, sink, guarantee, engine, warnings)


def sink_of(raw: Mapping[str, str]) -> type[Sink] | None:
    """The sink of a configuration, if there is one."""
    with suppress(ConfigError):
        return sink_class(raw.get("connector.class", "").strip(), raw)
    return None


def _refusal(raw: Mapping[str, str], problems: Problems) -> ConfigError:
    found = sink_of(raw)
    sections = (ConnectorConfig, *([found.section] if found is not None else []))
    keys = [d for section in sections for d in definitions(section)]
    secret = {n for d in keys if d.secret for n in d.names}
    known = {n for d in keys for n in d.names} | raw.keys()
    return ConfigError(
        *(located(p, raw, known, secret) for p in problems.found),
        title=title(raw),
        warnings=problems.warnings,
    )


def _unknown(raw: Mapping[str, str], found: type[Sink] | None) -> list[str]:
    """Warnings for keys that nothing knows; while the sink is not known, only for those that may
    be meant for the connector."""
    if found is not None:
        return check_keys(raw, [ConnectorConfig, found.section], found.ignored, found.prefixes)
    return [w for w in check_keys(raw, [ConnectorConfig], {}) if "did you mean" in w]


def _checked_engine(
    connector: ConnectorConfig, sink: Sink, transform: Callable[..., Any] | None
) -> str:
    engine = _engine(connector, sink, transform)
    if engine not in sink.capabilities.engines:
        others = "micro-batch" if engine == "direct" else "direct"  # which chooses bounded, too
        raise ConfigError(
            f"connector {connector.name}: the {connector.connector_class} sink does not run on "
            f"engine={engine}. Set engine={others}"
            + (", and give the transform a pyarrow.RecordBatch" if transform else "")
        )
    return engine


_TRIGGERED = frozenset({"bounded", "micro-batch"})
_OF_ENGINES = {
    "processingTime": _TRIGGERED,
    "maxOffsetsPerTrigger": _TRIGGERED,
    "failOnDataLoss": frozenset({"micro-batch"}),
    "poll.linger.ms": frozenset({"direct"}),
}
"""Keys that only some engines look at."""


def _without_effect(connector: ConnectorConfig, engine: str) -> list[str]:
    """Warnings for keys that the engine does not look at, and for dead letters that will not be, as
    Kafka Connect has them with that setting."""
    warnings = [
        f"{name} has no effect on the {engine} engine, only on {' and '.join(sorted(engines))}"
        for name, engines in _OF_ENGINES.items()
        if name in connector.originals and engine not in engines
    ]
    if connector.errors_tolerance == "all":
        return warnings
    names = {
        "errors.deadletterqueue.topic.name": connector.dead_letter_topic,
        "errors.deadletterqueue.table": connector.dead_letter_table,
    }
    return warnings + [
        f"{name}={value} has no effect: with errors.tolerance=none the first bad record stops the "
        "connector. Set errors.tolerance=all"
        for name, value in names.items()
        if value
    ]


def _check_dead_letter_topic(connector: ConnectorConfig) -> None:
    name = connector.dead_letter_topic
    if name and (
        name in connector.topics
        or (connector.topics_regex and re.fullmatch(connector.topics_regex, name))
    ):
        raise ConfigError(
            f"connector {connector.name}: errors.deadletterqueue.topic.name={name} is among the "
            "topics that it reads: dead letters would come back. Choose another name"
        )


def _engine(connector: ConnectorConfig, sink: Sink, transform: Callable[..., Any] | None) -> str:
    """``direct``, ``bounded`` (direct, for stores that commit per table) or ``micro-batch``."""
    wants_frames = _takes_dataframe(transform)
    if connector.engine == "direct" and wants_frames:
        raise ConfigError(
            f"connector {connector.name}: engine=direct gives Arrow batches to the transform, but "
            "it is annotated with DataFrame. Set engine=micro-batch, or take a pyarrow.RecordBatch"
        )
    if wants_frames or connector.engine == "micro-batch":
        return "micro-batch"
    return "bounded" if isinstance(sink, StagingSink) else "direct"


def _takes_dataframe(transform: Callable[..., Any] | None) -> bool:
    annotations = getattr(transform, "__annotations__", {})
    return any("DataFrame" in str(a) for a in annotations.values())
