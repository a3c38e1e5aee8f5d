"""Kafka Connect's single message transforms, and similar ones, on Arrow batches."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import EntryPoint
from typing import Any

from semel.config import (
    HINTS,
    Definition,
    Type,
    below,
    extras,
    key,
    section_of,
    under,
    unknown_keys,
)
from semel.config import names as names_of
from semel.config.extras import entries
from semel.config.worker import MODULES, may_import
from semel.core.errors import ConfigError, misconfigured, prefixed
from semel.core.problems import together
from semel.core.redact import redacted
from semel.transforms import iceberg_cdc
from semel.transforms.base import KeyOrValue, Predicate, Transform
from semel.transforms.chain import Chain, Outcome, Stage
from semel.transforms.python import PythonConfig
from semel.transforms.routers import TABLE_NAME_KEYS, SourceNames, table_name_key

__all__ = [
    "PREDICATES",
    "TRANSFORMS",
    "Chain",
    "KeyOrValue",
    "Outcome",
    "Predicate",
    "Transform",
    "chain_of",
    "classes",
    "declared",
    "known_chain",
    "routed",
    "warnings_of",
]

TRANSFORMS = "semel.transforms"
"""The entry point group of third-party transforms: name -> a :class:`Transform` class. A
:class:`KeyOrValue` is available as ``name$Key`` and ``name$Value``."""
PREDICATES = "semel.predicates"
"""The entry point group of third-party predicates: name -> a :class:`Predicate` class."""

_KAFKA = "org.apache.kafka.connect.transforms."
_DEBEZIUM = "io.debezium.transforms."
_CONFLUENT = "io.confluent.connect.transforms."
_AIVEN = "io.aiven.kafka.connect.transforms."
_COMMON = "com.github.jcustenborder.kafka.connect.transform.common."


def _in(module: str, package: str, *names: str) -> dict[str, str]:
    """The classes that a module has for those of a Java package."""
    return {f"{package}{name}": f"semel.transforms.{module}:{name}" for name in names}


_FIELDS = ("ExtractField", "Flatten", "HoistField", "InsertField", "MaskField", "ReplaceField")
_TEXTS = ("CaseTransform", "ConcatFields", "FilterByFieldValue", "Hash")
_TOPICS = ("ChangeTopicCase", "LowerCaseTopic", "TopicNameToField")
_CDC = ("CopyValue", "DebeziumTransform", "DmsTransform")
_OURS = {
    "python": "semel.transforms.python:Python",
    "sql": "semel.transforms.sql:Sql",
    **_in("base", _KAFKA, "Filter"),
    **_in("cast", _KAFKA, "Cast", "TimestampConverter"),
    **_in("fields", _KAFKA, *_FIELDS, "SetSchemaMetadata", "ValueToKey"),
    **_in("headers", _KAFKA, "DropHeaders", "HeaderFrom", "InsertHeader"),
    **_in("routers", _KAFKA, "RegexRouter", "TimestampRouter"),
    **_in("confluent", _CONFLUENT, "Drop", "ExtractTopic", "Filter", "TombstoneHandler"),
    **_in("confluent", "io.confluent.transforms.", "NullFilter"),
    **_in("routers", _CONFLUENT, "MessageTimestampRouter"),
    **_in("debezium", _DEBEZIUM, "ExtractNewRecordState", "ExtractChangedRecordState"),
    **_in("debezium", _DEBEZIUM, "HeaderToValue"),
    _DEBEZIUM + "UnwrapFromEnvelope": "semel.transforms.debezium:ExtractNewRecordState",
    **_in("routers", _DEBEZIUM, "ByLogicalTableRouter", "ToLogicalTopicRouter"),
    **_in("outbox", f"{_DEBEZIUM}outbox.", "EventRouter"),
    **_in("aiven", _AIVEN, *_TEXTS, "ExtractTimestamp", "ExtractTopic", "KeyToValue"),
    **_in("aiven", _AIVEN, "MakeTombstone", "TombstoneHandler"),
    **_in("jcustenborder", _COMMON, *_TOPICS, "ExtractTimestamp", "SetNull"),
    **_in("jcustenborder", _COMMON, "PatternFilter", "PatternRename"),
    **_in("iceberg_cdc", "org.apache.iceberg.connect.transforms.", *_CDC),
    **_in("iceberg_cdc", "io.tabular.iceberg.connect.transforms.", *_CDC),
}
_PREDICATES = ("HasHeaderKey", "RecordIsTombstone", "TopicNameMatches")
_OUR_PREDICATES = _in("predicates", f"{_KAFKA}predicates.", *_PREDICATES)
_AGAIN = "a record would get a different one each time it is read"
_INSTEAD = {
    "TimestampNow": f"{_AGAIN}. Leave it out: Kafka's own time is kept",
    "TimestampNowField": f"{_AGAIN}. Use InsertField with timestamp.field",
    "InsertUuid": f"{_AGAIN}. Use InsertField with topic.field, partition.field and offset.field",
    "ChangeCase": "name fields with ReplaceField's renames, or with PatternRename",
    "ContentBasedRouter": "scripts are not run. Use ExtractTopic, or type=python",
    "PartitionRouting": "set it in Debezium's source connector, which chooses the partitions",
    "ExtractNewDocumentState": "set it in Debezium's source connector, which then writes documents",
    "ActivateTracingSpan": "semel writes no traces. Leave it out",
    "TimezoneConverter": "times are stored in UTC. Use type=sql to convert a field",
    _DEBEZIUM + "Filter": "scripts are not run. Use Confluent's Filter, type=sql or type=python",
    "ExtractNestedField": "use type=sql: SELECT *, outer_field.inner_field AS name FROM records",
}
"""What to use in place of well-known transforms."""
_MOST, _LONGEST = 200, 249
"""The most transforms of a chain, and the most predicates, and their longest names: nobody has as
many, and each costs time whenever a configuration is checked."""
_SUFFIXES = ("Key", "Value")
_NAMESAKES = frozenset(
    {_CONFLUENT + "Filter", *(f"{_KAFKA}Filter${suffix}" for suffix in _SUFFIXES)},
)
"""Kafka's Filter takes no suffix, and Confluent's needs one, so plain ``Filter`` is Kafka's."""


