"""DuckDB: the file is open only while a transaction lasts.

One process at a time can open a DuckDB file for writing, and a connector consists of several:
tasks, driver, audit. So each transaction opens the file and closes it again, which costs some
40 ms, and a lock file beside it makes the processes take turns. Between transactions any program
may open it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import duckdb
import pyarrow as pa

from semel.core.errors import ConfigError, ServiceError, TransientError, Unavailable
from semel.databases.base import BATCH
from semel.databases.columns import Table, column, decimal, is_binary, is_text, timestamp
from semel.databases.errors import Nature, by_code
from semel.databases.files import (
    FileDatabase,
    LockFile,
    check_directory,
    holder,
    is_read_only,
)
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name, literal, quote

_ARROW = {
    "JSON": pa.json_(),
    "HUGEINT": pa.decimal128(38, 0),
    "UUID": pa.string(),
    "INTERVAL": pa.string(),
    "BIT": pa.string(),
    "BIGNUM": pa.string(),
    "TIME WITH TIME ZONE": pa.string(),
}
"""Types for which converters are asked for another one than DuckDB's own Arrow type, which may be
bytes that mean something to DuckDB alone."""
_LOOSE = ("BIGNUM", "INTERVAL")
"""Types of which different texts may be equal values."""

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
        row = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
        if row == (False,):
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            connection.execute("SET GLOBAL lock_configuration = true")
    return connection


class Duckdb(FileDatabase):
    """See :class:`~semel.databases.base.Database`."""

    system = "DuckDB"
    scheme = "duckdb"

    def __init__(self, login: Login, connector: str, timeouts: Timeouts) -> None:
        super().__init__(login, connector, timeouts)
        self._turn = LockFile(self._path.with_name(f".{self._path.name}.semel"))

    @property
    def _session(self) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None
        session: duckdb.DuckDBPyConnection = self._connection
        return session

    def _begin(self, reading: bool) -> None:
        check_directory(self._path)
        if reading:
            self._check_there()
        if not self._turn.acquire(shared=False, timeout=self._lock_timeout / 1000):
            raise TransientError(f"{self.where}: the file is in use{holder(self._turn.path)}")
        self._connection = self._open()
        self._session.execute("BEGIN")

    def _open(self) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + self._lock_timeout / 1000
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
        self._leave()

    def _roll_back(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Release the file to other processes; uncommitted work is dropped."""
        super()._leave()
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

    def find(self, name: Name) -> Table | None:
        schema = literal(name.schema) if name.schema else "current_schema()"
        condition = (
            f"WHERE database_name = current_database() AND {_in_one_case('table_name')} = "
            f"{_in_one_case(literal(name.table))} AND "
            f"{_in_one_case('schema_name')} = {_in_one_case(schema)}"
        )
        rows = self.query(
            f"SELECT * FROM duckdb_columns() {condition} ORDER BY column_index"
        ).to_pylist()
        if not rows:
            return None
        relation = self._session.sql(f"SELECT * FROM {name.quoted} LIMIT 0")
        types = dict(zip(relation.columns, relation.types, strict=True))
        kinds = relation.to_arrow_table().schema
        indexes = self.query(
            f"SELECT expressions AS columns FROM duckdb_indexes() {condition} AND is_unique"
        )
        keys = self.query(
            "SELECT constraint_column_names AS columns FROM duckdb_constraints() "
            f"{condition} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') ORDER BY constraint_type"
        )
        ddl = self.query(f"SELECT sql FROM duckdb_tables() {condition}").column(0).to_pylist()
        collated = any("COLLATE" in sql.upper() for sql in ddl)
        columns = {
            r["column_name"]: column(
                r["column_name"],
                r["data_type"],
                _requested_type(types[r["column_name"]], kinds.field(r["column_name"]).type),
                has_default=r["column_default"] is not None,
                nullable=r["is_nullable"],
                generated=bool(r.get("is_generated")),  # since version 2
                exact=r["data_type"] not in (*_LOOSE, "VARCHAR" if collated else None),
            )
            for r in rows
        }
        unique = [frozenset(k["columns"]) for k in keys.to_pylist()]
        for index in indexes.to_pylist():  # "[a, b]"; an expression is no column's name
            names = frozenset(n.strip("\"'") for n in index["columns"].strip("[]").split(", "))
            unique += [names] if names <= columns.keys() else []
        return Table(name, columns, unique)

    _comment = "COMMENT ON COLUMN {at} IS {text}"

    def constant(self, value: pa.Scalar) -> str | None:
        if is_binary(value.type):
            return self.literal("".join(f"\\x{byte:02x}" for byte in value.as_py())) + "::BLOB"
        return super().constant(value)

    def add(self, name: Name, field: pa.Field) -> None:
        super().add(name, field.with_nullable(True))  # a constraint comes later
        if not field.nullable:
            self.execute(f"ALTER TABLE {name.quoted} ALTER COLUMN {quote(field.name)} SET NOT NULL")

    types = (
        (pa.types.is_decimal, decimal(38, 38)),
        (pa.types.is_timestamp, timestamp("TIMESTAMPTZ", "TIMESTAMP")),
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


def _in_one_case(text: str) -> str:
    """SQL for a name as DuckDB compares it: ``lower`` changes letters other than A to Z, too."""
    return f"translate({text}, '{ascii_uppercase}', '{ascii_lowercase}')"


def _requested_type(type_: Any, arrow: pa.DataType, *, within: bool = False) -> pa.DataType:
    """The type that converters are asked for, for a type of DuckDB and its Arrow type."""
    if type_.id in ("list", "array", "struct", "map"):
        return _requested_nested_type(
            [p for _, p in type_.children if not isinstance(p, int)], arrow
        )
    if within and (pa.types.is_dictionary(arrow) or pa.types.is_string(arrow)):
        return arrow
    return pa.string() if pa.types.is_dictionary(arrow) else _ARROW.get(str(type_), arrow)


def _requested_nested_type(parts: Sequence[Any], arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(arrow):
        fields = [arrow.field(n) for n in range(arrow.num_fields)]
    elif pa.types.is_map(arrow):
        fields = [arrow.key_field, arrow.item_field]
    else:
        fields = [arrow.value_field]
    fields = [
        f.with_type(_requested_type(p, f.type, within=True))
        for p, f in zip(parts, fields, strict=True)
    ]
    if pa.types.is_struct(arrow):
        return pa.struct(fields)
    if pa.types.is_map(arrow):
        return pa.map_(*fields)
    size = arrow.list_size if pa.types.is_fixed_size_list(arrow) else -1
    return pa.list_(*fields, size)
