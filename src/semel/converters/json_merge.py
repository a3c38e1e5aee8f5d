"""Values of several schemas in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.converters.base import DATA_EXCEPTION, Failure
from semel.converters.json_text import place


@dataclass(frozen=True, slots=True)
class Part:
    """Values of one schema and the rows they belong to, ascending."""

    rows: pa.Array
    block: pa.Array


def together(
    parts: Sequence[Part], length: int, otherwise: pa.DataType
) -> tuple[pa.Array, list[Failure]]:
    """One array of all parts: fields are united and numbers widened.

    A part whose fields are of other types than those before it fails. Without parts, all is null,
    of the type ``otherwise``.
    """
    if not parts:
        return pa.nulls(length, otherwise), []
    wanted = parts[0].block.type
    kept: list[Part] = []
    failures: list[Failure] = []
    for part in parts:
        try:
            wanted = _unite(wanted, part.block.type)
            kept.append(part)
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            reason = f"its schema conflicts with other records': {' '.join(str(error).split())}"
            failures += [Failure(row, DATA_EXCEPTION, reason) for row in part.rows.to_pylist()]
    if len(kept) == 1 and len(kept[0].rows) == length:
        return kept[0].block, failures
    blocks = pa.concat_arrays([_as(part.block, wanted) for part in kept])
    rows = pa.concat_arrays([part.rows for part in kept])
    return place(blocks, rows, length), failures


def _unite(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    if not pa.types.is_struct(one) or not pa.types.is_struct(other):
        raise pa.ArrowTypeError(f"{one} and {other}")
    schemas = [pa.schema(list(one)), pa.schema(list(other))]
    united = pa.unify_schemas(schemas, promote_options="permissive")
    everywhere = set(schemas[0].names) & set(schemas[1].names)
    return pa.struct([f if f.name in everywhere else f.with_nullable(True) for f in united])


def _as(block: pa.Array, wanted: pa.DataType) -> pa.Array:
    if block.type == wanted:
        return block
    arrays = []
    for field in wanted:
        at = block.type.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(len(block), field.type))
        else:
            arrays.append(block.field(at).cast(field.type))
    mask = block.is_null() if block.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=mask)
