"""MaskField: replaces a field's value with an empty value or a constant."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.columns import JSON
from semel.core.errors import ConfigError, Problem
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.fields import Defaults
from semel.transforms.structs import (
    Column,
    column,
    columns,
    connect_type,
    java_class,
    refuse_all,
    required,
    struct,
)


@dataclass(frozen=True)
class MaskFieldConfig(Defaults):
    """The keys of MaskField."""

    fields: tuple[str, ...] = key("fields", doc="The fields to mask.")
    replacement: str | None = key(
        "replacement", None, "The replacement for numbers and text; by default 0 and empty text."
    )

    def __post_init__(self) -> None:
        if self.replacement is not None and not self.replacement:
            raise ConfigError(Problem("replacement", "replacement must not be empty"))


class MaskField(ContentsTransform):
    """See Kafka Connect's MaskField. It refuses null keys and values."""

    section = MaskFieldConfig

    def __init__(self, config: MaskFieldConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "mask fields", nulls=False)
        found = columns(array, defaults=self._config.replace_nulls)
        for name in self._config.fields:
            if name in found:
                made = self._masked(found[name], contents.has_schema)
                found[name] = made if contents.has_schema else made.everywhere()
            elif not contents.has_schema:
                found[name] = column(name, pa.nulls(len(array)))
        return contents.holding(struct(found, array))

    def _masked(self, found: Column, has_schema: bool) -> Column:
        array, text = found.array, self._config.replacement
        struct_ = connect_type(found, has_schema=has_schema) == "STRUCT"
        made = None
        if not struct_:
            made = _nothing(array) if text is None else _replaced(array, text)
        if made is None:
            kind = pa.struct([]) if struct_ else array.type
            what = f"class {java_class(kind, has_schema=has_schema)}"
            custom = "" if text is None else " with custom replacement."
            of = f"of type: {what}" if text is None else f"of type {what}"
            refuse_all(array, f"Cannot mask value {of}{custom}")
            return found
        return Column(found.field.with_type(made.type), made, found.absent)


def _filled(array: pa.Array, value: Any) -> pa.Array:
    """The given value in place of every value that is not null."""
    return pc.if_else(array.is_valid(), pa.scalar(value, array.type), pa.scalar(None, array.type))


def _nothing(array: pa.Array) -> pa.Array | None:
    """The empty value of a type; None if it has none."""
    kind, kinds = array.type, pa.types
    if kinds.is_boolean(kind):
        return _filled(array, False)
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return _filled(array, 0)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _filled(array, "")
    if kinds.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return _filled(array.cast(width), 0).cast(kind)
    if kinds.is_list(kind):
        return _filled(array, [])
    if kinds.is_struct(kind):  # a map
        return struct({}, array)
    if kind == JSON:
        text = array.storage
        lists = pc.starts_with(pc.ascii_ltrim_whitespace(text), "[")
        made = pc.if_else(text.is_valid(), pc.if_else(lists, "[]", "{}"), None)
        return pa.ExtensionArray.from_storage(JSON, made)
    return array if kinds.is_null(kind) else None


def _replaced(array: pa.Array, text: str) -> pa.Array | None:
    """The text, or the number in it; None for values that are neither."""
    kind, kinds = array.type, pa.types
    if kinds.is_null(kind):
        return array
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _filled(array, text)
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)):
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        what = "number" if kinds.is_decimal(kind) else "a number"
        refuse_all(array, f"Unable to convert {text} (class java.lang.String) to {what}")
        return array
    if kinds.is_integer(kind):
        bits = kind.bit_width
        whole = int(number) & ((1 << bits) - 1)
        return _filled(array, whole - (1 << bits) if whole >> (bits - 1) else whole)
    if kinds.is_floating(kind):
        return _filled(array, float(number))
    digits = -min(0, int(number.normalize().as_tuple().exponent))
    return _filled(array.cast(pa.decimal128(38, max(kind.scale, digits))), number)
