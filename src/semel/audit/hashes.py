"""Hashes of values, of any number of rows: on disk and in a bounded part of memory.

Of each value 64 bits are kept, by column, so that a difference names its column. 0 stands for null,
and null for what is not to be judged.
"""

from __future__ import annotations

import os
import re
import tempfile
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semel.records import OFFSET, PARTITION, TIMESTAMP
from semel.sinks.rereading import canonical

if typing.TYPE_CHECKING:
    import duckdb

_MEMORY = "1GB"
_PART = 64 * 1024 * 1024
"""Bytes of hashes that are put into one file."""
_EXAMPLES = 10
_KEY, _VALUE = "k:", "v:"


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row that is not what its record makes: the record's place and the columns that differ, if
    these can be told."""

    topic: str
    partition: int
    offset: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Differences:
    """How many rows differ, by topic and partition, and the first of them; how many keys are in
    several partitions, so that nobody knows their last record."""

    counts: Mapping[tuple[str, int], int]
    first: Sequence[ChangedRow]
    unsure: int = 0


class Workspace:
    """A session of DuckDB that spills into a directory, which goes when it is closed."""

    def __init__(self) -> None:
        import duckdb

        self._directory = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self.path = Path(self._directory.name)
        self.session = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "temp_directory": str(self.path / "spilled"),
                "threads": min(4, os.cpu_count() or 1),
                "preserve_insertion_order": False,
            }
        )
        self.session.execute("SET enable_progress_bar = false")  # it would be among the answer
        self._made = 0

    def parts(self) -> Parts:
        self._made += 1
        return Parts(self.path / f"part{self._made}", self)

    def close(self) -> None:
        self.session.close()
        self._directory.cleanup()

    def hashed(self, table: pa.Table, kept: Sequence[str], optional: Collection[str]) -> pa.Table:
        """The columns ``kept`` as they are, and of all others the hashes of their values. A null in
        an ``optional`` one is not to be judged."""
        relation = self.session.from_arrow(plain(table))
        chosen = [_quoted(_apart(n)) for n in kept]
        chosen += [
            f"{_hash(_apart(n), 'NULL' if n in optional else '0')} AS {_quoted(_apart(n))}"
            for n in table.column_names
            if n not in kept
        ]
        return relation.project(", ".join(chosen)).to_arrow_table()


class Parts:
    """Rows in files, written as they come. Later ones may have other columns."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self._path = path
        self._workspace = workspace
        self._waiting: list[pa.Table] = []
        self._files = 0
        self.rows = 0
        self.columns: dict[str, pa.DataType] = {}
        self.partial: set[str] = set()
        """Columns that some rows were given without."""

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        names = dict(zip(table.column_names, table.schema.types, strict=True))
        if self.rows:
            self.partial |= names.keys() ^ self.columns.keys()
        self.columns = {**self.columns, **names}
        self.rows += table.num_rows
        self._waiting.append(table)
        if sum(t.nbytes for t in self._waiting) >= _PART:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._path.mkdir(exist_ok=True)
            table = pa.concat_tables(self._waiting, promote_options="permissive")
            self._files += 1
            pq.write_table(table, self._path / f"{self._files}.parquet", compression="none")
            self._waiting.clear()

    def sql(self) -> str:
        """What to read all rows from."""
        self._flush()
        return f"read_parquet('{self._path}/*.parquet', union_by_name=true)"


def plain(table: pa.Table) -> pa.Table:
    """Values in types that have one form of each, under names of :func:`_apart`."""
    return pa.table({_apart(n): canonical(table.column(n)) for n in table.column_names})


