"""The common ones among Jeremy Custenborder's transforms: fields, topics and times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.semantic import milliseconds
from semel.core.patterns import check, compiled
from semel.core.records import TIMESTAMP_TYPE
from semel.transforms.base import (
    Batch,
    Contents,
    ContentsTransform,
    ReadingTransform,
    Router,
    flags,
    refuse,
    valid,
)
from semel.transforms.structs import (
    Columns,
    column,
    columns,
    java_class,
    refuse_duplicate,
    required,
    struct,
)

_UNSUPPORTED = "java.lang.UnsupportedOperationException"
_FLAGS = {
    **{"CASE_INSENSITIVE": "i", "COMMENTS": "x", "DOTALL": "s"},
    **{"MULTILINE": "m", "UNICODE_CASE": "u"},
}


def _flags(names: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in _FLAGS]
    if unknown:
        raise ValueError(f"{unknown[0]} is not one of {', '.join(_FLAGS)}")


@dataclass(frozen=True)
class ExtractTimestampConfig:
    """The keys of ExtractTimestamp."""

    field: str = key(
        "field.name", doc="The field that holds the time, in milliseconds if a number."
    )


class ExtractTimestamp(ReadingTransform):
    """See the transform of this name. Its variant for keys reads the value, too."""

    section = ExtractTimestampConfig
    config: ExtractTimestampConfig
    needs_key = False
    sets_timestamp = True

    @property
    def fields_by_type(self) -> Sequence[str]:
        return (self.config.field,)

    def apply(self, batch: Batch) -> Batch:
        values = batch.values.array
        name, every = self.config.field, np.full(len(batch), True)
        why = "the value is not an object that a timestamp can be taken from"
        refuse(~valid(values) if batch.values.is_struct else every, why, _UNSUPPORTED)
        child = columns(values).get(name)
        if child is None and batch.values.has_schema:
            refuse(every, f"Schema does not have field '{name}'")
        times = pa.nulls(len(batch)) if child is None else child.array
        missing = ~valid(times)
        if pa.types.is_null(times.type) or not batch.values.has_schema:
            refuse(missing, f"Field '{name}' cannot be null.")
        if pa.types.is_timestamp(times.type):
            stamps = milliseconds(times)
        elif pa.types.is_int64(times.type):
            stamps = times
        else:
            kind = java_class(times.type, has_schema=batch.values.has_schema)
            refuse(every, f"Cannot convert {kind} to timestamp.")
        refuse(missing, f"Field '{name}' cannot be null.")
        return replace(batch, times=stamps.cast(TIMESTAMP_TYPE))


@dataclass(frozen=True)
class PatternRenameConfig:
    """The keys of PatternRename."""

    pattern: str = key("field.pattern", doc="The expression to find in names.", validator=check)
    flags: tuple[str, ...] = key(
        "field.pattern.flags",
        ("CASE_INSENSITIVE",),
        f"{', '.join(_FLAGS)}.",
        validator=_flags,
    )
    replacement: str = key(
        "field.replacement", doc="What each match becomes; $1 is a group.", may_be_empty=True
    )


class PatternRename(ContentsTransform):
    """See the transform of this name: renames top-level fields."""

    section = PatternRenameConfig
    moves_numbers = True

    def __init__(self, config: PatternRenameConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._pattern = compiled(config.pattern, "".join(_FLAGS[name] for name in config.flags))
        self._template = self._pattern.template(config.replacement)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "field renaming", nulls=True)
        renamed: Columns = {}
        for name, child in columns(array).items():
            new = self._pattern.all_replaced(self._template, name)
            refuse_duplicate(new, renamed, contents, array)
            renamed[new] = child.over(renamed.get(new))
        return contents.holding(struct(renamed, array))


@dataclass(frozen=True)
class PatternFilterConfig:
    """The keys of PatternFilter."""

    pattern: str = key("pattern", doc="Matches the whole text.", validator=check)
    fields: tuple[str, ...] = key("fields", doc="The fields; one that matches drops the record.")


class PatternFilter(ReadingTransform):
    """See the transform of this name."""

    section = PatternFilterConfig
    config: PatternFilterConfig

    def __init__(self, config: PatternFilterConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._pattern = compiled(config.pattern)

    @property
    def fields_by_type(self) -> Sequence[str]:
        return self.config.fields

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        if not contents.is_struct:
            return batch
        fields = columns(contents.array)
        gone = np.zeros(len(batch), dtype=bool)
        for name in self.config.fields:
            if name in fields and pa.types.is_string(fields[name].type):
                gone |= flags(pc.fill_null(self._pattern.matches(fields[name].array), False))
        return batch.only(~gone)


class SetNull(ContentsTransform):
    """See the transform of this name: the key or the value becomes null."""

    needs_key = False
    moves_numbers = True

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        return Contents(pa.nulls(len(batch), contents.array.type), contents.has_schema)


@dataclass(frozen=True)
class TopicNameToFieldConfig:
    """The keys of TopicNameToField."""

    field: str = key("field", doc="The field that holds the topic.")


class TopicNameToField(ContentsTransform):
    """See the transform of this name."""

    section = TopicNameToFieldConfig
    config: TopicNameToFieldConfig
    moves_numbers = True

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "the name of the topic", nulls=True)
        fields = columns(array)
        refuse_duplicate(self.config.field, fields, contents, array)
        fields[self.config.field] = column(self.config.field, batch.topics)
        return contents.holding(struct(fields, array))


class LowerCaseTopic(Router):
    """See the transform of this name."""

    def route(self, topic: str) -> str:
        return topic.lower()


def _capitalized(word: str) -> str:
    return word[:1].upper() + word[1:].lower()


@dataclass(frozen=True, slots=True)
class _Case:
    """A way to write a name of several words."""

    boundary: re.Pattern[str]
    separator: str
    word: Callable[[str], str]
    first: Callable[[str], str]


_CAPITAL = re.compile("[A-Z]")
_CASES = {
    "lower_camel": _Case(_CAPITAL, "", _capitalized, str.lower),
    "lower_hyphen": _Case(re.compile("-"), "-", str.lower, str.lower),
    "lower_underscore": _Case(re.compile("_"), "_", str.lower, str.lower),
    "upper_camel": _Case(_CAPITAL, "", _capitalized, _capitalized),
    "upper_underscore": _Case(re.compile("_"), "_", str.upper, str.upper),
}


def recased(name: str, source: str, target: str) -> str:
    """A name in one case, rewritten in another as Guava's ``CaseFormat`` does. A word begins at a
    capital, or after a separator."""
    if source == target:
        return name
    old, new = _CASES[source], _CASES[target]
    words, begin = [], 0
    for boundary in old.boundary.finditer(name):
        if old.separator or boundary.start() > begin:
            words.append(name[begin : boundary.start()])
        begin = boundary.start() + len(old.separator)
    words.append(name[begin:])
    first, *others = words
    return new.separator.join([new.first(first), *map(new.word, others)])


@dataclass(frozen=True)
class ChangeTopicCaseConfig:
    """The keys of ChangeTopicCase."""

    given: str = key("from", doc="The case of topics.", choices=tuple(_CASES))
    wanted: str = key("to", doc="The case that they get.", choices=tuple(_CASES))


class ChangeTopicCase(Router):
    """See the transform of this name."""

    section = ChangeTopicCaseConfig
    config: ChangeTopicCaseConfig

    def route(self, topic: str) -> str:
        return recased(topic, self.config.given.lower(), self.config.wanted.lower())
