"""The programs that make the rows in a transform's place: a query over streams, or a topology."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.config import CommonConfig, ConnectorConfig, ResolvedConfig, default_text, definitions
from semel.config.extras import require
from semel.config.worker import MODULES, may_import
from semel.core.delivery import Mechanism
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.problems import refuse

if TYPE_CHECKING:
    from semel.core.delivery import Guarantee
    from semel.sinks.base import Sink
    from semel.streams.topology import Topology

LOCAL = "file:"
_NAMES = ("table.name.format", "index.name.format")
"""The keys that name what a topic's records go to."""
_KEYS = (
    *("checkpoint.location", "query.output.mode", "event.time.field", "watermark"),
    "query.changed",
)
_KAFKA = "kafka"
_CONVERTERS = {
    name: default_text(next(d for d in definitions(CommonConfig) if d.name == name)) or ""
    for name in ("key.converter", "value.converter")
}
"""Those of all connectors, for the results of a topology: a Kafka sink that copies has others."""


@dataclass(frozen=True, slots=True)
class Query:
    """A program's function, which takes a streaming DataFrame for each topic, in the order of
    ``topics``, and returns one; or SQL over a view for each topic. It takes the place of a
    transform. A configuration with a ``checkpoint.location`` alone has neither: the query is in a
    program."""

    function: Callable[..., Any] | None = None
    sql: str = ""

    def __call__(self, *arguments: Any) -> Any:
        assert self.function is not None
        return self.function(*arguments)

    @property
    def name(self) -> str:
        """What to call it: the SQL, or the name of the function."""
        if self.function is None:
            return " ".join(self.sql.split()) or "in a program"
        return str(getattr(self.function, "__qualname__", "a function"))


