"""Planning a connector: checks its configuration, and decides the guarantee and the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from semel.config import load, with_brokers
from semel.core.errors import ConfigError, misconfigured
from semel.driver.planning import source as sources
from semel.driver.planning.base import without_references
from semel.driver.planning.programs import with_query
from semel.driver.planning.sink import Plan, plan_sink
from semel.driver.planning.source import SourcePlan, source_of
from semel.sources import is_source

__all__ = [
    "AnyPlan",
    "Plan",
    "SourcePlan",
    "plan",
    "plan_any",
    "plan_source",
    "source_of",
    "with_plan",
]


AnyPlan = Plan | SourcePlan

Given = str | Path | Mapping[str, Any]
T = TypeVar("T")


def with_plan(config: Mapping[str, str], function: Callable[..., T], *arguments: Any) -> T:
    """What a function finds with the plan of a configuration; for a process of its own.

    Raises:
        ConfigError: shows nothing of what references stand for.
    """
    planned = plan_any(config)
    with closing(planned):
        try:
            return function(planned, *arguments)
        except ConfigError as error:
            originals = planned.connector.originals
            raise ConfigError(without_references(str(error), originals)) from None


def plan_any(
    source: Given,
    transform: Callable[..., Any] | None = None,
    *,
    query: Callable[..., Any] | None = None,
    elsewhere: bool = False,
    resolves: bool = True,
    **overrides: str,
) -> AnyPlan:
    """The plan of a sink connector or of a source connector, whichever it is.

    Args are those of :func:`plan`, and ``query``, which is that of :func:`semel.run`.

    Raises:
        ConfigError: names each field, its value and what to set.
    """
    raw, transform = _loaded(source, overrides), with_query(transform, query)
    if not is_source(raw.get("connector.class", "").strip()):
        return plan_sink(raw, transform, elsewhere=elsewhere, resolves=resolves)
    if transform is not None:
        raise misconfigured(
            "connector.class",
            f"connector {raw.get('name', '')}: transform= and query= are for sink connectors; this "
            f"one is a source ({raw['connector.class']}). Remove it",
            raw["connector.class"],
        )
    return sources.plan_source(raw, elsewhere=elsewhere, resolves=resolves)


def plan(
    source: Given,
    transform: Callable[..., Any] | None = None,
    *,
    elsewhere: bool = False,
    resolves: bool = True,
    **overrides: str,
) -> Plan:
    """Check a sink connector's configuration and decide its guarantee and its engine.

    Args:
        source: a file (Connect's JSON, flat JSON, ``.properties``) or a mapping.
        transform: see :func:`semel.run`.
        elsewhere: the connector will run on another machine: references to files and variables
            that this one lacks become warnings, and so do missing packages.
        resolves: whether references are resolved, and stores of certificates are read. Otherwise
            what they hide is not judged.
        overrides: keys that win over the file's, with ``_`` for ``.``.

    Raises:
        ConfigError: names each field, its value and what to set.
        Unresolvable: nothing is wrong, but references hide what is to be planned, or packages are
            missing.
    """
    raw = _loaded(source, overrides)
    return plan_sink(raw, transform, elsewhere=elsewhere, resolves=resolves)


def plan_source(source: Given) -> SourcePlan:
    """The same for a source connector."""
    return sources.plan_source(_loaded(source, {}))


def _loaded(source: Given, overrides: Mapping[str, str]) -> dict[str, str]:
    values = {k.replace("_", "."): v for k, v in overrides.items() if v}
    return with_brokers(load(source) | values)
