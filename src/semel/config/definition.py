"""The declaration of a configuration key, as a field of a frozen dataclass.

A :class:`Definition` knows what Kafka Connect's ``ConfigDef.ConfigKey`` does.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import Any

from semel.core.errors import ConfigError, Problem

REQUIRED: Any = object()
"""Stands for the default of a key that must be given."""

PATTERN = r"\$\{([^}:]{0,255}:[^}]*)\}"
"""What a reference in a configuration looks like: ``${file:path:key}``. A provider's
name has a limit, so that a text with many ``${`` is searched in linear time."""
_REFERENCE = re.compile(PATTERN)

_IN_VALUES = re.compile(r"[^\t\n\r -~\xa0-\ud7ff\ue000-\U0010ffff]")
_IN_NAMES = re.compile(r"[^ -~\xa0-\ud7ff\ue000-\U0010ffff]")
"""What no value and no name of a configuration may contain."""


class Type(StrEnum):
    """Kafka Connect's types of values."""

    STRING = "STRING"
    SHORT = "SHORT"
    INT = "INT"
    LONG = "LONG"
    BOOLEAN = "BOOLEAN"
    LIST = "LIST"
    PASSWORD = "PASSWORD"
    CLASS = "CLASS"


class Importance(StrEnum):
    """How likely it is that a user must think about a key."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


HIGH, MEDIUM, LOW = Importance
LARGEST = {Type.SHORT: 2**15 - 1, Type.INT: 2**31 - 1, Type.LONG: 2**63 - 1}
"""The largest number of a type."""
_WIDTHS = {
    **dict.fromkeys((Type.BOOLEAN, *LARGEST), "SHORT"),
    **dict.fromkeys((Type.LIST, Type.CLASS), "LONG"),
}


@dataclass(frozen=True, slots=True)
class Definition:
    """The declaration of a key. ``attribute`` is its field in the section that declares it."""

    attribute: str
    annotation: Any
    name: str
    type: Type
    default: Any
    documentation: str
    importance: Importance
    group: str | None
    display_name: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...]
    recommended: tuple[str, ...]
    at_least: int | None
    at_most: int | None
    validator: Callable[[Any], None] | None
    may_be_empty: bool

    @property
    def required(self) -> bool:
        """Whether the key has no default."""
        return self.default is REQUIRED

    @property
    def secret(self) -> bool:
        """Whether values are never shown."""
        return self.type is Type.PASSWORD

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @property
    def width(self) -> str:
        """How wide a form's field for the value is."""
        return _WIDTHS.get(self.type, "MEDIUM")

    @property
    def recommended_values(self) -> tuple[str, ...]:
        """The values to offer to a user."""
        return self.recommended or tuple(filter(None, self.choices))


def key(
    name: str,
    default: Any = REQUIRED,
    doc: str = "",
    *,
    type: Type | None = None,
    importance: Importance | None = None,
    group: str | None = None,
    display: str = "",
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    recommended: tuple[str, ...] = (),
    at_least: int | None = None,
    at_most: int | None = None,
    validator: Callable[[Any], None] | None = None,
    secret: bool = False,
    may_be_empty: bool = False,
) -> Any:
    """Declare a configuration key as a dataclass field.

    Args:
        name: the key.
        default: the value if the key is not given; ``None`` if it is worked out from other keys.
            A key without a default is required.
        doc: what the key means, in a sentence or two.
        type: by default it follows from the field's annotation: ``str`` is STRING, ``int`` LONG,
            ``bool`` BOOLEAN, a tuple LIST, an enumeration STRING; a secret is a PASSWORD.
        importance: HIGH by default for a required key, else MEDIUM.
        group: the heading under which a form shows this key and those after it, up to the next
            heading.
        display: the name that a form shows, by default the key in words.
        aliases: names that other connectors give to the same setting.
        choices: all values there are, accepted in any case.
        recommended: values to offer where others are accepted too.
        at_least: the smallest number.
        at_most: the largest number.
        validator: is called with the typed value and raises ``ValueError`` with what is wrong with
            it; the message continues from ``key='value'``.
        secret: the value is never shown.
        may_be_empty: an empty text is a value, not a mistake.
    """
    metadata = {
        "name": name,
        "documentation": doc,
        "type": Type.PASSWORD if secret else type,
        "importance": importance or (HIGH if default is REQUIRED else MEDIUM),
        "group": group,
        "display_name": display or _title(name),
        "aliases": aliases,
        "choices": choices,
        "recommended": recommended,
        "at_least": at_least,
        "at_most": at_most,
        "validator": validator,
        "may_be_empty": may_be_empty,
    }
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, kw_only=True, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, kw_only=True, repr=not secret)


