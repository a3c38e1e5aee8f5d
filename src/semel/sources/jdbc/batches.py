"""Rows of one query as batches that are committed together, each with the position after it; their
values in the types of Kafka Connect."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import named, one_line
from semel.core.zones import in_utc
from semel.sources.jdbc.database import INSTANT, Column
from semel.sources.jdbc.offsets import LONG, Position
from semel.sources.jdbc.queries import Shape, Unreadable, beyond_long, null_of, unfit_of

T = TypeVar("T")

LARGEST = 1 << 30
"""The most bytes of rows that are committed together."""


@dataclass(frozen=True, slots=True)
class UnfitRow:
    """A row with a value that does not fit its column's type in records."""

    row: int
    column: str
    message: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as values of records, with their numbers and their times in microseconds since 1970.
    ``unfit`` are those that make no record."""

    values: pa.StructArray
    numbers: pa.Array | None = None
    times: pa.Array | None = None
    unfit: Sequence[UnfitRow] = ()

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Rows:
        """Some of the rows."""
        values, numbers, times = (
            None if p is None else p.slice(start, stop - start)
            for p in (self.values, self.numbers, self.times)
        )
        unfit = [replace(u, row=u.row - start) for u in self.unfit if start <= u.row < stop]
        return Rows(values, numbers, times, unfit)

    @property
    def fitting(self) -> pa.StructArray:
        """The rows that make records."""
        if not self.unfit:
            return self.values
        fits = np.ones(len(self), bool)
        fits[[u.row for u in self.unfit]] = False
        return self.values.filter(pa.array(fits))

    @property
    def position(self) -> Position:
        """The position after the last row."""
        numbers = None if self.numbers is None else self.numbers[-1].as_py()
        times = None if self.times is None else self.times[-1].as_py()
        return Position(numbers, times)


CommitUnit = tuple[list[Rows], Position]
"""Rows that are committed together, and the position after them."""


def rows(batch: pa.RecordBatch, shape: Shape, timezone: str, granularity: str) -> Rows:
    """Rows as the database returned them.

    Raises:
        Unreadable: a value that positions are made of does not fit its column's type.
    """
    arrays, columns, unfit = {}, {}, []
    for column in shape.columns:
        exact = column in shape.times
        convert = partial(_converted, column=column, timezone=timezone, exact=exact)
        arrays[column.name], why = _fitting(_given(batch, column), convert)
        show = partial(_shown, granularity=granularity)
        columns[column.name], beyond = _fitting(arrays[column.name], show)
        why |= beyond | _seen(batch, column)
        for row, reason in why.items():
            message = (
                f"the row with {_key(batch, shape, row)}: column {named(column.name)} of type "
                f"{column.type} has a value that is not of type {column.arrow}: {reason}. Correct "
                "it, or leave it out or convert it with query"
            )
            if exact or column == shape.number:
                raise Unreadable(f"{message}: positions are made of it")
            unfit.append(UnfitRow(row, column.name, message))
    numbers = times = None
    if shape.number is not None:
        numbers = _numbers(arrays[shape.number.name], shape.number)
    if shape.times:
        times = pc.coalesce(*(arrays[c.name] for c in shape.times)).cast(pa.int64())
        if times.null_count:  # the query leaves nulls out, so the client could not read the time
            raise Unreadable(
                f"column {named(shape.times[0].name)} has a time that does not exist, and "
                "positions are made of it. Correct it, or leave its row out with query"
            )
    return Rows(_struct([*columns.values()], shape.columns), numbers, times, unfit)


def _seen(batch: pa.RecordBatch, column: Column) -> dict[int, str]:
    """The values that the database or its client knows not to fit, by row."""
    if unfit_of(column.name) not in batch.schema.names:
        return {}
    shown = batch.column(unfit_of(column.name))
    rows = pc.indices_nonzero(pc.not_equal(shown, "")).to_pylist()
    return {row: one_line(shown[row].as_py()) for row in rows}


def _given(batch: pa.RecordBatch, column: Column) -> pa.Array:
    """A column's values as the client gives them, with null instead of what stands for it, and
    instead of what does not fit."""
    values = batch.column(column.name)
    if column.guard and column.nullable:
        absent = batch.column(null_of(column))
        values = pc.if_else(pc.equal(absent, 1), pa.scalar(None, values.type), values)
    if column.guard and column.unfit:
        fits = pc.equal(batch.column(unfit_of(column.name)), "")
        values = pc.if_else(fits, values, pa.scalar(None, values.type))
    return values


def _fitting(
    values: pa.Array, convert: Callable[[pa.Array], pa.Array]
) -> tuple[pa.Array, dict[int, str]]:
    """The values that can be converted, with null for all others; and why those cannot be, by
    row."""
    try:
        return convert(values), {}
    except pa.ArrowException as error:
        if len(values) == 1:
            return convert(pa.nulls(1, values.type)), {0: " ".join(str(error).split())}
    half = len(values) // 2
    # Taken and not sliced: a slice of lists keeps the items of all.
    halves = (values.take(pa.array(rows)) for rows in (range(half), range(half, len(values))))
    (first, why), (second, more) = (_fitting(part, convert) for part in halves)
    return pa.concat_arrays([first, second]), why | {row + half: text for row, text in more.items()}


def _key(batch: pa.RecordBatch, shape: Shape, row: int) -> str:
    """What identifies a row: its primary key, its number or its first column."""
    columns = [c for c in shape.columns if c.key] or [shape.number or shape.columns[0]]
    return ", ".join(f"{named(c.name)}={_text(batch.column(c.name), row)}" for c in columns)


def _text(values: pa.Array, row: int) -> str:
    try:
        return named(str(values[row].as_py()))
    except (ValueError, OverflowError, LookupError):  # Python has no such time
        return named(" ".join(str(values.slice(row, 1)).split()))


def _numbers(values: pa.Array, column: Column) -> pa.Array:
    try:
        return values.cast(pa.int64())
    except pa.ArrowException:
        beyond = (n for n in values.to_pylist() if n is not None and not -LONG <= n < LONG)
        raise Unreadable(beyond_long(column, next(beyond))) from None


def in_order(batches: Iterable[Rows]) -> Iterator[CommitUnit]:
    """Whole groups of rows with the same position, because resuming inside a group would skip the
    rest of it. The rows of a group share a time, or a number that is not unique."""
    waiting: list[Rows] = []
    for batch in batches:
        if not len(batch):
            continue
        last = _last_group(batch)
        if last or (waiting and waiting[-1].position != batch.position):
            complete = [*waiting, batch.slice(0, last)] if last else waiting
            yield complete, complete[-1].position
            waiting = []
        waiting.append(batch.slice(last, len(batch)))
        _check(waiting, "have the same position")
    if waiting:
        yield waiting, waiting[-1].position


def _last_group(batch: Rows) -> int:
    """Where the group of the last row begins."""
    start = 0
    for column in (batch.times, batch.numbers):
        if column is not None:
            values = column.to_numpy()[start:]
            start += int(np.searchsorted(values, values[-1]))
    return start


def at_once(batches: Iterable[Rows], after: Position) -> Iterator[CommitUnit]:
    """All rows of a query together."""
    waiting = []
    for batch in batches:
        waiting.append(batch)
        _check(waiting, "are read by one query")
    yield [w for w in waiting if len(w)], after


def in_parts(batches: Iterable[Rows], before: Position, after: Position) -> Iterator[CommitUnit]:
    """The rows of a query as they come; the query is over only after the last ones."""
    for batch in batches:
        yield [batch], before
    yield [], after


def ahead(items: Iterator[CommitUnit]) -> Iterator[CommitUnit]:
    """``items``, fetched one step ahead: when the last batch is yielded, the query is over."""
    current = next(items, None)
    while current is not None:
        following = next(items, None)
        yield current
        current = following


def fetched_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Like ``ahead``, but a thread fetches the next item while the caller uses the current one. A
    caller that stops early waits for the fetch in progress."""

    def fetch() -> T | None:
        return next(items, None)

    current = fetch()
    with ThreadPoolExecutor(1, thread_name_prefix="semel-fetch") as thread:
        while current is not None:
            following = thread.submit(copy_context().run, fetch)
            yield current
            current = following.result()