def with_query(
    transform: Callable[..., Any] | None, query: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """A program's transform, or its query in the transform's place.

    Raises:
        ConfigError: there are both, or the query is no function.
    """
    if query is None:
        return transform
    if transform is not None:
        raise ConfigError(
            "transform= and query= exclude each other: both make the rows. Let the query do what "
            "the transform does"
        )
    if not callable(query):
        raise ConfigError(f"query={query!r} must be a function that takes streaming DataFrames")
    return query if isinstance(query, Query) else Query(query)


def query_of(
    raw: ResolvedConfig, transform: Callable[..., Any] | None, section: type
) -> Query | None:
    """The query over streams, if there is one. ``section`` declares the keys of the sink.

    Raises:
        ConfigError: there are two, or a transform besides.
    """
    sql = raw.get("query", "").strip()
    has_state = bool(raw.get("checkpoint.location", "").strip())
    if not (sql or has_state or isinstance(transform, Query)):
        return None
    if sql and transform is not None:
        other = "query=" if isinstance(transform, Query) else "transform="
        raise misconfigured(
            "query",
            f"query={' '.join(sql.split())[:60]} and {other} in the program exclude each other: "
            "both make the rows. Remove one",
            sql,
        )
    if has_state and transform is not None and not isinstance(transform, Query):
        raise misconfigured(
            "checkpoint.location",
            "checkpoint.location keeps the state of a query, and the program gives a transform, "
            "which has none. Remove it, or pass query= instead",
        )
    _prepare(raw, section)
    return transform if isinstance(transform, Query) else Query(sql=sql)


def _prepare(raw: ResolvedConfig, section: type) -> None:
    """Give what a query needs the form that all processes understand. The rows of a query come from
    no topic: they go to the target that is named by the connector."""
    name, place = raw.get("name", "").strip(), raw.get("checkpoint.location", "").strip()
    if place and "://" not in place and not place.startswith(LOCAL):
        raw["checkpoint.location"] = f"{LOCAL}{Path(place).absolute()}"
    for key in definitions(section):
        if key.name in _NAMES:
            key_name = next((n for n in key.names if n in raw), key.name)
            raw[key_name] = raw.get(key_name, key.default).replace("${topic}", name)


def check_query(query: Query | None, connector: ConnectorConfig) -> None:
    """Raises ConfigError: the query cannot be run with these settings."""
    if query is not None:
        refuse(_problems(connector))


def _problems(connector: ConnectorConfig) -> Iterator[Problem]:
    where = f"connector {connector.name}: "
    if not connector.checkpoint_location:
        yield Problem(
            "checkpoint.location",
            f"{where}checkpoint.location is not set: a query needs a directory that lasts for its "
            "state. Set it to one that all machines of the cluster reach, such as "
            f"s3a://bucket/{connector.name}; a local one is enough where Spark is local",
        )
    if connector.topics_regex:
        yield Problem(
            "topics.regex",
            f"{where}topics.regex={connector.topics_regex}: a query names its topics. List them "
            "in topics",
        )
    if connector.provenance:
        yield Problem(
            "provenance",
            f"{where}provenance=true: rows of a query are made of many records, so they have no "
            "origin. Remove provenance",
        )
    over = (
        ("offset.out.of.range", connector.offset_out_of_range, "stop"),
        ("topic.recreated", connector.topic_recreated, "stop"),
        ("log.truncated", connector.log_truncated, "stop"),
    )
    for key, value, needed in over:
        if value != needed:
            yield Problem(
                key,
                f"{where}{key}={value}: the state of a query cannot follow a position that moves "
                f"over records, or back. Set it to {needed}",
            )
    if not connector.fail_on_data_loss:
        yield Problem(
            "failOnDataLoss",
            f"{where}failOnDataLoss=false: the state of a query would lack records, and nothing "
            "would say so. Remove it",
        )


def engine_of_query(connector: ConnectorConfig, sink: Sink) -> str:
    """Raises ConfigError: the sink does not take what the driver commits."""
    engine = "micro-batch"
    if connector.engine == "direct":
        raise misconfigured(
            "engine",
            f"connector {connector.name}: engine=direct looks at each record alone; a query needs "
            f"engine={engine}. Remove engine",
        )
    if engine not in sink.capabilities.engines:
        raise misconfigured(
            "connector.class",
            f"connector {connector.name}: connector.class={connector.connector_class}, as it is "
            "configured, does not take the rows of a query: its commits belong to tasks that read "
            "Kafka themselves. Choose a database, Delta Lake, Iceberg or a search engine",
        )
    return engine


def without_query(connector: ConnectorConfig) -> list[str]:
    """Warnings for keys that only queries have."""
    return [
        f"{name} has no effect without a query" for name in _KEYS if name in connector.originals
    ]


def is_of_streams(value: object) -> bool:
    """Whether something is a topology, without importing :mod:`semel.streams`, which takes longer
    than the rest."""
    return any(kind.__module__.startswith("semel.streams.") for kind in type(value).__mro__)


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
    from semel.streams.kstream import Streams
    from semel.streams.topology import Topology

    if isinstance(value, Topology):
        return value
    return value.topology() if isinstance(value, Streams) else None


def with_topology(raw: Mapping[str, str], topology: Topology) -> dict[str, str]:
    """The configuration of the connector that runs a topology: its topics, and its target.

    Raises:
        ConfigError: it has no target, or several.
    """
    from semel.streams.changelog import Topics

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


def check_topology(
    topology: Topology, connector: ConnectorConfig, sink: Sink, engine: str, guarantee: Guarantee
) -> None:
    """Raises ConfigError: the topology cannot be run with these settings."""
    where = f"connector {connector.name}: "
    require(f"{where}a topology", "streams", {"rocksdict": "rocksdict"}, "topology")
    if engine != "direct":
        raise misconfigured(
            "engine",
            f"{where}a topology runs on the direct engine, and connector.class="
            f"{connector.connector_class} on engine={engine}. Write to a database, or to Kafka",
        )
    if guarantee.mechanism is not Mechanism.TRANSACTIONAL:
        raise misconfigured(
            "delivery",
            f"{where}the results of a topology are committed together with its positions: that "
            f"needs a target with transactions, and delivery is {guarantee}",
        )
    if not sink.capabilities.ledger_in_group:
        for sub in topology.subs:
            if sub.globals and any(spec.logged for spec in sub.stores):
                raise misconfigured(
                    "topology",
                    f"{where}sub-topology {sub.number} keeps a state of what it joins with a "
                    "global table, which does not go back with the state after a crash: it would "
                    "disagree with the target. Put .repartition() behind the join, or write to "
                    "Kafka",
                )
    if connector.provenance:
        raise misconfigured(
            "provenance", f"{where}provenance=true: a result comes from many records. Remove it"
        )
    if connector.originals.get("transforms", "").strip():
        raise misconfigured(
            "transforms", f"{where}transforms are not applied to topologies. Use .map(...)"
        )
