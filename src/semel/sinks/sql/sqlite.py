"""SQLite: Arrow goes in by ADBC's bulk ingest; one transaction writes at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import Error, IntegrityError

from semel.config.extras import require
from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.sql.columns import Column, Table, is_binary, is_text
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.dialect import STAGE, Dialect, column, listed, ranks, table
from semel.sinks.sql.errors import Nature
from semel.sinks.sql.files import (
    RunLock,
    check_directory,
    database_path,
    holder,
    is_read_only,
    normalized,
    room,
)
from semel.sinks.sql.names import Name, literal, quote
from semel.sinks.sql.prepare import Rows
from semel.sinks.sql.sink import SqlSink
from semel.sinks.sql.sqlite_config import SqliteConfig

NATURES: Mapping[Nature, str] = {
    Nature.CHANGED: (
        r"no such (table|column)|has no column|syntax error|values were supplied|already exists"
    ),
    Nature.PASSING: (
        r"is locked|schema has changed|out of memory|^interrupted|query aborted|locking protocol"
    ),
    Nature.AWAY: r"disk is full|disk I/O error",
    Nature.MISTAKE: (
        r"readonly database|permission denied|authorization denied|unable to open|failed to open|"
        r"API misuse|unknown operation|index out of range|disk image is malformed|"
        r"file is not a database|large file support is disabled|no such (function|module)|"
        r"unsafe use of"
    ),
}
"""What SQLite's messages mean: the driver gives no codes, but marks refusals by constraints and
triggers. Any other message about a statement that runs is about a value; a statement that cannot
even be prepared is a mistake."""

_NUMBER = "semel row number"
_EXACT_DIGITS = 15
"""Decimal digits that NUMERIC keeps of any number: it stores them as 64 bits."""


class Sqlite(Dialect):
    """See :class:`~semel.sinks.sql.dialect.Dialect`."""

    system = "SQLite"
    most_columns = 2000
    compares_keys = True
    has_schemas = False

    def __init__(self, config: JdbcConfig, connector: str) -> None:
        assert isinstance(config, SqliteConfig)
        self._config = config
        self._path = database_path(config.connection_url, "sqlite")
        require(
            "SQLite", "sqlite", {"adbc_driver_sqlite": "adbc-driver-sqlite"}, key="connector.class"
        )
        self._lock = RunLock(self._path, connector)
        self._connection: Any = None

    @property
    def where(self) -> str:
        return f"SQLite in {self._path}"

    def _open(self) -> Any:
        from adbc_driver_sqlite import dbapi

        check_directory(self._path)
        connection = dbapi.connect(str(self._path), autocommit=True)
        for pragma in (
            f"busy_timeout = {self._config.lock_timeout_ms}",
            "journal_mode = WAL",
            "synchronous = FULL",  # a commit survives a power failure
        ):
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA {pragma}")
                cursor.fetchall()
        return connection

    def _begin(self, reading: bool) -> None:
        if self._connection is None:
            if reading and not self._path.exists():
                raise ServiceError(f"{self.where}: there is no such file. Check connection.url")
            self._connection = self._open()
        self.execute("BEGIN" if reading else "BEGIN IMMEDIATE")

    def _commit(self) -> None:
        self.execute("COMMIT")

    def _roll_back(self) -> None:
        if self._connection is not None:
            with suppress(Error):  # there may be no transaction
                self.execute("ROLLBACK")

    def _translated(self, error: BaseException) -> Exception | None:
        if not isinstance(error, Error):
            return None
        message = re.sub(r"^.*?(execute|query|prepare)[^:]*: ", "", str(error).splitlines()[0])
        text = f"{self.where}: {message}"
        runs = "failed to execute" in str(error)
        refused = isinstance(error, IntegrityError)  # by a trigger in any words
        nature = Nature.DATA if refused else nature_of(message, runs=runs)
        if nature in (Nature.DATA, Nature.CHANGED):
            return nature.error(text)
        if is_read_only(self._path):
            return Unavailable(f"{text} (the disk is read-only)")
        if "failed to open" in message:  # the driver gives another reason
            return ServiceError(
                f"{self.where}: the file cannot be opened or made. Let this user write to "
                f"{self._path.parent}, or name another file in connection.url"
            )
        if "is locked" in message:
            return TransientError(f"{text}{holder(self._path, self._beside('-shm'))}")
        if re.search("disk image is malformed|file is not a database", message):
            text += ". The file is damaged: replace it with an intact copy"
        if nature is Nature.AWAY:
            text += room(self._path)
        return nature.error(text)

    def _beside(self, suffix: str) -> Any:
        return self._path.with_name(self._path.name + suffix)

    def execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql, None)

    def query(self, sql: str) -> pa.Table:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            for batch in cursor.fetch_record_batch():
                yield pa.record_batch([_without_empty(v) for v in batch], batch.schema.names)

    def shown(self, column: Column, value: str) -> str | None:
        # The kind of a value, then the value. Null is empty: ADBC takes a column's type from its
        # first rows, and must find texts in them.
        return (
            f"CASE typeof({value}) WHEN 'null' THEN '' WHEN 'integer' THEN 'i' || {value} "
            f"WHEN 'real' THEN printf('r%!.17g', {value}) WHEN 'text' THEN 't' || {value} "
            f"ELSE 'b' || hex({value}) END"
        )

    def _leave(self) -> None:
        # A file that was opened on a read-only disk stays read-only.
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(Error):
                connection.close()

    def close(self) -> None:
        self._lock.release()
        self._leave()

    def insert(self, target: Name, rows: pa.Table) -> None:
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(target.table, _stored(rows), mode="append")

    @contextmanager
    def staged(self, _target: Name, rows: pa.Table) -> Iterator[str]:
        # Columns without types take values as they are.
        self.execute(f"CREATE TEMPORARY TABLE {STAGE} ({listed(rows.column_names)})")
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(STAGE, _stored(rows), mode="append", temporary=True)
        yield f"temp.{STAGE}"
        self.execute(f"DROP TABLE temp.{STAGE}")

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        names = keys.columns.column_names
        numbers = pa.array(np.arange(keys.count))
        with (
            self.transaction(),
            self.staged(target.name, keys.columns.append_column(_NUMBER, numbers)) as stage,
        ):
            # The columns of the first of two SELECTs decide by which collation values compare.
            rows = (
                f"(SELECT {listed(names)}, NULL AS {quote(_NUMBER)} FROM {target.name.quoted} "
                f"WHERE false UNION ALL SELECT {listed([*names, _NUMBER])} FROM {stage})"
            )
            found = self.query(ranks(names, rows, _NUMBER))
        return dict(zip(names, found.columns, strict=True))

    def delete(self, target: Name, keys: pa.Table) -> None:
        names = listed(keys.column_names)
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE FROM {target.quoted} WHERE ({names}) IN (SELECT {names} FROM {stage})"
            )

    def find(self, name: Name) -> Table | None:
        at = literal(name.table)
        rows = self.query(
            f'SELECT name, type, pk, "notnull", dflt_value, hidden FROM pragma_table_xinfo({at})'
        ).to_pylist()
        if not rows:
            return None
        keys = [
            frozenset(r["columns"].split("\x1f"))
            for r in self.query(
                "SELECT group_concat(i.name, char(31)) AS columns, "
                "count(*) = count(i.name) AS plain "
                f"FROM pragma_index_list({at}) l, pragma_index_info(l.name) i "
                'WHERE l."unique" AND NOT l.partial GROUP BY l.name'
            ).to_pylist()
            if r["plain"]
        ]
        primary = frozenset(r["name"] for r in rows if r["pk"])
        rowid = len(primary) == 1 and any(r["pk"] and r["type"].upper() == "INTEGER" for r in rows)
        if primary and primary not in keys:
            keys.insert(0, primary)
        made = self.query(f"SELECT sql FROM sqlite_master WHERE name = {at} AND type = 'table'")
        collated = any("collate" in (sql or "").lower() for sql in made.column(0).to_pylist())
        columns = {
            r["name"]: _column(
                r["name"],
                r["type"],
                has_default=r["dflt_value"] is not None or (rowid and bool(r["pk"])),
                generated=r["hidden"] in (2, 3),
                collated=collated,
            )
            for r in rows
        }
        return table(name, columns, keys)

    booleans = ("0", "1")
    utc = "Z"

    def add(self, name: Name, field: pa.Field) -> None:
        # SQLite adds no column without default that may not be null, even to an empty table
        lacking = not field.nullable and not self.default(field)
        super().add(name, field.with_nullable(True) if lacking else field)

    def column_type(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        if pa.types.is_dictionary(kind):
            return self.column_type(kind.value_type)
        if pa.types.is_decimal(kind):
            exact = kind.precision <= _EXACT_DIGITS
            return f"DECIMAL({kind.precision}, {kind.scale})" if exact else "TEXT"
        if pa.types.is_timestamp(kind):
            return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
        for matches, name in _NEW:
            if matches(kind):
                return name
        return "TEXT" if in_key else "JSON"

    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        converted = super().fit(values, column)
        _check(converted.values, column)
        return converted

    def claim(self) -> None:
        check_directory(self._path)
        self._lock.claim()

    def alone(self) -> AbstractContextManager[bool]:
        check_directory(self._path)
        return self._lock.alone()


_NEW = (
    (pa.types.is_uint64, "TEXT"),  # beyond 64 bits with a sign
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_floating, "REAL"),
    (is_text, "TEXT"),
    (pa.types.is_null, "TEXT"),
    (is_binary, "BLOB"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
)


def nature_of(message: str, *, runs: bool) -> Nature:
    """What follows from an error, by its words; ``runs`` says that its statement could be run."""
    found = (nature for nature, words in NATURES.items() if re.search(words, message))
    return next(found, Nature.DATA if runs else Nature.MISTAKE)


def _column(name: str, type_: str, *, has_default: bool, generated: bool, collated: bool) -> Column:
    """The column's type by SQLite's rules of type affinity, and by the names of types that SQLite
    lacks."""
    stored = None
    declared = type_.upper()
    digits = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", declared)
    arrow: pa.DataType = pa.float64()
    if declared == "JSON":
        arrow = pa.json_()
    elif declared.startswith("BOOL"):
        arrow, stored = pa.bool_(), pa.int64()
    elif "INT" in declared:
        arrow = pa.int64()
    elif re.search("CHAR|CLOB|TEXT", declared) or not declared:
        arrow = pa.string()
    elif "BLOB" in declared:
        arrow = pa.binary()
    elif declared == "DATE":
        arrow = pa.date32()
    elif declared.startswith(("TIMESTAMP", "DATETIME")):
        zoned = "TZ" in declared or "WITH TIME ZONE" in declared
        arrow = pa.timestamp("us", "UTC" if zoned else None)
    elif declared.startswith("TIME"):
        arrow = pa.time64("us")
    elif digits and not re.search("REAL|FLOA|DOUB", declared):
        arrow = pa.decimal128(min(38, int(digits[1])), int(digits[2] or 0))
    return column(
        name,
        type_,
        arrow,
        stored=stored,
        has_default=has_default,
        generated=generated,
        exact=not (collated and is_text(arrow)) and arrow != pa.json_(),
    )


_YEARS = {  # 0 to 9999: others have no text
    "s": (-62_167_219_200, 253_402_300_799),
    "ms": (-62_167_219_200_000, 253_402_300_799_999),
    "us": (-62_167_219_200_000_000, 253_402_300_799_999_999),
}
_DAYS = (-719_528, 2_932_896)


def _check(values: pa.ChunkedArray, column: Column) -> None:
    """Raises ArrowInvalid for values that SQLite would store as something else."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        first, last = _DAYS if pa.types.is_date32(kind) else _YEARS[kind.unit]
        counts = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        least, greatest = pc.min_max(counts).as_py().values()
        if least is not None and (least < first or greatest > last):
            raise pa.ArrowInvalid("its year is not between 0 and 9999")
    elif pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        raise pa.ArrowInvalid("SQLite has no NaN")
    elif pa.types.is_decimal(kind) and kind.precision > _EXACT_DIGITS:
        _check_numbers(values.cast(pa.string()))
    elif column.is_json:  # a number alone is stored as one, whatever the column is called
        _check_numbers(values.filter(pc.match_substring_regex(values, r"^\s*[-0-9]")))


def _check_numbers(text: pa.ChunkedArray) -> None:
    """Raises ArrowInvalid for numbers that SQLite would change: it keeps integers of 64 bits, and
    makes doubles of numbers that are written with a point."""
    for number in text.drop_null().to_pylist():
        exact = Decimal(number)
        if re.fullmatch(r"\s*-?\d+\s*", number) and -_INT64 <= exact < _INT64:
            continue
        if Decimal(repr(float(exact))) != exact:
            raise pa.ArrowInvalid(f"SQLite keeps {_EXACT_DIGITS} digits of a number")


_INT64 = 1 << 63


def _without_empty(values: pa.Array) -> pa.Array:
    """Texts with null in the place of empty ones; see :meth:`Sqlite.shown`."""
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)


def _stored(rows: pa.Table) -> pa.Table:
    """In the types that SQLite has; the others as text."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.string()))
    return rows


class SqliteSink(SqlSink):
    """Rows and positions in one transaction of a SQLite file."""

    section = SqliteConfig
    database_class = Sqlite
    local = True

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return normalized(raw, "sqlite")
