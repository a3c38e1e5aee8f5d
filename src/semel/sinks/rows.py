"""Converted records as rows of a lake table, in the table's types; changes by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import WALL, without_zone
from semel.converters.json.write import joined
from semel.core.errors import ConfigError
from semel.core.quoting import all_named, named, typed
from semel.core.records import (
    OFFSET,
    ORIGIN,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    Records,
    some_rejected,
)
from semel.databases.columns import is_text
from semel.sinks import rereading
from semel.sinks.casts import UNFIT, far_years, told
from semel.sinks.changes import Changes, last_of_each
from semel.sinks.convert import column_type, convert, holds_json, unfit_rows
from semel.sinks.layout import DeletionKeys, Layout, layout
from semel.sinks.rereading import HeldRows
from semel.sinks.unavailable import refusals

CHANGE_PARTITION, CHANGE_OFFSET = "__semel_partition", "__semel_offset"
CHANGE_TIMESTAMP = "__semel_timestamp"
CHANGE_DELETES, CHANGE_ANEW = "__semel_deletes", "__semel_anew"
CHANGE_GIVEN = "__semel_given"
PLACES = (CHANGE_PARTITION, CHANGE_OFFSET, CHANGE_TIMESTAMP)
_BETWEEN = "\x1f"
OWN = (*PLACES, CHANGE_DELETES, CHANGE_ANEW, CHANGE_GIVEN)


def held(
    config: DeletionKeys, provenance: Mapping[str, str], columns: pa.Schema, records: Records
) -> HeldRows:
    """The rows as a table of these columns holds them, see
    :class:`~semel.sinks.rereading.HeldRows`.

    Raises:
        RowsRejected: records that do not fit.
    """
    arranged = layout(config, provenance, records, deletes=False)
    own = set(provenance.values()) - set(arranged.key)
    schema = pa.schema([f for f in columns if f.name in arranged.columns and f.name not in own])
    key = tuple(arranged.key)
    return HeldRows(
        rereading.places(records.rows),
        fitted(records.rows, arranged, schema, key),
        frozenset(arranged.absent),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table. With ``key`` they are changes: columns say when each happened and
    whether it deletes."""

    table: pa.Table
    key: tuple[str, ...] = ()


def reject_far_years(rows: pa.Table, records: Records) -> None:
    """Raises RowsRejected: records whose rows hold dates or times that Python cannot represent."""
    if far := far_years(rows):
        tables = [t for t in (records.rows, records.tombstones) if t is not None]
        raise some_rejected(pa.concat_tables([t.select(ORIGIN) for t in tables]), far)


def inserts(
    config: DeletionKeys, provenance: Mapping[str, str], records: Records, columns: pa.Schema
) -> Rows:
    """Rows to append.

    Raises:
        RowsRejected: records that do not fit.
    """
    arranged = layout(config, provenance, records, deletes=False)
    return Rows(fitted(records.rows, arranged, columns))


def changes(
    config: DeletionKeys,
    provenance: Mapping[str, str],
    records: Records,
    columns: pa.Schema,
    *,
    tells_given: bool = False,
) -> Rows:
    """Rows and tombstones to merge, with the order in which they happened.

    They have the columns that the records give, and those that must not be null. With
    ``tells_given`` one more names those that each record gives.

    Raises:
        RowsRejected: records that do not fit, or whose key is null.
    """
    arranged = layout(config, provenance, records, deletes=False)
    key = tuple(arranged.key)
    _check_names(arranged, records.rows)
    given = [f for f in columns if f.name in arranged.columns or not f.nullable]
    schema = pa.schema([f for f in given if not _is_own(f.name)])
    parts = []
    if records.rows.num_rows:
        rows = fitted(records.rows, arranged, schema, key)
        if tells_given:
            rows = rows.append_column(CHANGE_GIVEN, _given(schema.names, arranged.absent, rows))
        parts.append(_dated(rows, records.rows, deletes=False))
    gone = records.tombstones
    if config.delete_enabled and gone is not None and gone.num_rows:
        keys = layout(config, {}, records, deletes=True)
        key = tuple(keys.key)
        loose = pa.schema([f.with_nullable(True) for f in columns if f.name in key])
        deleted = fitted(gone, keys, loose, key)
        parts.append(_dated(deleted, gone, deletes=True))
    missing = [n for n in key if n not in columns.names]
    if missing:
        raise ConfigError(
            f"pk.fields={','.join(key)}: the table of topic {named(records.topic)} has no column "
            f"{named(missing[0])}; it has {all_named(columns.names)}"
        )
    table = pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})
    return Rows(table, key)


