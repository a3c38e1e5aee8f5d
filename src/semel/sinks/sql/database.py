"""What a database does for a sink besides its sessions and tables: values, rows and what an audit
asks. PostgreSQL writes rows in ways of its own; how the others do it is their dialect."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa

from semel.converters.json import duck
from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION
from semel.databases.base import Database, Session
from semel.databases.columns import Column, Table, is_text
from semel.databases.names import Name, listed, quote
from semel.sinks.convert import convert as as_type
from semel.sinks.sql.convert import ConvertedValues, convert
from semel.sinks.sql.prepare import Rows, TableChanges, by_given_columns

STAGE = "semel_stage"
KEPT = "semel_kept"


class SinkDatabase(Database):
    """See :class:`~semel.databases.base.Database`."""

    @abstractmethod
    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        """Convert to the Arrow type that stands for a column.

        Raises:
            one of UNFIT: some value does not fit.
        """

    @abstractmethod
    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        """Numbers for the values of key columns, equal where the database considers the values
        equal. Called only for columns that are not ``exact``, outside of a transaction."""

    def check_key(self, target: Table, key: Sequence[str]) -> None:
        """Raises ConfigError: the database would compare values of the key in different ways."""

    def generated(self, column: str) -> str:
        """Why a generated column cannot be in a key."""
        return f"computes column {named(column)} itself, so it cannot take a key"

    # For the audit

    def places(self, provenance: Mapping[str, str]) -> list[str]:
        """Expressions for the partition and offset of each row, from its provenance columns."""
        names = {"partition": PARTITION, "offset": OFFSET}
        return [f"{quote(provenance[n])} AS {quote(name)}" for name, n in names.items()]

    def rows_of(self, target: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, as :meth:`stream` gives them."""
        return self.stream(f"SELECT {listed(names)} FROM {target.name.quoted}")

    @abstractmethod
    def loose_columns(self, target: Table, names: Sequence[str]) -> list[str]:
        """Those of these columns in which the database may treat different texts as equal."""


class Dialect(SinkDatabase, Session):
    """How a database other than PostgreSQL writes rows."""

    row_lock = ""
    """The end of a SELECT that locks its rows. Empty if a writing transaction is alone from its
    start, or if :meth:`held` is overridden."""
    now = "CURRENT_TIMESTAMP"
    compares_bytes = True
    """Whether texts of a key are equal only if their bytes are."""
    compares_keys = False
    """Whether :meth:`compare` knows the collations of key columns."""
    kept_order = "rowid"
    """What the rows of :meth:`kept_rows` are ordered by."""
    reads_only = False
    """Whether a transaction that reads cannot make temporary tables."""

    def locking_query(self, names: Sequence[str], target: Name, where: str) -> str:
        """A query of rows that locks them until the transaction ends."""
        return (
            f"SELECT {listed(names)} FROM {target.quoted} WHERE {where} "
            f"ORDER BY {listed(names)} {self.row_lock}"
        )

    # Rows. All inside the open transaction, in bulk.

    def write(self, prepared: TableChanges) -> None:
        """Write a batch; deletes first."""
        if prepared.deletes is not None and prepared.deletes.count:
            self.delete(prepared.table.name, prepared.deletes.columns)
        self.put(prepared, prepared.rows)

    def put(self, prepared: TableChanges, rows: Rows) -> None:
        """Insert, upsert or update rows."""
        target = prepared.table
        for part in by_given_columns(rows):
            if not part.columns.column_names:
                self.insert_defaults(target.name, part.count)
            elif prepared.mode == "insert":
                self.insert(target.name, part.columns)
            elif prepared.mode == "upsert":
                self.upsert(target, part.columns, prepared.key)
            else:
                self.update(target, part.columns, prepared.key)

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
                f"table {named(target.name)}: {self.system} may take different values of key "
                f"column {named(unlike[0])} ({target.columns[unlike[0]].type}) for equal. Declare "
                "it as VARCHAR, without COLLATE"
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
    def kept_rows(self, target: Name, rows: pa.Table) -> Iterator[str]:
        """Rows as the target would keep them, as a table to read from while the context lasts. The
        table has the types of the target's columns, and nothing else from the target."""
        names = listed(rows.column_names)
        self.execute(f"DROP TABLE IF EXISTS {KEPT}")
        self.execute(f"CREATE TEMPORARY TABLE {KEPT} AS {no_rows(target, rows.column_names)}")
        with self.staged(target, rows) as stage:
            self.execute(f"INSERT INTO {KEPT} ({names}) SELECT {names} FROM {stage}")
        yield KEPT
        self.execute(f"DROP TABLE {KEPT}")

    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        if pa.types.is_nested(column.arrow):
            return ConvertedValues(as_type(values, column.arrow), False)
        if pa.types.is_boolean(column.arrow):  # which may be stored as a number
            values = as_type(values, pa.bool_())
        converted = convert(values, column)
        if converted.staged:
            raise pa.ArrowInvalid(f"no {column.type} can be read from it")
        if column.is_json and is_text(values.type):
            duck.check_json(converted.values)
        return converted


def changed(target: Table, names: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns that an upsert changes in an existing row, including key columns whose values can
    be equal without being the same."""
    return [n for n in names if n not in key or not target.columns[n].exact]


def ranks(names: Sequence[str], rows: str, number: str) -> str:
    """A query of numbers that are equal where columns are, in the order of another column."""
    expressions = (f"dense_rank() OVER (ORDER BY {quote(n)}) AS r{i}" for i, n in enumerate(names))
    return f"SELECT {', '.join(expressions)} FROM {rows} ORDER BY {quote(number)}"


def no_rows(target: Name, names: Sequence[str], into: str = "") -> str:
    """A query of a table's columns that returns no rows. All of its columns are nullable."""
    columns = ", ".join(f"t.{quote(n)}" for n in names)
    return (
        f"SELECT {columns}{into} FROM (SELECT 1 AS one) AS o "
        f"LEFT JOIN {target.quoted} AS t ON 1 = 0 WHERE 1 = 0"
    )


def same(key: Sequence[str]) -> str:
    """The condition that the rows ``t`` and ``s`` have the same key."""
    return " AND ".join(f"t.{quote(n)} = s.{quote(n)}" for n in key)
