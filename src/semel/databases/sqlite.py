"""SQLite, through ADBC; one transaction writes at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from adbc_driver_manager import Error, IntegrityError

from semel.config.extras import require
from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.databases.columns import (
    Column,
    Table,
    column,
    digits_of,
    is_binary,
    is_text,
    timestamp,
)
from semel.databases.errors import Nature
from semel.databases.files import FileDatabase, check_directory, holder, is_read_only, room
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name, literal

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

EXACT_DIGITS = 15
"""Decimal digits that NUMERIC keeps of any number: it stores them as 64 bits."""


def _decimal(kind: pa.DataType) -> str:
    digits, fraction = digits_of(kind)
    return f"DECIMAL({digits}, {fraction})" if digits <= EXACT_DIGITS else "TEXT"


class Sqlite(FileDatabase):
    """See :class:`~semel.databases.base.Database`."""

    system = "SQLite"
    scheme = "sqlite"
    most_columns = 2000
    has_schemas = False

    def __init__(self, login: Login, connector: str, timeouts: Timeouts) -> None:
        super().__init__(login, connector, timeouts)
        require(
            "SQLite", "sqlite", {"adbc_driver_sqlite": "adbc-driver-sqlite"}, key="connector.class"
        )

    def _open(self) -> Any:
        from adbc_driver_sqlite import dbapi

        check_directory(self._path)
        connection = dbapi.connect(str(self._path), autocommit=True)
        for pragma in (
            f"busy_timeout = {self._lock_timeout}",
            "journal_mode = WAL",
            "synchronous = FULL",  # a commit survives a power failure
        ):
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA {pragma}")
                cursor.fetchall()
        return connection

    def _begin(self, reading: bool) -> None:
        if self._connection is None:
            if reading:
                self._check_there()
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

    def _beside(self, suffix: str) -> Path:
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
            yield from cursor.fetch_record_batch()

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
        ddl = self.query(f"SELECT sql FROM sqlite_master WHERE lower(name) = lower({at})")
        collated = any("collate" in (sql or "").lower() for sql in ddl.column(0).to_pylist())
        columns = {
            r["name"]: _column(
                r["name"],
                r["type"],
                has_default=r["dflt_value"] is not None or (rowid and bool(r["pk"])),
                nullable=not (r["notnull"] or (rowid and r["pk"])),
                generated=r["hidden"] in (2, 3),
                collated=collated,
            )
            for r in rows
        }
        return Table(name, columns, keys)

    booleans = ("0", "1")
    utc = "Z"

    def add(self, name: Name, field: pa.Field) -> None:
        # SQLite adds no column without default that may not be null, even to an empty table
        lacking = not field.nullable and not self.default(field)
        super().add(name, field.with_nullable(True) if lacking else field)

    other_types = ("JSON", "TEXT")
    types = (
        (pa.types.is_decimal, _decimal),
        (pa.types.is_timestamp, timestamp("TIMESTAMPTZ", "TIMESTAMP")),
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
    natures = (nature for nature, words in NATURES.items() if re.search(words, message))
    return next(natures, Nature.DATA if runs else Nature.MISTAKE)


_TEXTS = re.compile(
    r"CHAR|CLOB|TEXT|STRING|JSON|TIME|UUID|GUID|UNIQUEIDENTIFIER|XML|INET|CIDR|MACADDR|HSTORE|"
    r"GEOMETRY|GEOGRAPHY|POLYGON"
)
_TEXTS_AT_ONCE = re.compile(r"(?:ENUM|SET|INTERVAL|(?:MULTI)?POINT)\b")
"""The beginnings of names that stand for text although they may hold INT."""


def declared_type(name: str) -> pa.DataType:
    """What a column is for by the name of its type, in capitals: whole numbers, numbers, text or
    bytes. These are SQLite's rules of type affinity, by which an unknown name stands for numbers,
    except for names by which other databases mean text or bytes: it stores those there, too."""
    if "INT" in name and not _TEXTS_AT_ONCE.match(name):
        return pa.int64()
    if not name or _TEXTS.search(name) or _TEXTS_AT_ONCE.match(name):
        return pa.string()
    if re.search("BLOB|BINARY(?!_)", name):  # BINARY_DOUBLE is a number
        return pa.binary()
    return pa.float64()


def _column(
    name: str, type_: str, *, has_default: bool, nullable: bool, generated: bool, collated: bool
) -> Column:
    """The column's type, also by the names of types that SQLite lacks."""
    stored = None
    declared = type_.upper()
    digits = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", declared)
    arrow = declared_type(declared)
    if declared == "JSON":
        arrow = pa.json_()
    elif declared.startswith("BOOL"):
        arrow, stored = pa.bool_(), pa.int64()
    elif declared == "DATE":
        arrow = pa.date32()
    elif declared.startswith(("TIMESTAMP", "DATETIME")):
        zoned = "TZ" in declared or "WITH TIME ZONE" in declared
        arrow = pa.timestamp("us", "UTC" if zoned else None)
    elif declared.startswith("TIME"):
        arrow = pa.time64("us")
    elif arrow == pa.float64() and digits and not re.search("REAL|FLOA|DOUB", declared):
        arrow = pa.decimal128(min(38, int(digits[1])), int(digits[2] or 0))
    return column(
        name,
        type_,
        arrow,
        stored=stored,
        has_default=has_default,
        nullable=nullable,
        generated=generated,
        exact=not (collated and is_text(arrow)) and arrow != pa.json_(),
    )
