"""Values of several schemas in one array."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from semel.converters.base import Failure
from semel.converters.json.columns import CONNECT
from semel.converters.json.text import place
from semel.converters.semantic import FACTS
from semel.core.records import DATA_EXCEPTION, absence, is_absence, named_by


@dataclass(frozen=True, slots=True)
class Part:
    """Values of one schema and the rows they belong to, ascending. ``facts`` is what the schema
    says of itself."""

    rows: pa.Array
    block: pa.Array
    facts: Mapping[str, Any] = field(default_factory=dict)


def together(
    parts: Sequence[Part], length: int, otherwise: pa.DataType, *, tells_absence: bool = False
) -> tuple[pa.Array, list[Failure]]:
    """One array of all parts: fields are united and numbers widened. With ``tells_absence`` the
    array says which structs lack a field, see :func:`semel.core.records.absence`.

    A part whose fields are of other types than those before it fails. Without parts, the array
    holds nulls of the type ``otherwise``.
    """
    if not parts:
        return pa.nulls(length, otherwise), []
    united = parts[0].block.type
    kept: list[Part] = []
    failures: list[Failure] = []
    for part in parts:
        try:
            wider = _unite(united, part.block.type)
            if tells_absence:
                wider = _telling_absence(wider, united, part.block.type)
            if wider != united:  # a large number does not fit a wider type, such as double
                kept = [Part(earlier.rows, _as(earlier.block, wider)) for earlier in kept]
            kept.append(Part(part.rows, _as(part.block, wider)))
            united = wider
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            reason = f"its schema conflicts with other records': {' '.join(str(error).split())}"
            failures += [Failure(row, DATA_EXCEPTION, reason) for row in part.rows.to_pylist()]
    if len(kept) == 1 and len(kept[0].rows) == length:
        return kept[0].block, failures
    blocks = pa.concat_arrays([_as(part.block, united) for part in kept])
    rows = pa.concat_arrays([part.rows for part in kept])
    return place(blocks, rows, length), failures


def apart(
    parts: Sequence[Part], length: int, *, by_name: bool = False, by_fields: bool = False
) -> np.ndarray | None:
    """A number for each row, equal where records are of schemas that say the same about every field
    they share, as if each had come alone; None if all of them do. ``by_name`` says that they must
    also have one name and version, ``by_fields`` that they must have the same fields. Rows of no
    part get the number of the row before them."""
    groups: list[pa.DataType] = []
    names: list[tuple[Any, ...]] = []
    labels = np.full(length, -1)
    for part in parts:
        kind = part.block.type
        if pa.types.is_null(kind):
            continue
        if pa.types.is_struct(kind):
            kind = pa.struct([f for f in kind if not pa.types.is_null(f.type)])
        name: tuple[Any, ...] = ()
        if by_name:
            name = part.facts.get("name"), part.facts.get("version")
        if by_fields:
            name = *name, _fields(pa.field("", part.block.type))
        alike = (n for n, group in enumerate(groups) if names[n] == name and _agree(group, kind))
        number = next(alike, len(groups))
        if number == len(groups):
            groups.append(kind)
            names.append(name)
        groups[number] = _unite(groups[number], kind)
        labels[part.rows.to_numpy()] = number
    if len(groups) < 2:
        return None
    last = np.maximum.accumulate(np.where(labels >= 0, np.arange(length), 0))
    filled: np.ndarray = np.maximum(labels[last], 0)
    return filled


def _fields(field: pa.Field) -> Any:
    """The names of the fields of structs in a field, at any depth."""
    kind, schema = field.type, (field.metadata or {}).get(CONNECT)
    if schema is not None and not pa.types.is_nested(kind):
        return _fields_in(schema)
    if not pa.types.is_nested(kind):
        return None
    inside = [kind.field(n) for n in range(kind.num_fields)]
    named = pa.types.is_struct(kind)
    return tuple((f.name if named else "", _fields(f)) for f in inside)


@lru_cache(maxsize=1000)
def _fields_in(schema: bytes) -> Any:
    """The same for a schema of Kafka Connect's."""

    def inside(schema: Mapping[str, Any]) -> Any:
        parts = [schema[part] for part in ("keys", "values", "items") if schema.get(part)]
        fields = [(f.get("field", ""), inside(f)) for f in (*schema.get("fields", ()), *parts)]
        return tuple(fields) or None

    return inside(json.loads(schema))


