"""The user's strings as an instance of a section, with every mistake reported at once."""

from __future__ import annotations

import copyreg
import dataclasses
import difflib
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from semel.config.definition import (
    LARGEST,
    REQUIRED,
    Definition,
    Type,
    definitions,
    names,
    without_none,
)
from semel.config.providers import ResolvedConfig, resolved, shown
from semel.core.errors import ConfigError, Problem, Unresolvable, prefixed
from semel.core.problems import Problems, current, gathering

T = TypeVar("T")
BLANKS = "".join(map(chr, range(33)))
"""What Java's ``trim`` removes."""
PREFIXES = (
    "key.converter.",
    "value.converter.",
    "header.converter.",
    "consumer.override.",
    "producer.override.",
    "admin.override.",
    "storage.options.",
    "config.providers",
    "transforms.",
    "predicates.",
    "spark.",
    "semel.connectors.",
    "topic.creation.enable",
    *("group.id", "offsets.storage.topic", "offset.storage.", "semel.python.modules"),
)
"""Keys under these belong to a converter, a Kafka client, a store, Spark, a config provider or the
worker, and pass through."""

_SCHEMAS = "schemas.enable"
_PLUGIN_VERSION = "plugin.version"
_ONE_VERSION = "there is one version of each plugin"
IGNORED = {
    **dict.fromkeys(
        (f"{plugin}.{_PLUGIN_VERSION}" for plugin in ("connector", "header.converter")),
        _ONE_VERSION,
    ),
    "config.action.reload": "semel reads a configuration once, at start",
    "errors.retry.timeout": "conversion is deterministic; the store is retried by max.retries",
    "errors.retry.delay.max.ms": "conversion is deterministic; see retry.backoff.ms",
    "tasks.max.enforce": "no more than tasks.max tasks ever run",
    "header.converter": "headers are carried as they are, and transforms write text, as "
    "SimpleHeaderConverter does",
}
"""Kafka Connect's keys that have no effect here, with the reason."""
_OF_LICENSES = ("confluent.license", "confluent.topic")
"""How the keys of Confluent's licenses begin."""

HINTS, _LONGEST = 50, 200
"""Among how many warnings near keys are looked for, and for keys of which length: it is slow."""

VALUE_CONVERTER = (
    "value.converter is not set: values are JSON here. Kafka Connect's worker may have another "
    "default; set value.converter to it"
)
"""A warning."""


def read(section: type[T], raw: Mapping[str, str]) -> T:
    """Build ``section`` from the user's strings.

    Raises:
        ConfigError: lists every missing key, every value of the wrong type and every conflict
            between keys. While problems are being gathered, they go there instead, and the section
            has defaults in place of values that cannot be used.
    """
    values: dict[str, Any] = {}
    problems = Problems()
    written: dict[str, str] = {}
    for definition in definitions(section):
        default = definition.default
        keys = given_names(definition, raw)
        if keys and not _lacks_value(definition, raw, keys):
            written[definition.name] = keys[0]
        try:
            values[definition.attribute] = _value(section, definition, raw, keys)
        except _Unusable as error:
            keys = keys or (definition.name,)
            value = "" if definition.secret else shown(raw, keys[0])
            problems.add([Problem(keys[0], str(error), value)])
            problems.unusable |= {definition.name, *keys}
            values[definition.attribute] = "" if default is REQUIRED else default
    instance = object.__new__(section)
    if any(f.name == "originals" for f in dataclasses.fields(section)):  # type: ignore[arg-type]
        values["originals"] = raw if isinstance(raw, ResolvedConfig) else dict(raw)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    check = getattr(instance, "__post_init__", None)
    if check is not None:
        try:
            check()
        except ConfigError as error:
            secret = {d.name for d in definitions(section) if d.secret}
            for problem in error.problems:
                given_as = written.get(problem.key, problem.key)
                value = "" if problem.key in secret else shown(raw, given_as)
                message = _in_the_users_words(problem.message, written)
                problems.add([Problem(given_as, message, value)])
    gathered = current()
    if gathered is not None:
        gathered.add(problems.items)
        gathered.unusable |= problems.unusable
    elif problems.items:
        raise ConfigError(*problems.items, title=title(raw))
    return instance


