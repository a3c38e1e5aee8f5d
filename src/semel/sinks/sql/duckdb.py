"""DuckDB: Arrow goes in without a copy; the file is open only while a transaction lasts.

One process at a time can open a DuckDB file for writing, and a connector consists of several:
tasks, driver, audit. So each transaction opens the file and closes it again, which costs some
40 ms, and a lock file beside it makes the processes take turns. Between transactions any program
may open it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError, ServiceError, TransientError, Unavailable
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.sql.columns import Column, Table, is_binary, is_text
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.dialect import BATCH, STAGE, Dialect, column, listed, same, table
from semel.sinks.sql.duckdb_config import DuckdbConfig
from semel.sinks.sql.errors import Nature, by_code
from semel.sinks.sql.files import (
    LockFile,
    RunLock,
    check_directory,
    database_path,
    holder,
    is_read_only,
    normalized,
)
from semel.sinks.sql.names import Name, literal, quote
from semel.sinks.sql.sink import SqlSink

_ARROW = {
    "JSON": pa.json_(),
    "HUGEINT": pa.decimal128(38, 0),
    "UUID": pa.string(),
    "INTERVAL": pa.string(),
    "BIT": pa.string(),
    "TIME WITH TIME ZONE": pa.string(),
}
"""Columns that converters are asked for in another type than DuckDB's own Arrow type."""

_NATIVE = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("BOOLEAN", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME"),
    *("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
}
"""Types whose values the audit reads as they are; others as text."""
_COPIED = 16 * 1024 * 1024

_CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}
_configuring = threading.Lock()

NATURES: Mapping[type[duckdb.Error], Nature] = by_code(
    {
        Nature.DATA: [
            duckdb.ConstraintException,
            duckdb.ConversionException,
            duckdb.InvalidInputException,
            duckdb.InvalidTypeException,
            duckdb.OutOfRangeException,
            duckdb.TypeMismatchException,
        ],
        Nature.CHANGED: [duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException],
        Nature.PASSING: [
            duckdb.ConnectionException,
            duckdb.FatalException,  # the file must be opened again
            duckdb.InterruptException,
            duckdb.IOException,
            duckdb.OutOfMemoryException,
            duckdb.TransactionException,
            getattr(duckdb, "ResourceInUseException", duckdb.IOException),  # since version 2
        ],
        Nature.MISTAKE: [
            duckdb.DependencyException,
            duckdb.HTTPException,
            duckdb.InternalException,
            duckdb.NotImplementedException,
            duckdb.PermissionException,
            duckdb.SequenceException,  # it has no more numbers, for any record
            duckdb.SerializationException,
            duckdb.SyntaxException,
        ],
    }
)
"""What DuckDB's errors mean; where the message says more, it decides."""
_IN_USE = re.compile("set lock on file|different configuration|file handle conflict|being detached")
"""Another process, or another thread of this one, has the file open."""
_OTHERWISE = re.compile("different configuration")
"""The program that runs semel has the file open itself."""
_NO_DATABASE = re.compile("not a valid DuckDB database")
_NEWER = re.compile("with (storage )?version number|storage version greater")
"""The wording of DuckDB 1 and of DuckDB 2."""