class Expected:
    """The rows that records make: their places, the key where rows are found by it, and hashes."""

    def __init__(self, workspace: Workspace, *, key: Sequence[str] = (), replaces: bool) -> None:
        self._workspace = workspace
        self._rows = workspace.parts()
        self._changes = workspace.parts()
        self._key = tuple(key)
        self._replaces = replaces
        self._topics: list[str] = []

    @property
    def columns(self) -> list[str]:
        """The columns to read: those of the key first."""
        return [*self._key, *map(_told, self._compared)]

    def add(
        self, topic: str, places: pa.Table, values: pa.Table, optional: Collection[str]
    ) -> None:
        """Rows; ``places`` may say the records' times."""
        if not values.num_rows:
            return
        names = [n for n in values.column_names if n not in self._key]
        own = {_VALUE + n: values.column(n) for n in names}
        place = self._place(topic, places)
        keys = {_KEY + n: values.column(n) for n in self._key}
        table = pa.table({**place, **keys, **own})
        self._rows.add(
            self._workspace.hashed(table, [*place, *keys], {_VALUE + n for n in optional})
        )

    def change(self, topic: str, keys: pa.Table, places: pa.Table, *, deleted: bool) -> None:
        """Keys as they are in records, for finding out which record of each is the last one."""
        if not keys.num_rows:
            return
        named = {_KEY + _apart(n): canonical(keys.column(n)) for n in keys.column_names}
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
        """Each row with the record that its provenance names."""
        if not self._rows.rows:
            return Differences({}, ())
        with _reading(self._workspace, stored) as rows:
            if not rows.columns:
                return Differences({}, ())
            self._session.execute(
                f"""CREATE OR REPLACE TEMP TABLE differing AS
                SELECT e.topic, e.partition, e."offset", {self._differing()}
                FROM {self._rows.sql()} e JOIN {self._stored(rows, [PARTITION, OFFSET])} s
                ON e.partition = s.{PARTITION} AND e."offset" = s.{OFFSET} {self._same_time(rows)}
                WHERE {self._differs()}"""
            )
        return self._found()

    def by_key(self, stored: Iterator[pa.RecordBatch]) -> Differences:
        """Each row with the last record of its key."""
        if not self._rows.rows or not self._changes.rows:
            return Differences({}, ())
        keys = ", ".join(_quoted(n) for n in self._changes.columns if n.startswith(_KEY))
        one = "(topic::BIGINT << 32) + partition"
        self._session.execute(
            f"""CREATE OR REPLACE TEMP TABLE latest AS
            SELECT any_value(topic) AS topic, any_value(partition) AS partition,
                max("offset" * 2 + deleted::INT) AS last,
                min({one}) <> max({one}) AS unsure
            FROM {self._changes.sql()} GROUP BY {keys}"""
        )
        key = [_apart(n) for n in self._key]
        matches = " AND ".join(f"e.{_quoted(_KEY + n)} = s.{_quoted(n)}" for n in key)
        differing = ", ".join(
            f"bool_and({self._differs_in(n)}) AS {_quoted(_VALUE + n)}" for n in self._compared
        )
        with _reading(self._workspace, stored) as rows:
            if not rows.columns:
                return Differences({}, ())
            self._session.execute(
                f"""CREATE OR REPLACE TEMP TABLE differing AS
                SELECT e.topic, e.partition, e."offset", {differing}
                FROM {self._rows.sql()} e
                JOIN latest l ON l.topic = e.topic AND l.partition = e.partition
                    AND l.last = e."offset" * 2 AND NOT l.unsure
                JOIN {self._stored(rows, key)} s ON {matches}
                GROUP BY ALL HAVING bool_and({self._differs()})"""
            )
        ((unsure,),) = self._asked("SELECT count(*) FROM latest WHERE unsure")
        return self._found(int(unsure))

    def by_count(self, stored: Iterator[pa.RecordBatch]) -> tuple[int, int, list[ChangedRow]]:
        """Rows without a name: how many of those that are expected are not there, how many that
        are there are not expected, and some of the former."""
        unsure = self.uncompared
        columns = [n for n in self._compared if _told(n) not in unsure]
        if not columns:
            return 0, 0, []
        one = ", ".join(_quoted(_VALUE + n) for n in columns)
        mine = f'SELECT hash({one}) AS h, topic, partition, "offset" FROM {self._rows.sql()}'
        with _reading(self._workspace, stored) as rows:
            if not rows.columns:
                return self._rows.rows, 0, []
            self._session.execute(
                f"""CREATE OR REPLACE TEMP TABLE odd AS
                SELECT h, sum(n)::BIGINT AS n FROM (
                    SELECT h, 1 AS n FROM ({mine})
                    UNION ALL SELECT hash({one}), -1 FROM {self._stored(rows, ())})
                GROUP BY h HAVING sum(n) <> 0"""
            )
        ((missing, extra),) = self._asked(
            "SELECT coalesce(sum(greatest(n, 0)), 0), coalesce(sum(greatest(-n, 0)), 0) FROM odd"
        )
        first = self._asked(
            f"""SELECT topic, partition, "offset" FROM ({mine}) JOIN odd USING (h) WHERE n > 0
            ORDER BY ALL LIMIT {_EXAMPLES}"""
        )
        return int(missing), int(extra), [ChangedRow(self._topics[t], p, o) for t, p, o in first]

    @property
    def uncompared(self) -> list[str]:
        """Columns that some records leave to the database, so that rows without a name cannot be
        told apart by them."""
        if not self._rows.rows:
            return []
        unknown = ", ".join(f"bool_or({_quoted(_VALUE + n)} IS NULL)" for n in self._compared)
        if not unknown:
            return []
        (found,) = self._asked(f"SELECT {unknown} FROM {self._rows.sql()}")
        return [_told(n) for n, unsure in zip(self._compared, found, strict=True) if unsure]

    @property
    def _session(self) -> duckdb.DuckDBPyConnection:
        return self._workspace.session

    def _asked(self, sql: str) -> list[tuple[Any, ...]]:
        return self._session.execute(sql).fetchall()

    @property
    def _compared(self) -> list[str]:
        """The columns with values, in names of :func:`_apart`."""
        return [n.removeprefix(_VALUE) for n in self._rows.columns if n.startswith(_VALUE)]

    def _stored(self, rows: _Rows, kept: Iterable[str]) -> str:
        own = [TIMESTAMP] if TIMESTAMP in rows.columns else []
        chosen = [_quoted(n) for n in dict.fromkeys([*kept, *own])]
        chosen += [f"{_hash(n, '0')} AS {_quoted(_VALUE + n)}" for n in self._compared]
        return f"(SELECT {', '.join(chosen)} FROM {rows.name})"

    def _same_time(self, rows: _Rows) -> str:
        """A row of another time is no row of the record at all."""
        if TIMESTAMP not in rows.columns or "at" not in self._rows.columns:
            return ""
        return f"AND coalesce(e.at = s.{TIMESTAMP}, true)"

    def _differs_in(self, name: str) -> str:
        mine, its = f"e.{_quoted(_VALUE + name)}", f"s.{_quoted(_VALUE + name)}"
        differs = f"coalesce({mine} <> {its}, false)"
        left_alone = self._replaces and _VALUE + name in self._rows.partial
        return f"({differs} AND {mine} <> 0)" if left_alone else differs

    def _differs(self) -> str:
        return " OR ".join(map(self._differs_in, self._compared)) or "false"

    def _differing(self) -> str:
        each = [f"{self._differs_in(n)} AS {_quoted(_VALUE + n)}" for n in self._compared]
        return ", ".join(each) or "false"

    def _found(self, unsure: int = 0) -> Differences:
        counts = self._asked(
            """SELECT topic, partition, count(DISTINCT "offset") FROM differing GROUP BY ALL"""
        )
        first = self._asked(
            f"""SELECT DISTINCT ON (topic, partition, "offset") * FROM differing
            ORDER BY topic, partition, "offset" LIMIT {_EXAMPLES}"""
        )
        return Differences(
            {(self._topics[t], p): n for t, p, n in counts},
            [
                ChangedRow(
                    self._topics[t],
                    p,
                    o,
                    tuple(_told(n) for n, d in zip(self._compared, differ, strict=True) if d),
                )
                for t, p, o, *differ in first
            ],
            unsure,
        )


