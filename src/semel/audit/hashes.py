"""Compares the values of rows with those of their records, by hashes.

A hash of 64 bits is kept for each value, so a difference names its column. 0 stands for a null, and
null for a value that is not judged.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from semel.audit.report import ChangedRow
from semel.audit.workspace import StoredRows, Workspace, folded, hash_of, quoted, reading, unfolded
from semel.core.records import OFFSET, PARTITION, TIMESTAMP
from semel.sinks.rereading import canonical

if typing.TYPE_CHECKING:
    import duckdb

_EXAMPLES = 10
_KEY, _VALUE = "k:", "v:"


@dataclass(frozen=True, slots=True)
class Differences:
    """How rows differ from their records.

    ``counts`` holds the number of rows that differ, by topic and partition, and ``first`` names the
    first of them. ``compared`` counts the pairs of a row and its record. ``unsure`` counts the keys
    that are in several partitions, whose last record is not known. ``left_alone`` counts, by
    column, the rows that have a value where their record has none: an upsert may have kept an
    earlier value.
    """

    counts: Mapping[tuple[str, int], int]
    first: Sequence[ChangedRow]
    unsure: int = 0
    compared: int = 0
    left_alone: Mapping[str, int] = field(default_factory=dict)


class ExpectedRows:
    """The rows that records make: their coordinates, their keys if rows are found by key, and the
    hashes of their values.

    With ``evolves``, columns may have been added while rows were written. If rows also replace each
    other, a record without a value may have left the row's value alone.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        key: Sequence[str] = (),
        replaces: bool,
        evolves: bool = False,
    ) -> None:
        self._workspace = workspace
        self._rows = workspace.parts()
        self._changes = workspace.parts()
        self.key = tuple(key)
        self._replaces = replaces
        self._evolves = evolves
        self._optional: set[str] = set()
        self._topics: list[str] = []

    @property
    def rows(self) -> int:
        """The number of expected rows, one per record."""
        return self._rows.rows

    @property
    def columns(self) -> list[str]:
        """The columns to read, beginning with the key's."""
        return [*self.key, *map(unfolded, self._compared)]

    def add(
        self, topic: str, places: pa.Table, values: pa.Table, optional: Collection[str]
    ) -> None:
        """Take rows. ``places`` may hold the records' timestamps."""
        if not values.num_rows:
            return
        names = [n for n in values.column_names if n not in self.key]
        self._optional |= {_VALUE + folded(n) for n in optional}
        own = {_VALUE + n: values.column(n) for n in names}
        place = self._place(topic, places)
        keys = {_KEY + n: values.column(n) for n in self.key if n in values.column_names}
        table = pa.table({**place, **keys, **own})
        self._rows.add(
            self._workspace.hashed(table, [*place, *keys], {_VALUE + n for n in optional})
        )

    def change(self, topic: str, keys: pa.Table, places: pa.Table, *, deleted: bool) -> None:
        """Take keys of records, to find the last record of each."""
        if not keys.num_rows:
            return
        named = {_KEY + folded(n): canonical(keys.column(n)) for n in keys.column_names}
        gone = pa.repeat(pa.scalar(deleted), keys.num_rows)
        self._changes.add(pa.table({**self._place(topic, places), **named, "deleted": gone}))

    def _place(self, topic: str, places: pa.Table) -> dict[str, Any]:
        if topic not in self._topics:
            self._topics.append(topic)
        number = pa.scalar(self._topics.index(topic), pa.int32())
        place = {
            "topic": pa.repeat(number, places.num_rows),
            "partition": places.column(PARTITION),
            "offset": places.column(OFFSET),
        }
        if TIMESTAMP in places.column_names:
            place["at"] = places.column(TIMESTAMP).cast(pa.int64())
        return place

    # Comparing

    def by_place(self, stored: Iterator[pa.RecordBatch]) -> Differences:
        """Compare each row with the record that its provenance names."""
        if not self._rows.rows:
            return Differences({}, ())
        with reading(self._workspace, stored) as rows:
            if not rows.columns:
                return Differences({}, ())
            return self._differences(
                f"""SELECT e.topic, e.partition, e."offset", {self._flags("{}")}
                FROM {self._rows.sql()} e JOIN {self._stored(rows, [PARTITION, OFFSET])} s
                ON e.partition = s.{PARTITION} AND e."offset" = s.{OFFSET}
                    {self._same_time(rows)}"""
            )

    def by_key(self, stored: Iterator[pa.RecordBatch]) -> Differences:
        """Compare each row with the last record of its key."""
        if not self._rows.rows or not self._changes.rows:
            return Differences({}, ())
        keys = ", ".join(quoted(n) for n in self._changes.columns if n.startswith(_KEY))
        place = "(topic::BIGINT << 32) + partition"
        self._session.execute(
            f"""CREATE OR REPLACE TEMP TABLE latest AS
            SELECT any_value(topic) AS topic, any_value(partition) AS partition,
                max("offset" * 2 + deleted::INT) AS last,
                min({place}) <> max({place}) AS unsure
            FROM {self._changes.sql()} GROUP BY {keys}"""
        )
        ((unsure,),) = self._asked("SELECT count(*) FROM latest WHERE unsure")
        key = [folded(n) for n in self.key]
        matches = " AND ".join(f"e.{quoted(_KEY + n)} = s.{quoted(n)}" for n in key)
        with reading(self._workspace, stored) as rows:
            if not rows.columns:
                return Differences({}, (), int(unsure))
            return self._differences(
                f"""SELECT e.topic, e.partition, e."offset", {self._flags("bool_and({})")}
                FROM {self._rows.sql()} e
                JOIN latest l ON l.topic = e.topic AND l.partition = e.partition
                    AND l.last = e."offset" * 2 AND NOT l.unsure
                JOIN {self._stored(rows, key)} s ON {matches}
                GROUP BY ALL""",
                int(unsure),
            )

    def _flags(self, form: str) -> str:
        """For each column, whether it differs and whether it may have been left alone."""
        flags = []
        for at, name in enumerate(self._compared):
            flags.append(f"{form.format(self._differs_in(name))} AS d{at}")
            flags.append(f"{form.format(self._left_alone_in(name))} AS a{at}")
        return ", ".join(flags) or "false AS d0"

    def _differences(self, pairs: str, unsure: int = 0) -> Differences:
        """The result of a query of pairs, each with coordinates and :meth:`_flags`."""
        differs = [f"d{at}" for at in range(len(self._compared))] or ["d0"]
        alone = [f"count(*) FILTER (WHERE a{at})" for at in range(len(self._compared))]
        results = self._asked(
            f"""SELECT topic, partition, count(*),
                count(DISTINCT "offset") FILTER (WHERE {" OR ".join(differs)}),
                min_by({{'at': "offset", 'differs': [{", ".join(differs)}]}}, "offset", {_EXAMPLES})
                    FILTER (WHERE {" OR ".join(differs)}),
                [{", ".join(alone)}]
            FROM ({pairs}) GROUP BY topic, partition ORDER BY topic, partition"""
        )
        counts: dict[tuple[str, int], int] = {}
        first: dict[ChangedRow, None] = {}
        left_alone = dict.fromkeys(map(unfolded, self._compared), 0)
        compared = 0
        for number, partition, pairs_there, changed, examples, not_judged in results:
            topic = self._topics[number]
            compared += pairs_there
            if changed:
                counts[topic, partition] = changed
            for example in examples or ():
                columns = zip(left_alone, example["differs"], strict=False)
                named = tuple(n for n, differ in columns if differ)
                first[ChangedRow(topic, partition, example["at"], named)] = None
            for name, n in zip(left_alone, not_judged, strict=True):
                left_alone[name] += n
        nonzero = {n: count for n, count in left_alone.items() if count}
        return Differences(counts, list(first)[:_EXAMPLES], unsure, compared, nonzero)

    def by_count(self, stored: Iterator[pa.RecordBatch]) -> tuple[int, int, list[ChangedRow]]:
        """Compare rows that name no record with all records. Returns the number of expected rows
        that are missing, the number of stored rows that are not expected, and some of the missing
        ones."""
        unsure = self.uncompared
        columns = [n for n in self._compared if unfolded(n) not in unsure]
        if not columns:
            return 0, 0, []
        values = ", ".join(quoted(_VALUE + n) for n in columns)
        expected = f'SELECT hash({values}) AS h, topic, partition, "offset" FROM {self._rows.sql()}'
        with reading(self._workspace, stored) as rows:
            if not rows.columns:
                return self._rows.rows, 0, []
            self._session.execute(
                f"""CREATE OR REPLACE TEMP TABLE odd AS
                SELECT h, sum(n)::BIGINT AS n FROM (
                    SELECT h, 1 AS n FROM ({expected})
                    UNION ALL SELECT hash({values}), -1 FROM {self._stored(rows, ())})
                GROUP BY h HAVING sum(n) <> 0"""
            )
        ((missing, extra),) = self._asked(
            "SELECT coalesce(sum(greatest(n, 0)), 0), coalesce(sum(greatest(-n, 0)), 0) FROM odd"
        )
        first = self._asked(
            f"""SELECT topic, partition, "offset" FROM ({expected}) JOIN odd USING (h) WHERE n > 0
            ORDER BY ALL LIMIT {_EXAMPLES}"""
        )
        return int(missing), int(extra), [ChangedRow(self._topics[t], p, o) for t, p, o in first]

    @property
    def uncompared(self) -> list[str]:
        """The columns that some records leave to the database, so :meth:`by_count` cannot use
        them."""
        if not self._rows.rows:
            return []
        unknown = ", ".join(f"bool_or({quoted(_VALUE + n)} IS NULL)" for n in self._compared)
        if not unknown:
            return []
        (flags,) = self._asked(f"SELECT {unknown} FROM {self._rows.sql()}")
        return [unfolded(n) for n, unsure in zip(self._compared, flags, strict=True) if unsure]

    @property
    def _session(self) -> duckdb.DuckDBPyConnection:
        return self._workspace.session

    def _asked(self, sql: str) -> list[tuple[Any, ...]]:
        return self._session.execute(sql).fetchall()

    @property
    def _compared(self) -> list[str]:
        """The value columns, with names as :func:`folded` makes them."""
        return [n.removeprefix(_VALUE) for n in self._rows.columns if n.startswith(_VALUE)]

    def _stored(self, rows: StoredRows, kept: Iterable[str]) -> str:
        own = [TIMESTAMP] if TIMESTAMP in rows.columns else []
        chosen = [quoted(n) for n in dict.fromkeys([*kept, *own])]
        chosen += [f"{hash_of(n, '0')} AS {quoted(_VALUE + n)}" for n in self._compared]
        return f"(SELECT {', '.join(chosen)} FROM {rows.name})"

    def _same_time(self, rows: StoredRows) -> str:
        """The condition that row and record have the same timestamp."""
        if TIMESTAMP not in rows.columns or "at" not in self._rows.columns:
            return ""
        return f"AND coalesce(e.at = s.{TIMESTAMP}, true)"

    def _differs_in(self, name: str) -> str:
        expected, actual = f"e.{quoted(_VALUE + name)}", f"s.{quoted(_VALUE + name)}"
        differs = f"coalesce({expected} <> {actual}, false)"
        return f"({differs} AND {expected} <> 0)" if self._is_loose(name) else differs

    def _left_alone_in(self, name: str) -> str:
        if not self._is_loose(name) or _VALUE + name in self._optional:
            return "false"
        expected, actual = f"e.{quoted(_VALUE + name)}", f"s.{quoted(_VALUE + name)}"
        return f"(coalesce({expected}, 0) = 0 AND {actual} <> 0)"

    def _is_loose(self, name: str) -> bool:
        """Whether a record without a value may have kept the row's value. That depends on the
        records that were written together with it."""
        return self._replaces and (self._evolves or _VALUE + name in self._rows.partial)
