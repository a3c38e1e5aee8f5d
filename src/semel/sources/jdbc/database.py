"""What the JDBC source asks of a database.

Everything of one query happens inside :meth:`Database.snapshot`: the columns that are described and
the rows belong to one state of the database. The time that bounds the rows is taken before: the
snapshot holds every row of an earlier time that was committed when the snapshot began.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from zoneinfo import ZoneInfo

import pyarrow as pa

from semel.core.errors import ConfigError, Problem
from semel.core.quoting import named
from semel.databases.base import Session
from semel.databases.names import quote
from semel.sources.jdbc.config import JdbcSourceConfig

_BY_SCHEME = {
    "postgresql": "postgresql:Postgresql",
    "postgres": "postgresql:Postgresql",
    "sqlite": "sqlite:Sqlite",
    "duckdb": "duckdb:Duckdb",
    "mysql": "mysql:Mysql",
    "mariadb": "mysql:Mysql",
    "sqlserver": "sqlserver:SqlServer",
    "jtds": "sqlserver:SqlServer",
}
"""The module and the class of a database; its driver need not be installed."""


INSTANT = pa.timestamp("us", "UTC")
"""The type of all timestamps in records."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_2, _YEAR_9999 = -62_104_060_800_000_000, 253_370_764_800_000_000
"""In microseconds since 1970: times of a zone may be in the year before or after, and Python has
only the years 1 to 9999."""
_CYCLE = 146_097 * 86_400_000_000
"""The microseconds of 400 years, after which the calendar repeats."""
_MOST_INTEGER_DIGITS = 18


@dataclass(frozen=True, slots=True)
class TableId:
    """A table's full name, in the parts that the database has."""

    catalog: str | None
    schema: str | None
    name: str

    @property
    def quoted(self) -> str:
        """As SQL. The catalog is left out if there is a schema: it is always the session's."""
        parts = (self.schema, self.name) if self.schema else (self.catalog, self.name)
        return ".".join(quote(p) for p in parts if p)

    def __str__(self) -> str:
        return ".".join(p for p in (self.catalog, self.schema, self.name) if p)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table or query.

    ``arrow`` is its type in records; ``expression`` is the SQL that reads it, by default its name.
    ``guard`` is a value of its type that stands for null where a client cannot tell a column's type
    from nulls.
    """

    name: str
    type: str
    arrow: pa.DataType
    nullable: bool = True
    counts: bool = False
    """Whether the database numbers it."""
    digits: int = 6
    """Digits of the fraction of a second."""
    expression: str = ""
    guard: str = ""
    key: bool = False
    """Whether it belongs to the primary key."""
    unfit: str = ""
    """SQL that shows a value that no record can hold, and is an empty text for any other value;
    ``expression`` is then null. Empty if the client finds such values itself."""
    zero: str = ""
    """A value of its type, as SQL, that is not null in the database, but that the client turns into
    null."""

    @property
    def sql(self) -> str:
        """The SQL that reads it."""
        return self.expression or quote(self.name)


class Database(ABC):
    """A session with one database, opened on first use, and reopened after it was lost. All errors
    are raised as semel's."""

    where: str
    """What database this is, without credentials."""
    kinds: tuple[str, ...] = ("TABLE", "VIEW")
    """What ``table.types`` may hold."""
    misses_columns = True
    """Whether a query that names a dropped column fails."""

    _session: Session

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A transaction that reads one state of the database."""
        with self._session.transaction(reading=True):
            yield

    @abstractmethod
    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        """The tables that this user may see, except system tables."""

    @abstractmethod
    def table(self, name: str) -> TableId:
        """The table with a full name, whether or not it exists."""

    def former_names(self, table: TableId) -> Sequence[str]:
        """Other full names that JDBC drivers have given a table."""
        return []

    @abstractmethod
    def columns(self, table: TableId) -> Sequence[Column]:
        """The columns of a table; none if it does not exist."""

    @abstractmethod
    def columns_of(self, query: str) -> Sequence[Column]:
        """The columns of a query, which is read as ``FROM (query)``.

        Raises:
            SchemaChanged, Unreadable: it is not one statement, or the database cannot read it.
        """

    @abstractmethod
    def now(self) -> int:
        """The time now, in microseconds since 1970. Called before :meth:`snapshot`."""

    @abstractmethod
    def stream(self, sql: str, widest: str | None = None) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a query in batches of a few megabytes, as they arrive. Run no other
        query before the last batch. ``widest`` is a query for the size of the largest row in bytes,
        for databases whose client counts rows."""

    def limited(self, query: str, rows: int) -> str:
        """The query, which has an ORDER BY, limited to ``rows`` rows."""
        return f"{query} LIMIT {rows}"

    def time(self, column: Column) -> str:
        """A timestamp column, in a form to compare with :meth:`instant`."""
        return quote(column.name)

    def sooner(self, microseconds: int, column: Column, timezone: str) -> Sequence[str]:
        """A condition on the bare column, so that its index can be used, that holds for every row
        whose :meth:`time` is not before a time; none where :meth:`time` is the column itself."""
        return []

    def timeless(self, column: Column) -> str | None:
        """A condition that holds for values of a timestamp column that are no time, and that no
        comparison of times finds; None if there are none."""
        return None

    @abstractmethod
    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        """A literal of a timestamp column's type for a time since 1970."""

    def close(self) -> None:
        """End the session. May be called twice."""
        self._session.close()


