"""The SQL that reads what comes after a position, and the columns that form positions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from semel.core.errors import ConfigError, TransientError
from semel.core.quoting import all_named, named
from semel.databases.errors import SchemaChanged
from semel.databases.names import quote
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT, Column, Database, TableId
from semel.sources.jdbc.offsets import LONG, Position

ROWS = "semel_rows"


class Unreadable(Exception):
    """Why a table or query cannot be read in a mode, and what to do; the message continues after
    its name."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table or query, and those among them that find new rows."""

    columns: Sequence[Column]
    number: Column | None = None
    times: Sequence[Column] = ()

    @property
    def digits(self) -> int:
        """How many digits of a second's fraction all its times have."""
        return min((c.digits for c in self.times), default=6)


def shape(config: JdbcSourceConfig, columns: Sequence[Column], *, of_query: bool) -> Shape:
    """The columns that find new rows.

    Raises:
        Unreadable: a column is missing, ambiguous, of another type, or may be null.
    """
    check_names([c.name for c in columns])
    number = _number(config, columns) if config.by_number else None
    times = [_time(name, columns) for name in config.timestamp_columns] if config.by_time else []
    if config.validate_non_null and not of_query:
        if number is not None and number.nullable:
            raise Unreadable(
                f"incrementing column {named(number.name)} may be null: rows without a number "
                "would never be read. Declare it NOT NULL, or set validate.non.null=false"
            )
        if times and all(c.nullable for c in times):
            names = all_named(c.name for c in times)
            raise Unreadable(
                f"all timestamp columns ({names}) may be null: rows without a time would never be "
                "read. Declare one NOT NULL, or set validate.non.null=false"
            )
    return Shape(columns, number, times)


def check_zones(database: Database, times: Sequence[Column], timezone: str) -> None:
    """Raises Unreadable: only some of the columns that are compared have a time zone of their own,
    and the database would take the others to be in UTC."""
    if timezone.upper() in ("UTC", "Z"):
        return
    literals = [{database.instant(0, c, zone) for zone in ("UTC", "Asia/Tokyo")} for c in times]
    if len({len(of_column) for of_column in literals}) > 1:
        names = all_named(c.name for c in times)
        raise Unreadable(
            f"of the timestamp columns {names}, some have a time zone and others are in "
            f"db.timezone={timezone}, so they cannot be compared. Name columns of one kind in "
            "timestamp.column.name, or convert them with query"
        )