def _check(waiting: list[Rows], why: str) -> None:
    size = sum(w.values.nbytes for w in waiting)
    if size > LARGEST:
        raise Unreadable(
            f"{sum(map(len, waiting)):,} rows of {size:,} bytes {why} and would have to be "
            f"committed together, but the limit is {LARGEST:,} bytes. Set "
            "mode=timestamp+incrementing or mode=incrementing, or delivery=at-least-once"
        )


# Values in the types of Kafka Connect

_EARLIEST, _EARLIEST_DATE = -210_866_803_200_000_000, -2_440_588
"""The first moment and day that PostgreSQL has. Its client gives infinities as earlier ones."""
_DAY = 86_400_000_000
_ISO = "%Y-%m-%dT%H:%M:%S"


def _converted(values: pa.Array, column: Column, timezone: str, exact: bool = False) -> pa.Array:
    """A column's values in the type that records have. ``exact`` times are those that a position is
    made of.

    Raises:
        ArrowInvalid: a value does not fit, is infinite, or is an exact time that does not exist in
            the time zone.
    """
    _check_finite(values)
    if pa.types.is_string(column.arrow) or pa.types.is_list(column.arrow):
        values.validate(full=True)  # not all databases check that text is UTF-8
    if pa.types.is_timestamp(values.type) and column.arrow == INSTANT and not values.type.tz:
        values = values.cast(pa.timestamp("us"), safe=False)
        values = in_utc(values, timezone, exact=exact)
    if pa.types.is_date32(column.arrow) and pa.types.is_integer(values.type):
        values = values.cast(pa.int32())  # days since 1970
    if values.type == column.arrow:
        return values
    if pa.types.is_floating(column.arrow) and pa.types.is_floating(values.type):
        return values.cast(column.arrow, safe=False)
    return values.cast(column.arrow)