def restored(section: type[T], given: Mapping[str, str], values: Mapping[str, Any]) -> T:
    """A section from another process: these values, with references resolved here.

    Raises:
        Unresolvable: names each reference that has no value here, in one line.
    """
    try:
        raw = resolved(given)
    except ConfigError as error:
        raise Unresolvable("; ".join(p.message for p in error.problems)) from None
    instance = read(section, raw)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def reduced(instance: Any) -> tuple[Any, ...]:
    """How :mod:`pickle` stores a section: with references, not their values."""
    raw = instance.originals
    if not isinstance(raw, ResolvedConfig) or not raw.references:
        return copyreg.__newobj__, (type(instance),), vars(instance)  # type: ignore[attr-defined]
    values = {
        d.attribute: getattr(instance, d.attribute)
        for d in definitions(type(instance))
        if raw.references.keys().isdisjoint(d.names)
    }
    return restored, (type(instance), raw.given, values)


def given_names(definition: Definition, raw: Mapping[str, str]) -> tuple[str, ...]:
    """The names by which the user has set a key."""
    return tuple(n for n in definition.names if n in raw)


def parsed(definition: Definition, text: str) -> Any:
    """The typed value of a user's text.

    Raises:
        ValueError: says what is wrong with it.
    """
    value = _parsed(definition, text.strip(BLANKS))
    if definition.validator is not None:
        definition.validator(value)
    return value


