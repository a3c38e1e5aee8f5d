"""Aiven's transforms."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.semantic import milliseconds
from semel.core.errors import misconfigured
from semel.core.patterns import check, compiled
from semel.core.quoting import named, typed
from semel.core.records import TIMESTAMP_TYPE
from semel.transforms import confluent
from semel.transforms.base import (
    Batch,
    Contents,
    ContentsTransform,
    ReadingTransform,
    Refused,
    Transform,
    each,
    flags,
    reasons,
    refuse,
    valid,
)
from semel.transforms.structs import (
    Column,
    Columns,
    column,
    columns,
    connect_type,
    refuse_all,
    refuse_duplicate,
    required,
    struct,
)
from semel.transforms.texts import java_text

_MORE_THAN_TEXT = re.compile(r"\s*([-+.\d\"'\[{]|null\b|NaN\b|Infinity\b)")
"""Kafka Connect's ``Values.parseString`` turns text that begins like this into something other than
text."""


@dataclass(frozen=True)
class ConcatFieldsConfig:
    """The keys of ConcatFields."""

    fields: tuple[str, ...] = key("field.names", doc="The fields whose texts are joined.")
    output: str = key("output.field.name", doc="The field that gets the text.")
    delimiter: str = key("delimiter", "", "The separator between them.")
    missing: str = key("field.replace.missing", "", "Replaces a missing or null field.")


class ConcatFields(ContentsTransform):
    """See Aiven's transform of this name."""

    section = ConcatFieldsConfig
    config: ConcatFieldsConfig

    @property
    def fields_by_type(self) -> Sequence[str]:
        return self.config.fields

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "concatenating fields", nulls=False)
        fields = columns(array)
        texts = [self._text(fields.get(name), contents, array) for name in self.config.fields]
        joined = pc.binary_join_element_wise(*texts, self.config.delimiter)
        refuse_duplicate(self.config.output, fields, contents, array)
        fields[self.config.output] = column(self.config.output, joined)
        return Contents(struct(fields, array), contents.has_schema)

    def _text(self, child: Column | None, contents: Contents, array: pa.Array) -> pa.Array:
        if child is None:
            return pa.repeat(pa.scalar(self.config.missing), len(array))
        _refuse_nested(child, contents, array)
        return pc.fill_null(java_text(child.array), self.config.missing)


@dataclass(frozen=True)
class CaseTransformConfig:
    """The keys of CaseTransform."""

    fields: tuple[str, ...] = key("field.names", doc="The fields.")
    case: str = key("case", doc="The case of their letters.", choices=("lower", "upper"))


class CaseTransform(ContentsTransform):
    """See Aiven's transform of this name."""

    section = CaseTransformConfig
    moves_numbers = True
    config: CaseTransformConfig

    def __init__(self, config: CaseTransformConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._change = str.lower if config.case.lower() == "lower" else str.upper

    @property
    def fields_by_type(self) -> Sequence[str]:
        return self.config.fields

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "changing the case", nulls=False)
        fields: Columns = columns(array)
        for name in self.config.fields:
            child = fields.get(name)
            if child is None and not contents.has_schema:
                fields[name] = column(name, pa.nulls(len(array), pa.string()))
            elif child is not None and pa.types.is_string(child.type):
                cased = child.holding(each(child.array, self._change))
                fields[name] = cased if contents.has_schema else cased.everywhere()
            elif child is not None and not contents.has_schema:  # a map takes text in any place
                _refuse_nested(child, contents, array)
                texts = each(java_text(child.array), self._change)
                fields[name] = column(name, texts)
        return contents.holding(struct(fields, array))


@dataclass(frozen=True)
class FilterByFieldValueConfig:
    """The keys of FilterByFieldValue."""

    field: str = key("field.name", "", "The field; empty for the whole key or value.")
    value: str | None = key("field.value", None, "The value to look for: text, true or false.")
    pattern: str = key(
        "field.value.pattern", "", "The expression to find in its text.", validator=check
    )
    matches: bool = key("field.value.matches", True, "Whether records that match are kept.")

    def __post_init__(self) -> None:
        if (self.value is not None) == bool(self.pattern):
            raise misconfigured(
                "field.value",
                "Either field.value or field.value.pattern have to be set to apply filter "
                "transform",
            )
        if self.value is not None and _MORE_THAN_TEXT.match(self.value):
            raise misconfigured(
                "field.value",
                f"field.value={self.value} is not read as text, so it would match no text. "
                "Set field.value.pattern=^...$ instead",
            )


