"""Windows: where in time records belong together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa

from semel.core.errors import ConfigError, SemelError

Duration = timedelta | int
"""A timedelta, or milliseconds."""
MOST_WINDOWS = 1_000_000
"""The most windows of one step, and so of one record: all of them are in memory."""


def milliseconds(duration: Duration, what: str, least: int = 0) -> int:
    """Raises ConfigError: it is less than it must be, or no whole number of milliseconds."""
    if isinstance(duration, timedelta):
        number, rest = divmod(duration, timedelta(milliseconds=1))
        if rest:
            raise ConfigError(f"{what}: {duration} is no whole number of milliseconds")
    else:
        number = duration
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ConfigError(f"{what}: {duration} must be at least {least} ms")
    return number


@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size that begin every ``advance`` milliseconds: ``[start, start + size)``."""

    size: int
    advance: int
    grace: int

    @property
    def retention(self) -> int:
        return self.size + self.grace

    @property
    def per_record(self) -> int:
        """The most windows that one record is in."""
        return -(-self.size // self.advance)

    def starts(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The windows of each time: the rows of the times, and the windows' starts."""
        newest = times - times % self.advance
        starts = newest[:, None] - self.advance * np.arange(self.per_record)[::-1]
        fits = (starts >= 0) & (starts + self.size > times[:, None])
        rows, _ = np.nonzero(fits)
        return rows, starts[fits]


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of all records that are at most so far apart: ``[start, start + difference]``."""

    difference: int
    grace: int

    @property
    def retention(self) -> int:
        return 2 * self.difference + self.grace


@dataclass(frozen=True)
class SessionWindows:
    """Windows of records without a pause that is longer than the gap: ``[start, end]``."""

    gap: int
    grace: int

    @property
    def retention(self) -> int:
        return self.gap + self.grace


@dataclass(frozen=True)
class JoinWindows:
    """How much earlier or later than a record of the one stream those of the other may be."""

    before: int
    after: int
    grace: int

    @property
    def retention(self) -> int:
        return self.before + self.after + self.grace


def tumbling(size: Duration, *, grace: Duration) -> TimeWindows:
    """Windows that follow one another."""
    return hopping(size, advance=size, grace=grace)


def hopping(size: Duration, *, advance: Duration, grace: Duration) -> TimeWindows:
    """Windows that overlap: one of this size begins every ``advance``."""
    whole = milliseconds(size, "size", 1)
    step = milliseconds(advance, "advance", 1)
    if step > whole:
        raise ConfigError(f"advance: {step} ms must not be more than the size, {whole} ms")
    windows = TimeWindows(whole, step, milliseconds(grace, "grace"))
    if windows.per_record > MOST_WINDOWS:
        raise ConfigError(
            f"advance: with a size of {whole} ms and an advance of {step} ms each record is in "
            f"{windows.per_record} windows, but at most {MOST_WINDOWS} are possible. Choose a "
            "longer advance, or sliding windows"
        )
    return windows


def sliding(difference: Duration, *, grace: Duration) -> SlidingWindows:
    """Windows around records that are at most so far apart."""
    return SlidingWindows(milliseconds(difference, "difference"), milliseconds(grace, "grace"))


def session(gap: Duration, *, grace: Duration) -> SessionWindows:
    """Windows that end with a pause."""
    return SessionWindows(milliseconds(gap, "gap", 1), milliseconds(grace, "grace"))


def within(
    difference: Duration,
    *,
    grace: Duration,
    before: Duration | None = None,
    after: Duration | None = None,
) -> JoinWindows:
    """Records that are at most so far apart; ``before`` and ``after`` say it for each direction."""
    both = milliseconds(difference, "difference")
    return JoinWindows(
        both if before is None else milliseconds(before, "before"),
        both if after is None else milliseconds(after, "after"),
        milliseconds(grace, "grace"),
    )


START, END, KEY = "window_start", "window_end", "key"
WINDOW_TIME = pa.timestamp("ms", "UTC")


def windowed(keys: pa.Array, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Keys with their windows: the fields of a struct, or ``key``, then ``window_start`` and
    ``window_end``."""
    names, columns = [KEY], [keys]
    if pa.types.is_struct(keys.type):
        names, columns = [f.name for f in keys.type], keys.flatten()
    if {START, END} & set(names):
        raise SemelError(
            f"windowed_by: keys have {START} or {END} already, so they cannot get windows. Give "
            "them another key first, with select_key or group_by"
        )
    times = [pa.array(t.astype(np.int64)).cast(WINDOW_TIME) for t in (starts, ends)]
    return pa.StructArray.from_arrays([*columns, *times], names=[*names, START, END])


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """What a store's entries are about: keys and, if the store has windows, their windows."""

    keys: pa.Array
    starts: np.ndarray | None = None
    ends: np.ndarray | None = None

    @property
    def whole(self) -> pa.Array:
        """The keys with their windows, as results have them."""
        if self.starts is None or self.ends is None:
            return self.keys
        return windowed(self.keys, self.starts, self.ends)
