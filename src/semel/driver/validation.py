"""Lists the keys of classes, and validates a configuration key by key, as Kafka Connect does for
``PUT /connector-plugins/{type}/config/validate``, without contacting any service.

The classes and fields of its answer have the names of Kafka Connect's (4.3), which its clients and
consoles read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from semel import converters, transforms
from semel.config import (
    ConnectorConfig,
    Definition,
    SourceConnectorConfig,
    Type,
    default_text,
    definitions,
    whole,
)
from semel.config.definition import refers, text_of
from semel.config.reading import given_names, parsed
from semel.core.errors import ConfigError, Problem
from semel.core.problems import located
from semel.core.quoting import harmless
from semel.core.redact import redacted, setting
from semel.driver.planning import plan_any
from semel.sinks import sink_class
from semel.sources import is_source, source_class

HIDDEN = "[hidden]"
"""What Kafka Connect shows instead of a password."""
_MOST = 100
"""Warnings that an answer has, and keys with errors that no section declares."""
_STAGES = ("transforms", "predicates")
"""What records pass through."""
_TEXTUAL = frozenset({Type.STRING, Type.CLASS, Type.LIST})


@dataclass(frozen=True, slots=True)
class ConfigKeyInfo:
    """The definition of a key."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: Sequence[str]


@dataclass(frozen=True, slots=True)
class ConfigValueInfo:
    """The value of a key, and what is wrong with it."""

    name: str
    value: str | None
    recommended_values: Sequence[str]
    errors: Sequence[str]
    visible: bool


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """A key; without a definition if no section declares it."""

    definition: ConfigKeyInfo | None
    value: ConfigValueInfo


@dataclass(frozen=True, slots=True)
class ConfigInfos:
    """A configuration, key by key. ``name`` is the connector's class."""

    name: str | None
    error_count: int
    groups: Sequence[str]
    configs: Sequence[ConfigInfo]


def validate(
    raw: Mapping[str, str],
    *,
    elsewhere: bool = False,
    resolves: bool = True,
    known: Sequence[Problem] = (),
) -> tuple[ConfigInfos, Sequence[str]]:
    """Kafka Connect's answer, and the warnings, which that answer has no place for.

    Args:
        elsewhere, resolves: see :func:`semel.driver.planning.plan`.
        known: what is already known to be wrong with it.
    """
    problems = known
    try:
        planned = plan_any(raw, elsewhere=elsewhere, resolves=resolves)
        planned.close()
        warnings: Sequence[str] = planned.warnings
    except ConfigError as error:
        problems, warnings = [*known, *error.problems], error.warnings
    sections, defaults = _sections(raw)
    more = [*converters.declared(raw), *transforms.declared(raw)]
    return _infos(sections, raw, problems, defaults, more), warnings


def located_warnings(warnings: Sequence[str], raw: Mapping[str, str]) -> list[dict[str, str]]:
    """Warnings as answers have them: the key that each is about, its value, and the message."""
    shown = list(warnings[:_MOST])
    if len(warnings) > _MOST:
        shown.append(f"{len(warnings) - _MOST:,} more warnings")
    entries = [located(Problem("", warning), raw, raw.keys(), ()) for warning in shown]
    return [
        {"key": w.key, "value": w.value, "message": redacted(harmless(w.message))} for w in entries
    ]


def keys_of(name: str) -> Sequence[ConfigKeyInfo]:
    """The keys of a connector's class, or of a converter's, a transform's or a predicate's.

    Raises:
        ConfigError: there is no such class.
    """
    others = {class_name: cls for kind in _STAGES for class_name, cls in transforms.classes(kind)}
    if name not in others and converters.full_name(name) in converters.names():
        others[name] = converters.find(name, where="converter")
    sections, defaults = ([others[name].section], {}) if name in others else declared(name)
    infos = _infos(sections, {}, (), defaults)
    return [info.definition for info in infos.configs if info.definition is not None]


