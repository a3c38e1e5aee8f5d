"""Aiven's transforms that look at texts of fields, or make them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.errors import ConfigError, Problem
from semel.core.patterns import check, compiled
from semel.core.quoting import named
from semel.transforms.base import (
    Batch,
    Contents,
    ContentsTransform,
    Reading,
    Refused,
    each,
    reasons,
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

    def __init__(self, config: ConcatFieldsConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "concatenating fields", nulls=False)
        found = columns(array)
        texts = [self._text(found.get(name), contents, array) for name in self._config.fields]
        joined = pc.binary_join_element_wise(*texts, self._config.delimiter)
        refuse_duplicate(self._config.output, found, contents, array)
        found[self._config.output] = column(self._config.output, joined)
        return Contents(struct(found, array), contents.has_schema)

    def _text(self, found: Column | None, contents: Contents, array: pa.Array) -> pa.Array:
        if found is None:
            return pa.repeat(pa.scalar(self._config.missing), len(array))
        _refuse_nested(found, contents, array)
        return pc.fill_null(
            java_text(found.array, has_schema=contents.has_schema), self._config.missing
        )


@dataclass(frozen=True)
class CaseTransformConfig:
    """The keys of CaseTransform."""

    fields: tuple[str, ...] = key("field.names", doc="The fields.")
    case: str = key("case", doc="The case of their letters.", choices=("lower", "upper"))


class CaseTransform(ContentsTransform):
    """See Aiven's transform of this name."""

    section = CaseTransformConfig

    def __init__(self, config: CaseTransformConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._fields = config.fields
        self._change = str.lower if config.case.lower() == "lower" else str.upper

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "changing the case", nulls=False)
        found: Columns = columns(array)
        for name in self._fields:
            given = found.get(name)
            if given is None and not contents.has_schema:
                found[name] = column(name, pa.nulls(len(array), pa.string()))
            elif given is not None and pa.types.is_string(given.type):
                made = given.holding(each(given.array, self._changed))
                found[name] = made if contents.has_schema else made.everywhere()
            elif given is not None and not contents.has_schema:  # a map takes text in any place
                _refuse_nested(given, contents, array)
                texts = each(java_text(given.array, has_schema=False), self._changed)
                found[name] = column(name, texts)
        return contents.holding(struct(found, array))

    def _changed(self, text: str | None) -> str | None:
        return None if text is None else self._change(text)


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
            raise ConfigError(
                Problem(
                    "field.value",
                    "Either field.value or field.value.pattern have to be set to apply filter "
                    "transform",
                )
            )
        if self.value is not None and _MORE_THAN_TEXT.match(self.value):
            raise ConfigError(
                Problem(
                    "field.value",
                    f"field.value={self.value} is not read as text, so it would match no text. "
                    "Set field.value.pattern=^...$ instead",
                )
            )


class FilterByFieldValue(Reading):
    """See Aiven's transform of this name."""

    section = FilterByFieldValueConfig

    def __init__(self, config: FilterByFieldValueConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config
        self._pattern = compiled(config.pattern) if config.pattern else None

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        present = np.asarray(contents.array.is_valid().to_numpy(zero_copy_only=False))
        found = self._found(contents)
        matching = self._matching(found, contents, present)
        kept = np.flatnonzero(~present | (matching == self._config.matches))
        return batch if len(kept) == len(batch) else batch.take(kept)

    def _found(self, contents: Contents) -> Column:
        name = self._config.field
        if not name:
            if contents.has_schema:
                refuse_all(contents.array, "what has a schema cannot be filtered as a whole")
            return column("", contents.array)
        array = required(contents, "filtering", nulls=True)
        given = columns(array).get(name)
        if given is None and contents.has_schema:
            refuse_all(array, f"field {named(name)}, by which records are filtered, is missing")
        return given or column(name, pa.nulls(len(array), pa.string()))

    def _matching(self, found: Column, contents: Contents, present: np.ndarray) -> np.ndarray:
        _refuse_nested(found, contents, contents.array)
        if self._pattern is None:
            null = np.asarray(found.array.is_null().to_numpy(zero_copy_only=False))
            missing = np.flatnonzero(null & present)
            if len(missing):
                what = (
                    f"field {named(self._config.field)}"
                    if self._config.field
                    else "the key or value"
                )
                raise Refused(reasons(missing, f"{what}, by which records are filtered, is null"))
        texts = java_text(found.array, has_schema=contents.has_schema)
        holds = pc.fill_null(self._holds(texts, found.type), False)
        return np.asarray(holds.to_numpy(zero_copy_only=False))

    def _holds(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        if self._pattern is not None:
            return self._pattern.finds(texts)
        value = self._config.value
        assert value is not None
        is_flag = value.strip().lower() in ("true", "false")
        wanted = value.strip().lower() if is_flag else value
        if pa.types.is_boolean(kind) if is_flag else pa.types.is_string(kind):
            return pc.equal(texts, wanted)
        return pa.repeat(pa.scalar(False), len(texts))


def _refuse_nested(found: Column, contents: Contents, array: pa.Array) -> None:
    kind = connect_type(found, has_schema=contents.has_schema)
    if kind is not None:
        refuse_all(
            array, f"field {named(found.field.name)} is of type {kind}, which has no text here"
        )