def _check_finite(values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_struct(kind):
        for field in values.flatten():
            _check_finite(field)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        _check_finite(values.flatten())
    elif pa.types.is_map(kind):
        within = values.drop_null()
        _check_finite(pa.ListArray.from_arrays(within.offsets, within.items).flatten())
    elif pa.types.is_time(kind) and (pc.max(values.cast(pa.int64())).as_py() or 0) >= _DAY:
        raise pa.ArrowInvalid("it is not within a day")
    if not (pa.types.is_timestamp(kind) or kind == pa.date32()):
        return
    is_date = kind == pa.date32()
    counts = values.cast(pa.int32() if is_date else pa.int64())
    earliest = _EARLIEST_DATE if is_date else _EARLIEST
    latest = 2**31 - 1 if is_date else 2**63 - 1
    bounds = pc.min_max(counts).as_py()
    if (bounds["min"] or 0) < earliest or bounds["max"] == latest:
        raise pa.ArrowInvalid("it is infinity")


def _shown(values: pa.Array, granularity: str) -> pa.Array:
    """Timestamps in the form of ``timestamp.granularity``; other values unchanged.

    Raises:
        ArrowInvalid: a time cannot be written so.
    """
    if granularity == "connect_logical" or not pa.types.is_timestamp(values.type):
        return values
    unit, _, form = granularity.partition("_")
    if form == "iso_datetime_string":
        bounds = pc.min_max(pc.year(values)).as_py()
        if (bounds["min"] or 1) < 1 or (bounds["max"] or 1) > 9999:
            raise pa.ArrowInvalid("its year does not have four digits")
        text = pc.strftime(values, format=_ISO)  # with the fraction
        zeros = "000" if unit == "nanos" else ""
        return pc.binary_join_element_wise(text, zeros, "") if zeros else text
    count = values.cast(pa.int64())
    if unit == "nanos":
        try:
            count = pc.multiply_checked(count, 1000)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(
                "it is before 1677 or after 2262, which timestamp.granularity="
                f"{granularity} cannot express. Set it to micros_long"
            ) from None
    return count if form == "long" else count.cast(pa.string())


def _struct(arrays: Sequence[pa.Array], columns: Sequence[Column]) -> pa.StructArray:
    """Rows as one value each."""
    fields = [
        pa.field(c.name, a.type, nullable=c.nullable or bool(c.zero))
        for a, c in zip(arrays, columns, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields)
