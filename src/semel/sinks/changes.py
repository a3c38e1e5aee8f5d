"""Decides which of several changes of one key in a commit to write. Vectorised.

Within a partition the later offset wins. Kafka has no order between partitions: if a key is in
several, its changes are ordered by timestamp, and by partition if timestamps are equal, but never
against the offsets of a partition: a change never counts as earlier than one that it follows there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.records import (
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    Records,
    absences,
    one_array,
    value_columns,
)

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]
_NONE = np.empty(0, dtype=np.int64)
_TURNS = 32
"""How often the changes of a key may alternate between parts and keep their exact sequence."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of keys, in any order: ``count`` rows first, then tombstones.

    ``keys`` are the key's columns; ``order`` are columns that say which change came first, the most
    significant one first, or empty if the changes are already in order. ``timestamps`` are wanted
    if ``order`` is partition and offset: without them, the higher partition wins.
    """

    keys: Sequence[pa.ChunkedArray]
    order: Sequence[pa.ChunkedArray]
    count: int
    timestamps: pa.ChunkedArray | None = None


@dataclass(frozen=True, slots=True)
class Survivors:
    """The changes that survive: ``rows`` to write, and the tombstones (by their own index) whose
    keys to delete first.

    ``rows`` is None if all are to be written as they stand. A tombstone survives even if a row of
    its key follows: that row must not find what the key held before. ``latest`` holds, for the
    columns that were asked about, the row that each value comes from, or -1.
    """

    rows: Indices | None
    tombstones: Indices
    latest: Mapping[str, Indices]


def all_of_each(changes: Changes) -> Survivors:
    """For plain inserts: every row that no later tombstone of its key undoes."""
    if changes.count == len(changes.keys[0]):
        return Survivors(None, _NONE, {})
    order, starts = _grouped(changes)
    deletes = order >= changes.count
    last_delete = _last_of_each_group(deletes, starts)
    survives = ~deletes & (np.arange(len(order)) > _spread(last_delete, starts, len(order)))
    gone = last_delete[last_delete >= 0]
    return Survivors(np.sort(order[survives]), order[gone] - changes.count, {})


def last_of_each(changes: Changes, given: Mapping[str, np.ndarray], *, revives: bool) -> Survivors:
    """For upserts and updates: the last change of each key, in the order of the keys if those are
    numbers (neighbours in an index are quicker to find), else in the order of the changes.

    ``given`` says, for some columns, which rows give a value. Where one does not, it leaves alone
    what an earlier change of the key has written there: the value comes from the last row that
    gives one. Without ``revives`` a row after a tombstone of its key finds nothing to update.
    """
    numeric = all(_is_numeric(k.type) for k in changes.keys)
    only_rows = changes.count == len(changes.keys[0])
    if numeric and only_rows and not given and len(changes.keys) == 1:
        numbers = _numbers(changes.keys[0])
        if (numbers[1:] > numbers[:-1]).all():
            return Survivors(None, _NONE, {})
    order, starts = _grouped(changes)
    last = order[np.append(starts[1:], len(order)) - 1]
    last_delete = _last_of_each_group(order >= changes.count, starts)
    deleted = last_delete >= 0
    gone = order[last_delete[deleted]] - changes.count
    groups = np.flatnonzero((last < changes.count) & (revives | ~deleted))
    if not numeric:
        groups = groups[np.argsort(last[groups])]
    latest = {}
    after = np.arange(len(order)) > _spread(last_delete, starts, len(order))
    for name, rows in given.items():
        there = np.zeros(len(order), dtype=bool)
        there[: changes.count] = rows
        at = _last_of_each_group(there[order] & after, starts)[groups]
        latest[name] = np.where(at >= 0, order[at], -1)
    return Survivors(last[groups], gone, latest)


def last_by_key(records: Records) -> tuple[pa.Table, pa.Table]:
    """The changes for a store of keys and values: tombstones to delete, and then rows to write, one
    for each record key. No key may be null."""
    rows, gone = records.rows, records.tombstones
    if gone is None:
        gone = rows.slice(0, 0)
    if not records.count:
        return gone, rows
    timed = {TIMESTAMP} & set(rows.column_names) & set(gone.column_names)
    key, partition, offset, *timestamps = (
        pa.chunked_array([*rows.column(n).chunks, *gone.column(n).chunks], rows.column(n).type)
        for n in (KEY, PARTITION, OFFSET, *timed)
    )
    changes = Changes([key], [partition, offset], rows.num_rows, *timestamps)
    survivors = last_of_each(changes, {}, revives=True)
    kept = rows if survivors.rows is None else rows.take(pa.array(survivors.rows))
    return gone.take(pa.array(survivors.tombstones)), kept


def in_turn(
    parts: Sequence[Records],
    keys: Sequence[tuple[pa.Table | None, pa.Table | None]] | None = None,
) -> list[Records]:
    """Cut parts so that, written one after another, they write records in order: all records, or
    with the ``keys`` of rows and tombstones the changes of each key.

    A key that alternates between parts too often keeps only some of its changes in order: the last
    tombstone, which undoes what comes before it, and after that the last row of each part that
    gives the same columns.
    """
    tables = [t for p in parts for t in (p.rows, p.tombstones or p.rows.slice(0, 0))]
    sizes = [t.num_rows for t in tables]
    timed = keys is not None and all(TIMESTAMP in t.column_names for t in tables)
    names = [PARTITION, OFFSET, *[TIMESTAMP] * timed]
    partition, offset, *timestamps = pa.concat_tables([t.select(names) for t in tables]).columns
    owner = np.repeat(np.arange(len(tables)), sizes)
    alike, spelled = _alike(keys or (), tables)
    columns = [pa.chunked_array([pa.array(a, pa.int64())]) for a in alike]
    order, starts = _grouped(Changes(columns, [partition, offset], len(owner), *timestamps))
    part, group = owner[order] // 2, _spread(np.arange(len(starts)), starts, len(order))
    changes = np.diff(part, prepend=part[:1]) != 0
    changes[starts] = False
    turn = np.cumsum(changes)
    turn -= turn[starts][group]
    if turn.max() > _TURNS:
        exact = np.ones(len(order), np.bool_)
        for column in spelled:
            exact &= column[order] == column[order[starts]][group]
        apart = np.unique(group[~exact])
        form = _forms(tables)[order]
        of_form, inverse = np.unique(group * (form.max() + 1) + form, return_inverse=True)
        last = np.zeros(len(of_form), np.int64)
        np.maximum.at(last, inverse, turn)
        deleted = np.zeros(len(starts), np.int64)
        gone = np.flatnonzero(owner[order] % 2)
        np.maximum.at(deleted, group[gone], gone)
        undone = np.arange(len(order)) < deleted[group]
        turn = np.where(np.isin(group, apart), turn, np.where(undone, 0, last[inverse]))
        size = turn.max() + 1
        distinct, inverse = np.unique(group * size + turn, return_inverse=True)
        turn = inverse - np.searchsorted(distinct, group * size)
    turns = np.empty(len(order), np.int64)
    turns[order] = turn
    pieces: dict[tuple[int, int], list[pa.Table | None]] = {}
    for n, table in enumerate(tables):
        for number, piece in _by_turn(table, turns[owner == n]):
            empty = [tables[n - n % 2].slice(0, 0), None]
            pieces.setdefault((number, n // 2), empty)[n % 2] = piece
    return [
        replace(parts[at], rows=rows, tombstones=gone)
        for (_, at), (rows, gone) in sorted(pieces.items(), key=lambda item: item[0])
    ]


def _forms(tables: Sequence[pa.Table]) -> np.ndarray:
    """A number for each change, equal where rows of a part give the same columns: a later one
    leaves nothing of those before it."""
    all_forms: list[np.ndarray] = []
    for number, table in enumerate(tables):
        forms = np.full(table.num_rows, number, np.int64)
        nulls = [c.is_null() for c in map(table.column, value_columns(table.column_names))]
        for rows in (*nulls, *absences(table).values()):
            _, forms = np.unique(forms * 2 + rows.to_numpy(), return_inverse=True)
        all_forms.append(forms + sum(f.max(initial=-1) + 1 for f in all_forms))
    return np.concatenate(all_forms)


def _by_turn(table: pa.Table, turns: Indices) -> Iterator[tuple[int, pa.Table]]:
    if (turns[1:] < turns[:-1]).any():
        order = np.argsort(turns, kind="stable")
        table, turns = table.take(pa.array(order)), turns[order]
    starts = np.flatnonzero(np.diff(turns, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, len(turns)]):
        yield int(turns[start]), table.slice(start, end - start)


def _alike(
    keys: Sequence[tuple[pa.Table | None, pa.Table | None]], tables: Sequence[pa.Table]
) -> tuple[list[Indices], list[Indices]]:
    """Numbers that are equal for keys that any store could take for equal, by column, and numbers
    that are equal for keys that are written alike."""
    length = sum(t.num_rows for t in tables)
    unknown = [np.zeros(length, np.int64)], [np.arange(length)]
    key_tables = [k for pair in keys for k in pair if k is not None and k.num_rows]
    if (
        sum(k.num_rows for k in key_tables) < length
        or len({tuple(k.column_names) for k in key_tables}) != 1
    ):
        return unknown
    alike, spelled = [], []
    for name in key_tables[0].column_names:
        columns = [one_array(k.column(name)) for k in key_tables]
        columns = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in columns]
        kinds = {c.type for c in columns}
        try:
            if len(kinds) > 1 or any(map(_may_vary, kinds)):
                columns = [c.cast(pa.string()) for c in columns]
            written = pa.concat_arrays(columns)
            spelled.append(_codes(written))
            if pa.types.is_string(written.type):
                if not pc.all(pc.string_is_ascii(written)).as_py():
                    return unknown  # collations know other letters
                written = pc.replace_substring_regex(pc.utf8_lower(written), "[^0-9a-z]", "")
                written = pc.utf8_rtrim(written, characters="0z")  # of fractions, and of UTC
            alike.append(_codes(written))
        except pa.ArrowException:
            return unknown
    return alike, spelled


def _may_vary(kind: pa.DataType) -> bool:
    """Whether equal values may be written in several ways."""
    t = pa.types
    textual = t.is_string(kind) or t.is_large_string(kind) or t.is_dictionary(kind)
    return bool(textual or t.is_floating(kind))


def _codes(values: pa.Array) -> Indices:
    """Numbers that are equal where the values are."""
    codes: Indices = pc.dictionary_encode(values, "encode").indices.to_numpy()
    return codes


def _grouped(changes: Changes) -> tuple[Indices, Indices]:
    """Indices of all changes sorted by key, then by time; and where each key starts."""
    keys = [_numbers(k) for k in changes.keys]
    when = [_numbers(c) for c in changes.order]
    if _ascending(when):
        when = []
    if len(keys) == 1 and not when:
        order = np.argsort(keys[0], kind="stable")
    else:
        order = np.lexsort([*reversed(when), *reversed(keys)])
    differs = np.zeros(len(order), dtype=bool)
    differs[:1] = True
    for key in keys:
        arranged = key[order]
        differs[1:] |= arranged[1:] != arranged[:-1]
    starts = np.flatnonzero(differs)
    if changes.timestamps is not None and len(when) == 2:
        order = _between_partitions(order, starts, when[0], _numbers(changes.timestamps))
    return order, starts


def _between_partitions(
    order: Indices, starts: Indices, partitions: Indices, timestamps: Indices
) -> Indices:
    """The same order, but with changes of keys that are in several partitions ordered by time."""
    sizes = np.diff(np.append(starts, len(order)))
    several = partitions[order[starts]] != partitions[order[starts + sizes - 1]]
    if not several.any():
        return order
    places = np.flatnonzero(np.repeat(several, sizes))
    mixed, keys = order[places], np.repeat(np.arange(len(starts)), sizes)[places]
    runs = np.cumsum(np.diff(keys, prepend=-1) | np.diff(partitions[mixed], prepend=-1) != 0)
    _, ranks = np.unique(timestamps[mixed], return_inverse=True)
    # The latest so far in each run: a later run begins above all ranks of those before it.
    latest = np.maximum.accumulate(runs * len(mixed) + ranks) - runs * len(mixed)
    arranged = order.copy()
    arranged[places] = mixed[np.lexsort([latest, keys])]
    return arranged


def _ascending(columns: Sequence[Indices]) -> bool:
    """Whether rows are already in order; only the usual case, one partition, is recognised."""
    *first, last = columns or [_NONE]
    return all((c == c[0]).all() for c in first if len(c)) and bool((last[1:] >= last[:-1]).all())


def _last_of_each_group(mask: np.ndarray, starts: Indices) -> Indices:
    """The last position in each group where ``mask`` is true, or -1."""
    at = np.where(mask, np.arange(len(mask)), -1)
    last: Indices = np.maximum.reduceat(at, starts)
    return last


def _spread(per_group: Indices, starts: Indices, size: int) -> Indices:
    spread: Indices = np.repeat(per_group, np.diff(np.append(starts, size)))
    return spread


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def _numbers(values: pa.ChunkedArray) -> Indices:
    """Numbers that are equal where the values are, and sort like them if the values are numeric."""
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        values = values.cast(pa.int64())
    elif not _is_numeric(kind):
        if pa.types.is_floating(kind):
            values = pc.add(values, pa.scalar(0.0, kind))  # -0.0 becomes 0.0, which is equal to it
        array = one_array(values)
        if isinstance(kind, pa.BaseExtensionType):
            array = array.storage
        values = pc.dictionary_encode(array).indices
    numbers: Indices = values.to_numpy()
    return numbers