def _agree(united: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of both types can share columns without any being written differently."""
    if not (pa.types.is_struct(united) and pa.types.is_struct(kind)):
        return _same_types(united, kind)
    return all(_same_values(united.field(f.name), f) for f in kind if f.name in united.names)


def _same_values(one: pa.Field, other: pa.Field) -> bool:
    ours, theirs = one.metadata or {}, other.metadata or {}
    if CONNECT in ours and CONNECT in theirs and ours != theirs:
        schemas = json.loads(ours[CONNECT]), json.loads(theirs[CONNECT])
        if not _same_schema(*schemas):
            return False
    return ours.get(FACTS) == theirs.get(FACTS) and _same_types(one.type, other.type)


def _same_types(one: pa.DataType, other: pa.DataType) -> bool:
    t = pa.types
    if one.equals(other) or t.is_null(one) or t.is_null(other):
        return True
    if t.is_signed_integer(one) and t.is_signed_integer(other):
        return True  # the wider one writes both alike; a double or a finer timestamp would not
    if t.is_decimal(one) and t.is_decimal(other):
        return bool(one.scale == other.scale)
    if t.is_struct(one) and t.is_struct(other):
        fields = {f.name: f.type for f in one}
        return all(_same_types(fields[f.name], f.type) for f in other if f.name in fields)
    if t.is_list(one) and t.is_list(other):
        return _same_types(one.value_type, other.value_type)
    if t.is_map(one) and t.is_map(other):
        return one.key_type == other.key_type and _same_types(one.item_type, other.item_type)
    return False


def _same_schema(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """The same for schemas of Kafka Connect's."""
    kind = one.get("type")
    if kind != other.get("type"):
        return False
    if kind == "struct":
        fields = {f["field"]: f for f in one.get("fields", ())}
        others = other.get("fields", ())
        both = [(fields[f["field"]], f) for f in others if f["field"] in fields]
        return all(_same_schema(*pair) for pair in both)
    inner = {"array": "items", "map": "values"}.get(kind or "")
    if inner:
        return _same_schema(one.get(inner, {}), other.get(inner, {}))
    return all(one.get(fact) == other.get(fact) for fact in ("name", "default"))


def _unite(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other, check_metadata=True):
        return one
    if not pa.types.is_struct(one) or not pa.types.is_struct(other):
        if one == other:
            return one
        if pa.types.is_struct(one) or pa.types.is_struct(other):
            raise pa.ArrowTypeError(f"{one} and {other}")
        both = [pa.schema([("value", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    schemas = [pa.schema(list(one)), pa.schema(list(other))]
    united = pa.unify_schemas(schemas, promote_options="permissive")
    everywhere = set(schemas[0].names) & set(schemas[1].names)
    nested = {f.name: _nested(f, other) for f in one if f.name in everywhere}
    return pa.struct(
        [
            f.with_metadata(nested[f.name]) if f.name in everywhere else f.with_nullable(True)
            for f in united
        ]
    )


def _telling_absence(united: pa.DataType, *of: pa.DataType) -> pa.DataType:
    """The united type, with room to say which structs lack a field that not all types have."""
    if not pa.types.is_struct(united):
        return united
    inner = [
        f.with_type(_telling_absence(f.type, *(kind.field(f.name).type for kind in of)))
        if pa.types.is_struct(f.type)
        and all(f.name in kind.names for kind in of)
        and all(pa.types.is_struct(kind.field(f.name).type) for kind in of)
        else f
        for f in united
    ]
    names = [f.name for f in united]
    lacking = [n for n in names if not (is_absence(n) or all(n in kind.names for kind in of))]
    more = [pa.field(absence(n), pa.bool_()) for n in lacking if absence(n) not in names]
    return pa.struct([*inner, *more])


def _nested(one: pa.Field, other: pa.StructType) -> Mapping[bytes, bytes] | None:
    """What is known of the JSON in a field that both have."""
    ours, theirs = one.metadata or {}, other.field(one.name).metadata or {}
    if ours == theirs or CONNECT not in ours or CONNECT not in theirs:
        return ours if ours == theirs else None
    schemas = json.loads(ours[CONNECT]), json.loads(theirs[CONNECT])
    facts = {FACTS: ours[FACTS]} if FACTS in ours and ours[FACTS] == theirs.get(FACTS) else {}
    return {CONNECT: json.dumps(_united(*schemas)).encode(), **facts}


def _united(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of Kafka Connect's with the fields of both; if a field has two types, the first
    one."""
    if one.get("type") != other.get("type"):
        return one
    if one.get("type") == "struct" and "fields" in one and "fields" in other:
        ours = {f["field"]: f for f in one["fields"]}
        theirs = {f["field"]: f for f in other["fields"]}
        common = {n: _united(f, theirs[n]) for n, f in ours.items() if n in theirs}
        names = ours | theirs
        fields = [common.get(n) or {**f, "optional": True} for n, f in names.items()]
        return {**one, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(one.get("type", ""), "")
    both = inner in one and inner in other
    return {**one, inner: _united(one[inner], other[inner])} if both else one


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow's own cast matches the fields of structs by position."""
    if values.type.equals(target, check_metadata=True):
        return values
    if pa.types.is_struct(target):
        return _as(values, target)
    mask = values.is_null() if values.null_count else None
    if pa.types.is_map(target):
        keys, items = _cast(values.keys, target.key_type), _cast(values.items, target.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=target, mask=mask)
    if pa.types.is_list(target):
        items = _cast(values.values, target.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=target, mask=mask)
    return values.cast(target)


def _as(block: pa.Array, target: pa.DataType) -> pa.Array:
    if block.type.equals(target, check_metadata=True):
        return block
    if not pa.types.is_struct(target):
        return _cast(block, target)
    arrays = []
    for f in target:
        at = block.type.get_field_index(f.name)
        if at < 0 and is_absence(f.name):
            lacks = pa.scalar(named_by(f.name) not in block.type.names)
            arrays.append(pa.repeat(lacks, len(block)))
        elif at < 0:
            arrays.append(pa.nulls(len(block), f.type))
        else:
            arrays.append(_cast(block.field(at), f.type))
    mask = block.is_null() if block.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)
