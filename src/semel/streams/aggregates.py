"""What a group of records adds up to: ``count()``, ``sum("amount")`` and their like by the column,
and people's own functions record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError
from semel.streams.codec import column, objects
from semel.streams.expressions import Compiled, Expression, compiled, takes_key
from semel.streams.parts import (
    ADD,
    COMBINE,
    KINDS,
    MERGE,
    PICK,
    SUBTRACT,
    SUBTRACTED,
    TAKE,
    WRAP,
    Combine,
    addends,
    checked_numbers,
    reduction,
    totals,
)
from semel.streams.records import Records, concatenated, whole

VALUE = "value"
"""The field of a state that holds the only aggregate."""


class Aggregation(ABC):
    """How records of a group become its state, and the state its value.

    A state is a value of Arrow or, where records are gone through one by one, of Python. None is
    the state of a group that has no records.
    """

    @property
    @abstractmethod
    def subtracts(self) -> bool:
        """Whether a value can be taken back, as the changes of tables demand."""

    @property
    def grows(self) -> bool:
        """Whether a state may become larger with each record."""
        return True

    @abstractmethod
    def inputs(self, records: Records, values: pa.Array) -> pa.Array:
        """What :meth:`add` takes of each record, whose value is here."""

    @abstractmethod
    def begin(self) -> Any:
        """The state that the first record is added to."""

    @abstractmethod
    def add(self, key: Any, value: Any, state: Any) -> Any:
        """The state with one more record."""

    @abstractmethod
    def subtract(self, key: Any, value: Any, state: Any) -> Any:
        """The state with one record less."""

    @abstractmethod
    def merge(self, key: Any, one: Any, other: Any) -> Any:
        """The state of two groups that become one; ``one`` is the earlier."""

    def states(self, states: Sequence[Any]) -> pa.Array:
        """States of Python as a column."""
        return column(states)

    def result(self, states: pa.Array) -> pa.Array:
        """The values of groups."""
        return states

    def fold(self, codes: np.ndarray, count: int, records: Records, before: pa.Array) -> pa.Array:
        """The states of so many groups after records have been added, in their order. ``codes``
        says which group each belongs to."""
        states = objects(before)
        for _ in self._added(codes, records, states):
            pass
        return self.states(states)

    def replace(
        self, codes: np.ndarray, count: int, records: Records, before: pa.Array
    ) -> pa.Array:
        """The states of so many groups after the changes of a table: olds are taken back, values
        added."""
        states = objects(before)
        for _ in self._replaced(codes, records, states):
            pass
        return self.states(states)

    def running(
        self, codes: np.ndarray, records: Records, before: pa.Array, of_table: bool = False
    ) -> pa.Array:
        """The state of each record's group right after that record. ``of_table``: the records are
        the changes of a table."""
        after = (self._replaced if of_table else self._added)(codes, records, objects(before))
        # People's functions may change a state in place.
        return self.states([deepcopy(state) for state in after])

    def _added(self, codes: np.ndarray, records: Records, states: list[Any]) -> Iterator[Any]:
        """Add records to the states of their groups, and yield each new state."""
        inputs = objects(self.inputs(records, records.values))
        keys = objects(records.keys)
        for group, key, value in zip(codes.tolist(), keys, inputs, strict=True):
            state = states[group]
            states[group] = self.add(key, value, self.begin() if state is None else state)
            yield states[group]

    def _replaced(self, codes: np.ndarray, records: Records, states: list[Any]) -> Iterator[Any]:
        olds = objects(self.inputs(records, records.olds))
        news = objects(self.inputs(records, records.values))
        has_old, has_new = (np.asarray(a.is_valid()) for a in (records.olds, records.values))
        keys = objects(records.keys)
        for row, group in enumerate(codes.tolist()):
            state = states[group]
            if has_old[row] and state is not None:
                state = self.subtract(keys[row], olds[row], state)
            if has_new[row]:
                state = self.begin() if state is None else state
                state = self.add(keys[row], news[row], state)
            states[group] = state
            yield state


@dataclass(frozen=True)
class Custom(Aggregation):
    """``aggregate()`` with people's own functions."""

    initializer: Callable[[], Any]
    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any] | None = None
    merger: Callable[[Any, Any, Any], Any] | None = None

    @property
    def subtracts(self) -> bool:
        return self.subtractor is not None

    def inputs(self, records: Records, values: pa.Array) -> pa.Array:
        return values

    def begin(self) -> Any:
        return self.initializer()

    def add(self, key: Any, value: Any, state: Any) -> Any:
        return self.adder(key, value, state)

    def subtract(self, key: Any, value: Any, state: Any) -> Any:
        assert self.subtractor is not None
        return self.subtractor(key, value, state)

    def merge(self, key: Any, one: Any, other: Any) -> Any:
        if self.merger is None:
            raise ConfigError("aggregate() over session windows needs a merger")
        if one is None:
            one = self.begin()
        return self.merger(key, one, other)