def _check_names(arranged: Layout, rows: pa.Table) -> None:
    """Raises RowsRejected: records that have a field named like a column that changes need."""
    problems = {
        row: f"field {named(name)}: changes need a column of this name. Let a transform rename it"
        for name, values in arranged.columns.items()
        if _is_own(name)
        for row in pc.indices_nonzero(values.is_valid()).to_pylist()
    }
    if problems:
        raise some_rejected(rows, problems)


def _is_own(name: str) -> bool:
    return name in OWN or name.startswith(CHANGE_GIVEN)


def _given(names: Sequence[str], absent: Mapping[str, np.ndarray], rows: pa.Table) -> pa.Array:
    """The columns that each row gives, as one text."""
    texts = [f"{name}{_BETWEEN}" for name in names]
    pieces = [
        pc.if_else(pa.array(absent[n]), "", text) if n in absent else text
        for n, text in zip(names, texts, strict=True)
    ]
    return joined(pieces, rows.num_rows)


def given_in(changes: pa.Table, columns: Iterable[str]) -> dict[str, np.ndarray]:
    """Which changes give a value, for the columns in which some do not."""
    if CHANGE_GIVEN not in changes.column_names:
        return {}
    texts = changes.column(CHANGE_GIVEN).combine_chunks().dictionary_encode()
    named_ = [set(text.split(_BETWEEN)) for text in texts.dictionary.to_pylist()]
    codes = pc.fill_null(texts.indices, len(named_)).to_numpy()
    masks = {n: np.array([*(n in names for names in named_), True])[codes] for n in columns}
    return {n: rows for n, rows in masks.items() if not rows.all()}


def last_changes(
    changes: pa.Table, key: Sequence[str], given: Mapping[str, np.ndarray] | None = None
) -> pa.Table:
    """The last change of each key; an extra column says whether the key was deleted before it,
    so that the change starts from an empty row. ``given`` says, for some columns, which changes
    give a value: the last of these counts, and one more column says whether there is any."""
    partition, offset, timestamp = (changes.column(n) for n in PLACES)
    keys = [changes.column(n) for n in key]
    facts = Changes(keys, [partition, offset], changes.num_rows, timestamp)
    deletes = changes.column(CHANGE_DELETES)
    asked = dict(given or {})
    if pc.any(deletes).as_py():
        asked[CHANGE_DELETES] = deletes.to_numpy()
    survivors = last_of_each(facts, asked, revives=True)
    last = changes if survivors.rows is None else changes.take(pa.array(survivors.rows))
    anew = survivors.latest.get(CHANGE_DELETES, np.full(last.num_rows, -1)) >= 0
    for name in given or ():
        at = survivors.latest[name]
        values = changes.column(name).take(pa.array(at, mask=at < 0))
        last = last.set_column(last.column_names.index(name), name, values)
        last = last.append_column(CHANGE_GIVEN + name, pa.array((at >= 0) | anew))
    return last.append_column(CHANGE_ANEW, pa.array(anew))


