"""A table as a whole: how it is loaded, in ranges of its incrementing column, and how rows that no
query would ever read are found.

A first load in a single query would hold one snapshot of the database for hours, and one ordered by
time would sort the whole table again after each restart. Ranges are short queries, and never split
rows that have the same number.

Where rows are found by time and number, the load first looks for the last row in that order. It
then reads all rows up to that one, by number. A row that changes in the meantime gets a later time,
and is left to the queries after the load, which begin after that last row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from semel.core.quoting import all_named
from semel.databases.names import quote
from semel.sources.jdbc import batches
from semel.sources.jdbc.batches import CommitUnit
from semel.sources.jdbc.config import RANGE_ROWS, JdbcSourceConfig
from semel.sources.jdbc.database import Column, Database, TableId
from semel.sources.jdbc.offsets import LONG, Load, Position
from semel.sources.jdbc.queries import (
    Shape,
    Unreadable,
    beyond_long,
    not_after,
    ordered,
    selected,
    shape,
    time_of,
    whole,
    widest,
    without,
)

log = logging.getLogger(__name__)

_EVERY = 60.0
"""Seconds between two looks at a table."""


@dataclass(frozen=True, slots=True)
class Range:
    """The last number of a range, and whether there may be rows after it."""

    last: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of one table in one snapshot of the database."""

    config: JdbcSourceConfig
    database: Database
    table: TableId
    shape: Shape

    def following(self, after: int | None, until: int | None = None) -> Range | None:
        """The range after a number; None if there is nothing."""
        number = self._number
        conditions = [f"{number} IS NOT NULL"]
        conditions += [f"{number} > {after}"] if after is not None else []
        conditions += [f"{number} <= {until}"] if until is not None else []
        query = (
            f"SELECT {number} AS n FROM {self.table.quoted} WHERE {' AND '.join(conditions)} "
            f"ORDER BY {number}"
        )
        most = self.config.range_rows or RANGE_ROWS  # a load that has begun continues in ranges
        last, count = self._one(
            f"SELECT max(n) AS last_number, count(*) AS row_count "
            f"FROM ({self.database.limited(query, most)}) AS semel_range"
        )
        if last is not None and not -LONG <= last < LONG:
            raise Unreadable(beyond_long(self._column, last))
        return None if last is None else Range(last, count >= most)

    def load(self, before: int) -> Load | None:
        """What a first load must read, of rows before a time; None if there are none."""
        time, number = time_of(self.database, self.shape), self._number
        columns = [c for c in self.shape.columns if c in self._keys]
        query = (
            f"SELECT {', '.join(map(selected, columns))} FROM {self.table.quoted} "
            f"WHERE {time} < {self._instant(before)} AND {number} IS NOT NULL "
            f"ORDER BY {time} DESC, {number} DESC"
        )
        keys = replace(self.shape, columns=columns)
        last = None
        with closing(self.database.stream(self.database.limited(query, 1))) as stream:
            for batch in stream:
                if batch.num_rows:
                    last = batches.rows(batch, keys, self.config.timezone, "connect_logical")
        if last is None:
            return None
        until, _ = self._one(f"SELECT max({number}) AS n, 1 AS one FROM {self.table.quoted}")
        assert until is not None
        if until >= LONG:
            raise Unreadable(beyond_long(self._column, until))
        position = last.position
        assert position.timestamp is not None
        assert position.incrementing is not None
        return Load(None, until, position.timestamp, position.incrementing)

    def read(self, load: Load) -> Iterator[CommitUnit]:
        """The rows of a load's next range. The last position is the one after the whole load, once
        nothing is left."""
        step = self.following(load.loaded, load.until)
        if step is None:
            yield [], load.end
            return
        by_number = replace(self.shape, times=())
        rows = self._rows(load, step.last)
        columns = ", ".join(map(selected, self.shape.columns))
        sql = f"SELECT {columns} {rows} ORDER BY {ordered(self._column, self.table)}"
        with closing(self.database.stream(sql, widest(self.shape.columns, rows))) as stream:
            granularity = self.config.timestamp_granularity
            read = (batches.rows(b, by_number, self.config.timezone, granularity) for b in stream)
            for together, position in batches.in_order(read):
                yield together, Position(load=replace(load, loaded=position.incrementing))
        if step.goes_on:
            yield [], Position(load=replace(load, loaded=step.last))
        else:
            yield [], load.end

    def _rows(self, load: Load, last: int) -> str:
        """The rows of a range that a load must read."""
        time, number = time_of(self.database, self.shape), self._number
        at = self._instant(load.timestamp)
        conditions = [
            f"{number} <= {last}",
            not_after(time, number, at, load.incrementing),
        ]
        if load.loaded is not None:
            conditions.append(f"{number} > {load.loaded}")
        return f"FROM {self.table.quoted} WHERE {' AND '.join(conditions)}"

    @property
    def _keys(self) -> list[Column]:
        return [*self.shape.times, self._column]

    @property
    def _number(self) -> str:
        return quote(self._column.name)

    @property
    def _column(self) -> Column:
        assert self.shape.number is not None
        return self.shape.number

    def _instant(self, microseconds: int) -> str:
        return self.database.instant(microseconds, self.shape.times[0], self.config.timezone)

    def _one(self, sql: str) -> tuple[int | None, int]:
        """The only row of a query that gives two numbers."""
        first, second = _answer(self.database, sql)
        return (None if first is None else whole(self._column, first)), int(second or 0)


