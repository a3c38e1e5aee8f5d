"""MariaDB and MySQL: rows come through PyMySQL, column by column from blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from semel.core.errors import TransientError, Unavailable
from semel.databases import grants
from semel.databases.base import fetched_blocks
from semel.databases.errors import SchemaChanged
from semel.databases.login import Timeouts
from semel.databases.mysql import Mysql as MysqlSession
from semel.databases.mysql import parameters_of
from semel.databases.names import literal, quote
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT, Column, Database, TableId, numeric_type, wall
from semel.sources.jdbc.queries import Unreadable, unfit_of

_KINDS = {"TABLE": "BASE TABLE", "VIEW": "VIEW"}
_NOT_NULL, _KEY, _UNSIGNED, _NUMBERED = 1, 2, 32, 512
_LARGEST = 2**63 - 1
_ZEROS = " (connection.url may set zeroDateTimeBehavior=convertToNull)"
_VECTOR = 242
"""The number of MySQL's VECTOR, which PyMySQL does not know."""
_BINARY = 63
"""The character set of values that are not text."""
_WALL = pa.timestamp("us")
_TIMES = ("DATE", "DATETIME", "TIMESTAMP")
_NUMBERS = {
    "TINY": (pa.int8(), pa.int16()),
    "SHORT": (pa.int16(), pa.int32()),
    "INT24": (pa.int32(), pa.int32()),
    "LONG": (pa.int32(), pa.int64()),
    "LONGLONG": (pa.int64(), pa.int64()),
    "DOUBLE": (pa.float64(), pa.float64()),
    "YEAR": (pa.int32(), pa.int32()),
}
"""Their types, signed and unsigned. Numbers beyond a BIGINT are refused."""


class _Session(MysqlSession):
    """A session whose streams can be abandoned midway."""

    privileges = grants.READ
    zeros_are_null = False
    """Whether zero dates (0000-00-00) become null."""

    def described(self, query: str) -> Sequence[Any]:
        """The columns of a query, as the server describes them."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM ({query}\n) AS q LIMIT 0")
            fields: Sequence[Any] = cursor._result.fields
            return fields

    def check_statement(self, query: str) -> None:
        """Let the server parse a query: it must be whole without the parentheses around it, too."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"PREPARE semel_query FROM {self._connection.escape(query)}")
            cursor.execute("DEALLOCATE PREPARE semel_query")

    def rows(
        self, sql: str, schema_of: Callable[[Sequence[Any]], pa.Schema]
    ) -> Iterator[pa.RecordBatch]:
        """Rows in the types that the described columns ask for."""
        from pymysql.cursors import SSCursor

        cursor = self._connection.cursor(SSCursor)  # the rows stay with the server
        ended = False
        try:
            cursor.execute(sql)
            schema = schema_of(cursor._result.fields)
            unfit: dict[str, Mapping[int, str]] = {}

            def array(name: str, values: Sequence[Any]) -> pa.Array:
                kind = schema.field(name).type
                column, unfit[name] = _array(kind, values)
                if self.zeros_are_null and pa.types.is_temporal(kind):
                    unfit[name] = {}
                return column

            for block in fetched_blocks(cursor, array=array):
                table = block.cast(schema)
                for name, texts in unfit.items():
                    if texts:
                        shown = pa.array([texts.get(n, "") for n in range(len(table))])
                        table = table.append_column(unfit_of(name), shown)
                yield from table.to_batches()
            ended = True
        except pa.ArrowException as error:
            raise Unreadable(
                f"a value does not fit its column's type: {error}. Leave it out, or convert it, "
                "with query"
            ) from None
        finally:
            if ended:
                cursor.close()
            else:
                self._abandon(cursor)

    def _abandon(self, cursor: Any) -> None:
        """End the session: its cursor would read all the other rows before it closes."""
        if cursor._result is not None:
            cursor._result.unbuffered_active = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()


def _array(kind: pa.DataType, values: Sequence[Any]) -> tuple[pa.Array, Mapping[int, str]]:
    """A column's values, with null for those that no record can hold, which come by row as well:
    dates that do not exist, which the client gives as text, and numbers beyond a BIGINT."""
    unfit: Mapping[int, str] = {}
    try:
        if not pa.types.is_temporal(kind) or str not in set(map(type, values)):
            return pa.array(values), unfit
        unfit = {
            n: f"{v} is not a date{_ZEROS}" for n, v in enumerate(values) if isinstance(v, str)
        }
    except OverflowError:
        unfit = {n: str(v) for n, v in enumerate(values) if v is not None and v > _LARGEST}
    return pa.array([None if n in unfit else v for n, v in enumerate(values)]), unfit


