"""Rows of one query as batches that are committed together, each with the position after it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.sources.jdbc.database import Column
from semel.sources.jdbc.offsets import LONG, Position
from semel.sources.jdbc.queries import Shape, Unreadable, beyond_long, null_of
from semel.sources.jdbc.values import converted, shown, struct

T = TypeVar("T")

LARGEST = 1 << 30
"""The most bytes of rows that are committed together."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as values of records, with their numbers and their times in microseconds since 1970."""

    values: pa.StructArray
    numbers: pa.Array | None = None
    times: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Rows:
        """Some of the rows."""
        parts = (self.values, self.numbers, self.times)
        return Rows(*(None if p is None else p.slice(start, stop - start) for p in parts))

    @property
    def position(self) -> Position:
        """The position after the last row."""
        numbers = None if self.numbers is None else self.numbers[-1].as_py()
        times = None if self.times is None else self.times[-1].as_py()
        return Position(numbers, times)


Together = tuple[list[pa.StructArray], Position]
"""Values that are committed together, and the position after them."""


def rows(batch: pa.RecordBatch, shape: Shape, timezone: str, granularity: str) -> Rows:
    """Rows as the database returned them.

    Raises:
        Unreadable: a value does not fit its column's type.
    """
    arrays = {}
    for column in shape.columns:
        values = batch.column(column.name)
        if column.guard and column.nullable:
            absent = batch.column(null_of(column))
            values = pc.if_else(pc.equal(absent, 1), pa.scalar(None, values.type), values)
        try:
            arrays[column.name] = converted(values, column, timezone, exact=column in shape.times)
        except pa.ArrowException as error:
            raise Unreadable(
                f"column {column.name} of type {column.type} has a value that is not of type "
                f"{column.arrow}: {error}. Leave it out, or convert it, with query"
            ) from None
    numbers = times = None
    if shape.number is not None:
        numbers = _numbers(arrays[shape.number.name], shape.number)
    if shape.times:
        times = pc.coalesce(*(arrays[c.name] for c in shape.times)).cast(pa.int64())
        if times.null_count:  # the query leaves nulls out, so the client could not read the time
            raise Unreadable(
                f"column {shape.times[0].name} has a time that does not exist, and positions are "
                "made of it. Correct it, or leave its row out with query"
            )
    values = []
    for name, array in arrays.items():
        try:
            values.append(shown(array, granularity))
        except pa.ArrowInvalid:
            raise Unreadable(
                f"column {name} has a time before 1677 or after 2262, which timestamp."
                f"granularity={granularity} cannot express. Set it to micros_long"
            ) from None
    return Rows(struct(values, shape.columns), numbers, times)


def _numbers(values: pa.Array, column: Column) -> pa.Array:
    try:
        return values.cast(pa.int64())
    except pa.ArrowException:
        beyond = (n for n in values.to_pylist() if n is not None and not -LONG <= n < LONG)
        raise Unreadable(beyond_long(column, next(beyond))) from None


def in_order(found: Iterable[Rows]) -> Iterator[Together]:
    """Whole groups of rows with the same position, because resuming inside a group would skip the
    rest of it. The rows of a group share a time, or a number that is not unique."""
    waiting: list[Rows] = []
    for batch in found:
        if not len(batch):
            continue
        last = _last_group(batch)
        if last or (waiting and waiting[-1].position != batch.position):
            complete = [*waiting, batch.slice(0, last)] if last else waiting
            yield [c.values for c in complete], complete[-1].position
            waiting = []
        waiting.append(batch.slice(last, len(batch)))
        _check(waiting, "have the same position")
    if waiting:
        yield [w.values for w in waiting], waiting[-1].position


def _last_group(batch: Rows) -> int:
    """Where the group of the last row begins."""
    start = 0
    for column in (batch.times, batch.numbers):
        if column is not None:
            values = column.to_numpy()[start:]
            start += int(np.searchsorted(values, values[-1]))
    return start


def at_once(found: Iterable[Rows], after: Position) -> Iterator[Together]:
    """All rows of a query together."""
    waiting = []
    for batch in found:
        waiting.append(batch)
        _check(waiting, "are read by one query")
    yield [w.values for w in waiting if len(w)], after


def in_parts(found: Iterable[Rows], before: Position, after: Position) -> Iterator[Together]:
    """The rows of a query as they come; the query is over only after the last ones."""
    for batch in found:
        yield [batch.values], before
    yield [], after


def ahead(found: Iterator[Together]) -> Iterator[Together]:
    """``found``, fetched one step ahead: when the last batch is yielded, the query is over."""
    held = next(found, None)
    while held is not None:
        following = next(found, None)
        yield held
        held = following


def fetched_ahead(found: Iterator[T]) -> Generator[T, None, None]:
    """Like ``ahead``, but a thread fetches the next item while the caller uses the current one. A
    caller that stops early waits for the fetch in progress."""

    def fetch() -> T | None:
        return next(found, None)

    held = fetch()
    with ThreadPoolExecutor(1, thread_name_prefix="semel-fetch") as thread:
        while held is not None:
            following = thread.submit(copy_context().run, fetch)
            yield held
            held = following.result()


def _check(waiting: list[Rows], why: str) -> None:
    size = sum(w.values.nbytes for w in waiting)
    if size > LARGEST:
        raise Unreadable(
            f"{sum(map(len, waiting)):,} rows of {size:,} bytes {why} and would have to be "
            f"committed together, but the limit is {LARGEST:,} bytes. Set "
            "mode=timestamp+incrementing or mode=incrementing, or delivery=at-least-once"
        )