def whole(text: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """A whole number as Java's ``parseLong`` reads it: a sign, and digits of any script, but no
    blanks and no underscores.

    Raises:
        ValueError: it is none, or out of range.
    """
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not digits.isdecimal() or max(digits) > "\uffff":
        raise ValueError("must be a whole number")
    try:
        number = int(text)
    except ValueError:  # Python refuses thousands of digits
        number = least - 1 if text[0] == "-" else most + 1
    if number < least:
        raise ValueError(f"must be at least {least}")
    if number > most:
        raise ValueError(f"must be at most {most}")
    return number


def title(raw: Mapping[str, str]) -> str:
    """The prefix of messages about a connector."""
    return f"connector {raw['name']}: " if raw.get("name") else ""


class _Unusable(Exception):
    """What is wrong with a setting."""


def _value(
    section: type, definition: Definition, raw: Mapping[str, str], keys: Sequence[str]
) -> Any:
    name, default = definition.name, definition.default
    if len({raw[n] for n in keys}) > 1:
        raise _Unusable(f"{' and '.join(keys)} are the same setting with different values")
    if _lacks_value(definition, raw, keys):
        others = raw.keys() - names(section)
        near = difflib.get_close_matches(name, others, n=1, cutoff=0.85)
        which = f"; is {near[0]} a misspelling of it?" if near else "."
        raise _Unusable(f"{name} is required{which} {definition.documentation}")
    if not keys:
        return default
    if default and _is_blank_text(definition, raw[keys[0]]):
        raise _Unusable(f"{keys[0]} is empty: set it, or remove it for the default, {default}")
    try:
        return parsed(definition, raw[keys[0]])
    except ValueError as error:
        value = "" if definition.secret else f"={shown(raw, keys[0])!r}"
        raise _Unusable(f"{keys[0]}{value} {error}") from None


def _lacks_value(definition: Definition, raw: Mapping[str, str], keys: Sequence[str]) -> bool:
    """Whether a required key is missing, or empty without being allowed to be."""
    if not definition.required:
        return False
    return not keys or not (definition.may_be_empty or raw[keys[0]].strip())


def _is_blank_text(definition: Definition, text: str) -> bool:
    empty = not (definition.may_be_empty or definition.choices or text.strip())
    return isinstance(definition.default, str) and empty


def _in_the_users_words(message: str, written: Mapping[str, str]) -> str:
    """The message with aliases in place of keys, where the user wrote those: in each ``key=``, and
    in a key at the beginning."""
    for name, alias in written.items():
        if alias != name:
            key = re.escape(name)
            message = re.sub(rf"(?<![\w.]){key}(?==)|^{key}(?![\w.-])", alias, message)
    return message


def _parsed(definition: Definition, text: str) -> Any:
    kind = without_none(definition.annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if kind is not definition.annotation and text.lower() in ("", "auto"):
            return None
        return kind(_choice(text.lower(), definition))
    if definition.choices:
        return _choice(text.lower(), definition)
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"
    if kind is int:
        return _number(definition, text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _number(definition: Definition, text: str) -> int:
    largest = LARGEST.get(definition.type, LARGEST[Type.LONG])
    least = -largest - 1 if definition.at_least is None else definition.at_least
    most = largest if definition.at_most is None else definition.at_most
    return whole(text, least, most)


def _choice(text: str, definition: Definition) -> str:
    choices = definition.choices
    if text in choices:
        return text
    if len(choices) == 1:
        reason = definition.documentation[:1].lower() + definition.documentation[1:]
        raise ValueError(f"must be {choices[0]}: {reason}")
    raise ValueError(f"must be one of {', '.join(filter(None, choices))}")


@dataclass(frozen=True)
class NoKeys:
    """The section of a converter, a transform or a predicate without keys."""


def below(prefix: str, group: str | None, *sections: type) -> Iterator[Definition]:
    """The keys of sections, by their full names; in their own groups if ``group`` is None."""
    for section in sections:
        for definition in definitions(section):
            whole, *aliases = (prefix + name for name in definition.names)
            heading = group or definition.group
            yield replace(definition, name=whole, aliases=tuple(aliases), group=heading)


def section_of(section: type, given: Mapping[str, str], prefix: str, *, otherwise: str) -> Any:
    """A section, read from the keys below ``prefix``, which are given without it.

    Args:
        otherwise: the key of problems that name none.

    Raises:
        ConfigError: every missing key and every value that cannot be used, by its whole name.
    """
    with gathering() as problems:
        instance: Any = read(section, given)
    if problems.items:
        raise prefixed(problems.items, prefix, otherwise=otherwise)
    return instance


def check_keys(
    raw: Mapping[str, str],
    sections: Iterable[type],
    ignored: Mapping[str, str],
    prefixes: tuple[str, ...] = (),
    cutoff: float = 0.8,
) -> list[str]:
    """Warnings for keys that no section knows (with the nearest known one) or that are ignored."""
    known = {n for section in sections for n in names(section)}
    licenses = dict.fromkeys((n for n in raw if n.startswith(_OF_LICENSES)), "no license is needed")
    ignored = {**licenses, **IGNORED, **ignored}
    others = [n for n in raw if n not in known]
    unknown = [n for n in others if n not in ignored and not n.startswith(PREFIXES + prefixes)]
    warnings = [f"{n} has no effect: {ignored[n]}" for n in others if n in ignored]
    return warnings + unknown_keys(unknown, known, cutoff=cutoff)


def check_converter_keys(given: Mapping[str, str], section: type, where: str) -> list[str]:
    """Warnings for keys below ``where`` that its converter's section does not declare."""
    known = set(names(section))
    without_effect = {"replace.null.with.default", "schemas.cache.size"}
    unknown = given.keys() - known - without_effect
    warnings = unknown_keys(sorted(unknown - {_SCHEMAS}), known, f"{where}.")
    if _SCHEMAS in unknown:
        warnings.append(f"{where}.{_SCHEMAS} has no effect: it belongs to the JsonConverter")
    return warnings


def unknown_keys(
    unknown: Sequence[str],
    known: Collection[str],
    prefix: str = "",
    *,
    cutoff: float = 0.6,
    hints: int = HINTS,
) -> list[str]:
    """Warnings for unknown keys below a prefix. The first ``hints`` name the nearest known key, or
    one that continues the name."""
    warnings = []
    for at, name in enumerate(unknown):
        if name == _PLUGIN_VERSION:  # KIP-891
            warnings.append(f"{prefix}{name} has no effect: {_ONE_VERSION}")
            continue
        may_hint = at < hints and len(name) < _LONGEST
        near: list[str] = []
        if may_hint:
            near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
            near = near or sorted(n for n in known if n.startswith(f"{name}."))
        hint = f"; did you mean {prefix}{near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {prefix}{name}{hint}")
    return warnings