def _dated(rows: pa.Table, source: pa.Table, *, deletes: bool) -> pa.Table:
    columns = {
        CHANGE_PARTITION: source.column(PARTITION),
        CHANGE_OFFSET: source.column(OFFSET),
        CHANGE_TIMESTAMP: source.column(TIMESTAMP).cast(pa.int64()).fill_null(-1)
        if TIMESTAMP in source.column_names
        else pa.repeat(pa.scalar(-1), rows.num_rows),
        CHANGE_DELETES: pa.repeat(pa.scalar(deletes), rows.num_rows),
    }
    loose = rows.cast(pa.schema([f.with_nullable(True) for f in rows.schema]))
    for name, values in columns.items():
        loose = loose.append_column(name, values)
    return loose


def fitted(
    source: pa.Table,
    arranged: Layout,
    columns: pa.Schema,
    key: tuple[str, ...] = (),
) -> pa.Table:
    """All of the ``columns``, in their order and types.

    Raises:
        RowsRejected: records that do not fit.
    """
    problems = refusals(arranged.unavailable(), arranged.placeholder)
    fitted = []
    for field in columns:
        values, nested = arranged.columns.get(field.name), arranged.nested.get(field.name)
        if values is None:
            values = pa.chunked_array([pa.nulls(source.num_rows)])
        if values.null_count and (field.name in key or not field.nullable):
            what = "of the key is null" if field.name in key else "must not be null"
            for index in pc.indices_nonzero(values.is_null()).to_pylist():
                problems.setdefault(index, f"column {named(field.name)} {what}")
        if WALL in (field.metadata or {}):
            values = _on_the_wall(values)
        as_json = holds_json(field)
        try:
            fitted.append(convert(values, field.type, nested, as_json=as_json))
        except UNFIT:
            unfit = unfit_rows(values, field.type, nested, as_json=as_json)
            if not unfit:
                raise
            for index, why in unfit:
                shown = told(values[index])[:100]
                text = (
                    f"column {named(field.name)} ({typed(field.type)}) cannot take {shown}: {why}"
                )
                problems.setdefault(index, text)
    if problems:
        raise some_rejected(source, problems)
    return pa.Table.from_arrays(fitted, schema=columns)


def _on_the_wall(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(values.type, pa.JsonType):
        texts = [without_zone(c.storage) for c in values.chunks]
        chunks = [pa.ExtensionArray.from_storage(values.type, storage) for storage in texts]
        return pa.chunked_array(chunks, values.type)
    return without_zone(values) if is_text(values.type) else values


def places(table: pa.Table, topic: str) -> pa.Table:
    """Partition and offset of the rows of a topic, and their records' times in milliseconds where
    there is a fourth column; the first three are topic, partition and offset."""
    rows = table.filter(pc.equal(table.column(0), topic))
    columns = {
        "partition": rows.column(1).cast(pa.int32()),
        "offset": rows.column(2).cast(pa.int64()),
    }
    if rows.num_columns > 3 and pa.types.is_timestamp(rows.column(3).type):
        millis = pa.timestamp("ms", rows.column(3).type.tz)
        columns["timestamp"] = rows.column(3).cast(millis, safe=False).cast(pa.int64())
    return pa.table(columns)


def shown(
    table: pa.Table, topic: str, columns: Sequence[str], provenance: Mapping[str, str]
) -> pa.Table:
    """Rows of a lake's table as a view gives them: those of a topic, with their places."""
    plain = [f.with_type(column_type(f.type, _without_views)) for f in table.schema]
    table = table.cast(pa.schema(plain))  # Arrow cannot filter string views
    if not provenance:
        return table.select(columns)
    table = table.filter(pc.equal(table.column(provenance[TOPIC]), topic))
    origin = {
        PARTITION: table.column(provenance[PARTITION]).cast(pa.int32()),
        OFFSET: table.column(provenance[OFFSET]).cast(pa.int64()),
    }
    times = table.column(provenance[TIMESTAMP])
    if pa.types.is_timestamp(times.type):
        millis = pa.timestamp("ms", times.type.tz)
        origin[TIMESTAMP] = times.cast(millis, safe=False).cast(pa.int64())
    return pa.table({**origin, **{n: table.column(n) for n in columns}})


def _without_views(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    return pa.binary() if kind == pa.binary_view() else kind
