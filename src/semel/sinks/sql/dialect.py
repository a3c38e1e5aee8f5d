"""How SQL databases other than PostgreSQL write rows, and how their SQL differs.

Identifiers are quoted with ``"`` and strings with ``'``; quotes inside are doubled. If its database
has other rules, a dialect switches its session to these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from semel.converters.json import duck
from semel.core.errors import ConfigError, SemelError, Unavailable
from semel.core.quoting import named
from semel.sinks.convert import convert as as_type
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.sql import grants
from semel.sinks.sql.columns import Column, Table, is_text
from semel.sinks.sql.convert import Converted, convert
from semel.sinks.sql.database import Database
from semel.sinks.sql.names import Name, quote
from semel.sinks.sql.prepare import Rows
from semel.sinks.sql.semantic import new_type, stored

STAGE = "semel_stage"
KEPT = "semel_kept"
BATCH = 16_384
"""Rows that are read from a database at a time, at most."""
BATCH_BYTES = 16 * 1024 * 1024
_FEW, _STEP = 4, 8
"""How many rows are fetched first, and the factor by which the number may grow each time."""


class Dialect(Database):
    """See :class:`~semel.sinks.sql.database.Database`."""

    row_lock = ""
    """The end of a SELECT that locks its rows. Empty if a writing transaction is alone from its
    start, or if :meth:`held` is overridden."""
    now = "CURRENT_TIMESTAMP"
    compares_bytes = True
    """Whether texts of a key are equal only if their bytes are."""
    compares_keys = False
    """Whether :meth:`compare` knows the collations of key columns."""
    timeout = 60.0
    """Seconds after which to give up on a server that does not answer."""
    kept_order = "rowid"
    """What the rows of :meth:`kept` are ordered by."""
    privileges = grants.ROWS
    """What the session needs to do with tables."""
    reads_only = False
    """Whether a transaction that reads cannot make temporary tables."""

    @abstractmethod
    def __init__(self, config: JdbcConfig, connector: str) -> None:
        """Raises ConfigError; reaches nothing."""

    # Transactions

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

    @abstractmethod
    def _translated(self, error: BaseException) -> Exception | None:
        """An error of the driver as one of semel's; None for any other."""

    @abstractmethod
    def execute(self, sql: str) -> None:
        """Run a statement inside the open transaction."""

    def held(self, names: Sequence[str], target: Name, where: str) -> str:
        """A query of rows that locks them until the transaction ends."""
        return (
            f"SELECT {listed(names)} FROM {target.quoted} WHERE {where} "
            f"ORDER BY {listed(names)} {self.row_lock}"
        )

    # Rows. All inside the open transaction, in bulk.

    @abstractmethod
    def insert(self, target: Name, rows: pa.Table) -> None: ...

    def insert_defaults(self, target: Name, count: int) -> None:
        for _ in range(count):
            self.execute(f"INSERT INTO {target.quoted} DEFAULT VALUES")

    def upsert(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        """Insert, or update the other columns where the key is there already."""
        names = rows.column_names
        sets = ", ".join(f"{quote(n)} = EXCLUDED.{quote(n)}" for n in changed(target, names, key))
        with self.staged(target.name, rows) as stage:
            self.execute(
                f"INSERT INTO {target.name.quoted} ({listed(names)}) "
                f"SELECT {listed(names)} FROM {stage} WHERE true "  # else ON would begin a join
                f"ON CONFLICT ({listed(key)}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
            )

    def update(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        """Update the other columns where the key is there."""
        sets = [f"{quote(n)} = s.{quote(n)}" for n in changed(target, rows.column_names, key)]
        if sets:
            with self.staged(target.name, rows) as stage:
                self.execute(
                    f"UPDATE {target.name.quoted} AS t SET {', '.join(sets)} FROM {stage} AS s "
                    f"WHERE {same(key)}"
                )

    def check_key(self, target: Table, key: Sequence[str]) -> None:
        unlike = [n for n in key if n in target.columns and not target.columns[n].exact]
        if unlike and not self.compares_keys:
            raise ConfigError(
                f"table {named(target.name)}: key column {named(unlike[0])} has a collation that "
                f"{self.system} applies to comparisons but not to its indexes. Declare it without "
                "COLLATE"
            )

    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        """Called only if :attr:`compares_keys` is set."""
        raise NotImplementedError

    def loose_columns(self, target: Table, names: Sequence[str]) -> list[str]:
        if self.compares_bytes:
            return []
        return [n for n in names if pa.types.is_string(target.columns[n].arrow)]

    @abstractmethod
    def delete(self, target: Name, keys: pa.Table) -> None: ...

    @abstractmethod
    def staged(self, target: Name, rows: pa.Table) -> AbstractContextManager[str]:
        """Rows as a table to read from, while the context lasts."""

    # For the audit

    @contextmanager
    def instant(self) -> Iterator[None]:
        """See the database at one instant while the context lasts, however long that is, and let
        others write meanwhile. Everything inside is as in a transaction that reads.

        Raises:
            NotShown: the database cannot; says why.
        """
        with self.transaction(reading=True):
            yield

    @abstractmethod
    def shown(self, column: Column, value: str) -> str | None:
        """An expression that differs where values of a column differ, of a type that
        :meth:`stream` always gives it; None if there is none."""

    @contextmanager
    def kept(self, target: Name, rows: pa.Table) -> Iterator[str]:
        """Rows as the target would keep them, as a table to read from while the context lasts. The
        table has the types of the target's columns, and nothing else from the target."""
        names = listed(rows.column_names)
        self.execute(f"DROP TABLE IF EXISTS {KEPT}")
        self.execute(f"CREATE TEMPORARY TABLE {KEPT} AS {no_rows(target, rows.column_names)}")
        with self.staged(target, rows) as stage:
            self.execute(f"INSERT INTO {KEPT} ({names}) SELECT {names} FROM {stage}")
        yield KEPT
        self.execute(f"DROP TABLE {KEPT}")

    # Tables

    @abstractmethod
    def column_type(self, kind: pa.DataType, *, in_key: bool = False) -> str:
        """The type of a new column."""

    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        if pa.types.is_nested(column.arrow):
            return Converted(as_type(values, column.arrow), False)
        if pa.types.is_boolean(column.arrow):  # which may be stored as a number
            values = as_type(values, pa.bool_())
        converted = convert(values, column)
        if converted.staged:
            raise pa.ArrowInvalid(f"no {column.type} can be read from it")
        if column.is_json and is_text(values.type):
            duck.check_json(converted.values)
        return converted

    def definition(self, field: pa.Field, *, in_key: bool = False) -> str:
        """A new column."""
        kind = new_type(field.type, self.system, lambda _: False, in_key=in_key)
        kind = kind or self.column_type(stored(field.type), in_key=in_key)
        return f"{quote(field.name)} {kind}{self.clauses(field, in_key=in_key)}"

    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        lines = [self.definition(f, in_key=f.name in key) for f in fields]
        if key:
            lines.append(f"PRIMARY KEY ({listed(key)})")
        self.execute(f"{self._create} {name.quoted} ({', '.join(lines)}){self._options}")
        self.comment(name, fields)

    _create, _add = "CREATE TABLE IF NOT EXISTS", "ADD COLUMN"
    _options = ""
    """What a CREATE TABLE ends with."""

    def add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None:
        table = self.find(name)
        for field in fields:
            if table is None or field.name not in table.columns:
                self.add(name, field)
                self.comment(name, [field])

    def add(self, name: Name, field: pa.Field) -> None:
        """Add a column."""
        self.execute(f"ALTER TABLE {name.quoted} {self._add} {self.definition(field)}")

    # The life of a run

    @abstractmethod
    def alone(self) -> AbstractContextManager[bool]:
        """Keep runs of the connector from starting; yields False if one is alive and does not end
        within RELEASE_TIME."""


def column(
    name: str,
    type_: str,
    arrow: pa.DataType,
    *,
    stored: pa.DataType | None = None,
    has_default: bool = False,
    generated: bool = False,
    digits: int | None = None,
    exact: bool = True,
) -> Column:
    """A column whose values converters give as ``arrow`` and the database takes as ``stored``."""
    if stored is None:
        stored = pa.string() if arrow == pa.json_() else arrow
    return Column(
        name, 0, type_, type_, arrow, stored, has_default, generated, digits=digits, exact=exact
    )


def changed(target: Table, names: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns that an upsert changes in an existing row, including key columns whose values can
    be equal without being the same."""
    return [n for n in names if n not in key or not target.columns[n].exact]


def ranks(names: Sequence[str], rows: str, number: str) -> str:
    """A query of numbers that are equal where columns are, in the order of another column."""
    each = (f"dense_rank() OVER (ORDER BY {quote(n)}) AS r{i}" for i, n in enumerate(names))
    return f"SELECT {', '.join(each)} FROM {rows} ORDER BY {quote(number)}"


def fetched(cursor: Any) -> pa.Table:
    """All rows of a query that a DB-API cursor has run."""
    return _table(cursor, cursor.fetchall())


def fetched_batches(cursor: Any, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Rows of a query that a DB-API cursor has run, in the types of a schema. Without one, they are
    all texts and whole numbers."""
    for found in fetched_blocks(cursor, BATCH if schema is None else _FEW):
        if schema is None:
            kinds = [
                pa.int64() if pa.types.is_integer(t) else pa.string() for t in found.schema.types
            ]
            schema = pa.schema(list(zip(found.column_names, kinds, strict=True)))
        yield from found.cast(schema).to_batches()


def fetched_blocks(
    cursor: Any, count: int = _FEW, array: Callable[[str, Sequence[Any]], pa.Array] | None = None
) -> Iterator[pa.Table]:
    """Rows of a query that a DB-API cursor has run, in the types that their values have: ``count``
    of them first, then as many as fit into a few megabytes if they are like those before.
    ``array`` makes a named column from its values."""
    while rows := cursor.fetchmany(count):
        found = _table(cursor, rows, array)
        yield found
        fitting = BATCH_BYTES * len(rows) // max(1, found.nbytes)
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


def no_rows(target: Name, names: Sequence[str], into: str = "") -> str:
    """A query of a table's columns that returns no rows. All of its columns are nullable."""
    columns = ", ".join(f"t.{quote(n)}" for n in names)
    return (
        f"SELECT {columns}{into} FROM (SELECT 1 AS one) AS o "
        f"LEFT JOIN {target.quoted} AS t ON 1 = 0 WHERE 1 = 0"
    )


def table(name: Name, columns: Mapping[str, Column], keys: Sequence[frozenset[str]]) -> Table:
    return Table(name, 0, dict(columns), keys, copyable=True)


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))


def same(key: Sequence[str]) -> str:
    """The condition that the rows ``t`` and ``s`` have the same key."""
    return " AND ".join(f"t.{quote(n)} = s.{quote(n)}" for n in key)
