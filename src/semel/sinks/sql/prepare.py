"""Converts records to the deletes and rows for a table, in the types of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.nested import ValueReader
from semel.core.quoting import named
from semel.core.records import (
    OFFSET,
    ORIGIN,
    PARTITION,
    TIMESTAMP,
    Records,
    RowsRejected,
    rejected,
    some_rejected,
)
from semel.databases.columns import Column, Table
from semel.sinks.casts import UNFIT, only_null, told, unfit_rows
from semel.sinks.changes import Changes, Survivors, all_of_each, last_of_each
from semel.sinks.convert import read_nested
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout, layout
from semel.sinks.sql.convert import ConvertedValues, convert
from semel.sinks.sql.semantic import formed
from semel.sinks.unavailable import refusals, without

Convert = Callable[[pa.ChunkedArray, Column], ConvertedValues]
Compare = Callable[["Table", "Rows"], Mapping[str, pa.ChunkedArray]]
"""Gives each key column numbers that are equal where the database says that its values are."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in the types that COPY takes; the columns named by ``staged`` hold text that the server
    must cast. ``places`` say where the records behind them were read. ``given`` says, for some
    columns, which rows give a value: the others leave the column as it is."""

    columns: pa.Table
    staged: frozenset[str]
    places: pa.Table
    count: int
    given: Mapping[str, np.ndarray] = field(default_factory=dict)

    def take(self, indices: np.ndarray | None) -> Rows:
        """Some of the rows; all of them for None."""
        if indices is None:
            return self
        at = pa.array(indices)
        given = {name: rows[indices] for name, rows in self.given.items()}
        return Rows(self.columns.take(at), self.staged, self.places.take(at), len(indices), given)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What remains to be done in one table: delete these keys, then write these rows."""

    topic: str
    table: Table
    mode: str
    key: list[str]
    rows: Rows
    deletes: Rows | None = None

    def changed(self, names: Sequence[str]) -> list[str]:
        """The columns of an existing row that a new row changes, including key columns whose values
        can be equal without being the same."""
        columns = self.table.columns
        return [
            n for n in names if not columns[n].fixed and (n not in self.key or not columns[n].exact)
        ]


def prepare(
    config: JdbcConfig,
    table: Table,
    arranged: Layout,
    records: Records,
    compare: Compare,
    convert: Convert = convert,
) -> TableChanges:
    """Convert records to the table's types and reduce several changes of a key to what must be
    written.

    ``compare`` is called for keys of types in which different values can be equal.

    Raises:
        RowsRejected: records that do not fit, with the column, the value and the reason.
    """
    topic, key, mode = records.topic, arranged.key, config.mode
    columns, tombstones = dict(arranged.columns), None
    gone = arranged.unavailable()
    if gone and mode == "insert":
        raise some_rejected(records.rows, refusals(gone, arranged.placeholder))
    columns |= {name: without(columns[name], rows) for name, rows in gone.items()}
    for name, lacking in arranged.absent.items():
        column = table.columns.get(name)
        if mode != "insert" or (column is not None and column.has_default):
            gone[name] = lacking | gone.get(name, False)
    if config.delete_enabled and records.tombstones is not None and records.tombstones.num_rows:
        tombstones = records.tombstones
        keys = layout(config, {}, records, deletes=True)
        for name, own in zip(key, keys.key, strict=True):
            # convert them together, so that equal keys stay equal
            columns[name] = pa.chunked_array(columns[name].chunks + keys.columns[own].chunks)
    arrays, staged = converted(records, table, columns, key, convert, arranged.typed)
    count = records.rows.num_rows
    row_values = pa.table({n: v.slice(0, count) for n, v in arrays.items()})
    given = given_in(row_values, table, records, gone)
    rows = Rows(row_values, staged, places(records.rows), count, given)
    if not key or (mode == "insert" and tombstones is None):
        return TableChanges(topic, table, mode, key, rows)
    compared = {n: arrays[n] for n in key}
    unsure = [n for n in key if n in staged or not table.columns[n].exact]
    if unsure:
        asked = pa.table({n: arrays[n] for n in unsure})
        compared |= compare(table, Rows(asked, staged.intersection(unsure), asked, asked.num_rows))
    changes = Changes(list(compared.values()), *_order(records.rows, tombstones, count))
    if mode == "insert":
        survivors = all_of_each(changes)
    else:
        survivors = last_of_each(changes, rows.given, revives=mode == "upsert")
    deletes = None
    if tombstones is not None:
        deleted = pa.table({n: arrays[n].slice(count) for n in key})
        deletes = Rows(deleted, staged.intersection(key), places(tombstones), tombstones.num_rows)
        deletes = deletes.take(survivors.tombstones)
    return TableChanges(topic, table, mode, key, _latest(rows, survivors), deletes)


