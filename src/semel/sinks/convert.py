"""Converts Arrow values to the types of a table's columns without losing anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.converters.json.facts import facts_in
from semel.converters.json.nested import ValueReader, nested_as
from semel.converters.json.read import Unreadable
from semel.core.quoting import named
from semel.core.records import list_offsets, one_array
from semel.databases.columns import is_binary, is_list, is_number
from semel.sinks import casts
from semel.sinks.casts import by_kind, cast, only_null

Leaf = Callable[[pa.DataType], pa.DataType]


def column_type(kind: pa.DataType, leaf: Leaf) -> pa.DataType:
    """The type of a new column that holds values of ``kind``; ``leaf`` chooses it for scalars."""
    if is_.is_dictionary(kind):
        return column_type(kind.value_type, leaf)
    if isinstance(kind, pa.BaseExtensionType):
        json = isinstance(kind, pa.JsonType)
        return pa.string() if json else column_type(kind.storage_type, leaf)
    if is_.is_struct(kind):
        return pa.struct([pa.field(f.name, column_type(f.type, leaf)) for f in kind.fields])
    if is_.is_map(kind):
        return pa.map_(column_type(kind.key_type, leaf), column_type(kind.item_type, leaf))
    if is_list(kind):
        return pa.list_(column_type(kind.value_type, leaf))
    return leaf(kind)


JSON_TEXT = "JSON"
"""The comment on a text column of a lake table that holds JSON: lakes have no type for it."""


HOLDS_JSON = b"semel.json"
"""The metadata of a column of files that holds JSON as text."""
_SAYS_JSON = {b"comment": b"JSON", b"doc": b"JSON", HOLDS_JSON: b"1"}


def text_column(field: pa.Field, comment: str) -> dict[str, str] | None:
    """The metadata of a new column for this field: that it holds JSON, or what its schema's ``doc``
    says. ``comment`` is the lake's name for comments."""
    if isinstance(field.type, pa.JsonType):
        return {comment: JSON_TEXT}
    doc = facts_in(field).get("doc")
    return {comment: str(doc)} if doc and doc != JSON_TEXT else None


def holds_json(field: pa.Field) -> bool:
    """Whether a column of text holds JSON."""
    metadata = field.metadata or {}
    return any(metadata.get(name) == value for name, value in _SAYS_JSON.items())


def to_read(field: pa.Field, comment: str) -> pa.Field:
    """A column as converters should read it: one that holds JSON takes any value."""
    value = (field.metadata or {}).get(comment.encode())
    is_text = is_.is_string(field.type) or is_.is_large_string(field.type)
    return pa.field(field.name, pa.json_()) if is_text and value == JSON_TEXT.encode() else field


def common_type(kind: pa.DataType) -> pa.DataType:
    """The scalar types that lake formats have in common: microseconds, days, signed integers,
    decimals of 38 digits, and text for everything else."""
    if is_.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if is_.is_date(kind):
        return pa.date32()
    if is_.is_unsigned_integer(kind):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}
        return wider.get(kind.bit_width, pa.decimal128(20, 0))
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_decimal(kind):
        return pa.decimal128(min(38, kind.precision), min(38, kind.scale))
    if is_binary(kind):
        return pa.binary()
    if is_.is_boolean(kind) or is_.is_signed_integer(kind) or is_.is_floating(kind):
        return kind
    return pa.string()


def convert(
    values: pa.ChunkedArray,
    target: pa.DataType,
    nested: ValueReader | None = None,
    *,
    as_json: bool = True,
) -> pa.ChunkedArray:
    """Convert to a column's type. ``nested`` reads JSON, if its type is known; a column of text
    takes JSON ``as_json``, or else as the texts, numbers and so on that it holds.

    Raises:
        one of UNFIT: some value does not fit.
    """
    source = values.type
    if source == target:
        return values
    if only_null(values):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if is_.is_dictionary(source):
        return convert(values.cast(source.value_type), target)
    if isinstance(source, pa.BaseExtensionType):
        plain = pa.chunked_array([c.storage for c in values.chunks], source.storage_type)
        if isinstance(source, pa.JsonType) and not (is_.is_string(target) and as_json):
            return _from_json(plain, target, nested)
        return convert(plain, target)
    if is_.is_nested(source):
        chunks = [_convert_nested(c, target) for c in values.chunks]
        return pa.chunked_array(chunks, target)
    if _mixes_time_and_number(source, target):
        raise pa.ArrowTypeError(
            f"{source} is not {target}: a number does not say which unit of time it counts"
        )
    return cast(values, target)


