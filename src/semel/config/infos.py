"""What Kafka Connect answers to ``PUT /connector-plugins/{type}/config/validate``.

Classes and fields have the names of Kafka Connect's (4.3), which its clients and consoles read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from semel.config.definition import Definition, Type, default_text, definitions, refers, text_of
from semel.config.reading import given_names, parsed, whole
from semel.core.errors import Problem
from semel.core.quoting import harmless
from semel.core.redact import redacted, setting

HIDDEN = "[hidden]"
"""What Kafka Connect shows instead of a password."""
_MOST = 100
"""Keys that no section declares, but that have errors, of which an answer tells."""
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


def config_infos(
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
    declared: dict[str, Definition] = {}
    for section in sections:
        for definition in definitions(section):
            declared.setdefault(definition.name, definition)
    for definition in more:
        declared.setdefault(definition.name, definition)
    name_of = {name: d.name for d in declared.values() for name in d.names}
    errors: dict[str, list[Problem]] = {}
    for problem in problems:
        key = problem.key or "connector.class"
        errors.setdefault(name_of.get(key, key), []).append(problem)
    others = [name for name in errors if name not in declared]
    if len(others) > _MOST:
        rest = f"{len(others) - _MOST:,} more keys have errors"
        last = others[_MOST - 1]
        errors[last].append(Problem(last, rest))
    configs = [ConfigInfo(None, _undeclared(name, errors[name])) for name in others[:_MOST]]
    orders: Counter[str | None] = Counter()
    for definition in declared.values():
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
