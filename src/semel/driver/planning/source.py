"""Planning a source connector."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel import converters, transforms
from semel.config import (
    ConnectorConfig,
    ResolvedConfig,
    SourceConnectorConfig,
    check_converter_keys,
    check_keys,
    definitions,
    read,
    resolved,
    title,
    under,
    unresolved,
)
from semel.config.reading import VALUE_CONVERTER
from semel.config.source_connector import OFFSETS_FILE, OFFSETS_URLS, offsets_on_one_machine
from semel.converters import Converter
from semel.core import delivery
from semel.core.delivery import Delivery, Guarantee, Mechanism, Support
from semel.core.errors import ConfigError, Problem
from semel.core.problems import Problems, gathering
from semel.databases.files import normalized
from semel.driver.planning.base import BasePlan, refusal
from semel.kafka.clients import check_clients
from semel.sources import full_name, is_source, source_class
from semel.sources.base import Source
from semel.sources.offsets import outside_of
from semel.sources.offsets import where as where_stored
from semel.transforms.unseen import RecordFacts, unseen

if TYPE_CHECKING:
    from semel.driver.offsets import Offsets

_TOPICS = "topic.creation."
_OF_WORKERS = {
    "producer.override.transactional.id": "the guarantee depends on the one that semel sets",
}
_DEAD_LETTERS = dict.fromkeys(
    [d.name for d in definitions(ConnectorConfig) if d.name.startswith("errors.deadletterqueue.")],
    "dead letters are for sink connectors, in Kafka Connect too. A source's record that cannot be "
    "transformed or converted stops the connector, or is skipped with errors.tolerance=all",
)
_OF_DEFAULT_GROUP = dict.fromkeys(
    [f"{_TOPICS}default.include", f"{_TOPICS}default.exclude"],
    "the default group takes each topic that no other group takes, in Kafka Connect too. Use "
    "topic.creation.groups",
)
_OUTSIDE = (
    "{key} keeps the source offsets in a {what}, which no Kafka transaction holds. Remove it to "
    "keep them in offsets.storage.topic"
)
_IDEMPOTENT = Support(
    False, "a topic cannot overwrite by key: records that come again would be in it twice"
)


@dataclass(frozen=True)
class SourcePlan(BasePlan):
    """The plan of a source connector."""

    connector: SourceConnectorConfig
    source: Source

    is_source = True

    @property
    def is_local(self) -> bool:
        return self.source.local

    def facts(self) -> dict[str, Any]:
        connector, guarantee = self.connector, self.guarantee
        boundary = connector.transaction_boundary
        if boundary == "interval":
            boundary = f"every {connector.transaction_interval_ms:,} ms, or 64 MiB"
        bad = (
            "a record that cannot be written stops the connector; what was read together with it "
            "is not written, and everything before that is committed"
        )
        if connector.errors_tolerance == "all":
            bad = (
                "records that a transform or a converter refuses are counted and skipped "
                "(errors.tolerance=all); one that a broker refuses stops the connector"
            )
        return {
            "name": connector.name,
            **self.source.describe(),
            "offsets": where_stored(connector)
            + ("" if connector.offsets_url else ", in Kafka Connect's format"),
            "missing topics": _creation(connector),
            "delivery": str(guarantee),
            "because": guarantee.why,
            "transactions": boundary if guarantee.mechanism else "none",
            "bad records": bad,
            "engine": self.engine,
            "tasks": connector.tasks_max,
            "warnings": self.warnings or ["none"],
        }

    @property
    def offsets(self) -> Offsets:
        from semel.driver.offsets import StoredSourceOffsets

        return StoredSourceOffsets(self.connector, self.source)

    def apart(self) -> SourcePlan:
        return replace(self, source=type(self.source)(self.connector))

    def close(self) -> None:
        self.source.close()


def source_of(raw: Mapping[str, str]) -> type[Source] | None:
    """The source of a configuration, if there is one."""
    name = raw.get("connector.class", "").strip()
    with suppress(ConfigError):
        return source_class(name) if is_source(name) else None
    return None


def plan_source(
    raw: Mapping[str, str], *, elsewhere: bool = False, resolves: bool = True
) -> SourcePlan:
    """Plan a source connector; see :func:`semel.driver.planning.plan`."""
    with gathering(reads=resolves) as problems:
        config = resolved(raw, elsewhere=elsewhere) if resolves else unresolved(raw)
        planned = _gathered(config, problems, reads=resolves)
        if elsewhere:
            problems.forgive_missing_packages()
    if planned is None or problems.items:
        source_type = source_of(raw)
        sections = (
            [SourceConnectorConfig]
            if source_type is None
            else [SourceConnectorConfig, source_type.section]
        )
        raise refusal(raw, config, sections, problems)
    return planned


def _gathered(raw: ResolvedConfig, problems: Problems, *, reads: bool) -> SourcePlan | None:
    prefix = title(raw)
    problems.unusable |= raw.unresolved.keys()
    source_type = source = guarantee = chain = None
    with problems.caught(prefix):
        raw["connector.class"] = full_name(raw.get("connector.class", "").strip())
        source_type = source_class(raw["connector.class"])
    if source_type is not None:
        raw = raw.over(source_type.defaults)
        raw |= source_type.normalized(raw)
    if file := raw.get(OFFSETS_FILE, "").strip():
        raw[OFFSETS_FILE] = str(Path(file).absolute())  # executors have another directory
    for name in OFFSETS_URLS:
        raw |= normalized(raw, "sqlite", name)
    connector = read(SourceConnectorConfig, raw)
    warnings = [*raw.unresolved.values(), *_warnings(raw, source_type)]
    if "value.converter" not in raw:
        warnings.append(VALUE_CONVERTER)
    with problems.caught(prefix):
        chain = transforms.chain_of(raw)
    warnings += transforms.warnings_of(raw)
    with problems.caught(prefix):
        _check_producer(raw)
    with problems.caught(prefix):
        check_clients(connector, reads=reads)
    for where, name in (
        ("key.converter", connector.key_converter),
        ("value.converter", connector.value_converter),
    ):
        with problems.caught(prefix):
            below = under(raw, f"{where}.")
            converter = converters.create(name, below, is_key=where == "key.converter", where=where)
            warnings += check_converter_keys(below, converter.section, where)
            _check_encodes(converter, where, name)
    if source_type is not None:
        with problems.caught(prefix):
            source = source_type(connector)
    with problems.caught(prefix):
        outside_of(connector)
    if source is not None and chain is not None:
        with problems.caught(prefix):
            warnings += unseen(chain, _known(source))
    if source is not None:
        with problems.caught(prefix):
            _check_boundary(connector, source)
        with problems.caught(prefix):
            _check_master(connector)
        with problems.caught(prefix):
            guarantee = _guarantee(connector, _support(connector, source))
    problems.warnings = warnings
    if source is None or guarantee is None or problems.items:
        if source is not None:
            source.close()
        return None
    return SourcePlan(connector, guarantee, "source", warnings, source)


def _known(source: Source) -> RecordFacts:
    """What is known of a source's records. Sources other than semel's own may write to more topics
    than the configuration names."""
    topics = source.topics() if type(source).__module__.startswith("semel.sources.") else ()
    return RecordFacts(source.headers, topics or None, None, source.keyed, source.tombstones)


def _check_master(connector: SourceConnectorConfig) -> None:
    master = connector.originals.get("spark.master", "local")
    if master.startswith("local"):
        return
    for key, place in offsets_on_one_machine(connector.originals).items():
        raise ConfigError(
            Problem(
                key,
                f"{key}={place} is on one machine, but spark.master={master} may run tasks on "
                "others. Set it to local, or keep the offsets in offsets.storage.topic",
            )
        )


def _support(connector: SourceConnectorConfig, source: Source) -> Support:
    """Whether the store of the offsets, and the source, allow exactly-once."""
    if connector.offsets_file:
        return Support(False, _OUTSIDE.format(key=OFFSETS_FILE, what="file"))
    if connector.offsets_url:
        return Support(False, _OUTSIDE.format(key=OFFSETS_URLS[0], what="table of a database"))
    return source.exactly_once()


def _guarantee(connector: SourceConnectorConfig, support: Support) -> Guarantee:
    """Raises ConfigError: the declared one cannot be kept; says why and what to set."""
    declared = connector.delivery
    if connector.exactly_once_support == "required":
        declared = declared or Delivery.EXACTLY_ONCE
    if declared is Delivery.EXACTLY_ONCE and not support.kept:
        key = "delivery" if connector.delivery else "exactly.once.support"
        raise ConfigError(
            Problem(
                key,
                f"{key}={connector.originals[key]} cannot be kept: {support.reason}. Set "
                f"{'delivery=at-least-once' if key == 'delivery' else f'{key}=requested'}",
            )
        )
    supported = {Mechanism.TRANSACTIONAL: support, Mechanism.IDEMPOTENT: _IDEMPOTENT}
    if declared is None and not support.kept:
        weaker = delivery.resolve(Delivery.AT_LEAST_ONCE, None, supported)
        return Guarantee(weaker.delivery, None, f"{weaker.why}. Not exactly-once: {support.reason}")
    return delivery.resolve(declared, None, supported)


def _check_boundary(connector: SourceConnectorConfig, source: Source) -> None:
    if connector.transaction_boundary == "connector" and not source.defines_transactions:
        raise ConfigError(
            Problem(
                "transaction.boundary",
                "transaction.boundary=connector: this source does not say where its transactions "
                "end. Set it to poll or interval",
            )
        )


def _check_encodes(converter: Converter, where: str, name: str) -> None:
    if type(converter).encode is Converter.encode:
        raise ConfigError(
            Problem(
                where,
                f"{where}={name} only reads. Set it to a converter that writes, such as "
                "org.apache.kafka.connect.json.JsonConverter",
            )
        )


def _check_producer(raw: Mapping[str, str]) -> None:
    for name, why in _OF_WORKERS.items():
        if name in raw:
            raise ConfigError(Problem(name, f"{name} cannot be set: {why}. Remove it"))


def _warnings(raw: Mapping[str, str], source_type: type[Source] | None) -> list[str]:
    if source_type is None:
        return []
    sections = [SourceConnectorConfig, source_type.section]
    ignored = {**_DEAD_LETTERS, **_OF_DEFAULT_GROUP, **source_type.ignored}
    return check_keys(raw, sections, ignored, (*source_type.prefixes, _TOPICS))


def _creation(connector: SourceConnectorConfig) -> str:
    creation = connector.topic_creation
    if creation.as_brokers_do:
        return "created with the brokers' defaults, if auto.create.topics.enable=true there"
    if not creation.groups:
        return "stop the connector (topic.creation.enable=false)"
    return "created as topic.creation.* says"