def chosen(config: JdbcSourceConfig, connector: str, there: Sequence[TableId]) -> list[TableId]:
    """The tables that the configuration takes.

    Raises:
        ConfigError: two of them would go to the same topic.
    """
    tables = [t for t in there if config.takes(t.name, str(t))]
    by_topic: dict[str, TableId] = {}
    for table in tables:
        other = by_topic.setdefault(table.name, table)
        if other != table:
            raise ConfigError(
                f"connector {connector}: tables {named(other)} and {named(table)} would go to the "
                f"same topic, {config.topic_prefix}{table.name}. Choose one with table.whitelist "
                "or schema.pattern, and read the other with a connector that has another "
                "topic.prefix"
            )
    return tables


def absent(config: JdbcSourceConfig, there: Sequence[TableId]) -> list[str]:
    """The entries of ``table.whitelist`` that name no table."""
    configs = [replace(config, whitelist=(entry,)) for entry in config.whitelist]
    return [c.whitelist[0] for c in configs if not any(c.takes(t.name, str(t)) for t in there)]


def database_of(config: JdbcSourceConfig, connector: str) -> Database:
    """The database of ``connection.url``; reaches nothing.

    Raises:
        ConfigError: semel does not read from it, or the URL is wrong.
    """
    bare = config.connection_url.strip().removeprefix("jdbc:")
    scheme = re.split(r"\W", bare)[0]
    module, _, name = _BY_SCHEME.get(scheme, "").partition(":")
    if not module:  # not the URL itself: it may hold a password
        raise ConfigError(
            Problem(
                "connection.url",
                f"connection.url=jdbc:{scheme}:... is not a database that semel reads. "
                "Those are PostgreSQL, MySQL, MariaDB, SQL Server, SQLite and DuckDB",
            )
        )
    database: Database = getattr(import_module(f"{__package__}.{module}"), name)(config, connector)
    return database


# Types and times that the databases share


def numeric_type(precision: int, scale: int, mapping: str) -> pa.DataType:
    """The type for NUMERIC(precision, scale), by Confluent's ``numeric.mapping``."""
    digits = precision - min(scale, 0)  # NUMERIC(3, -2) has numbers up to 99900
    small = digits <= _MOST_INTEGER_DIGITS
    if small and (scale == 0 if mapping == "precision_only" else scale < 1) and mapping != "none":
        return _integer(digits)
    if scale > 0 and (mapping == "best_fit_eager_double" or (mapping == "best_fit" and small)):
        return pa.float64()
    if precision <= 38 and 0 <= scale <= precision:
        return pa.decimal128(precision, scale)
    if precision <= 76 and 0 <= scale <= precision:
        return pa.decimal256(precision, scale)
    return pa.string()  # Arrow has no such decimal; the text is exact


def unbounded_type(mapping: str) -> pa.DataType:
    """The type for NUMERIC without a precision: each value has its own number of digits."""
    return pa.float64() if mapping.startswith("best_fit") else pa.string()


def _integer(precision: int) -> pa.DataType:
    for most, kind in ((2, pa.int8()), (4, pa.int16()), (9, pa.int32())):
        if precision <= most:
            return kind
    return pa.int64()


def wall(microseconds: int, timezone: str | None) -> str:
    """A time since 1970 as a date and time of day; in UTC without a time zone. A year before
    Christ is negative or 0, as ISO 8601 counts."""
    is_in_range = _YEAR_2 <= microseconds < _YEAR_9999
    cycles = 0 if is_in_range else -((microseconds - _YEAR_2) // _CYCLE)
    moment = _EPOCH + timedelta(microseconds=microseconds + cycles * _CYCLE)
    if timezone is not None:
        moment = moment.astimezone(ZoneInfo(timezone))
    year = moment.year - 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}{moment:-%m-%d %H:%M:%S.%f}"