def definitions(section: type) -> tuple[Definition, ...]:
    """What a section declares, in its order."""
    return _definitions(section)


@cache
def _definitions(section: type) -> tuple[Definition, ...]:
    hints = typing.get_type_hints(section)
    keys, group = [], None
    for field in dataclasses.fields(section):
        if "name" in field.metadata:
            group = field.metadata["group"] or group
            keys.append(_definition(field, hints[field.name], group))
    return tuple(keys)


def names(section: type) -> Iterator[str]:
    """Every key and alias that ``section`` declares."""
    for definition in definitions(section):
        yield from definition.names


def default_text(definition: Definition) -> str | None:
    """A default as a user would write it; None if there is none, or if it is worked out."""
    return None if definition.required else text_of(definition.default)


def text_of(value: object) -> str | None:
    """A typed value as a user would write it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def without_none(annotation: Any) -> Any:
    """``T`` for ``T | None``, and for ``T``."""
    if isinstance(annotation, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def _title(name: str) -> str:
    """``batch.size`` as Batch Size."""
    return " ".join(word[:1].upper() + word[1:] for word in re.split(r"[._-]", name))


def _definition(field: dataclasses.Field[Any], annotation: Any, group: str | None) -> Definition:
    facts = {**field.metadata, "group": group}
    value = without_none(annotation)
    if isinstance(value, type) and issubclass(value, Enum):
        auto = ("auto",) if value is not annotation else ()
        facts["choices"] = (*auto, *(str(member.value) for member in value))
    default = field.default
    if default is dataclasses.MISSING:
        factory = field.default_factory
        default = REQUIRED if factory is dataclasses.MISSING else factory()
    facts["type"] = facts["type"] or _type(value)
    return Definition(attribute=field.name, annotation=annotation, default=default, **facts)


def _type(value: Any) -> Type:
    if value is bool:
        return Type.BOOLEAN
    if value is int:
        return Type.LONG
    return Type.LIST if typing.get_origin(value) is tuple else Type.STRING


def replaced(value: Callable[[re.Match[str]], str], text: str) -> str:
    """A text with values in the place of its references."""
    end = text.rfind("}") + 1  # beyond it, each ${ would be followed to the end
    return _REFERENCE.sub(value, text[:end]) + text[end:]


def refers(text: str) -> bool:
    """Whether a value has a reference."""
    return _REFERENCE.search(text, 0, text.rfind("}") + 1) is not None


def check_value(text: str) -> str:
    """The text.

    Raises:
        ValueError: it is no text, or has control characters other than tabs and line ends; the
            message continues after the key.
    """
    return _checked(text, _IN_VALUES)


def check_name(text: str) -> str:
    """The text.

    Raises:
        ValueError: it is no text, or has control characters.
    """
    return _checked(text, _IN_NAMES)


def check_pair(name: str, value: str) -> None:
    """Check a key and its value.

    Raises:
        ConfigError: as :func:`check_value`.
    """
    shown = ascii(name)[1:-1]
    for check, text, what in ((check_name, name, "its name"), (check_value, value, "its value")):
        try:
            check(text)
        except ValueError as error:
            raise ConfigError(Problem(shown, f"{shown}: {what} {error}")) from None


def _checked(text: str, wrong: re.Pattern[str]) -> str:
    match = wrong.search(text)
    if match is None:
        return text
    number = f"U+{ord(match[0]):04X}"
    if "\ud800" <= match[0] <= "\udfff":
        raise ValueError(f"is not UTF-8, or has a lone surrogate, {number}")
    raise ValueError(f"has the control character {number}")