def confined(path: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """A connection whose SQL reaches nothing but the database: a query, a view or a default could
    name any file or address."""
    connection = duckdb.connect(str(path), read_only=read_only, config=_CONFINED)
    with _configuring:  # connections of a process to the same file share their settings
        found = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
        if found == (False,):
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            connection.execute("SET GLOBAL lock_configuration = true")
    return connection


class Duckdb(Dialect):
    """See :class:`~semel.sinks.sql.dialect.Dialect`."""

    system = "DuckDB"

    def __init__(self, config: JdbcConfig, connector: str) -> None:
        assert isinstance(config, DuckdbConfig)
        self._patience = config.lock_timeout_ms / 1000
        self._path = database_path(config.connection_url, "duckdb")
        self._run = RunLock(self._path, connector)
        self._turn = LockFile(self._path.with_name(f".{self._path.name}.semel"))
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def where(self) -> str:
        return f"DuckDB in {self._path}"

    @property
    def _session(self) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None
        return self._connection

    def _begin(self, reading: bool) -> None:
        check_directory(self._path)
        if reading and not self._path.exists():
            raise ServiceError(f"{self.where}: there is no such file. Check connection.url")
        if not self._turn.acquire(shared=False, timeout=self._patience):
            raise TransientError(f"{self.where}: the file is in use{holder(self._turn.path)}")
        self._connection = self._open()
        self._session.execute("BEGIN")

    def _open(self) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._connect()
            except duckdb.Error as error:
                if not self._passes(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)

    def _passes(self, error: duckdb.Error) -> bool:
        """Whether a file that could not be opened may be opened soon: others have it open, or are
        moving it into place."""
        reason = self._reason(error)
        if _IN_USE.search(reason):
            return True
        wrong = _NEWER.search(reason) or (_NO_DATABASE.search(reason) and self._is_filled)
        return isinstance(error, (duckdb.IOException, duckdb.ConnectionException)) and not wrong

    @property
    def _is_filled(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > 0

    def _reason(self, error: BaseException) -> str:
        """What DuckDB says without the name of the file, which may hold any words."""
        return str(error).replace(str(self._path), "")

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return confined(self._path)

    def _commit(self) -> None:
        self._session.execute("COMMIT")
        self.close_file()

    def _roll_back(self) -> None:
        self.close_file()

    def close_file(self) -> None:
        """Release the file to other processes; uncommitted work is dropped."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(duckdb.Error):
                connection.close()
        self._turn.release()

    def _translated(self, error: BaseException) -> Exception | None:
        if not isinstance(error, duckdb.Error):
            return None
        text = f"{self.where}: {str(error).partition('LINE 1')[0].strip().rstrip('.!')}"
        if _OTHERWISE.search(reason := self._reason(error)):
            return ConfigError(
                f"{text}. Close your own connection to the file while the connector runs"
            )
        if _IN_USE.search(reason):
            return TransientError(text)
        nature = NATURES.get(type(error), Nature.MISTAKE)
        if nature in (Nature.DATA, Nature.CHANGED):  # which may quote anything
            return nature.error(text)
        if re.search("No space left|disk is full", text):
            return Unavailable(text)
        if is_read_only(self._path):
            return Unavailable(f"{text} (the disk is read-only)")
        if _NEWER.search(reason):
            return ServiceError(
                f"{text}. A newer DuckDB has written it: upgrade the package duckdb, or name "
                "another file in connection.url"
            )
        if _NO_DATABASE.search(reason):
            way = "Replace it with an intact copy" if self._is_filled else "It is empty: remove it"
            return ServiceError(f"{text}. {way}, or name another file in connection.url")
        return nature.error(text)

    def execute(self, sql: str) -> None:
        self._session.execute(sql)

    def query(self, sql: str) -> pa.Table:
        return self._session.sql(sql).to_arrow_table()

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        yield from self._session.sql(sql).to_arrow_reader(BATCH)

    @contextmanager
    def instant(self) -> Iterator[None]:
        """Read a copy of the file: while the file itself is open, nobody else can write into it."""
        with tempfile.TemporaryDirectory(prefix="semel-audit-") as directory, self.translating():
            copy = Path(directory, "copy")
            # Closing a file releases all locks that the process has on it, DuckDB's among them.
            with ExitStack() as opened, self.transaction(reading=True):
                for suffix in ("", ".wal"):
                    with suppress(FileNotFoundError):
                        path = self._path.with_name(self._path.name + suffix)
                        source = opened.enter_context(path.open("rb"))
                        with copy.with_name(copy.name + suffix).open("wb") as target:
                            shutil.copyfileobj(source, target, _COPIED)
            self._connection = confined(copy)
            try:
                yield
            finally:
                self.close_file()

    def shown(self, column: Column, value: str) -> str | None:
        return value if column.type in _NATIVE else f"({value})::VARCHAR"

    def close(self) -> None:
        self.close_file()
        self._run.release()

    def insert(self, target: Name, rows: pa.Table) -> None:
        names = listed(rows.column_names)
        with self.staged(target, rows) as stage:
            self.execute(f"INSERT INTO {target.quoted} ({names}) SELECT {names} FROM {stage}")

    @contextmanager
    def staged(self, _target: Name, rows: pa.Table) -> Iterator[str]:
        self._session.register(STAGE, rows)
        yield STAGE
        self._session.unregister(STAGE)

    def delete(self, target: Name, keys: pa.Table) -> None:
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE FROM {target.quoted} AS t USING {stage} AS s "
                f"WHERE {same(keys.column_names)}"
            )

    def find(self, name: Name) -> Table | None:
        schema = literal(name.schema) if name.schema else "current_schema()"
        mine = (
            "WHERE database_name = current_database() AND table_name = "
            f"{literal(name.table)} AND schema_name = {schema}"
        )
        rows = self.query(
            f"SELECT column_name, data_type, column_default FROM duckdb_columns() {mine} "
            "ORDER BY column_index"
        ).to_pylist()
        if not rows:
            return None
        kinds = self.query(f"SELECT * FROM {name.quoted} LIMIT 0").schema
        indexes = self.query(
            f"SELECT expressions AS columns FROM duckdb_indexes() {mine} AND is_unique"
        )
        keys = self.query(
            "SELECT constraint_column_names AS columns FROM duckdb_constraints() "
            f"{mine} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') ORDER BY constraint_type"
        )
        made = self.query(f"SELECT sql FROM duckdb_tables() {mine}").column(0).to_pylist()
        collated = any("COLLATE" in sql.upper() for sql in made)
        columns = {
            r["column_name"]: column(
                r["column_name"],
                r["data_type"],
                _asked(r["data_type"], kinds.field(r["column_name"]).type),
                has_default=r["column_default"] is not None,
                exact=not (collated and r["data_type"] == "VARCHAR"),
            )
            for r in rows
        }
        unique = [frozenset(k["columns"]) for k in keys.to_pylist()]
        for index in indexes.to_pylist():  # "[a, b]"; an expression is no column's name
            names = frozenset(n.strip("\"'") for n in index["columns"].strip("[]").split(", "))
            unique += [names] if names <= columns.keys() else []
        return table(name, columns, unique)

    _comment = "COMMENT ON COLUMN {at} IS {text}"

    def constant(self, value: pa.Scalar) -> str | None:
        if is_binary(value.type):
            return self.literal("".join(f"\\x{byte:02x}" for byte in value.as_py())) + "::BLOB"
        return super().constant(value)

    def add(self, name: Name, field: pa.Field) -> None:
        super().add(name, field.with_nullable(True))  # a constraint comes later
        if not field.nullable:
            column = quote(field.name)
            self.execute(f"ALTER TABLE {name.quoted} ALTER COLUMN {column} SET NOT NULL")

    def column_type(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        if pa.types.is_dictionary(kind):
            return self.column_type(kind.value_type)
        if pa.types.is_decimal(kind):
            return f"DECIMAL({min(38, kind.precision)}, {min(38, kind.scale)})"
        if pa.types.is_timestamp(kind):
            return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
        for matches, name in _NEW:
            if matches(kind):
                return name
        return "VARCHAR" if in_key else "JSON"

    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        converted = super().fit(values, column)
        cut = r"[.][0-9]{7}"
        if column.type == "INTERVAL" and pc.any(pc.match_substring_regex(values, cut)).as_py():
            raise pa.ArrowInvalid("it has digits finer than a microsecond")
        return converted

    def claim(self) -> None:
        check_directory(self._path)
        self._run.claim()

    def alone(self) -> AbstractContextManager[bool]:
        check_directory(self._path)
        return self._run.alone()


_NEW = (
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INTEGER"),
    (pa.types.is_uint8, "UTINYINT"),
    (pa.types.is_uint16, "USMALLINT"),
    (pa.types.is_uint32, "UINTEGER"),
    (pa.types.is_uint64, "UBIGINT"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_floating, "FLOAT"),
    (is_text, "VARCHAR"),
    (pa.types.is_null, "VARCHAR"),
    (is_binary, "BLOB"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
)


def _asked(type_: str, arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(arrow):
        return pa.string()
    return _ARROW.get(type_, arrow)


class DuckdbSink(SqlSink):
    """Rows and positions in one transaction of a DuckDB file."""

    section = DuckdbConfig
    database_class = Duckdb
    local = True

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return normalized(raw, "duckdb")
