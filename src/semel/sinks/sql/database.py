"""What each database of the SQL sinks provides: one session, its tables and its transactions.

PostgreSQL does so with COPY and statements of its own. The others share the SQL of
:mod:`semel.sinks.sql.dialect`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.facts import default_of, facts_in
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION
from semel.sinks.sql.columns import Column, Table, is_binary, is_text
from semel.sinks.sql.convert import Converted
from semel.sinks.sql.names import Name, literal, quote
from semel.sinks.sql.prepare import Rows


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

    def first(self, columns: str, name: Name, count: int) -> str:
        """A query of some rows of a table, whichever come first."""
        return f"SELECT {columns} FROM {name.quoted} LIMIT {count}"

    def literal(self, text: str) -> str:
        """A quoted string."""
        return literal(text)

    # Tables. All need the open transaction, unless they say otherwise.

    def exists(self, name: Name) -> bool:
        return self.find(name) is not None

    @abstractmethod
    def find(self, name: Name) -> Table | None:
        """A table as it is now.

        Raises:
            ConfigError: it cannot take part in a transaction.
        """

    @abstractmethod
    def create(self, name: Name, fields: Sequence[pa.Field], key: Sequence[str]) -> None:
        """CREATE TABLE with a primary key, unless it is there."""

    @abstractmethod
    def add_columns(self, name: Name, fields: Sequence[pa.Field]) -> None:
        """Add the columns that are missing; existing rows hold their default in them, or null."""

    def clauses(self, field: pa.Field, *, in_key: bool = False) -> str:
        """What follows a new column's type: its default, and that it may not be null."""
        default = self.default(field)
        required = in_key or not field.nullable
        return (f" DEFAULT {default}" if default else "") + (" NOT NULL" if required else "")

    def comment(self, name: Name, fields: Sequence[pa.Field]) -> None:
        """Describe new columns as their schema does, if the database can."""
        for field in fields:
            doc = facts_in(field).get("doc")
            if doc and self._comment:
                at = f"{name.quoted}.{quote(field.name)}"
                self.execute(self._comment.format(at=at, text=self.literal(str(doc))))

    _comment = ""
    """The statement that describes a column."""

    def default(self, field: pa.Field) -> str:
        """The literal of a new column's default; empty if it has none, or one without literal."""
        value = default_of(field)
        return "" if value is None or not value.is_valid else self.constant(value) or ""

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

    # Values

    @abstractmethod
    def fit(self, values: pa.ChunkedArray, column: Column) -> Converted:
        """Convert to the Arrow type that stands for a column.

        Raises:
            one of UNFIT: some value does not fit.
        """

    @abstractmethod
    def compare(self, target: Table, keys: Rows) -> Mapping[str, pa.ChunkedArray]:
        """Numbers for the values of key columns, equal where the database considers the values
        equal. Called only for columns that are not ``exact``, outside of a transaction."""

    def check_key(self, target: Table, key: Sequence[str]) -> None:  # noqa: B027
        """Raises ConfigError: the database would compare values of the key in different ways."""

    def generated(self, column: str) -> str:
        """Says why a generated column cannot be in a key."""
        return f"computes column {named(column)} itself, so it cannot take a key"

    # For the audit

    def places(self, provenance: Mapping[str, str]) -> list[str]:
        """Expressions for the partition and offset of each row, from its provenance columns."""
        names = {"partition": PARTITION, "offset": OFFSET}
        return [f"{quote(provenance[n])} AS {quote(name)}" for name, n in names.items()]

    @abstractmethod
    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """All rows of a query inside the open transaction, a batch at a time. All batches have the
        same columns and types."""

    def rows_of(self, target: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, as :meth:`stream` gives them."""
        return self.stream(f"SELECT {', '.join(map(quote, names))} FROM {target.name.quoted}")

    @abstractmethod
    def loose_columns(self, target: Table, names: Sequence[str]) -> list[str]:
        """Those of these columns in which the database may treat different texts as equal."""

    # The life of a run

    @abstractmethod
    def claim(self) -> None:
        """Declare that a run of the connector is alive, until :meth:`close` or death."""

    @abstractmethod
    def close(self) -> None: ...