@dataclass(frozen=True)
class PredicateKeys:
    """Keys that all predicates have."""

    type: str = key("type", doc="The class.", type=Type.CLASS)


@dataclass(frozen=True)
class StageKeys(PredicateKeys):
    """Keys that all transforms have."""

    predicate: str = key("predicate", "", "The predicate that selects records.")
    negate: bool = key("negate", False, "Transform all other records instead.")


def chain_of(raw: Mapping[str, str]) -> Chain:
    """The chain of a connector's configuration.

    Raises:
        ConfigError: every mistake in it.
    """
    names = _list(raw, "transforms")
    too_long = any(len(part.strip()) > _LONGEST for part in raw.get("transforms", "").split(","))
    if len(names) > _MOST or too_long:
        why = f"transforms may have up to {_MOST} names of up to {_LONGEST} characters"
        raise misconfigured("transforms", why)
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise misconfigured("transforms", f"transforms names {', '.join(sorted(repeated))} twice")
    chosen = {raw.get(f"transforms.{name}.predicate", "").strip() for name in names}
    unused = [name for name in dict.fromkeys(_list(raw, "predicates")) if name not in chosen]
    checks = [partial(_configured, "predicates", raw, f"predicates.{name}.") for name in unused]
    stages = together(*(_stage_of(raw, name) for name in names), *checks)[: len(names)]
    return Chain([*stages, *_implied(raw)])


def _implied(raw: Mapping[str, str]) -> Iterator[Stage]:
    """The stages that a sink's keys imply."""
    named = table_name_key(raw)
    if named:
        yield Stage(named, SourceNames(raw[named]), key=named)
    field = raw.get(iceberg_cdc.FIELD, "").strip()
    if field:
        yield Stage(iceberg_cdc.FIELD, iceberg_cdc.Changes(field), key=iceberg_cdc.FIELD)


def routed(raw: Mapping[str, str], topic: str) -> str:
    """The topic that the transforms of a configuration send a topic's records to, if its name alone
    decides that. Otherwise each record names its own topic, and the name is returned unchanged."""
    chain = known_chain(raw)
    return chain.route(topic) if chain.goes_by_topic and len(topic) <= _LONGEST else topic


