"""Source partitions and offsets as Confluent's JDBC source stores them.

A table is ``{"protocol":"1","table":"schema.table"}``, a query ``{"query":"query"}``. An offset is
``{"incrementing":5}``, ``{"timestamp":1700000000123,"timestamp_nanos":123456000}`` (milliseconds
since 1970, and the nanoseconds of its second), or both. Confluent's source stores none for bulk;
here it is ``{"bulk":<milliseconds>}``, the time of the last query.

While a large table is loaded in ranges of its numbers, the offset has names that Confluent's source
does not know: how far the numbers were read, where they end, and the time and number of the last
row in the order of times. Once all are read, the offset is that row's, in Confluent's form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from semel.sources.base import SourceOffset, SourcePartition
from semel.sources.jdbc.config import INCREMENTING, TIMESTAMP, JdbcSourceConfig
from semel.sources.jdbc.database import TableId

_TABLE, _PROTOCOL, _QUERY = "table", "protocol", "query"
_INCREMENTING, _TIMESTAMP, _NANOS, _BULK = "incrementing", "timestamp", "timestamp_nanos", "bulk"
_LOADED, _LOAD_UNTIL, _LOAD_TIME, _LOAD_NUMBER = (
    *("loaded", "load_until", "load_timestamp_us", "load_incrementing"),
)
_SECOND, _MICROSECOND = 10**9, 10**3
_FIRST, _LAST = -210_866_803_200_000, 253_402_300_799_999
"""The first time that PostgreSQL has, and the last of the year 9999, in milliseconds since 1970."""
LONG = 2**63
"""The first number that an offset cannot hold."""

QUERY: SourcePartition = {_QUERY: _QUERY}
"""The only partition of a connector that reads a query."""


def partition_of(table: object) -> SourcePartition:
    """The partition of a table, by its full name."""
    return {_PROTOCOL: "1", _TABLE: str(table)}


def former(table: TableId, names: Sequence[str]) -> Sequence[SourcePartition]:
    """Partitions under which the table's offset may have been stored before: other full names, and
    the name alone, as Confluent's source did up to version 5.0."""
    return [*map(partition_of, names), {_TABLE: table.name}]


def table_of(partition: SourcePartition) -> str:
    """The full name of a partition's table; empty for a query's.

    Raises:
        ValueError: it is not a partition of this kind.
    """
    if partition == QUERY:
        return ""
    table = partition.get(_TABLE)
    named = isinstance(table, str) and table
    if partition.keys() != {_TABLE, _PROTOCOL} or partition[_PROTOCOL] != "1" or not named:
        raise ValueError(
            f"source partition {dict(partition)} must be a table, such as "
            f'{{"{_PROTOCOL}":"1","{_TABLE}":"public.orders"}}, or {{"{_QUERY}":"{_QUERY}"}}'
        )
    return str(table)


