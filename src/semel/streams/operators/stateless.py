"""Operators without state: each record by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import SemelError
from semel.streams.codec import column, objects, pack_keys
from semel.streams.expressions import Compiled, Expression, compiled, takes_key
from semel.streams.records import Records, concatenated, merged
from semel.streams.store import Store, StoreSpec
from semel.streams.topology import Run


@dataclass(frozen=True)
class Stateless:
    """The base class of operators without stores."""

    stores: Sequence[StoreSpec] = field(default=(), init=False)

    def start(self, stores: Mapping[str, Store]) -> Run:
        return self.run

    def run(self, *inputs: Records) -> Records:
        raise NotImplementedError


def _true(values: pa.Array, what: str) -> np.ndarray:
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.bool_)
    if not pa.types.is_boolean(values.type):
        raise SemelError(f"{what} needs a condition, but it gives {values.type}")
    return np.asarray(values.fill_null(False)).astype(np.bool_)


@dataclass(frozen=True)
class Filter(Stateless):
    """Keeps records for which a condition is true or, ``negated``, is not. A table's record for
    which it is not true any more becomes a tombstone."""

    condition: Expression
    negated: bool = False

    def start(self, stores: Mapping[str, Store]) -> Run:
        evaluate = compiled(self.condition, "filter")

        def keeps(records: Records) -> np.ndarray:
            return _true(evaluate(records), "filter") ^ self.negated

        def run(records: Records) -> Records:
            if records.olds is None:
                return records.only(keeps(records))
            news = _where(keeps, records, records.values)
            olds = _where(keeps, records, records.olds)
            there = pc.or_(news.is_valid(), olds.is_valid())
            return records.holding(values=news, olds=olds).only(np.asarray(there))

        return run


def _where(keeps: Callable[[Records], np.ndarray], records: Records, values: pa.Array) -> pa.Array:
    rows = np.flatnonzero(np.asarray(values.is_valid()))
    kept = np.zeros(len(values), np.bool_)
    if len(rows):
        kept[rows] = keeps(records.holding(values=values).take(rows))
    return pc.if_else(pa.array(kept), values, None)


@dataclass(frozen=True)
class Branch(Stateless):
    """The records for which the last condition is true, and none of those before; without a last
    one, those that no branch took."""

    before: tuple[Expression, ...]
    condition: Expression | None

    def start(self, stores: Mapping[str, Store]) -> Run:
        before = [compiled(c, "branch") for c in self.before]
        last = None if self.condition is None else compiled(self.condition, "branch")

        def run(records: Records) -> Records:
            kept = np.ones(len(records), np.bool_)
            for evaluate in before:
                kept &= ~_true(evaluate(records), "branch")
            if last is not None:
                kept &= _true(last(records), "branch")
            return records.only(kept)

        return run


@dataclass(frozen=True)
class MapValues(Stateless):
    """Gives each record another value. A table's tombstones stay."""

    mapper: Expression

    def start(self, stores: Mapping[str, Store]) -> Run:
        evaluate = compiled(self.mapper, "map_values")
        stays = isinstance(self.mapper, Mapping)

        def run(records: Records) -> Records:
            if records.olds is not None:
                news = mapped(evaluate, records, records.values)
                return records.holding(values=news, olds=mapped(evaluate, records, records.olds))
            if stays and records.values.null_count:
                return records.holding(values=mapped(evaluate, records, records.values))
            return records.holding(values=evaluate(records))

        return run


def mapped(evaluate: Compiled, records: Records, values: pa.Array) -> pa.Array:
    """What becomes of values; null for null."""
    rows = np.flatnonzero(np.asarray(values.is_valid()))
    if not len(rows):
        return pa.nulls(len(values))
    results = evaluate(records.holding(values=values).take(rows))
    at = np.full(len(values), -1)
    at[rows] = np.arange(len(rows))
    return results.take(pa.array(at, mask=at < 0))


@dataclass(frozen=True)
class Map(Stateless):
    """Gives each record another key or, with ``value``, both another key and value."""

    key: Expression
    value: Expression | None = None

    def start(self, stores: Mapping[str, Store]) -> Run:
        key = compiled(self.key, "key")
        value = None if self.value is None else compiled(self.value, "value")

        def run(records: Records) -> Records:
            values = records.values if value is None else value(records)
            return records.holding(keys=key(records), values=values)

        return run


@dataclass(frozen=True)
class MapPairs(Stateless):
    """Gives each record the key and value that a function of both returns: a pair of them or, with
    ``flat``, any number of pairs."""

    mapper: Callable[[Any, Any], Any]
    flat: bool = False

    def run(self, *inputs: Records) -> Records:
        (records,) = inputs
        keys, values, rows = [], [], []
        pairs = zip(objects(records.keys), objects(records.values), strict=True)
        for row, (key, value) in enumerate(pairs):
            result = self.mapper(key, value)
            for new_key, new_value in result if self.flat else (result,):
                keys.append(new_key)
                values.append(new_value)
                rows.append(row)
        taken = records.take(np.array(rows, np.int64))
        return taken.holding(keys=column(keys), values=column(values))