class _Rows:
    """Batches of rows that a query reads once, in types of one form and names of
    :func:`_apart`."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.name = "stored_rows"
        self.columns: list[str] = []
        self.error: BaseException | None = None
        first = next(batches, None)
        self._first = plain(pa.table({}) if first is None else pa.Table.from_batches([first]))
        self.columns = self._first.column_names

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._first.schema, self._plain())

    def _plain(self) -> Iterator[pa.RecordBatch]:
        yield from self._first.to_batches()
        try:
            for batch in self._batches:
                yield from plain(pa.Table.from_batches([batch])).to_batches()
        except BaseException as error:  # which the query would wrap into one of its own
            self.error = error
            raise


@contextmanager
def _reading(workspace: Workspace, batches: Iterator[pa.RecordBatch]) -> Iterator[_Rows]:
    """Rows that queries inside the context read by name; an error in reading them leaves as it
    is."""
    import duckdb

    rows = _Rows(batches)
    if rows.columns:
        workspace.session.register(rows.name, rows.reader())
    try:
        yield rows
    except duckdb.Error:
        if rows.error is not None:
            raise rows.error from None
        raise
    finally:
        if rows.columns:
            workspace.session.unregister(rows.name)


def _apart(name: str) -> str:
    """A name that DuckDB tells from those that differ only in case: ``Id`` is ``^id``."""
    return re.sub(r"[A-Z^]", lambda capital: "^" + capital[0].lower(), name)


def _told(apart: str) -> str:
    """The name of which :func:`_apart` has made this one."""
    return re.sub(r"\^(.)", lambda capital: capital[1].upper(), apart)


def _hash(name: str, null: str) -> str:
    value = _quoted(name)
    return f"CASE WHEN {value} IS NULL THEN {null} ELSE hash({value}) END"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