# Rows that are never read


class Nulls:
    """Looks for null in the columns that find new rows."""

    def __init__(self, connector: str, database: Database) -> None:
        self._name = connector
        self._database = database
        self._looked_at: set[TableId] = set()

    def look(self, table: TableId, layout: Shape) -> None:
        """Look at a table once. Called in a snapshot."""
        if table in self._looked_at:
            return
        self._looked_at.add(table)
        numbers = [layout.number] if layout.number else []
        for columns in filter(None, (numbers, layout.times)):
            if all(c.nullable for c in columns) and self._any(table, without(columns)):
                names = all_named(c.name for c in columns)
                log.warning(
                    "connector %s: table %s: rows with null in %s are not read",
                    *(self._name, table, names),
                )

    def _any(self, table: TableId, condition: str) -> bool:
        there = f"EXISTS (SELECT 1 FROM {table.quoted} WHERE {condition})"
        sql = f"SELECT CASE WHEN {there} THEN 1 ELSE 0 END AS n"
        return any(_answer(self._database, sql))


class Numbering:
    """Tells how many numbers are left, and notices a table whose numbers have begun again: its new
    rows are never read."""

    def __init__(self, connector: str, database: Database) -> None:
        self._name = connector
        self._database = database
        self._due: dict[TableId, float] = {}
        self._warned: dict[TableId, int] = {}

    def look(self, table: TableId, number: Column, stored: int) -> None:
        """Warn, once for each stored number, if a table has only smaller ones. Called where nothing
        is above it; does not ask the database more than once a minute."""
        if self._warned.get(table) == stored or monotonic() < self._due.get(table, 0.0):
            return
        self._due[table] = monotonic() + _EVERY
        largest = self._bound("max", table, number)
        if largest is None or largest >= stored:
            return
        self._warned[table] = stored
        log.warning(
            "connector %s: table %s: the largest %s is %d, but rows were read up to %d. If the "
            "table was emptied or restored and its numbers began again, new rows up to %d are not "
            "read: stop the connector, and set where to begin with semel offsets set. If rows were "
            "deleted, nothing is missing",
            *(self._name, table, number.name, largest, stored, stored),
        )

    def lag(self, table: TableId, config: JdbcSourceConfig, after: int | None) -> int:
        """How many numbers a table has after one, or from its first one onwards; gaps count, too.

        Raises:
            Unreadable: as :func:`~semel.sources.jdbc.queries.shape`.
        """
        with self._database.snapshot():
            columns = self._database.columns(table)
            number = shape(config, columns, of_query=False).number if columns else None
            last = None if number is None else self._bound("max", table, number)
            if number is None or last is None:
                return 0
            if after is None:
                first = self._bound("min", table, number)
                after = last if first is None else first - 1
            return max(0, last - after)

    def _bound(self, which: str, table: TableId, number: Column) -> int | None:
        sql = f"SELECT {which}({quote(number.name)}) AS n FROM {table.quoted}"
        value = next(iter(_answer(self._database, sql)), None)
        return None if value is None else whole(number, value)


def _answer(database: Database, sql: str) -> list[Any]:
    """The only row of a query that has one."""
    rows = [row for batch in list(database.stream(sql)) for row in batch.to_pylist()]
    return [value for row in rows for value in row.values()]