@dataclass(frozen=True)
class Reduced(Aggregation):
    """``reduce()`` with people's own functions of two values."""

    adder: Callable[[Any, Any], Any]
    subtractor: Callable[[Any, Any], Any] | None = None

    @property
    def subtracts(self) -> bool:
        return self.subtractor is not None

    def inputs(self, records: Records, values: pa.Array) -> pa.Array:
        return values

    def begin(self) -> Any:
        return None

    def add(self, key: Any, value: Any, state: Any) -> Any:
        return value if state is None else self.adder(state, value)

    def subtract(self, key: Any, value: Any, state: Any) -> Any:
        assert self.subtractor is not None
        return self.subtractor(state, value)

    def merge(self, key: Any, one: Any, other: Any) -> Any:
        return other if one is None else self.add(key, other, one)


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of SQL, over an expression."""

    kind: str
    expression: Expression | None = None

    @cached_property
    def evaluate(self) -> Compiled:
        if self.expression is None:
            return lambda records: pa.nulls(len(records))
        return compiled(self.expression, f"{self.kind}()")

    def __hash__(self) -> int:
        return id(self)


def count() -> Aggregate:
    """How many records there are."""
    return Aggregate("count")


def sum(of: Expression) -> Aggregate:
    """The sum of an expression; nulls do not count."""
    return Aggregate("sum", of)


def min(of: Expression) -> Aggregate:
    """The smallest value of an expression."""
    return Aggregate("min", of)


def max(of: Expression) -> Aggregate:
    """The greatest value of an expression."""
    return Aggregate("max", of)


def avg(of: Expression) -> Aggregate:
    """The mean of an expression; nulls do not count."""
    return Aggregate("avg", of)


def first(of: Expression) -> Aggregate:
    """The value of the record that was processed first; nulls do not count."""
    return Aggregate("first", of)


def last(of: Expression) -> Aggregate:
    """The value of the record that was processed last; nulls do not count."""
    return Aggregate("last", of)


def collect(of: Expression) -> Aggregate:
    """All values as a list, which grows with every record."""
    return Aggregate("collect", of)


@dataclass(frozen=True)
class Columns(Aggregation):
    """Aggregates by the column. The state is a struct of their parts."""

    aggregates: Mapping[str, Aggregate]
    is_single: bool = False
    parts: Mapping[str, tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        parts = {
            name if len(KINDS[a.kind]) == 1 else f"{name}.{part}": (name, part)
            for name, a in self.aggregates.items()
            for part in KINDS[a.kind]
        }
        object.__setattr__(self, "parts", parts)
        for aggregate in self.aggregates.values():
            _ = aggregate.evaluate  # to find what is wrong with it

    @property
    def subtracts(self) -> bool:
        return all(part in SUBTRACTED for _, part in self.parts.values())

    @property
    def grows(self) -> bool:
        return any(part == "list" for _, part in self.parts.values())

    def inputs(self, records: Records, values: pa.Array) -> pa.Array:
        source = records if values is records.values else records.holding(values=values)
        arrays = [
            checked_numbers(values, a.kind) if a.kind in ("sum", "avg") else values
            for a in self.aggregates.values()
            for values in [a.evaluate(source)]
        ]
        return pa.StructArray.from_arrays(arrays, names=list(self.aggregates))

    def begin(self) -> Any:
        return {
            n: 0 if part in ("count", "number") else None for n, (_, part) in self.parts.items()
        }

    def add(self, key: Any, value: Any, state: Any) -> Any:
        return {n: ADD[p](state[n], value[name]) for n, (name, p) in self.parts.items()}

    def subtract(self, key: Any, value: Any, state: Any) -> Any:
        return {n: SUBTRACT[p](state[n], value[name]) for n, (name, p) in self.parts.items()}

    def merge(self, key: Any, one: Any, other: Any) -> Any:
        if one is None:
            return other
        return {n: MERGE[p](one[n], other[n]) for n, (_, p) in self.parts.items()}

    def states(self, states: Sequence[Any]) -> pa.Array:
        there = [state for state in states if state is not None]
        structs = pa.StructArray.from_arrays(
            [column([state[name] for state in there]) for name in self.parts],
            names=list(self.parts),
        )
        if len(there) == len(states):
            return structs
        rows = np.cumsum([state is not None for state in states]) - 1
        gone = np.array([state is None for state in states])
        return structs.take(pa.array(rows, mask=gone)) if len(structs) else pa.nulls(len(states))

    def result(self, states: pa.Array) -> pa.Array:
        if pa.types.is_null(states.type):
            return states
        parts = self._parts(states)
        columns = {}
        for name, aggregate in self.aggregates.items():
            if aggregate.kind == "avg":
                total = parts[f"{name}.sum"].cast(pa.float64(), safe=False)
                number = parts[f"{name}.number"].cast(pa.float64())
                columns[name] = pc.divide(total, pc.if_else(pc.equal(number, 0), None, number))
            else:
                columns[name] = parts[name]
        if self.is_single:
            (only,) = columns.values()
            return pc.if_else(states.is_valid(), only, None)
        return pa.StructArray.from_arrays(
            list(columns.values()), names=list(columns), mask=states.is_null()
        )

    def fold(self, codes: np.ndarray, count: int, records: Records, before: pa.Array) -> pa.Array:
        folded = self._folded(codes, count, self.inputs(records, records.values))
        return self._combined(before, folded)

    def replace(
        self, codes: np.ndarray, count: int, records: Records, before: pa.Array
    ) -> pa.Array:
        states = self._balanced(codes, count, records, before)
        added = np.bincount(codes[np.asarray(records.values.is_valid())], minlength=count) > 0
        return pc.if_else(pc.or_(before.is_valid(), pa.array(added)), states, None)

    def running(
        self, codes: np.ndarray, records: Records, before: pa.Array, of_table: bool = False
    ) -> pa.Array:
        by_group = np.argsort(codes, kind="stable")
        turn, ordered = codes[by_group], records.take(by_group)
        count = len(turn)
        alone = self._balanced if of_table else self.fold
        deltas = self._parts(alone(np.arange(count), count, ordered, pa.nulls(count)))
        starts = np.flatnonzero(np.concatenate([[True], turn[1:] != turn[:-1]]))
        behind = np.arange(count) - np.repeat(starts, np.diff([*starts, count]))
        # Each record is added to the state before it, which is the sum of all earlier records.
        stored = before.take(pa.array(turn))
        sums = self._sums_so_far(stored, deltas, behind)
        previous = np.where(behind, np.arange(count) - 1, count + np.arange(count))
        states = self._combined(concatenated([sums, stored]).take(pa.array(previous)), deltas)
        if of_table:
            there = np.asarray(before.is_valid())[turn]
            added = np.cumsum(np.concatenate([[0], np.asarray(ordered.values.is_valid())]))
            there |= added[1:] > added[np.arange(count) - behind]
            states = pc.if_else(pa.array(there), states, None)
        return states.take(pa.array(np.argsort(by_group, kind="stable")))

    def _sums_so_far(
        self, before: pa.Array, deltas: Mapping[str, pa.Array], behind: np.ndarray
    ) -> pa.Array:
        """The state up to each record, whose place in its group is ``behind``: by sums of 2, 4, 8
        ... records that follow each other. Such sums may overflow where no state does, so they wrap
        around."""
        states = self._combined(pa.nulls(len(behind)), deltas, WRAP)
        width = 1
        while len(rows := np.flatnonzero(behind >= width)):
            sums = self._combined(
                states.take(pa.array(rows - width)),
                self._parts(states.take(pa.array(rows))),
                WRAP,
            )
            place = np.arange(len(behind))
            place[rows] = len(behind) + np.arange(len(rows))
            states = concatenated([states, sums]).take(pa.array(place))
            width *= 2
        return self._combined(before, self._parts(states), WRAP)

    def _balanced(
        self, codes: np.ndarray, count: int, records: Records, states: pa.Array
    ) -> pa.Array:
        """The states after the changes of a table, including those of groups that are empty."""
        for values, combine in ((records.olds, TAKE), (records.values, COMBINE)):
            rows = np.flatnonzero(np.asarray(values.is_valid()))
            inputs = self.inputs(records, values).take(pa.array(rows))
            states = self._combined(states, self._folded(codes[rows], count, inputs), combine)
        return states

    def _folded(self, codes: np.ndarray, count: int, inputs: pa.Array) -> dict[str, pa.Array]:
        """The parts of groups of these records alone."""
        arrays = dict(zip(self.aggregates, inputs.flatten(), strict=True))
        most = int(np.bincount(codes).max()) if len(codes) else 0
        exact = {n: addends(arrays[n], most) for n, part in self.parts.values() if part == "sum"}
        together = {**arrays, **exact}
        table = pa.table({**{f"v{n}": a for n, a in enumerate(together.values())}, "group": codes})
        places = {name: f"v{n}" for n, name in enumerate(together)}
        reduced = [(places[n], part) for n, part in self.parts.values() if part not in PICK]
        grouped = table.group_by("group", use_threads=False).aggregate(
            [reduction(part, place) for place, part in reduced]
        )
        rows = np.full(count, -1)
        rows[np.asarray(grouped.column("group"))] = np.arange(grouped.num_rows)
        at = pa.array(rows, mask=rows < 0)
        sums = iter(grouped.drop_columns("group").columns)
        columns = {}
        for name, (of, part) in self.parts.items():
            if part in PICK:
                columns[name] = PICK[part](codes, count, arrays[of])
                continue
            values = whole(next(sums).combine_chunks()).take(at)
            if part in ("count", "number"):
                values = values.fill_null(0)
            elif part == "sum":
                values = totals(values, arrays[of].type)
            columns[name] = values
        return columns

    def _combined(
        self,
        before: pa.Array,
        parts: Mapping[str, pa.Array],
        combine: Mapping[str, Combine] | None = None,
    ) -> pa.Array:
        combine = combine or COMBINE
        stored = self._parts(before)
        columns = [
            combine[part](stored.get(name, pa.nulls(len(array))), array)
            for (name, array), (_, part) in zip(parts.items(), self.parts.values(), strict=True)
        ]
        return pa.StructArray.from_arrays(columns, names=list(self.parts))

    @staticmethod
    def _parts(states: pa.Array) -> dict[str, pa.Array]:
        if pa.types.is_null(states.type):
            return {}
        return dict(zip([f.name for f in states.type], states.flatten(), strict=True))


def by_column(aggregates: Mapping[str, Aggregate]) -> Columns:
    """Several aggregates, whose value is a struct."""
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise ConfigError(f"aggregate: {name} is no aggregate such as count() or sum(...)")
    return Columns(aggregates)


def single(aggregate: Aggregate) -> Columns:
    """One aggregate, whose value is the value."""
    return Columns({VALUE: aggregate}, is_single=True)


def per_key(function: Callable[..., Any], others: int) -> Callable[..., Any]:
    """A function that is given a key before its other arguments, whether it wants one or not."""
    if takes_key(function, others):
        return function
    return lambda _, *given: function(*given)
