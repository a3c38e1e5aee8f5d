"""The topology of a connector that is one, and the configuration that follows from it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from semel.config import CommonConfig, default_text, definitions
from semel.config.worker import MODULES, may_import
from semel.core.errors import ConfigError, misconfigured
from semel.streams.builder import Streams
from semel.streams.changelog import Topics, results_of
from semel.streams.topology import Topology

_KAFKA = "kafka"
_CONVERTERS = {
    name: default_text(next(d for d in definitions(CommonConfig) if d.name == name)) or ""
    for name in ("key.converter", "value.converter")
}
"""Those of all connectors: a Kafka sink that copies has others."""


def topology_of(raw: Mapping[str, str], transform: Any, *, loads: bool = True) -> Topology | None:
    """The topology of a connector: what a program has given, or what ``topology`` names; None if it
    is not one, or may not be loaded now.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if (topology := _topology_in(transform)) is not None:
        return topology
    name = raw.get("topology", "").strip()
    if not name:
        return None
    module, _, attribute = name.partition(":")
    allowed = [part.strip() for part in raw.get(MODULES, "").split(",")]
    if MODULES in raw and not may_import(module, list(filter(None, allowed))):
        raise misconfigured(
            "topology",
            f"topology={name}: connectors of this worker may run topologies of "
            f"{raw[MODULES] or 'no module'}. Name its module in {MODULES} in the worker's file",
        )
    if not loads:
        return None
    try:
        value = getattr(importlib.import_module(module), attribute)
        if _topology_in(value) is None and callable(value):
            value = value()
    except ConfigError:
        raise
    except Exception as error:
        why = f"topology={name}: cannot load it: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            why += ". Install it, or name its folder in PYTHONPATH"
        raise misconfigured("topology", why) from None
    topology = _topology_in(value)
    if topology is None:
        raise misconfigured(
            "topology",
            f"topology={name} is a {type(value).__name__}: it must be a semel.streams.Streams, or "
            "a function that returns one",
        )
    return topology


def _topology_in(value: Any) -> Topology | None:
    if isinstance(value, Topology):
        return value
    return value.topology() if isinstance(value, Streams) else None


def with_topology(raw: Mapping[str, str], topology: Topology) -> dict[str, str]:
    """The configuration of the connector that runs a topology: its topics, and its target.

    Raises:
        ConfigError: it has no target, or several.
    """
    name = raw.get("name", "")
    sinks = [sink for sub in topology.subs for sink in sub.sinks.values()]
    targets = [{**sink.config} for sink in sinks if sink.topic is None]
    topics = [s.topic for s in sinks if s.topic is not None and not s.is_repartition]
    target: dict[str, str] = {}
    for config in targets:
        if config != targets[0]:
            raise ConfigError(
                f"connector {name}: the topology has several targets. Its positions are stored "
                "where its results are, in one place: keep one .to(...), and write the rest with "
                ".to_topic(...), which another connector can take from there"
            )
        target = {key: str(value) for key, value in config.items()}
    if not targets and topics:
        target = {"connector.class": _KAFKA, "topic.rename.format": topics[0], **_CONVERTERS}
    if not targets and not topics and "connector.class" not in raw:
        raise ConfigError(
            f"connector {name}: the topology has no result. End it with .to(...) or .to_topic(...)"
        )
    named = raw.get("topology") or topology.name
    return {**target, **raw, "topology": named, "topics": ",".join(Topics(name, topology).read)}


def written(application: str, topology: Topology) -> list[str]:
    """What the results for the target are called there."""
    sinks = [item for sub in topology.subs for item in sub.sinks.items()]
    return [results_of(application, name) for name, sink in sinks if sink.topic is None]