def converted(
    records: Records,
    table: Table,
    columns: Mapping[str, pa.ChunkedArray],
    key: Sequence[str],
    convert: Convert = convert,
    typed: Mapping[str, ValueReader] | None = None,
) -> tuple[dict[str, pa.ChunkedArray], frozenset[str]]:
    """Columns in the types that COPY takes, without those that the server fills in; and which of
    them are staged. ``typed`` reads columns of JSON whose types JSON does not show.

    Raises:
        RowsRejected: records that do not fit, with the column, the value and the reason.
    """
    problems: dict[int, str] = {}
    arrays: dict[str, pa.ChunkedArray] = {}
    staged = set()
    for name, values in columns.items():
        column = table.columns.get(name)
        if column is None or column.generated:
            continue  # a field that has only been null so far, or one that the server fills in
        if values.null_count and name in key:
            for index in pc.indices_nonzero(values.is_null()).to_pylist():
                problems.setdefault(index, f"column {named(name)} of the key is null")
        fit = partial(_fit, column=column, convert=convert, inside=(typed or {}).get(name))
        try:
            arrays[name], must_cast = fit(values)
        except UNFIT:
            unfit = unfit_rows(values, fit)
            if not unfit:  # continuing would leave the column out
                raise
            for index, reason in unfit:
                shown = told(values[index])
                text = f"column {named(name)} ({column.type}) cannot take {shown}: {reason}"
                problems.setdefault(index, text)
        else:
            staged.update([name] * must_cast)
    if problems:
        count = records.rows.num_rows
        raise RowsRejected(
            [
                rejected(records.rows, index, reason)
                if index < count
                else rejected(records.tombstones, index - count, reason)
                for index, reason in sorted(problems.items())
            ]
        )
    return arrays, frozenset(staged)


def _fit(
    values: pa.ChunkedArray, column: Column, convert: Convert, inside: ValueReader | None
) -> ConvertedValues:
    if inside is not None and not only_null(values):
        values = read_nested(values, inside)
    return convert(formed(values, column), column)


def is_optional(column: Column, records: Records) -> bool:
    """Whether a null means "not given": it does not override the column's default, nor what a row
    holds already. The nulls that records are known to hold do so only where the column allows none.
    """
    return column.has_default and not (records.tells_nulls and column.nullable)


def given_in(
    columns: pa.Table, table: Table, records: Records, gone: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Which rows give a value, for the columns in which some do not: those that are ``gone``, and
    nulls in optional columns."""
    masks = {}
    for name, values in zip(columns.column_names, columns.columns, strict=True):
        if name in gone:
            masks[name] = ~gone[name]
        if values.null_count and is_optional(table.columns[name], records):
            valid = values.is_valid().to_numpy()
            masks[name] = valid & masks.get(name, True)
    return masks


def patterns_of(rows: Rows) -> np.ndarray:
    """A number for each row, from 0 on, equal where values are given in the same columns."""
    patterns = np.zeros(rows.count, dtype=np.int64)
    for there in rows.given.values():
        _, patterns = np.unique(patterns * 2 + there, return_inverse=True)
    return patterns


def by_given_columns(rows: Rows, patterns: np.ndarray | None = None) -> Iterator[Rows]:
    """The rows, split by the columns in which they give no value, without those columns."""
    patterns = patterns_of(rows) if patterns is None else patterns
    for pattern in np.unique(patterns):
        mask = patterns == pattern
        part = rows if mask.all() else rows.take(np.flatnonzero(mask))
        absent = [name for name, there in part.given.items() if not there[0]]
        yield replace(part, columns=part.columns.drop_columns(absent))


def places(source: pa.Table) -> pa.Table:
    """Where the records behind rows were read."""
    return source.select([n for n in ORIGIN if n in source.column_names])


def _order(
    rows: pa.Table, tombstones: pa.Table | None, count: int
) -> tuple[Sequence[pa.ChunkedArray], int, pa.ChunkedArray | None]:
    """The columns that order changes; see :class:`Changes`."""
    names = [n for n in (PARTITION, OFFSET, TIMESTAMP) if n in rows.column_names]
    all_ = rows.select(names)
    if tombstones is not None:
        all_ = pa.concat_tables([all_, tombstones.select(names)])
    timestamps = all_.column(TIMESTAMP) if TIMESTAMP in names else None
    return [all_.column(n) for n in names if n != TIMESTAMP], count, timestamps


def _latest(rows: Rows, survivors: Survivors) -> Rows:
    """The rows that are left, with each value from the row that gives it."""
    reduced = rows.take(survivors.rows)
    columns, given = reduced.columns, dict(reduced.given)
    for name, at in survivors.latest.items():
        values = rows.columns.column(name).take(pa.array(at, mask=at < 0))
        columns = columns.set_column(columns.column_names.index(name), name, values)
        given[name] = at >= 0
    return replace(reduced, columns=columns, given=given)
