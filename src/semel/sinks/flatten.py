"""Values become columns: the last step before a sink, after all transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters import semantic
from semel.converters.json.columns import JSON
from semel.converters.json.write import Writer
from semel.core.records import (
    HEADERS,
    KEY,
    METADATA,
    ConnectRecords,
    Facts,
    Records,
    absence,
    absences,
    one_array,
    value_columns,
    without_absence,
)
from semel.sinks.layout import provenance_conflict

_WRITER = Writer(embedded=True, numeric=True)
VALUE = "value"
"""The column of a value that has no fields."""


def flattened(
    records: ConnectRecords,
    *,
    deletes: bool,
    provenance: Mapping[str, str] | None = None,
    has_schema: bool = True,
    tells_absence: bool = False,
) -> Records:
    """Records as a sink takes them; ``deletes`` says that tombstones are wanted.

    ``provenance`` maps metadata columns to the target's columns that the sink fills with them.
    With ``tells_absence`` the rows say which fields a record lacks. Then objects inside records
    without a schema become JSON, because they do not have the same fields either.

    Raises:
        ConfigError: the values have a field of the same name as one of these columns.
    """
    null = records.values.is_null().to_numpy(zero_copy_only=False)
    present = records.take(pa.array(np.flatnonzero(~null))) if null.any() else records
    tombstones = None
    if deletes and null.any():
        tombstones = _metadata(records).take(pa.array(np.flatnonzero(null)))
    values = present.values
    if not tells_absence:
        present = replace(present, keys=without_absence(present.keys))
        values = without_absence(values)
    has_fields = pa.types.is_struct(values.type)
    if has_fields:
        columns = dict(zip([f.name for f in values.type], values.flatten(), strict=True))
        if tells_absence and not has_schema:
            columns = {n: _as_json(column) for n, column in columns.items()}
        _refuse_overwriting(columns, provenance or {})
        # What is known about a field's JSON is in the field's metadata.
        metadata = {f.name: f.metadata for f in values.type if columns[f.name].type == f.type}
    else:
        columns, metadata = {VALUE: values}, {VALUE: _known(values, records.value_facts)}
    own = _metadata(present)
    metadata |= {f.name: f.metadata for f in own.schema}
    rows = pa.table(columns | dict(zip(own.column_names, own.columns, strict=True)))
    fields = [f.with_metadata(metadata.get(f.name)) for f in rows.schema]
    rows = pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))
    return Records(
        records.topic,
        rows,
        tombstones,
        has_fields,
        records.key_facts,
        records.value_facts,
        {f.name: f for f in values.type} if has_fields else {},
        has_schema,
    )


def by_fields(records: Records) -> list[Records]:
    """Records with schemas, grouped by the fields that they have."""
    lacking = absences(records.rows)
    if not lacking:
        return [records]
    patterns = np.zeros(records.rows.num_rows, np.int64)
    for rows in lacking.values():
        _, patterns = np.unique(patterns * 2 + rows.to_numpy(), return_inverse=True)
    parts = []
    for pattern in np.unique(patterns):
        at = np.flatnonzero(patterns == pattern)
        gone = [n for n, rows in lacking.items() if rows[at[0]].as_py()]
        rows = records.rows.take(pa.array(at)).drop_columns([*gone, *map(absence, lacking)])
        parts.append(replace(records, rows=rows, tombstones=None))
    parts = parts or [records]
    return [replace(parts[0], tombstones=records.tombstones), *parts[1:]]


def _as_json(values: pa.Array) -> pa.Array:
    if not pa.types.is_struct(values.type):
        return values
    texts = _WRITER.texts(values)
    texts = pc.if_else(values.is_valid(), texts, pa.scalar(None, texts.type))
    return pa.ExtensionArray.from_storage(JSON, texts)


def unflattened(rows: pa.Table, like: ConnectRecords) -> ConnectRecords:
    """The reverse for rows that a transform has made of flattened records."""
    names = value_columns(rows.column_names)
    if names == [VALUE] and not pa.types.is_struct(like.values.type):
        values = one_array(rows.column(VALUE))
    elif names:
        fields = [rows.schema.field(n) for n in names]
        values = pa.StructArray.from_arrays(
            [one_array(rows.column(n)) for n in names], fields=fields
        )
    else:
        values = pa.array([{}] * rows.num_rows, pa.struct([]))
    origin = rows.select(like.origin.column_names)
    headers = one_array(rows.column(HEADERS)) if like.headers is not None else None
    return ConnectRecords(like.topic, origin, one_array(rows.column(KEY)), values, headers)


def _metadata(records: ConnectRecords) -> pa.Table:
    table = records.origin
    if records.headers is not None:
        table = table.append_column(HEADERS, records.headers)
    keys = records.keys
    return table.append_column(
        pa.field(KEY, keys.type, True, _known(keys, records.key_facts)), keys
    )


def _known(whole: pa.Array, facts: Facts) -> Mapping[bytes, bytes] | None:
    """The metadata of a column that holds whole keys or values."""
    return semantic.metadata(semantic.facts_for(whole.type, facts))


def _refuse_overwriting(columns: Mapping[str, pa.Array], provenance: Mapping[str, str]) -> None:
    """Refuse fields that metadata would overwrite, except where all are null: values read by the
    schema of a target with provenance columns have such fields."""
    for metadata, name in provenance.items():
        values = columns.get(name) if name in METADATA else None
        if values is not None and values.null_count < len(values):
            raise provenance_conflict(metadata, name, f"{name} is a field of the values")
