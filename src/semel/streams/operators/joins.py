"""Joins with tables: by the column, whatever the order of both sides in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import SemelError
from semel.core.quoting import named
from semel.streams.codec import column, objects, pack_keys
from semel.streams.expressions import Expression, arrow, compiled, takes_key
from semel.streams.operators.state import TimedValues, read
from semel.streams.operators.table import as_of
from semel.streams.records import NONE, Records, merged
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run

THIS, OTHER = "this", "other"
"""The two sides of a join, as expressions call them."""
Joiner = Callable[[Records, pa.Array, pa.Array], pa.Array]
"""Makes the joined values of records, given the values of both sides."""


def joiner_of(expression: Expression | None) -> Joiner:
    """How values are joined: by an expression of ``this`` and ``other``, by a function of both (and
    the key before them), or, without one, all their fields together."""
    if expression is None:
        return lambda _, this, other: _all_fields(this, other)
    if callable(expression) and not isinstance(expression, arrow | pc.Expression):
        function, wants_key = expression, takes_key(expression, 2)

        def each(records: Records, this: pa.Array, other: pa.Array) -> pa.Array:
            arguments = [objects(this), objects(other)]
            if wants_key:
                arguments.insert(0, objects(records.keys))
            return column([function(*values) for values in zip(*arguments, strict=True)])

        return each
    evaluate = compiled(expression, "join")

    def run(records: Records, this: pa.Array, other: pa.Array) -> pa.Array:
        both = pa.StructArray.from_arrays([this, other], names=[THIS, OTHER])
        return evaluate(records.holding(values=both, olds=None))

    return run


def _all_fields(this: pa.Array, other: pa.Array) -> pa.Array:
    fields: dict[str, pa.Array] = {}
    for side, values in ((THIS, this), (OTHER, other)):
        if pa.types.is_null(values.type):
            continue
        names, columns = [side], [values]
        if pa.types.is_struct(values.type):
            names, columns = [f.name for f in values.type], values.flatten()
        for name, values_of in zip(names, columns, strict=True):
            if name in fields:
                raise SemelError(
                    f"join: both sides have a field {named(name)}. Say how they are joined, for "
                    f'example with {{"{name}": "this.{name}", ...}}'
                )
            fields[name] = values_of
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


@dataclass(frozen=True)
class StreamTable:
    """Joins each record of a stream with what a table has for its key by then. Records without a
    value are dropped, and those without a key unless it is a left join."""

    table: str
    joiner: Expression | None
    left: bool = False
    stores: Sequence[StoreSpec] = field(default=(), init=False)

    def start(self, stores: Mapping[str, Store]) -> Run:
        join = joiner_of(self.joiner)
        table = stores[self.table]

        def run(stream: Records, changes: Records) -> Records:
            there = stream.values.is_valid()
            if not self.left:
                there = pc.and_(there, stream.keys.is_valid())
            stream = stream.only(np.asarray(there))
            current = as_of(table, changes, stream, stream.keys)
            return _joined(stream, current.values, join, self.left)

        return run


@dataclass(frozen=True)
class StreamGlobal:
    """Joins each record of a stream with what a global table has for a key that the record
    names."""

    table: str
    key: Expression
    joiner: Expression | None
    left: bool = False
    stores: Sequence[StoreSpec] = field(default=(), init=False)

    def start(self, stores: Mapping[str, Store]) -> Run:
        join = joiner_of(self.joiner)
        key_of = compiled(self.key, "join")
        table = stores[self.table]

        def run(stream: Records) -> Records:
            stream = stream.only(np.asarray(stream.values.is_valid()))
            keys = key_of(stream)
            if not self.left:
                there = np.asarray(keys.is_valid())
                stream, keys = stream.only(there), keys.filter(pa.array(there))
            packed = pack_keys(keys)
            stored = read(table, packed.fill_null(b""))
            values = pc.if_else(packed.is_valid(), stored.values, None)
            return _joined(stream, values, join, self.left)

        return run


def _joined(stream: Records, others: pa.Array, join: Joiner, left: bool) -> Records:
    if not left:
        there = np.asarray(others.is_valid())
        stream, others = stream.only(there), others.filter(pa.array(there))
    if not len(stream):
        return NONE
    return stream.holding(values=join(stream, stream.values, others))


@dataclass(frozen=True)
class TableTable:
    """Joins two tables with the same keys: a change of either gives one of the result. ``kind`` is
    inner, left or outer."""

    left: str
    right: str
    joiner: Expression | None
    kind: str
    stores: Sequence[StoreSpec] = field(default=(), init=False)

    def start(self, stores: Mapping[str, Store]) -> Run:
        join = joiner_of(self.joiner)
        left, right = stores[self.left], stores[self.right]

        def run(lefts: Records, rights: Records) -> Records:
            # Of changes at the same place, the left one comes first.
            from_left = self._side(lefts, _before(right, rights, lefts), join, is_left=True)
            from_right = self._side(rights, as_of(left, lefts, rights, rights.keys), join)
            return merged([from_left, from_right])

        return run

    def _side(
        self, changes: Records, held: TimedValues, join: Joiner, is_left: bool = False
    ) -> Records:
        """The changes of the result, given those of one side and what the other has."""
        if not len(changes):
            return NONE
        others = held.values
        there, new, old = (a.is_valid() for a in (others, changes.values, changes.olds))
        if self.kind == "inner" or (self.kind == "left" and not is_left):
            kept = there
        else:
            kept = pc.or_(there, pc.or_(new, old))
        rows = np.flatnonzero(np.asarray(kept))
        if not len(rows):
            return NONE
        # Does a side suffice on its own?
        alone = self.kind == "outer" or (self.kind == "left" and not is_left)
        times = np.asarray(changes.times)
        times = np.maximum(times, np.asarray(held.times.fill_null(-1)))
        result = changes.take(rows).holding(
            times=pa.array(times[rows]), old_times=pa.nulls(len(rows), pa.int64())
        )
        others = others.take(pa.array(rows))
        columns = []
        for values in (result.values, result.olds):
            present = pc.or_(values.is_valid(), others.is_valid()) if alone else values.is_valid()
            at = np.flatnonzero(np.asarray(present))
            sides = [values.take(pa.array(at)), others.take(pa.array(at))]
            array = pa.nulls(len(rows))
            if len(at):
                both = join(result.take(at), *(sides if is_left else sides[::-1]))
                place = np.full(len(rows), -1)
                place[at] = np.arange(len(at))
                array = both.take(pa.array(place, mask=place < 0))
            columns.append(array)
        return result.holding(values=columns[0], olds=columns[1])


def _before(store: Store, changes: Records, records: Records) -> TimedValues:
    """What a table had before each record came, without a change of the same place."""
    earlier = records.holding(order=records.order - 1)
    return as_of(store, changes, earlier, records.keys)
