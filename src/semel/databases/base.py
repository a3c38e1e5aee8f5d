"""What each database provides to sinks and sources: one session, its transactions and its tables;
and what sessions whose drivers follow DB-API share: rows of cursors as Arrow.

Identifiers are quoted with ``"`` and strings with ``'``; quotes inside are doubled. A database with
other rules switches its session to these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.facts import default_of, facts_in
from semel.core.errors import SemelError, TransientError, Unavailable
from semel.core.watchdog import Watchdog
from semel.databases import grants
from semel.databases.columns import (
    NewTypes,
    Table,
    is_binary,
    is_text,
    new_semantic_type,
    new_type,
    stored_type,
)
from semel.databases.login import Login, Timeouts
from semel.databases.names import Name, listed, literal, quote

RELEASE_TIME = 2.0
"""Seconds within which the locks of a run that has just ended become free: its sessions end once
the server has noticed."""
RELEASE_PAUSE = 0.05


class Database(ABC):
    """One session, opened when first used and opened again after it was lost.

    All errors of the driver leave :meth:`transaction` as semel's own.
    """

    system: str
    """Its name, for people."""
    has_schemas = True
    one_in_any_case = True
    """Whether the names of tables and columns are case-insensitive."""
    most_columns: int | None = None
    """The most columns of a table."""
    longest_name: int | None = None
    name_unit = "characters"
    """The longest name of a column, in characters, or in ``bytes`` of UTF-8."""
    privileges = grants.ROWS
    """What the session needs to do with tables."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The database, without credentials."""

    # Transactions

    @abstractmethod
    def transaction(self, *, reading: bool = False) -> AbstractContextManager[None]:
        """Commit at the end; roll back on any error. With ``reading`` everything is seen at one
        instant and nothing is written.

        Raises:
            TransientError: also when it is unknown whether the commit took place.
            Unavailable: the next transaction begins with a new session.
            DataRefused, SchemaChanged, ServiceError.
        """

    @abstractmethod
    def execute(self, sql: str) -> int | None:
        """Run a statement inside the open transaction. PostgreSQL returns how many rows changed."""

    @abstractmethod
    def query(self, sql: str) -> pa.Table:
        """All rows of a query inside the open transaction."""

    @abstractmethod
    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """All rows of a query inside the open transaction, a batch at a time. All batches have the
        same columns and types."""

    @abstractmethod
    def close(self) -> None: ...

    def first(self, columns: str, name: Name, count: int, which: str = "") -> str:
        """A query of some rows of a table: the first ``which`` has, or whichever come first."""
        return f"SELECT {columns} FROM {name.quoted} {which} LIMIT {count}"

    def literal(self, text: str) -> str:
        """A quoted string."""
        return literal(text)

    # Tables. All need the open transaction.

    def exists(self, name: Name) -> bool:
        return self.find(name) is not None

    @abstractmethod
    def find(self, name: Name) -> Table | None:
        """A table as it is now.

        Raises:
            ConfigError: it cannot take part in a transaction.
        """

    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        """CREATE TABLE with a primary key, unless it is there."""
        lines = [self.definition(f, in_key=f.name in key) for f in fields]
        if key:
            lines.append(f"PRIMARY KEY ({listed(key)})")
        self.execute(f"{self._create} {name.quoted} ({', '.join(lines)}){self._options}")
        self.comment(name, fields)

    _create, _add = "CREATE TABLE IF NOT EXISTS", "ADD COLUMN"
    _options = ""
    """What a CREATE TABLE ends with."""

    def add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None:
        """Add the columns that are missing; existing rows hold their default in them, or null."""
        table = self.find(name)
        for field in fields:
            if table is None or field.name not in table.columns:
                self.add(name, field)
                self.comment(name, [field])

    def add(self, name: Name, field: pa.Field) -> None:
        """Add a column."""
        self.execute(f"ALTER TABLE {name.quoted} {self._add} {self.definition(field)}")

    def definition(self, field: pa.Field, *, in_key: bool = False) -> str:
        """A new column."""
        type_ = self.type_of(field.type, in_key=in_key)
        default = self.default(field)
        required = in_key or not field.nullable
        return (
            f"{quote(field.name)} {type_}"
            + (f" DEFAULT {default}" if default else "")
            + (" NOT NULL" if required else "")
        )

    def type_of(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        """The type of a new column, which may be of a semantic type."""
        semantic_type = new_semantic_type(kind, self.system, self.has_type, in_key=in_key)
        return semantic_type or self.column_type(stored_type(kind), in_key=in_key)

    def column_type(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        """The type of a new column."""
        types = (*self.types_in_keys, *self.types) if in_key else self.types
        return new_type(kind, types) or self.other_types[in_key]

    types: NewTypes
    types_in_keys: NewTypes = ()
    """Of a key's columns, if they differ."""
    other_types = ("JSON", "VARCHAR")
    """Of a column that is none of these, and of such a key's column."""

    def has_type(self, name: str) -> bool:
        """Whether the server has one of the types that not every server has."""
        return False

    def comment(self, name: Name, fields: Sequence[pa.Field]) -> None:
        """Describe new columns as their schema does, if the database can."""
        for field in fields:
            doc = facts_in(field).get("doc")
            if doc and self._comment:
                at = f"{name.quoted}.{quote(field.name)}"
                self.execute(self._comment.format(at=at, text=self.literal(str(doc))))

    _comment = ""
    """The statement that describes a column."""

    def default(self, field: pa.Field) -> str | None:
        """The literal of a new column's default; None if it has none, or one without literal."""
        value = default_of(field)
        return None if value is None or not value.is_valid else self.constant(value)

    def constant(self, value: pa.Scalar) -> str | None:
        """The literal of a value, None if its type has none."""
        kind = value.type
        if kind == pa.json_():
            return self.literal(value.value.as_py())
        if pa.types.is_boolean(kind):
            return self.booleans[value.as_py()]
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return f"{value.as_py()}"
        if pa.types.is_floating(kind):
            return repr(value.as_py()) if math.isfinite(value.as_py()) else None
        if is_text(kind):
            return self.literal(value.as_py())
        if is_binary(kind):
            return self.blob.format(value.as_py().hex())
        if pa.types.is_timestamp(kind):
            # digits finer than a microsecond are cut, as in values
            micros = pc.floor_temporal(value, unit="microsecond").cast(pa.timestamp("us"))
            return self.literal(f"{micros.cast(pa.string())}{self.utc if kind.tz else ''}")
        if pa.types.is_time(kind):
            value = value.cast(pa.time64("us"), safe=False)
        if pa.types.is_date(kind) or pa.types.is_time(kind):
            return self.literal(str(value.cast(pa.string())))
        return None

    booleans = ("FALSE", "TRUE")
    blob = "X'{}'"
    """The literal of bytes, from their hexadecimal digits."""
    utc = "+00:00"
    """What follows a timestamp with a zone."""

    # The life of a run

    @abstractmethod
    def claim(self) -> None:
        """Declare that a run of the connector is alive, until :meth:`close` or death."""


class Session(Database):
    """A database whose transactions are begun and ended by statements."""

    _connection: Any = None
    """The driver's connection; None while there is none."""

    @abstractmethod
    def __init__(self, login: Login, connector: str, timeouts: Timeouts) -> None:
        """Raises ConfigError; reaches nothing."""

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[None]:
        try:
            with self.translating():
                self._begin(reading)
                yield
                self._commit()
        except BaseException as error:
            self._roll_back()
            if isinstance(error, Unavailable):
                self._leave()
            raise

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Translate errors of the driver."""
        try:
            yield
        except BaseException as error:
            translated = None if isinstance(error, SemelError) else self._translated(error)
            if translated is None:
                raise
            raise translated from None

    @abstractmethod
    def _begin(self, reading: bool) -> None: ...

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _roll_back(self) -> None:
        """Roll back, or drop the session if that fails; raises nothing."""

    def _leave(self) -> None:
        """End the session: the next one may find a server that can write."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(Exception):
                connection.close()

    @abstractmethod
    def _translated(self, error: BaseException) -> Exception | None:
        """An error of the driver as one of semel's; None for any other."""

    @abstractmethod
    def execute(self, sql: str) -> None:
        """Run a statement inside the open transaction."""

    @abstractmethod
    def alone(self) -> AbstractContextManager[bool]:
        """Keep runs of the connector from starting; yields False if one is alive and does not end
        within RELEASE_TIME."""


class ServerSession(Session):
    """A session with a server, in which a claim lasts as long as the session."""

    def __init__(self, where: str, connector: str, timeouts: Timeouts) -> None:
        self._where = where
        self._connector = connector
        self._claimed = False
        self._watchdog = Watchdog(connector, where, timeouts.answer / 1000, self._end_silence)

    @property
    def where(self) -> str:
        return self._where

    def _end_silence(self) -> str:
        """See :class:`~semel.core.watchdog.Watchdog`."""
        return ""

    @abstractmethod
    def _open(self) -> Any:
        """A new connection, which takes the claim if there is one."""

    @abstractmethod
    def _start(self, reading: bool) -> None:
        """Begin a transaction."""

    @abstractmethod
    def _judged(self, error: BaseException) -> Exception | None:
        """An error of a driver whose connection semel has not dropped; see :meth:`_translated`."""

    def _translated(self, error: BaseException) -> Exception | None:
        if self._watchdog.ended:
            return Unavailable(self._watchdog.ended)
        return self._judged(error)

    def _begin(self, reading: bool) -> None:
        fresh = self._connection is None
        if fresh:
            self._connection = self._open()
        try:
            self._start(reading)
        except Exception as error:
            if fresh or not isinstance(self._translated(error), TransientError):
                raise
            self._leave()  # it was lost while idle
            self._connection = self._open()
            self._start(reading)

    def _leave(self) -> None:
        super()._leave()
        self._watchdog.detach()

    def claim(self) -> None:
        self._claimed = True
        self._leave()  # the next session takes the claim
        with self.transaction(reading=True):
            pass

    def close(self) -> None:
        self._claimed = False
        self._leave()


# Rows of DB-API cursors as Arrow

BATCH = 16_384
"""Rows that are read from a database at a time, at most."""
BATCH_BYTES = 16 * 1024 * 1024
_FEW, _STEP = 4, 8
"""How many rows are fetched first, and the factor by which the number may grow each time."""


def fetched(cursor: Any) -> pa.Table:
    """All rows of a query that a cursor has run."""
    return _table(cursor, cursor.fetchall())


def fetched_batches(cursor: Any, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Rows of a query that a cursor has run, in the types of a schema. Without one, they are all
    texts and whole numbers."""
    for block in fetched_blocks(cursor, BATCH if schema is None else _FEW):
        if schema is None:
            kinds = [
                pa.int64() if pa.types.is_integer(t) else pa.string() for t in block.schema.types
            ]
            schema = pa.schema(list(zip(block.column_names, kinds, strict=True)))
        yield from block.cast(schema).to_batches()


def fetched_blocks(
    cursor: Any, count: int = _FEW, array: Callable[[str, Sequence[Any]], pa.Array] | None = None
) -> Iterator[pa.Table]:
    """Rows of a query that a cursor has run, in the types that their values have: ``count`` of them
    first, then as many as fit into a few megabytes if they are like those before. ``array`` makes
    a named column from its values."""
    while rows := cursor.fetchmany(count):
        block = _table(cursor, rows, array)
        yield block
        fitting = BATCH_BYTES * len(rows) // max(1, block.nbytes)
        count = max(1, min(fitting, _STEP * len(rows), BATCH))


def _table(
    cursor: Any,
    rows: Sequence[Sequence[Any]],
    array: Callable[[str, Sequence[Any]], pa.Array] | None = None,
) -> pa.Table:
    names = [d[0] for d in cursor.description]
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    make = array or (lambda _name, values: pa.array(values))
    return pa.table({n: make(n, v) for n, v in zip(names, columns, strict=True)})
