"""Values become columns or, for a sink of text, lines: the last step before a sink, after all
transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters import semantic
from semel.converters.json.columns import JSON, column
from semel.converters.json.read import NAME, ScalarReader
from semel.converters.json.text import WHITESPACE
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
from semel.transforms.texts import DateFormat, java_text

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
    return pa.ExtensionArray.from_storage(JSON, _json_texts(values))


def _json_texts(values: pa.Array) -> pa.Array:
    texts = _WRITER.texts(values)
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, texts.type))


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


# Lines

_NESTED = r"^[ \t\n\r]*[\[{]"
_FRACTION = r"^-?[0-9]+[.eE]"
_JAVAS_DATE = DateFormat("EEE MMM dd HH:mm:ss 'UTC' yyyy")


def lines(values: pa.Array) -> pa.Array:
    """Each value as text, as Kafka Connect's FileStreamSink writes it; bytes stay bytes, and nulls
    stay null.

    Text is unchanged. Numbers, booleans and dates are written as by Java's ``String.valueOf``, in
    UTC. Objects and lists are JSON, not Java's ``{a=1}``.
    """
    kind, kinds = values.type, pa.types
    if kinds.is_dictionary(kind):
        return lines(values.dictionary_decode())
    if kind == JSON:
        return _of_json(values.storage.cast(pa.string()))
    if kinds.is_nested(kind):
        return _json_texts(values)
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return values
    if kinds.is_timestamp(kind) or kinds.is_date(kind) or kinds.is_time(kind):
        return _JAVAS_DATE.format(semantic.milliseconds(values))
    return java_text(values)


def _of_json(text: pa.Array) -> pa.Array:
    """JSON texts as lines: strings without quotes, fractions as in Java, others as they are."""
    nested = pc.fill_null(pc.match_substring_regex(text, _NESTED), True)
    if pc.all(nested).as_py():
        return text
    text = pc.if_else(nested, text, pc.ascii_trim(text, characters=WHITESPACE))
    text = _read(text, pc.starts_with(text, '"'), pa.string())
    return _read(text, pc.match_substring_regex(text, _FRACTION), pa.float64())


def _read(text: pa.Array, mask: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read the texts that the mask selects as a type; those that do not fit stay as they are."""
    mask = pc.fill_null(mask, False)
    if not pc.any(mask).as_py():
        return text
    chosen = text.filter(mask)
    read, _ = ScalarReader(column(NAME, kind)).read(chosen)
    return pc.replace_with_mask(text, mask, pc.coalesce(java_text(read), chosen))