class FilterByFieldValue(ReadingTransform):
    """See Aiven's transform of this name."""

    section = FilterByFieldValueConfig
    config: FilterByFieldValueConfig

    def __init__(self, config: FilterByFieldValueConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._pattern = compiled(config.pattern) if config.pattern else None

    @property
    def fields_by_type(self) -> Sequence[str]:
        return (self.config.field,)

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        present = valid(contents.array)
        child = self._field_or_whole(contents)
        matching = self._matching(child, contents, present)
        return batch.only(~present | (matching == self.config.matches))

    def _field_or_whole(self, contents: Contents) -> Column:
        name = self.config.field
        if not name:
            if contents.has_schema:
                refuse_all(contents.array, "what has a schema cannot be filtered as a whole")
            return column("", contents.array)
        array = required(contents, "filtering", nulls=True)
        child = columns(array).get(name)
        if child is None and contents.has_schema:
            refuse_all(array, f"field {named(name)}, by which records are filtered, is missing")
        return child or column(name, pa.nulls(len(array), pa.string()))

    def _matching(self, child: Column, contents: Contents, present: np.ndarray) -> np.ndarray:
        _refuse_nested(child, contents, contents.array)
        if self._pattern is None:
            name = self.config.field
            what = f"field {named(name)}" if name else "the key or value"
            missing = ~valid(child.array) & present
            refuse(missing, f"{what}, by which records are filtered, is null")
        return flags(pc.fill_null(self._holds(java_text(child.array), child.type), False))

    def _holds(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        if self._pattern is not None:
            return self._pattern.finds(texts)
        value = self.config.value
        assert value is not None
        is_flag = value.strip().lower() in ("true", "false")
        expected = value.strip().lower() if is_flag else value
        if pa.types.is_boolean(kind) if is_flag else pa.types.is_string(kind):
            return pc.equal(texts, expected)
        return pa.repeat(pa.scalar(False), len(texts))


def _refuse_nested(child: Column, contents: Contents, array: pa.Array) -> None:
    kind = connect_type(child, has_schema=contents.has_schema)
    if kind is not None:
        refuse_all(
            array, f"field {named(child.field.name)} is of type {kind}, which has no text here"
        )


def _named(text: str) -> None:
    if not text:
        raise ValueError("must not be empty")


@dataclass(frozen=True)
class ExtractTimestampConfig:
    """The keys of ExtractTimestamp."""

    field: str = key("field.name", doc="The field that holds the time.", validator=_named)
    resolution: str = key(
        "timestamp.resolution",
        "milliseconds",
        "The unit of a time that is a number.",
        choices=("milliseconds", "seconds"),
    )


class ExtractTimestamp(ReadingTransform):
    """See Aiven's transform of this name. Kafka's own timestamp is kept beside the new one."""

    section = ExtractTimestampConfig
    config: ExtractTimestampConfig
    sets_timestamp = True

    @property
    def fields_by_type(self) -> Sequence[str]:
        return (self.config.field,)

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        array = required(contents, "timestamp extraction", nulls=False)
        child = columns(array).get(self.config.field)
        times = pa.nulls(len(array)) if child is None else child.array
        where = f"field {named(self.config.field)}, which is to be the record's timestamp,"
        refuse(~valid(times), f"{where} is null or missing")
        if pa.types.is_int64(times.type):
            factor = 1000 if self.config.resolution.lower() == "seconds" else 1
            stamps = pc.multiply(times, factor)
        elif pa.types.is_temporal(times.type):
            stamps = milliseconds(times)
        else:
            every = np.arange(len(times))
            raise Refused(
                reasons(every, f"{where} is {typed(times.type)}, not int64 or a timestamp")
            )
        return replace(batch, times=stamps.cast(TIMESTAMP_TYPE))


@dataclass(frozen=True)
class ExtractTopicConfig:
    """The keys of Aiven's ExtractTopic."""

    field: str = key("field.name", "", "The field; empty for the whole key or value.")
    skip: bool = key("skip.missing.or.null", False, "Whether records without it keep their topic.")


class ExtractTopic(confluent.ExtractTopic):
    """See Aiven's transform of this name."""

    section = ExtractTopicConfig


@dataclass(frozen=True)
class HashConfig:
    """The keys of Hash."""

    field: str = key("field.name", "", "The field; empty for the whole key or value.")
    function: str = key("function", doc="The hash.", choices=("md5", "sha1", "sha256"))
    skip: bool = key("skip.missing.or.null", False, "Whether records without it pass.")


class Hash(ContentsTransform):
    """See Aiven's transform of this name."""

    section = HashConfig
    config: HashConfig

    @property
    def fields_by_type(self) -> Sequence[str]:
        return (self.config.field,)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        name = self.config.field
        if not name:
            return contents.holding(self._hashed(contents.array))
        array = required(contents, "hashing", nulls=self.config.skip)
        fields = columns(array)
        if name not in fields:
            if not self.config.skip:
                refuse_all(array, f"field {named(name)}, which is to be hashed, is null or missing")
            return contents
        fields[name] = fields[name].holding(self._hashed(fields[name].array))
        return contents.holding(struct(fields, array))

    def _hashed(self, array: pa.Array) -> pa.Array:
        what = f"field {named(self.config.field)}" if self.config.field else "the whole"
        if not self.config.skip:
            refuse(~valid(array), f"{what}, which is to be hashed, is null or missing")
        if pa.types.is_null(array.type):
            return array
        if not pa.types.is_string(array.type):
            refuse_all(array, f"{what}, which is to be hashed, is not text")
            return array
        function = self.config.function
        return each(array, lambda text: hashlib.new(function, text.encode()).hexdigest())


_ALL, _WHOLE = "*", "_key"


@dataclass(frozen=True)
class KeyToValueConfig:
    """The keys of KeyToValue."""

    key_fields: tuple[str, ...] = key(
        "key.fields", doc="The fields of the key to copy; * stands for the whole key."
    )
    value_fields: tuple[str, ...] = key(
        "value.fields",
        (),
        "Their names in the value, in the same order. A missing name is _key for the whole key, "
        "and otherwise the field's own name.",
    )

    def __post_init__(self) -> None:
        names = [name for name, _ in self.pairs()]
        for name in names:
            if names.count(name) > 1:
                raise misconfigured(
                    "value.fields",
                    f"value.fields: more than one field of the key is copied to {name}",
                )

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The name of each field in the value, and in the key."""
        for number, name in enumerate(self.key_fields):
            target = self.value_fields[number] if number < len(self.value_fields) else ""
            chosen = target or name
            yield (_WHOLE if chosen == _ALL else chosen), name


class KeyToValue(Transform):
    """See Aiven's transform of this name."""

    section = KeyToValueConfig
    needs_key = True

    def __init__(self, config: KeyToValueConfig) -> None:
        super().__init__(config)
        self._pairs = list(config.pairs())

    def apply(self, batch: Batch) -> Batch:
        values = required(batch.values, "copying fields from key to value", nulls=False)
        keys = batch.keys
        fields: Columns | None = None
        if any(name != _ALL for _, name in self._pairs):
            fields = columns(required(keys, "copying fields from key to value", nulls=False))
        value_fields = columns(values)
        for name, copied in self._pairs:
            if copied == _ALL:
                value_fields[name] = column(name, keys.array)
            elif fields is not None:
                value_fields[name] = self._field(fields, copied, keys).named(name)
        return replace(batch, values=batch.values.holding(struct(value_fields, values)))

    def _field(self, fields: Columns, name: str, keys: Contents) -> Column:
        """A field of the key. If the key is a map, unknown fields are null."""
        if name in fields:
            return fields[name].everywhere()
        if not keys.has_schema:
            return column(name, pa.nulls(len(keys.array)))
        every = np.arange(len(keys.array))
        raise Refused(reasons(every, f"Key field '{name}' not found in key schema"))


@dataclass(frozen=True)
class TombstoneHandlerConfig:
    """The keys of Aiven's TombstoneHandler."""

    behavior: str = key(
        "behavior",
        doc="drop_silent: drop tombstones; drop_warn: drop them and say so; fail: refuse them.",
        choices=("drop_silent", "drop_warn", "fail"),
    )


class TombstoneHandler(confluent.TombstoneHandler):
    """See Aiven's transform of this name."""

    section = TombstoneHandlerConfig


class MakeTombstone(Transform):
    """See Aiven's transform of this name: the value becomes null."""

    def apply(self, batch: Batch) -> Batch:
        return replace(batch, values=Contents(pa.nulls(len(batch), batch.values.array.type)))
