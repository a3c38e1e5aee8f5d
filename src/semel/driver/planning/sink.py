"""Planning a sink connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from semel import converters, transforms
from semel.config import (
    ConnectorConfig,
    ResolvedConfig,
    check_converter_keys,
    check_keys,
    read,
    resolved,
    title,
    under,
    unresolved,
)
from semel.config.connector import seconds
from semel.config.reading import VALUE_CONVERTER
from semel.converters import ddl
from semel.core import delivery
from semel.core.delivery import Guarantee
from semel.core.errors import ConfigError, NotJudged, Problem, misconfigured
from semel.core.problems import Problems, gathering
from semel.core.records import TIMESTAMP
from semel.driver.planning.base import BasePlan, refusal
from semel.driver.planning.programs import (
    LOCAL,
    Query,
    check_query,
    check_topology,
    engine_of_query,
    is_of_streams,
    query_of,
    topology_of,
    with_topology,
    without_query,
)
from semel.kafka.clients import check_clients
from semel.sinks import full_name, names, sink_class
from semel.sinks.base import Sink
from semel.sinks.protocols import transactional
from semel.sinks.staging import StagingSink
from semel.sources import is_source
from semel.transforms import Chain
from semel.transforms.unseen import RecordFacts, unseen

_MISSPELT = 0.85
"""How similar to one of ours a key must be to be reported while the sink is not known."""
_TRIGGERED = frozenset({"bounded", "micro-batch"})
_OF_ENGINES = {
    "processingTime": _TRIGGERED,
    "maxOffsetsPerTrigger": _TRIGGERED,
    "failOnDataLoss": frozenset({"micro-batch"}),
    "poll.linger.ms": frozenset({"direct"}),
}
"""Keys that only some engines use."""
_UNKNOWN = {
    None: "stop the connector where values have a schema; otherwise their values are counted",
    "stop": "stop the connector",
    "warn": "their values are left out and counted",
    "ignore": "their values are left out",
}
"""What becomes of fields for which the target has no column."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_OPENERS = tuple(
    f"{name}$Key"
    for name in ("ExtractField", "Flatten", "InsertField", "MaskField", "ReplaceField")
)
"""Transforms that take fields of keys."""
_MAKERS = ("ValueToKey", "HoistField$Key")
"""Transforms after which keys have fields, whatever they were."""
if TYPE_CHECKING:
    from semel.driver.offsets import Offsets
    from semel.streams.topology import Topology