@dataclass(frozen=True)
class FlatMapValues(Stateless):
    """Gives a record for each element of the list that an expression or a function makes of one."""

    mapper: Expression

    def start(self, stores: Mapping[str, Store]) -> Run:
        evaluate = compiled(self.mapper, "flat_map_values")

        def run(records: Records) -> Records:
            lists = evaluate(records)
            if pa.types.is_null(lists.type):
                return records.take(np.zeros(0, np.int64))
            if not pa.types.is_list(lists.type):
                raise SemelError(f"flat_map_values needs lists, but it gives {lists.type}")
            rows = np.asarray(pc.list_parent_indices(lists))
            return records.take(rows).holding(values=lists.flatten())

        return run


@dataclass(frozen=True)
class Apply(Stateless):
    """Gives the records that a function of Arrow batches returns for each batch."""

    function: Callable[[Records], Records]

    def run(self, *inputs: Records) -> Records:
        return self.function(*inputs)


@dataclass(frozen=True)
class Peek(Stateless):
    """Shows each record to a function."""

    action: Callable[..., Any]

    def run(self, *inputs: Records) -> Records:
        (records,) = inputs
        wants_key = takes_key(self.action)
        pairs: Iterable[Any] = zip(objects(records.keys), objects(records.values), strict=True)
        for key, value in pairs:
            self.action(key, value) if wants_key else self.action(value)
        return records


@dataclass(frozen=True)
class Merge(Stateless):
    """The records of several streams, in their order."""

    def run(self, *inputs: Records) -> Records:
        return merged(inputs)


@dataclass(frozen=True)
class ToStream(Stateless):
    """The changes of a table as a stream."""

    def run(self, *inputs: Records) -> Records:
        return inputs[0].holding(olds=None, old_times=None)


@dataclass(frozen=True)
class HasKey(Stateless):
    """Drops records without a key or, ``and_value``, without a value."""

    and_value: bool = False

    def run(self, *inputs: Records) -> Records:
        (records,) = inputs
        there = records.keys.is_valid()
        if self.and_value:
            there = pc.and_(there, records.values.is_valid())
        return records.only(np.asarray(there))


@dataclass(frozen=True)
class Regroup(Stateless):
    """Makes of each change of a table what it changes in groups: the old value leaves its group,
    the new one enters another or the same."""

    key: Expression
    value: Expression | None = None

    def start(self, stores: Mapping[str, Store]) -> Run:
        key = compiled(self.key, "group_by")
        value = None if self.value is None else compiled(self.value, "group_by")

        def pairs(records: Records, values: pa.Array) -> tuple[pa.Array, pa.Array, np.ndarray]:
            keys = mapped(key, records, values)
            new_values = values if value is None else mapped(value, records, values)
            return keys, new_values, np.asarray(pc.and_(keys.is_valid(), new_values.is_valid()))

        def run(records: Records) -> Records:
            old_keys, olds, has_old = pairs(records, records.olds)
            new_keys, news, has_new = pairs(records, records.values)
            together = pc.equal(pack_keys(old_keys), pack_keys(new_keys)).fill_null(False)
            same = np.asarray(together).astype(np.bool_) & has_old & has_new
            leaves, enters = np.flatnonzero(has_old), np.flatnonzero(has_new & ~same)
            rows = np.concatenate([leaves, enters])
            none = np.full(len(enters), -1)
            of_news = np.concatenate([np.where(same[leaves], leaves, -1), enters])
            of_olds = np.concatenate([leaves, none])
            changes = Records(
                concatenated([old_keys.take(pa.array(leaves)), new_keys.take(pa.array(enters))]),
                news.take(pa.array(of_news, mask=of_news < 0)),
                records.times.take(pa.array(rows)),
                order=records.order[rows],
                olds=olds.take(pa.array(of_olds, mask=of_olds < 0)),
                old_times=pa.nulls(len(rows), pa.int64()),
            )
            return changes.take(np.lexsort((np.arange(len(rows)), changes.order)))

        return run


@dataclass(frozen=True)
class PackChange(Stateless):
    """Puts both values of a table's changes into one, for a topic."""

    def run(self, *inputs: Records) -> Records:
        (records,) = inputs
        both = pa.StructArray.from_arrays([records.values, records.olds], names=["new", "old"])
        return records.holding(values=both, olds=None, old_times=None)


@dataclass(frozen=True)
class UnpackChange(Stateless):
    """The changes of a table as a topic has them."""

    def run(self, *inputs: Records) -> Records:
        (records,) = inputs
        news, olds = records.values.flatten()
        times = pa.nulls(len(records), pa.int64())
        return records.holding(values=news, olds=olds, old_times=times)
