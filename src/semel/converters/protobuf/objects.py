"""Converts the results of :class:`semel.converters.protobuf.rows.Reader` to Arrow and JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from semel.converters.protobuf.schema import (
    Field,
    Known,
    Map,
    Message,
    Node,
    Oneof,
    Recursion,
    Scalar,
    Wrapped,
)
from semel.converters.python_values import Json, mask, offsets, shown


def arrow(node: Node, values: Sequence[Any]) -> pa.Array:
    """The result of a reader, in Arrow. Inside a null, None stands for values of any type."""
    match node:
        case Message():
            columns = [
                _column(column, [None if v is None else v[n] for v in values])
                for n, column in enumerate(node.columns)
            ]
            return node.finish(_struct(columns, [c.arrow for c in node.columns], values))
        case Wrapped():
            return _column(node.value, values)
        case Map():
            flat = [each for v in values for each in v or ()]
            keys, items = (
                _column(field, [pair[n] for pair in flat])
                for n, field in enumerate(node.entry.fields)
            )
            return pa.MapArray.from_arrays(offsets(values), keys, items, mask=mask(values))
        case Recursion():
            return pa.ExtensionArray.from_storage(node.type, pa.array(values, pa.string()))
    return pa.array(values, node.type)


def _column(column: Field | Oneof, values: Sequence[Any]) -> pa.Array:
    if isinstance(column, Oneof):
        members = [
            _column(field, [None if v is None else v[n] for v in values])
            for n, field in enumerate(column.fields)
        ]
        return _struct(members, [f.arrow for f in column.fields], values)
    if column.repeated and not column.is_map:
        flat = [each for v in values for each in v or ()]
        items = arrow(column.node, flat)
        lists = pa.ListArray.from_arrays(offsets(values), items, mask=mask(values))
        return column.finish(lists)
    return column.finish(arrow(column.node, values))


def _struct(columns: list[pa.Array], fields: list[pa.Field], values: Sequence[Any]) -> pa.Array:
    if not columns:
        return pa.array([None if v is None else {} for v in values], pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask(values))


def plain(node: Node, value: Any) -> Any:
    """A value as JSON shows it."""
    if value is None:
        return None
    match node:
        case Message() if node.known is not None and pa.types.is_string(node.type):
            return arrow(node, [value])[0].as_py()
        case Message():
            return {c.name: _plain_column(c, v) for c, v in zip(node.columns, value, strict=True)}
        case Wrapped():
            return plain(node.value.node, value)
        case Map():
            key, item = (f.node for f in node.entry.fields)
            if isinstance(key, Scalar) and key.kind == "string":
                return {k: plain(item, v) for k, v in value}
            return [[plain(key, k), plain(item, v)] for k, v in value]
        case Recursion():
            return Json(value)
        case Known():
            return shown(pa.array([value], node.type))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _plain_column(column: Field | Oneof, value: Any) -> Any:
    if isinstance(column, Oneof):
        if value is None:
            return None
        members = zip(column.fields, value, strict=True)
        return {f.name: _plain_column(f, v) for f, v in members if v is not None}
    if column.repeated and not column.is_map:
        return [_plain_value(column, each) for each in value]
    return _plain_value(column, value)


def _plain_value(field: Field, value: Any) -> Any:
    if field.known is None or value is None:
        return plain(field.node, value)
    return shown(field.known.of(arrow(field.node, [value])))