@dataclass(frozen=True)
class Plan(BasePlan):
    """The plan of a sink connector."""

    connector: ConnectorConfig
    sink: Sink
    query: Query | None = None
    topology: Topology | None = None

    is_source = False

    @property
    def is_local(self) -> bool:
        place = self.connector.checkpoint_location if self.query else ""
        return self.sink.local or place.startswith(LOCAL)

    def facts(self) -> dict[str, Any]:
        connector, guarantee = self.connector, self.guarantee
        return {
            "name": connector.name,
            "reads": list(connector.topics) or [f"topics matching {connector.topics_regex}"],
            **self.sink.describe(),
            "group": connector.group_id,
            "delivery": str(guarantee),
            "because": guarantee.why,
            "bad records": _bad_records(connector, guarantee, self.sink),
            "unknown fields": _UNKNOWN[connector.fields_unknown],
            "audit": self._audited(),
            "engine": self.engine,
            **self._query_facts(),
            "tasks": connector.tasks_max,
            **({} if self.topology is None else {"topology": self.topology.describe()}),
            "warnings": self.warnings or ["none"],
        }

    def _query_facts(self) -> dict[str, str]:
        if self.query is None:
            return {}
        mode, fields = self.connector.output_mode, ", ".join(self.connector.event_time)
        if mode == "auto":
            mode = "update, where the query allows it" if self._replaces else "append"
        late = ", ".join(self.connector.watermark)
        return {
            "query": self.query.name,
            "output": mode,
            "event time": f"{fields or 'the timestamp that Kafka has'}; {late} late at most",
            "state": f"RocksDB, kept in {self.connector.checkpoint_location}",
        }

    @property
    def _replaces(self) -> bool:
        return self.sink.capabilities.replaces

    @property
    def offsets(self) -> Offsets:
        from semel.driver.offsets import LedgerPositions

        return LedgerPositions(self.connector, self.sink)

    def apart(self) -> Plan:
        return replace(self, sink=type(self.sink)(self.connector))

    def merged_by(self, transform: Callable[..., Any] | None) -> str | None:
        """What makes rows of many records; None if nothing does."""
        if self.query is not None:
            return "a query"
        if self.topology is not None:
            return "a topology"
        takes_frames = transform is not None and self.engine == "micro-batch"
        return "a DataFrame transform" if takes_frames else None

    def of_others(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Those of the connector's topics that it does not write itself."""
        if self.topology is None:
            return dict(topics)
        from semel.streams.changelog import Topics

        outside = Topics(self.connector.name, self.topology).outside()
        return {topic: topics[topic] for topic in outside}

    def check_followed(self) -> None:
        """Raises NotJudged: its rows cannot be compared while they are written."""
        if self.topology is not None:
            raise NotJudged(
                f"connector {self.connector.name} is a topology: its rows come from many records, "
                "so they cannot be compared one by one. Run semel audit without --follow: it "
                "compares the records read with Kafka"
            )

    def sample(self) -> None:
        from semel.driver import sample

        if self.topology is not None:
            return
        self.warnings.extend(sample.warnings(self.connector, self.sink))

    def _audited(self) -> str:
        if self.query is not None or self.topology is not None:
            return "by records read; to check the rows, recompute them from the topics"
        if self.connector.provenance:
            return "record by record, by the provenance of each row"
        if not self.sink.capabilities.traces:
            return "by counts"
        return "by keys or counts; provenance=true makes it exact to the record"

    def check_runnable(self, transform: Callable[..., Any] | None) -> None:
        """Raises ConfigError: the sink commits on the driver, and the engine in tasks; or the query
        is missing."""
        query = self.query
        if query is not None and not query.sql and query.function is None:
            raise misconfigured(
                "query",
                f"connector {self.connector.name}: checkpoint.location="
                f"{self.connector.checkpoint_location} is for a query, and there is none. Set "
                "query, or run it from a program, with semel.run(..., query=...)",
            )
        lake = isinstance(self.sink, StagingSink)
        if self.engine == "micro-batch" and lake and transform is None and self.query is None:
            connector = self.connector
            raise ConfigError(
                f"connector {connector.name}: engine=micro-batch without a transform commits in "
                f"tasks, but connector.class={connector.connector_class} commits on the driver. "
                "Remove engine"
            )

    def close(self) -> None:
        self.sink.close()


def plan_sink(
    raw: Mapping[str, str],
    transform: Callable[..., Any] | None = None,
    *,
    elsewhere: bool = False,
    resolves: bool = True,
) -> Plan:
    """Plan a sink connector; see :func:`semel.driver.planning.plan`."""
    topology = None
    if raw.get("topology", "").strip() or is_of_streams(transform):
        topology = topology_of(raw, transform, loads=resolves)
        if topology is not None:
            raw, transform = with_topology(raw, topology), None
        elif not raw.get("topics", "").strip():
            raw = {**raw, "topics": raw["topology"]}  # the topology names them
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform={transform!r} must be a function that takes a batch")
    with gathering(reads=resolves) as problems:
        config = resolved(raw, elsewhere=elsewhere) if resolves else unresolved(raw)
        planned = _gathered(config, transform, problems, reads=resolves)
        if elsewhere:
            problems.forgive_missing_packages()
    if planned is None or problems.items:
        sink_type = sink_of(raw)
        sections = [ConnectorConfig] if sink_type is None else [ConnectorConfig, sink_type.section]
        raise refusal(raw, config, sections, problems)
    if topology is not None:
        planned = replace(planned, topology=topology)
        check_topology(topology, planned.connector, planned.sink, planned.engine, planned.guarantee)
    return planned


def _gathered(
    raw: ResolvedConfig, transform: Callable[..., Any] | None, problems: Problems, *, reads: bool
) -> Plan | None:
    """The plan, if there is one, and all problems that can be found."""
    prefix = title(raw)
    problems.unusable |= raw.unresolved.keys()
    sink_type = sink = guarantee = engine = chain = None
    class_name = raw.get("connector.class", "").strip()
    with problems.caught(prefix):
        if is_source(class_name):
            raise misconfigured(
                "connector.class",
                f"connector.class={class_name} is a source connector, but this takes a sink "
                "connector",
            )
        if class_name:
            raw["connector.class"] = class_name = full_name(class_name, raw)
            sink_type = sink_class(class_name, raw)
    if class_name not in names():  # it may be a source
        problems.unusable |= {"topics", "topics.regex"}
    query = None
    if sink_type is not None:
        raw = raw.over(sink_type.defaults)
        raw |= sink_type.normalized(raw)
        with problems.caught(prefix):
            query = query_of(raw, transform, sink_type.section)
    connector = with_assumed(read(ConnectorConfig, raw), sink_type)
    warnings = [*raw.unresolved.values(), *_unknown(raw, sink_type)]
    with problems.caught(prefix):
        chain = transforms.chain_of(raw)
    warnings += transforms.warnings_of(raw)
    if chain is not None:
        warnings += unseen(chain, _known(connector))
    for check in (
        partial(check_clients, connector, reads=reads),
        partial(_check_dead_letter_topic, connector),
        partial(seconds, connector.processing_time),
        partial(check_query, query, connector),
    ):
        with problems.caught(prefix):
            check()
    warnings += _check_converters(connector, problems)
    if sink_type is not None:
        with problems.caught(prefix):
            sink = sink_type(connector)
    if sink is not None:
        with problems.caught(prefix):
            guarantee = delivery.resolve(
                connector.delivery, connector.delivery_mechanism, sink.support()
            )
            if guarantee.mechanism is delivery.Mechanism.TRANSACTIONAL:
                transactional(sink)
        with problems.caught(prefix):
            _check_provenance(connector, sink)
        with problems.caught(prefix):
            engine = _checked_engine(connector, sink, transform, query)
            _check_chain(connector, sink, chain, engine)
            warnings += _without_effect(connector, engine, query)
            warnings += _dead_letters_elsewhere(connector, sink)
    uses_key = bool((chain and chain.needs_key) or (sink and sink.capabilities.uses_key))
    problems.warnings = warnings_of(connector, uses_key=uses_key) + warnings
    if sink is None or guarantee is None or engine is None or problems.items:
        if sink is not None:
            sink.close()
        return None
    return Plan(connector, guarantee, engine, problems.warnings, sink, query)


def _check_converters(connector: ConnectorConfig, problems: Problems) -> list[str]:
    """Warnings for keys that the converters do not know."""
    raw, warnings = connector.originals, []
    for where, name in (
        ("key.converter", connector.key_converter),
        ("value.converter", connector.value_converter),
    ):
        with problems.caught(title(raw)):
            below = under(raw, f"{where}.")
            converter = converters.create(name, below, is_key=where == "key.converter", where=where)
            warnings += check_converter_keys(below, converter.section, where)
    return warnings


def sink_of(raw: Mapping[str, str]) -> type[Sink] | None:
    """The sink of a configuration, if there is one; any JDBC sink, if its URL selects none."""
    for given in (raw, None):
        with suppress(ConfigError):
            return sink_class(raw.get("connector.class", "").strip(), given)
    return None


def _unknown(raw: Mapping[str, str], sink_type: type[Sink] | None) -> list[str]:
    """Warnings for unknown keys. If the sink is unknown, only keys that may be meant for the
    connector are checked."""
    if sink_type is not None:
        return check_keys(
            raw, [ConnectorConfig, sink_type.section], sink_type.ignored, sink_type.prefixes
        )
    warnings = check_keys(raw, [ConnectorConfig], {}, cutoff=_MISSPELT)
    return [w for w in warnings if "did you mean" in w]


def _checked_engine(
    connector: ConnectorConfig,
    sink: Sink,
    transform: Callable[..., Any] | None,
    query: Query | None,
) -> str:
    if query is not None:
        return engine_of_query(connector, sink)
    engine = _engine(connector, sink, transform)
    if engine not in sink.capabilities.engines:
        others = "micro-batch" if engine == "direct" else "direct"  # which chooses bounded, too
        raise misconfigured(
            "engine",
            f"connector {connector.name}: connector.class={connector.connector_class} does not run "
            f"on engine={engine}. Set engine={others}"
            + (", and give the transform a pyarrow.RecordBatch" if transform else ""),
        )
    return engine


def _check_provenance(connector: ConnectorConfig, sink: Sink) -> None:
    """Raises ConfigError: an audit would look for the origin of records where it cannot be."""
    if connector.provenance and not sink.capabilities.traces:
        raise misconfigured(
            "provenance",
            f"connector {connector.name}: provenance=true: what the {connector.connector_class} "
            "sink writes has no room for the origin of records. Remove provenance: the audit then "
            "compares counts",
        )


def _known(connector: ConnectorConfig) -> RecordFacts:
    """What the configuration says of the records in its topics."""
    raw, fields = connector.originals, None
    plain = raw.get("value.converter.schemas.enable", "").strip().lower() == "false"
    declared = raw.get("value.converter.schema", "").strip()
    if plain and declared and connector.value_converter.endswith("JsonConverter"):
        with suppress(ConfigError):  # the converter says what is wrong with it
            fields = ddl.parse(declared).names
    return RecordFacts(topics=connector.topics or None, fields=fields)


def _check_chain(connector: ConnectorConfig, sink: Sink, chain: Chain | None, engine: str) -> None:
    if chain is not None:
        _check_routers(connector, sink, chain, engine)
        _check_times(connector, sink, chain)


def _check_routers(connector: ConnectorConfig, sink: Sink, chain: Chain, engine: str) -> None:
    """Raises ConfigError: the sink cannot follow where transforms send records."""
    if sink.capabilities.ignores_topics:
        return
    for stage in chain.routers:
        where = stage.where
        setting = f"{where}={connector.originals[where]}"
        if not sink.capabilities.routes:
            raise ConfigError(
                Problem(
                    where,
                    f"{setting} changes the topic of records, but the {connector.connector_class} "
                    "sink names what it writes by the topic that records were read from. Remove it",
                )
            )
        if stage.goes_by_topic:
            continue
        if not sink.capabilities.splits:
            raise ConfigError(
                Problem(
                    where,
                    f"{setting} sends records of one topic to several targets, but the "
                    f"{connector.connector_class} sink, as it is configured, writes one for each "
                    "topic. Remove it, or let the topic alone decide, as RegexRouter does",
                )
            )
        if engine == "micro-batch":
            raise ConfigError(
                Problem(
                    where,
                    f"{setting} sends records of one topic to several targets, which "
                    f"engine={engine} cannot. Set engine=direct",
                )
            )


def _check_times(connector: ConnectorConfig, sink: Sink, chain: Chain) -> None:
    """Raises ConfigError: a transform gives records another time, and the sink writes times."""
    wants = sink.capabilities
    if TIMESTAMP not in wants.carries or wants.replaces:
        return
    for stage in chain.stages:
        if stage.transform.sets_timestamp:
            where = stage.where
            raise ConfigError(
                Problem(
                    where,
                    f"{where}={connector.originals[where]} changes the timestamp of records, but "
                    f"the {connector.connector_class} sink, as configured, uses the one that "
                    "Kafka has. Remove it; it works in source connectors, and before "
                    "transforms that use the time",
                )
            )


def _without_effect(connector: ConnectorConfig, engine: str, query: Query | None) -> list[str]:
    """Warnings for keys that the engine does not use, and for dead letters that this configuration
    will not write."""
    warnings = without_query(connector) if query is None else []
    warnings += [
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


def _dead_letters_elsewhere(connector: ConnectorConfig, sink: Sink) -> list[str]:
    """The warning about dead letters that Kafka Connect would write to other brokers."""
    name = "consumer.override.bootstrap.servers"
    brokers, topic = connector.originals.get(name), connector.dead_letter_topic
    if not (brokers and topic) or sink.capabilities.takes_dead_letters:
        return []
    return [
        f"errors.deadletterqueue.topic.name={topic} is a topic at {name}={brokers}; Kafka Connect "
        "writes dead letters to the worker's own brokers"
    ]


def _check_dead_letter_topic(connector: ConnectorConfig) -> None:
    name = connector.dead_letter_topic
    if name and connector.reads(name):
        raise misconfigured(
            "errors.deadletterqueue.topic.name",
            f"connector {connector.name}: errors.deadletterqueue.topic.name={name} is among the "
            "topics that it reads: dead letters would come back. Choose another name",
        )


def _engine(connector: ConnectorConfig, sink: Sink, transform: Callable[..., Any] | None) -> str:
    """``direct``, ``bounded`` (direct, for stores that commit per table) or ``micro-batch``."""
    wants_frames = _takes_dataframe(transform)
    if connector.engine == "direct" and wants_frames:
        raise misconfigured(
            "engine",
            f"connector {connector.name}: engine=direct gives Arrow batches to the transform, but "
            "it is annotated with DataFrame. Set engine=micro-batch, or take a pyarrow.RecordBatch",
        )
    if wants_frames or connector.engine == "micro-batch":
        return "micro-batch"
    return "bounded" if isinstance(sink, StagingSink) else "direct"


def _takes_dataframe(transform: Callable[..., Any] | None) -> bool:
    annotations = getattr(transform, "__annotations__", {})
    return any("DataFrame" in str(a) for a in annotations.values())


def _bad_records(connector: ConnectorConfig, guarantee: Guarantee, sink: Sink) -> str:
    """What becomes of bad records."""
    if connector.errors_tolerance == "none":
        return "a bad record stops the connector; everything before it is committed"
    if connector.dead_letter_table and sink.capabilities.commits_dead_letters_first:
        return (
            f"bad records go to table {connector.dead_letter_table}, each once, in a commit of "
            "their own before the results'"
        )
    if connector.dead_letter_table:
        return (
            f"bad records go to table {connector.dead_letter_table} in the transaction that moves "
            "the positions past them: exactly once"
            if guarantee.mechanism is not None and guarantee.mechanism.value == "transactional"
            else f"bad records go to table {connector.dead_letter_table} with the results"
        )
    if connector.dead_letter_topic and sink.capabilities.takes_dead_letters:
        return (
            f"bad records go to topic {connector.dead_letter_topic} in the transaction that moves "
            "the positions past them: exactly once"
            if guarantee.mechanism is not None
            else f"bad records go to topic {connector.dead_letter_topic} with the results"
        )
    if connector.dead_letter_topic:
        return (
            f"bad records go to topic {connector.dead_letter_topic} before the commit: at least "
            "once, because Kafka and the target share no transaction"
        )
    return "bad records are counted and dropped (errors.tolerance=all without dead letters)"


def with_assumed(connector: ConnectorConfig, sink: type[Sink] | None) -> ConnectorConfig:
    """A sink connector with the key converter that is assumed if it names none: JSON if fields of
    keys are taken."""
    raw = connector.originals
    if "key.converter" in raw:
        return connector
    takes = _chain_takes_fields(raw)
    if takes is None:
        takes = sink is not None and sink.takes_key_fields(raw)
    return replace(connector, key_converter=_JSON) if takes else connector


def _chain_takes_fields(raw: Mapping[str, str]) -> bool | None:
    """Whether transforms take fields of keys; None if they leave keys as they come."""
    for alias in (part.strip() for part in raw.get("transforms", "").split(",")):
        type_name = raw.get(f"transforms.{alias}.type", "").strip()
        if type_name.endswith(_MAKERS):
            return False
        if type_name.endswith(_OPENERS):
            return True
    return None


def warnings_of(connector: ConnectorConfig, *, uses_key: bool) -> list[str]:
    """Warnings of the converters that a sink's configuration does not name."""
    raw = connector.originals
    warnings = [] if "value.converter" in raw else [VALUE_CONVERTER]
    if uses_key and "key.converter" not in raw:
        kind = "JSON" if connector.assumes_keys else "text"
        default = "Kafka Connect's worker may have another default; set key.converter to it"
        warnings.append(f"key.converter is not set: keys are {kind} here. {default}")
    return warnings