def declared(
    name: str, raw: Mapping[str, str] | None = None
) -> tuple[Sequence[type], Mapping[str, str]]:
    """The sections that declare the keys of a connector's class, and the defaults that it sets
    instead of theirs. For a JDBC sink's class, ``raw`` may say which database is meant.

    Raises:
        ConfigError: there is no such class.
    """
    if is_source(name):
        source = source_class(name)
        return [SourceConnectorConfig, source.section], source.defaults
    sink = sink_class(name, raw)
    return [ConnectorConfig, sink.section], sink.defaults


def _sections(raw: Mapping[str, str]) -> tuple[Sequence[type], Mapping[str, str]]:
    for given in (raw, None):  # without a URL, there is a class for every JDBC sink
        with suppress(ConfigError):
            return declared(raw.get("connector.class", "").strip(), given)
    return [ConnectorConfig], {}


def _infos(
    sections: Iterable[type],
    raw: Mapping[str, str],
    problems: Sequence[Problem],
    defaults: Mapping[str, str],
    more: Iterable[Definition] = (),
) -> ConfigInfos:
    """Definitions, values and problems of a configuration: of its sections, and ``more``.

    ``defaults`` are those that the plugin sets instead of the definitions' own. Keys that no
    section declares appear if something is wrong with them, without a definition. A problem that
    names no key is put down to ``connector.class``.
    """
    by_name: dict[str, Definition] = {}
    for section in sections:
        for definition in definitions(section):
            by_name.setdefault(definition.name, definition)
    for definition in more:
        by_name.setdefault(definition.name, definition)
    name_of = {name: d.name for d in by_name.values() for name in d.names}
    errors: dict[str, list[Problem]] = {}
    for problem in problems:
        key = problem.key or "connector.class"
        errors.setdefault(name_of.get(key, key), []).append(problem)
    others = [name for name in errors if name not in by_name]
    if len(others) > _MOST:
        rest = f"{len(others) - _MOST:,} more keys have errors"
        last = others[_MOST - 1]
        errors[last].append(Problem(last, rest))
    configs = [ConfigInfo(None, _undeclared(name, errors[name])) for name in others[:_MOST]]
    orders: Counter[str | None] = Counter()
    for definition in by_name.values():
        orders[definition.group] += 1
        name = next(iter(given_names(definition, raw)), definition.name)
        default = defaults.get(definition.name, default_text(definition))
        value = _value(definition, raw[name]) if name in raw else default
        wrong = _messages(errors.get(definition.name, ()))
        configs.append(
            ConfigInfo(
                _key_info(definition, name, default, orders[definition.group]),
                ConfigValueInfo(name, value, definition.recommended_values, wrong, True),
            )
        )
    groups = [group for group in orders if group is not None]
    return ConfigInfos(raw.get("connector.class"), len(problems), groups, configs)


def _undeclared(name: str, problems: Sequence[Problem]) -> ConfigValueInfo:
    """A key may be named after a value, such as ``transforms.<alias>.type``."""
    return ConfigValueInfo(
        harmless(redacted(name)), problems[0].value, (), _messages(problems), True
    )


def _key_info(definition: Definition, name: str, default: str | None, order: int) -> ConfigKeyInfo:
    return ConfigKeyInfo(
        name,
        definition.type,
        definition.required,
        default,
        definition.importance,
        definition.documentation,
        definition.group,
        order if definition.group else -1,
        definition.width,
        definition.display_name,
        (),
    )


def _value(definition: Definition, value: str) -> str | None:
    """The value in force. As in Kafka Connect, a text that is not the number or boolean that it
    should be is None."""
    if definition.secret:
        return HIDDEN if value.strip() else ""
    try:
        text = text_of(parsed(definition, value))
    except ValueError:
        text = value if definition.type in _TEXTUAL or refers(value) or _is_number(value) else None
    return None if text is None else setting(definition.name, text, HIDDEN)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        whole(text.strip())
        return True
    return False


def _messages(problems: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(problem.message for problem in problems)