def unfit_rows(
    values: pa.ChunkedArray,
    target: pa.DataType,
    nested: ValueReader | None = None,
    *,
    as_json: bool = True,
) -> list[tuple[int, str]]:
    """The rows whose values :func:`convert` refuses, each with the reason."""
    fit = partial(convert, target=target, nested=nested, as_json=as_json)
    return casts.unfit_rows(values, fit)


def _from_json(
    text: pa.ChunkedArray, target: pa.DataType, nested: ValueReader | None
) -> pa.ChunkedArray:
    """JSON in its known type, or else in the wanted one, or each value in its own."""
    reader = nested or (nested_as(target) if is_.is_nested(target) else None)
    if reader is not None and not is_.is_string(target):
        return convert(read_nested(text, reader), target)
    if is_.is_string(target) and pc.all(pc.starts_with(text, "{")).as_py():
        return text.cast(target)
    return by_kind(text, partial(_of_one_kind, target=target))


def read_nested(json: pa.ChunkedArray, reader: ValueReader) -> pa.ChunkedArray:
    """JSON in its known type.

    Raises:
        ArrowInvalid: some value is not of that type.
    """
    text = one_array(json)
    text = text.storage if isinstance(text.type, pa.JsonType) else text
    try:
        return pa.chunked_array([reader.read(text)], reader.type)
    except Unreadable as error:
        raise pa.ArrowInvalid(str(error)) from None


def _of_one_kind(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if not isinstance(values.type, pa.JsonType):
        return convert(values, target)
    plain = pa.chunked_array([c.storage for c in values.chunks], pa.string())
    number = pc.all(pc.match_substring_regex(plain, r"^-?[0-9]")).as_py()
    if not (is_.is_string(target) or number):
        raise pa.ArrowTypeError(f"JSON is not {target}")
    return convert(plain, target)


def _convert_nested(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Field by field: Arrow's cast leaves out the fields of a struct that the target lacks."""
    source = values.type
    mask = values.is_null() if values.null_count else None
    if is_.is_struct(source) and is_.is_struct(target):
        children = dict(zip([f.name for f in source], values.flatten(), strict=True))
        for name in children.keys() - {f.name for f in target}:
            if children[name].null_count < len(values):
                raise pa.ArrowTypeError(f"it holds a field {named(name)}, which {target} lacks")
        missing = pa.nulls(len(values))
        columns = [_converted(children.get(f.name, missing), f.type) for f in target]
        for f, column in zip(target, columns, strict=True):
            if not f.nullable and column.null_count > values.null_count:
                raise pa.ArrowInvalid(f"field {named(f.name)} must not be null")
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=mask)
    if is_.is_map(source) and is_.is_map(target):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        keys = _converted(values.keys[first:last], target.key_type)
        items = _converted(values.items[first:last], target.item_type)
        offsets = pc.subtract(values.offsets, first)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)
    if is_list(source) and is_list(target):
        items = _converted(values.flatten(), target.value_type)
        if items.null_count and not target.value_field.nullable:
            raise pa.ArrowInvalid("an item must not be null")
        return pa.ListArray.from_arrays(list_offsets(values), items, mask=mask).cast(target)
    raise pa.ArrowTypeError(f"{source} is not {target}")


def _converted(values: pa.Array, target: pa.DataType) -> pa.Array:
    return convert(pa.chunked_array([values]), target).combine_chunks()


def _mixes_time_and_number(source: pa.DataType, target: pa.DataType) -> bool:
    return bool(
        (is_number(source) and is_.is_temporal(target))
        or (is_.is_temporal(source) and is_number(target))
    )