def check_names(names: Sequence[str]) -> None:
    """Raises Unreadable: columns share a name, and a record can have only one such field."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise Unreadable(
            f"has several columns named {named(twice[0])}. Give each a name of its own in query, "
            "with AS"
        )


def _number(config: JdbcSourceConfig, columns: Sequence[Column]) -> Column:
    if not config.incrementing_column:
        for column in columns:
            if column.counts:
                return column
        raise Unreadable(
            "has no column that the database numbers. Name the one that grows with each new row in "
            "incrementing.column.name"
        )
    column = _named(config.incrementing_column, "incrementing.column.name", columns)
    whole = pa.types.is_decimal(column.arrow) and column.arrow.scale == 0
    if not (pa.types.is_integer(column.arrow) or whole):
        raise Unreadable(
            f"incrementing.column.name={column.name} is of type {column.type}: it must be a whole "
            "number"
        )
    return column


def _time(name: str, columns: Sequence[Column]) -> Column:
    column = _named(name, "timestamp.column.name", columns)
    if column.arrow != INSTANT:
        raise Unreadable(
            f"timestamp.column.name={column.name} is of type {column.type}: it must be a timestamp"
        )
    return column


def _named(name: str, key: str, columns: Sequence[Column]) -> Column:
    exact = [c for c in columns if c.name == name]
    matches = exact or [c for c in columns if c.name.lower() == name.lower()]
    if not matches:
        there = all_named(c.name for c in columns)
        raise Unreadable(f"has no column {named(name)}, which {key} names. It has {there}")
    if len(matches) > 1:
        alike = " and ".join(named(c.name) for c in matches)
        raise Unreadable(
            f"has columns {alike}, and {key}={name} fits them all. Write the name of one exactly"
        )
    return matches[0]


def whole(column: Column, number: Any) -> int:
    """A number of an incrementing column. PostgreSQL's client gives some as text, and SQLite's what
    was stored.

    Raises:
        Unreadable: it is not a whole number.
    """
    try:
        value = Decimal(number)
        if value == int(value):
            return int(value)
    except (TypeError, ValueError, ArithmeticError):
        pass
    raise Unreadable(
        f"column {named(column.name)} of type {column.type} has the value {named(str(number))}, "
        "which is not a whole number: positions are made of it. Correct it, or leave it out with "
        "query"
    )


def beyond_long(column: Column, number: object) -> str:
    """Why a number cannot be a position."""
    return (
        f"column {named(column.name)} of type {column.type} has the value {number}, but source "
        f"offsets hold numbers from {-LONG} to {LONG - 1} only. Correct the row, or find new rows "
        "by another column, or by a time: incrementing.column.name, mode=timestamp"
    )


@dataclass(frozen=True, slots=True)
class Query:
    """Reads from a position up to a time; ``until`` is in microseconds since 1970."""

    config: JdbcSourceConfig
    database: Database
    table: TableId | None
    shape: Shape
    position: Position
    until: int | None
    last_number: int | None = None
    """Numbers larger than this are not read."""
    last: Position | None = None
    """Rows after this time (or, at this time, after this number) are not read, either."""

    @property
    def sql(self) -> str:
        """The whole statement."""
        columns = ", ".join(selected(c) for c in self.shape.columns)
        lines = [f"SELECT {columns} {self._rows}"]
        if order := self._order():
            lines.append(f"ORDER BY {', '.join(order)}")
        if self.config.suffix:
            lines.append(self.config.suffix)
        return " ".join(lines)

    @property
    def widest(self) -> str | None:
        """The query for the size of the largest row, in bytes."""
        return widest(self.shape.columns, self._rows)

    @property
    def _rows(self) -> str:
        conditions = self._conditions()
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"FROM {source(self.config, self.table)}{where}"

    def _conditions(self) -> list[str]:
        conditions, number, time = [], self._number, self._time
        after, begin = self.position.incrementing, self.position.timestamp
        if time is not None and self.until is not None:
            conditions.append(f"{time} < {self._instant(self.until)}")
        if time is not None and number is not None and begin is not None and after is not None:
            at = self._instant(begin)
            conditions.append(f"({time} > {at} OR ({time} = {at} AND {number} > {after}))")
            conditions.append(f"{time} >= {at}")  # lets the database use an index
        elif time is not None and begin is not None:
            conditions.append(f"{time} > {self._instant(begin)}")
        elif number is not None and after is not None and time is None:
            conditions.append(f"{number} > {after}")
        if begin is not None and len(self.shape.times) == 1:
            (column,) = self.shape.times
            conditions += self.database.sooner(begin, column, self.config.timezone)
        if number is not None and self.last_number is not None:
            conditions.append(f"{number} <= {self.last_number}")
        if time is not None and self.last is not None and self.last.timestamp is not None:
            conditions.append(
                not_after(time, number, self._instant(self.last.timestamp), self.last.incrementing)
            )
        if begin is None and time is not None and not self.shape.times[1:]:
            timeless = self.database.timeless(self.shape.times[0])
            conditions += [f"NOT ({timeless})"] if timeless else []  # the source reports them
        if number is not None and self.shape.number is not None and self.shape.number.nullable:
            conditions.append(f"{number} IS NOT NULL")
        return conditions

    def _order(self) -> list[str]:
        number = self.shape.number
        last = None if number is None else ordered(number, self.table)
        return [part for part in (self._time, last) if part is not None]

    @property
    def _number(self) -> str | None:
        return None if self.shape.number is None else quote(self.shape.number.name)

    @property
    def _time(self) -> str | None:
        return time_of(self.database, self.shape) if self.shape.times else None

    def _instant(self, microseconds: int) -> str:
        return self.database.instant(microseconds, self.shape.times[0], self.config.timezone)


def time_of(database: Database, shape: Shape) -> str:
    """The time of a row. A value that the client turns into null is null here, too, except in the
    last column: so a row without any time is found and refused."""
    *some, last = [(database.time(c), c.zero) for c in shape.times]
    if not some:
        return last[0]
    times = [f"NULLIF({time}, {zero})" if zero else time for time, zero in some]
    return f"COALESCE({', '.join(times)}, {last[0]})"


def not_after(time: str, number: str | None, at: str, last_number: int | None) -> str:
    """The condition that a row is not after a time or, at exactly that time, not after a number."""
    if number is None or last_number is None:
        return f"{time} <= {at}"
    return f"({time} < {at} OR ({time} = {at} AND {number} <= {last_number}))"


def source(config: JdbcSourceConfig, table: TableId | None) -> str:
    """The FROM clause."""
    if table is not None:
        return table.quoted
    return f"({config.query}\n) AS {ROWS}"  # its last line may be a comment


def selected(column: Column) -> str:
    """A column in the list of a SELECT; one with a guard is followed by a column that says whether
    it is null, and one with a test by a column that shows values that do not fit."""
    unfit = f", {column.unfit} AS {quote(unfit_of(column.name))}" if column.unfit else ""
    if not column.guard:
        expression = f"{column.sql} AS {quote(column.name)}"
        return (quote(column.name) if column.sql == quote(column.name) else expression) + unfit
    null = f", {quote(column.name)} IS NULL AS {quote(null_of(column))}" if column.nullable else ""
    return f"coalesce({column.sql}, {column.guard}) AS {quote(column.name)}{null}{unfit}"


def ordered(column: Column, table: TableId | None) -> str:
    """A column in ORDER BY. SQLite takes a bare name to mean the expression selected under it,
    which is in no index: it would sort whole rows."""
    if not column.guard:
        return quote(column.name)
    return f"{ROWS if table is None else table.quoted}.{quote(column.name)}"


def widest(columns: Sequence[Column], rows: str) -> str | None:
    """A query for the largest number of bytes that a row's texts and binary values take; None if
    there are no such columns."""
    large = [c for c in columns if pa.types.is_string(c.arrow) or pa.types.is_binary(c.arrow)]
    sizes = [f"coalesce(octet_length({quote(c.name)}), 0)" for c in large]
    return f"SELECT max({' + '.join(sizes)}) AS bytes {rows}" if sizes else None


def null_of(column: Column) -> str:
    """The name of the column that says whether a guarded column is null."""
    return _beside(column.name, "null")


def unfit_of(name: str) -> str:
    """The name of the column that shows values that do not fit a column's type."""
    return _beside(name, "unfit")


def _beside(name: str, what: str) -> str:
    """A name that no column of a user has, and that no database cuts."""
    return f"semel_{what}_{hashlib.blake2s(name.encode(), digest_size=8).hexdigest()}"


def floor(microseconds: int, digits: int) -> int:
    """A time cut to the digits of a second that a column has: rows of the second that has begun may
    still come."""
    unit: int = 10 ** (6 - digits)
    return microseconds // unit * unit


def without(columns: Sequence[Column]) -> str:
    """The condition that all these columns are null."""
    return " AND ".join(f"{quote(c.name)} IS NULL" for c in columns)


@contextmanager
def explained(where: str, database: Database) -> Iterator[None]:
    """Errors in the body say ``where``: the connector, and its table or query.

    Raises:
        ConfigError: it cannot be read in this mode.
        TransientError: it was changed, or a stream has ended in the middle.
    """
    try:
        yield
    except Unreadable as error:
        raise ConfigError(f"{where}: {error}") from None
    except SchemaChanged as error:
        raise TransientError(f"{where}: {error}") from None
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise TransientError(f"{where}: {database.where}: {reason}") from None