@dataclass(frozen=True, slots=True)
class Load:
    """A first load by ranges of numbers: rows up to ``loaded`` were read, ``until`` is the last.
    Only rows whose time and number are not after ``timestamp`` and ``incrementing`` are read."""

    loaded: int | None
    until: int
    timestamp: int
    incrementing: int

    @property
    def end(self) -> Position:
        """The position after the whole load."""
        return Position(self.incrementing, self.timestamp)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table has been read. ``timestamp`` is in microseconds since 1970. During a first
    load in ranges, only ``load`` is set."""

    incrementing: int | None = None
    timestamp: int | None = None
    queried_ms: int | None = None
    load: Load | None = None

    @property
    def whole(self) -> Load | None:
        """The load by ranges that reads all rows up to here; None if a time or a number is not
        known."""
        if self.load is not None:
            loaded = self.load.loaded
            return replace(self.load, loaded=None, until=-LONG if loaded is None else loaded)
        if self.timestamp is None or self.incrementing is None:
            return None
        return Load(None, LONG - 1, self.timestamp, self.incrementing)

    def begun(self, config: JdbcSourceConfig, now: int) -> Position:
        """Itself. In modes with a time, if it has none, ``timestamp.initial`` if that is set.
        ``now`` is in microseconds since 1970."""
        initial, current = config.timestamp_initial, (self.timestamp, self.load)
        if current != (None, None) or initial is None or not config.by_time:
            return self
        return Position(None, now if initial == -1 else initial * 1000)

    def numbered(self, config: JdbcSourceConfig) -> Position:
        """Itself; in incrementing mode, if no number is known, ``incrementing.initial``."""
        if config.mode != INCREMENTING or self.incrementing is not None:
            return self
        return Position(config.incrementing_initial)

    def lacking(self, config: JdbcSourceConfig) -> str | None:
        """What an offset needs in this mode but lacks; None if nothing."""
        if config.by_time:
            has_position = self.load is not None or self.timestamp is not None
            return None if has_position else TIMESTAMP
        has_position = self.incrementing is not None or not config.by_number
        return None if has_position else INCREMENTING

    @property
    def offset(self) -> SourceOffset:
        """The offset to store."""
        offset: dict[str, Any] = {}
        if self.load is not None:
            if self.load.loaded is not None:
                offset[_LOADED] = self.load.loaded
            offset[_LOAD_UNTIL] = self.load.until
            offset[_LOAD_TIME] = self.load.timestamp
            offset[_LOAD_NUMBER] = self.load.incrementing
        if self.incrementing is not None:
            offset[_INCREMENTING] = self.incrementing
        if self.timestamp is not None:
            offset[_TIMESTAMP] = self.timestamp // 1000
            offset[_NANOS] = self.timestamp % 1_000_000 * _MICROSECOND
        if self.queried_ms is not None:
            offset[_BULK] = self.queried_ms
        return offset


def position(offset: SourceOffset | None) -> Position:
    """Read an offset.

    Raises:
        ValueError: it makes no sense.
    """
    if not offset:
        return Position()
    if offset.keys() & {_LOADED, _LOAD_UNTIL, _LOAD_TIME, _LOAD_NUMBER}:
        return Position(load=_load(offset))
    if not offset.keys() & {_INCREMENTING, _TIMESTAMP, _BULK}:
        raise ValueError(
            f"source offset {dict(offset)} must have {_INCREMENTING}, {_TIMESTAMP} or both"
        )
    milliseconds, nanos = _number(offset, _TIMESTAMP), _number(offset, _NANOS)
    timestamp = None
    if milliseconds is not None:
        if not _FIRST <= milliseconds <= _LAST:
            raise ValueError(
                f"source offset {dict(offset)}: {_TIMESTAMP} must be milliseconds since 1970, of a "
                "year up to 9999"
            )
        timestamp = milliseconds * 1000
        if nanos is not None:
            if not 0 <= nanos < _SECOND:
                raise ValueError(
                    f"source offset {dict(offset)}: {_NANOS} must be between 0 and {_SECOND - 1}"
                )
            timestamp = milliseconds // 1000 * 1_000_000 + nanos // _MICROSECOND
    return Position(_number(offset, _INCREMENTING), timestamp, _number(offset, _BULK))


def _load(offset: SourceOffset) -> Load:
    names = (_LOAD_UNTIL, _LOAD_TIME, _LOAD_NUMBER)
    numbers = {name: _number(offset, name) for name in names}
    missing = [name for name, number in numbers.items() if number is None]
    if missing:
        raise ValueError(
            f"source offset {dict(offset)} is of a first load in ranges: {missing[0]} is missing"
        )
    return Load(_number(offset, _LOADED), *(int(n) for n in numbers.values() if n is not None))


def _number(offset: SourceOffset, name: str) -> int | None:
    value = offset.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"source offset {dict(offset)}: {name} must be a whole number")
    if not -LONG <= value < LONG:
        raise ValueError(f"source offset {dict(offset)}: {name} must have 64 bits at most")
    return value
