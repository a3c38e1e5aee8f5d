"""The user's strings as an instance of a section, with every mistake reported at once."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from semel.config.definition import REQUIRED, default_of, names
from semel.errors import ConfigError, Problem
from semel.problems import Problems, current

T = TypeVar("T")


def read(section: type[T], raw: Mapping[str, str]) -> T:
    """Build ``section`` from the user's strings.

    Raises:
        ConfigError: lists every missing key, every value of the wrong type and what does not fit
            together. While problems are gathered, they are reported there instead, and the section
            has defaults in the place of what cannot be used.
    """
    values: dict[str, Any] = {}
    found = Problems()
    renamed: dict[str, str] = {}
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        meta = field.metadata
        name = meta["name"]
        given = [n for n in (name, *meta["aliases"]) if n in raw]
        default = default_of(field)
        if given and (raw[given[0]].strip() or default is not REQUIRED):
            renamed[name] = given[0]
        try:
            values[field.name] = _value(section, field, hints[field.name], raw, given)
        except _Unusable as error:
            given = given or [name]
            value = "" if meta["secret"] else raw.get(given[0], "")
            found.add([Problem(given[0], value, str(error))])
            found.unusable |= {name, *given}
            values[field.name] = "" if default is REQUIRED else default
    made = object.__new__(section)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    check = getattr(made, "__post_init__", None)
    if check is not None:
        try:
            check()
        except ConfigError as error:
            words = (_in_the_users_words(p.message, renamed) for p in error.problems)
            found.add([Problem("", "", message) for message in words])
    gathered = current()
    if gathered is not None:
        gathered.add(found.found)
        gathered.unusable |= found.unusable
    elif found.found:
        raise ConfigError(*found.found, title=title(raw))
    return made


def title(raw: Mapping[str, str]) -> str:
    """What messages about a connector begin with."""
    return f"connector {raw['name']}: " if raw.get("name") else ""


class _Unusable(Exception):
    """What is wrong with a setting."""


def _value(
    section: type,
    field: dataclasses.Field[Any],
    hint: Any,
    raw: Mapping[str, str],
    given: Sequence[str],
) -> Any:
    meta, default = field.metadata, default_of(field)
    if len({raw[n] for n in given}) > 1:
        raise _Unusable(f"{' and '.join(given)} are the same setting with different values")
    if default is REQUIRED and not (given and raw[given[0]].strip()):
        others = raw.keys() - names(section)
        near = difflib.get_close_matches(meta["name"], others, n=1, cutoff=0.85)
        which = f"; was {near[0]} meant to be it?" if near else "."
        raise _Unusable(f"{meta['name']} is required{which} {meta['doc']}")
    if not given:
        return default
    if default and _is_blank_text(field, raw[given[0]]):
        raise _Unusable(f"{given[0]} is empty: set it, or remove it for the default, {default}")
    try:
        return _parse(hint, raw[given[0]], meta)
    except ValueError as error:
        shown = "" if meta["secret"] else f"={raw[given[0]]!r}"
        raise _Unusable(f"{given[0]}{shown} {error}") from None


def _is_blank_text(field: dataclasses.Field[Any], text: str) -> bool:
    return isinstance(field.default, str) and not field.metadata["choices"] and not text.strip()


def _in_the_users_words(message: str, names: Mapping[str, str]) -> str:
    """The message with each ``key=`` as it was written, where that was by an alias."""
    for name, given in names.items():
        if given != name:
            message = re.sub(rf"(?<![\w.]){re.escape(name)}(?==)", given, message)
    return message


def _parse(hint: Any, text: str, meta: Mapping[str, Any]) -> Any:
    optional = isinstance(hint, types.UnionType)
    if optional:
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    text = text.strip()
    if meta["choices"]:
        return _choice(text.lower(), meta["choices"], meta["doc"])
    if isinstance(hint, type) and issubclass(hint, Enum):
        if optional and text.lower() in ("", "auto"):
            return None
        try:
            return hint(text.lower())
        except ValueError:
            known = [*(["auto"] if optional else []), *(m.value for m in hint)]
            raise ValueError(f"must be one of {', '.join(known)}") from None
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"
    if hint is int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if meta["at_least"] is not None and number < meta["at_least"]:
            raise ValueError(f"must be at least {meta['at_least']}")
        return number
    if typing.get_origin(hint) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _choice(text: str, choices: tuple[str, ...], doc: str) -> str:
    if text in choices:
        return text
    if len(choices) == 1:
        raise ValueError(f"must be {choices[0]}: {doc}")
    raise ValueError(f"must be one of {', '.join(filter(None, choices))}")