def known_chain(raw: Mapping[str, str]) -> Chain:
    """The chain of a configuration, to be inspected but not applied: it is cached."""
    own = ("transforms.", "predicates.")
    names = ("transforms", "predicates", *TABLE_NAME_KEYS, iceberg_cdc.FIELD)
    chain_keys = {k: v for k, v in raw.items() if k.startswith(own) or k in names}
    return _chain(tuple(sorted(chain_keys.items())))


@lru_cache(maxsize=100)
def _chain(raw: tuple[tuple[str, str], ...]) -> Chain:
    return chain_of(dict(raw))


def declared(raw: Mapping[str, str]) -> Iterator[Definition]:
    """The keys of the transforms and predicates that a configuration names."""
    for kind, own in (("transforms", StageKeys), ("predicates", PredicateKeys)):
        for name in dict.fromkeys(_list(raw, kind)):
            if redacted(name) != name:  # a URL with a password, which its keys would show
                continue
            prefix, group = f"{kind}.{name}.", f"{kind.capitalize()}: {name}"
            yield from below(prefix, group, own)
            with suppress(ConfigError):  # there is no such class
                yield from below(prefix, group, _class_of(kind, raw, prefix)[0].section)


def warnings_of(raw: Mapping[str, str]) -> list[str]:
    """Warnings about the keys of transforms and predicates; errors are not included."""
    warnings: list[str] = []
    for kind in ("transforms", "predicates"):
        names = _list(raw, kind)
        for name in names:
            prefix = f"{kind}.{name}."
            own = StageKeys if kind == "transforms" else PredicateKeys
            try:
                section = _class_of(kind, raw, prefix)[0].section
            except ConfigError:
                continue
            known = {*names_of(section), *names_of(own)}
            unknown = sorted(under(raw, prefix).keys() - known)
            warnings += unknown_keys(unknown, known, prefix, hints=HINTS - len(warnings))
        belongs = tuple(f"{kind}.{name}." for name in names)
        warnings += [
            f"{name} has no effect: {kind} does not name {name.split('.')[1]}"
            for name in sorted(raw)
            if name.startswith(f"{kind}.") and not name.startswith(belongs)
        ]
    return warnings


def _list(raw: Mapping[str, str], name: str) -> list[str]:
    parts = (part.strip() for part in raw.get(name, "").split(","))
    return [part for part in parts if 0 < len(part) <= _LONGEST][: _MOST + 1]


def _stage_of(raw: Mapping[str, str], alias: str) -> Callable[[], Stage]:
    return lambda: _stage(raw, alias)


def _stage(raw: Mapping[str, str], alias: str) -> Stage:
    prefix = f"transforms.{alias}."
    transform = _configured("transforms", raw, prefix)
    chosen = raw.get(f"{prefix}predicate", "").strip()
    negate = raw.get(f"{prefix}negate", "").strip().lower()
    if negate not in ("", "true", "false"):
        raise misconfigured(f"{prefix}negate", f"{prefix}negate must be true or false")
    if not chosen:
        if f"{prefix}negate" in raw:
            raise misconfigured(
                f"{prefix}negate",
                f"Config '{prefix}negate' was provided but there is no config "
                f"'{prefix}predicate' defining a predicate to be negated.",
            )
        return Stage(alias, transform)
    if chosen not in _list(raw, "predicates"):
        raise misconfigured(
            f"{prefix}predicate",
            f"{prefix}predicate={chosen}: predicates does not name it; it names "
            f"{', '.join(_list(raw, 'predicates')) or 'none'}",
        )
    predicate = _configured("predicates", raw, f"predicates.{chosen}.")
    return Stage(alias, transform, predicate, negate == "true")


def _configured(kind: str, raw: Mapping[str, str], prefix: str) -> Any:
    """The transform or predicate configured below ``prefix``."""
    class_, suffix = _class_of(kind, raw, prefix)
    config = section_of(class_.section, under(raw, prefix), prefix, otherwise=f"{prefix}type")
    _check_module(config, raw, prefix)
    try:
        return class_(config, of_key=suffix == "Key") if suffix else class_(config)
    except ConfigError as error:
        raise prefixed(error.problems, prefix, otherwise=f"{prefix}type") from None
    except ValueError as error:
        raise misconfigured(f"{prefix}type", f"{prefix[:-1]}: {error}") from None


