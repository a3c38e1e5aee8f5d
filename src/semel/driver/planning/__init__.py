"""Planning a connector: checks its configuration, and decides the guarantee and the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from semel.config import load, with_brokers
from semel.core.errors import misconfigured
from semel.driver.planning.sink import Plan, plan
from semel.driver.planning.source import SourcePlan, plan_source, source_of
from semel.sources import is_source

__all__ = [
    "AnyPlan",
    "Plan",
    "SourcePlan",
    "plan",
    "plan_any",
    "plan_source",
    "source_of",
]


AnyPlan = Plan | SourcePlan


def plan_any(
    source: str | Path | Mapping[str, Any],
    transform: Callable[..., Any] | None = None,
    *,
    elsewhere: bool = False,
    resolves: bool = True,
    **overrides: str,
) -> AnyPlan:
    """The plan of a sink connector or of a source connector, whichever it is.

    Args are those of :func:`semel.driver.planning.sink.plan`.

    Raises:
        ConfigError: names each field, its value and what to set.
    """
    given = {k.replace("_", "."): v for k, v in overrides.items() if v}
    raw = with_brokers(load(source) | given)
    if not is_source(raw.get("connector.class", "").strip()):
        return plan(raw, transform, elsewhere=elsewhere, resolves=resolves)
    if transform is not None:
        raise misconfigured(
            "connector.class",
            f"connector {raw.get('name', '')}: transform= is for sink connectors; this one is a "
            f"source ({raw['connector.class']}). Remove it",
            raw["connector.class"],
        )
    return plan_source(raw, elsewhere=elsewhere, resolves=resolves)