class Mysql(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    _session: _Session

    def __init__(self, config: JdbcSourceConfig, connector: str) -> None:
        self._config = config
        self._session = _Session(config.login, connector, Timeouts())
        behavior = parameters_of(config.connection_url).get("zeroDateTimeBehavior", "")
        self._session.zeros_are_null = behavior.lower() in ("converttonull", "convert_to_null")
        self.where = self._session.where

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        types = ", ".join(literal(_KINDS[k]) for k in kinds)
        pattern = self._config.catalog_pattern
        where = "= database()" if pattern is None else f"LIKE {literal(pattern)}"
        rows = self._session.query(
            "SELECT table_schema AS s, table_name AS t FROM information_schema.tables "
            f"WHERE table_schema {where} AND table_type IN ({types}) "
            "AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys') "
            "ORDER BY table_schema, table_name"
        )
        return [TableId(row["s"], None, row["t"]) for row in rows.to_pylist()]

    def table(self, name: str) -> TableId:
        database, _, table = name.partition(".")
        return TableId(database, None, table) if table else TableId(None, None, name)

    def columns(self, table: TableId) -> Sequence[Column]:
        database = "database()" if table.catalog is None else literal(table.catalog)
        there = self._session.query(
            "SELECT count(*) AS n FROM information_schema.tables "
            f"WHERE table_schema = {database} AND table_name = {literal(table.name)}"
        )
        if not there.column(0)[0].as_py():
            return []
        return self._described(f"SELECT * FROM {table.quoted}")

    def columns_of(self, query: str) -> Sequence[Column]:
        try:
            with self.snapshot():
                columns = self._described(query)
                self._session.check_statement(query)
                return columns
        except Unavailable as error:
            if "(1792)" in str(error):  # it would lock rows, or write, in a transaction that reads
                raise SchemaChanged(str(error)) from None
            raise
        except TransientError as error:
            if "(1060)" in str(error):  # which passes where tasks add columns
                raise SchemaChanged(f"{error}. Give each column of query a name, with AS") from None
            raise

    def _described(self, query: str) -> Sequence[Column]:
        return [self._column(field) for field in self._session.described(query)]

    def _column(self, field: Any) -> Column:
        from pymysql.constants import FIELD_TYPE

        names = reversed(vars(FIELD_TYPE).items())  # of several, the first
        types = {code: name for name, code in names if isinstance(code, int)} | {_VECTOR: "VECTOR"}
        type_, unsigned = types[field.type_code], bool(field.flags & _UNSIGNED)
        nullable, counts = not field.flags & _NOT_NULL, bool(field.flags & _NUMBERED)

        zero = "0" if type_ in _TIMES and self._session.zeros_are_null else ""

        def column(kind: pa.DataType, *, digits: int = 6, expression: str = "") -> Column:
            arguments = (field.name, type_, kind, nullable, counts, digits, expression)
            return Column(*arguments, key=bool(field.flags & _KEY), zero=zero)

        if type_ == "BIT" and field.length == 1:
            return column(pa.int8(), expression=f"CAST({quote(field.name)} AS UNSIGNED)")
        if type_ == "FLOAT":  # as text, the server would give six of its digits
            return column(pa.float32(), expression=f"CAST({quote(field.name)} AS DOUBLE)")
        if type_ in _NUMBERS:
            return column(_NUMBERS[type_][unsigned])
        if type_ in ("DECIMAL", "NEWDECIMAL"):
            digits = field.length - (0 if unsigned else 1) - (1 if field.scale else 0)
            return column(numeric_type(digits, field.scale, self._config.numerics))
        if type_ in ("DATETIME", "TIMESTAMP"):
            return column(INSTANT, digits=min(field.scale, 6))
        if type_ == "DATE":
            return column(pa.date32())
        if type_ == "VECTOR":  # which PyMySQL would read as text
            return column(pa.binary(), expression=f"CAST({quote(field.name)} AS BINARY)")
        if type_ in ("BIT", "GEOMETRY") or (
            field.charsetnr == _BINARY and ("BLOB" in type_ or "STRING" in type_)
        ):
            return column(pa.binary())
        text = (
            type_ in ("STRING", "VAR_STRING", "VARCHAR", "JSON", "ENUM", "SET") or "BLOB" in type_
        )
        expression = "" if text else f"CAST({quote(field.name)} AS CHAR)"
        return column(pa.string(), expression=expression)

    def _schema(self, fields: Sequence[Any]) -> pa.Schema:
        """What the client gives: DATETIME has no time zone, but TIMESTAMP is in the session's."""
        columns = map(self._column, fields)
        return pa.schema([(c.name, _WALL if c.type == "DATETIME" else c.arrow) for c in columns])

    def now(self) -> int:
        with self.snapshot():
            answer = self._session.query(
                "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED) AS now"
            )
        return int(answer.column(0)[0].as_py())

    def stream(self, sql: str, widest: str | None = None) -> Generator[pa.RecordBatch, None, None]:
        yield from self._session.rows(sql, self._schema)

    def timeless(self, column: Column) -> str:
        return "" if self._session.zeros_are_null else f"{quote(column.name)} < '0001-01-01'"

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        zone = timezone if column.type == "DATETIME" else None
        return f"TIMESTAMP '{wall(microseconds, zone)}'"