def _check_module(config: Any, raw: Mapping[str, str], prefix: str) -> None:
    """Raises ConfigError: the worker does not allow the module of ``type=python``."""
    if not isinstance(config, PythonConfig) or MODULES not in raw:
        return
    if not may_import(config.function.partition(":")[0], _list(raw, MODULES)):
        raise misconfigured(
            f"{prefix}function",
            f"{prefix}function={config.function}: connectors of this worker may call functions "
            f"of {raw[MODULES] or 'no module'}. Name its module in {MODULES} in the worker's "
            "file",
        )


def _class_of(kind: str, raw: Mapping[str, str], prefix: str) -> tuple[Any, str]:
    """The named class, and whether it is for keys or values."""
    where = f"{prefix}type"
    class_name = raw.get(where, "").strip()
    if not class_name:
        raise misconfigured(where, f"{where} is required: the class of the {kind[:-1]}")
    paths = _known(kind)
    try:
        name = extras.full_name(class_name, _with_suffixes(paths), kind[:-1].title())
    except ConfigError as error:
        raise misconfigured(where, f"{where}={class_name}: {error}") from None
    base, _, suffix = name.partition("$")
    if base not in paths or (suffix and suffix not in _SUFFIXES):
        raise misconfigured(where, f"{where}={class_name}: {_unknown(kind, class_name, paths)}")
    entry = EntryPoint(base, paths[base], kind)
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise misconfigured(
            where, f"{where}={class_name}: cannot load {entry.value}: {error}"
        ) from error
    base_class: type = Transform if kind == "transforms" else Predicate
    if not (isinstance(loaded, type) and issubclass(loaded, base_class)):
        raise misconfigured(
            where, f"{where}={class_name}: {entry.value} is not a semel {base_class.__name__}"
        )
    takes_one = issubclass(loaded, KeyOrValue)
    if takes_one and not suffix:
        raise misconfigured(
            where, f"{where}={class_name}: add $Key or $Value: {class_name}$Value changes values"
        )
    if suffix and not takes_one:
        raise misconfigured(where, f"{where}={class_name}: write {base}, without ${suffix}")
    return loaded, suffix


def classes(kind: str) -> Iterator[tuple[str, Any]]:
    """The ``transforms`` or ``predicates`` that can be loaded, by full names, which end with
    ``$Key`` or ``$Value`` where there are two."""
    for base, value in _known(kind).items():
        try:
            loaded = EntryPoint(base, value, kind).load()
        except (ImportError, AttributeError):
            continue
        suffixed = [f"{base}${suffix}" for suffix in _SUFFIXES]
        names = suffixed if issubclass(loaded, KeyOrValue) else [base]
        yield from ((name, loaded) for name in names)


def _known(kind: str) -> dict[str, str]:
    group, ours = (TRANSFORMS, _OURS) if kind == "transforms" else (PREDICATES, _OUR_PREDICATES)
    return {**entries(group), **ours}


def _with_suffixes(paths: Mapping[str, str]) -> dict[str, str]:
    suffixed = {f"{n}${suffix}": value for n, value in paths.items() for suffix in _SUFFIXES}
    return {n: v for n, v in {**paths, **suffixed}.items() if n not in _NAMESAKES}


def _unknown(kind: str, class_name: str, paths: Mapping[str, str]) -> str:
    shorts = sorted({full.rpartition(".")[2] for full in paths})
    base = class_name.partition("$")[0]
    simple = base.rpartition(".")[2]
    instead = _INSTEAD.get(base) or _INSTEAD.get(simple)
    if kind == "transforms" and instead:
        return f"not available: {instead}"
    near = difflib.get_close_matches(simple, shorts, n=1, cutoff=0.75)
    if near and simple != base:  # long packages make all their classes look alike
        full_names = [full for full in paths if full.rpartition(".")[2] == near[0]]
        near = difflib.get_close_matches(base, full_names, n=1, cutoff=0)
    hint = f"; did you mean {near[0]}?" if near else ""
    own = "; type=sql and type=python run what you write" if kind == "transforms" else ""
    if base.startswith("io.debezium."):
        own += "; Debezium's source connectors have transforms that can be set there instead"
    return f"no such {kind[:-1]}{hint}; available are {', '.join(shorts)}{own}"
