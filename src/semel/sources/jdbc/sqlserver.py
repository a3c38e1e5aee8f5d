"""SQL Server: rows come through python-tds, column by column from blocks of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pyarrow as pa

from semel.databases import grants
from semel.databases.errors import SchemaChanged
from semel.databases.login import Timeouts
from semel.databases.names import literal, quote
from semel.databases.sqlserver import SqlServer as SqlServerSession
from semel.databases.sqlserver.client import ResultColumn, number_of
from semel.databases.sqlserver.url import address
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT, Column, Database, TableId, numeric_type, wall
from semel.sources.jdbc.queries import Unreadable, source

log = logging.getLogger(__name__)

_KINDS = {"TABLE": "U", "VIEW": "V"}
_MICROSECONDS = 6
_FIRST = -62_135_596_800_000_000
"""The year 1."""
_TICK = 10_000
"""Microseconds, more than DATETIME rounds by."""
_AS_THEY_ARE = {
    "bit": pa.int8(),
    "tinyint": pa.int16(),  # it has no sign
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "float": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    **dict.fromkeys(("char", "varchar", "nchar", "nvarchar", "text", "ntext"), pa.string()),
    **dict.fromkeys(("binary", "varbinary", "image"), pa.binary()),
}
"""Their types in records: those that Confluent's connector gives them."""
_TIMES = {"datetime": 2, "smalldatetime": 2, "datetime2": None, "datetimeoffset": None}
"""Their digits of a second's fraction; None where the column declares them. DATETIME rounds to
1/300 s: a row that is yet to come may have a time that has just passed, but not one before the last
whole 10 ms."""
_MONEY = {"money": (19, 4), "smallmoney": (10, 4)}
"""Their precision and scale."""
_TEXTS = {
    "uniqueidentifier": "nvarchar(36)",
    "sql_variant": "nvarchar(4000)",
    "xml": "nvarchar(max)",
}
"""The types that are read as text, and the text type that holds each."""

_TABLES = """SELECT DB_NAME() AS d, s.name AS s, o.name AS t
FROM sys.objects o JOIN sys.schemas s ON s.schema_id = o.schema_id
WHERE o.type IN ({kinds}) AND o.is_ms_shipped = 0
AND s.name LIKE {schema} AND DB_NAME() LIKE {catalog} ORDER BY s.name, o.name"""

_CATALOG = """SELECT name, CAST(is_nullable AS int) AS nullable, CAST(is_identity AS int) AS counts
FROM sys.columns WHERE object_id = OBJECT_ID({at})"""


_MISTAKES = {102, 105, 156, 195, 209, 319, 1033, 4104, 4121, 8120, 8155, 8156}
"""Errors in the text of a query."""
_WITHIN = (
    "The query is read as FROM (query): it must not begin with WITH, each column needs a name of "
    "its own, and ORDER BY needs TOP"
)


_PARTS = re.compile(r"(?s)'[^']*'|\"[^\"]*\"|\[(?:[^\]]|\]\])*\]|--[^\n]*|/\*|\*/|[()]")
"""Parentheses, and what may hold others: texts, names and comments, which nest."""


class Session(SqlServerSession):
    """A session that only reads."""

    privileges = grants.READ

    def _translated(self, error: BaseException) -> Exception | None:
        translated = super()._translated(error)
        if number_of(error) in _MISTAKES or "syntax error" in str(translated):  # as Babelfish says
            return SchemaChanged(str(translated))
        return translated

    def columns(self, sql: str) -> Sequence[ResultColumn]:
        """The columns of a query."""
        return self._client.columns(sql)

    def blocks(self, sql: str) -> Iterator[pa.Table]:
        """Rows in the types that their values have."""
        return self._client.blocks(sql)


class SqlServer(Database):
    """See :class:`~semel.sources.jdbc.database.Database`."""

    _session: Session

    def __init__(self, config: JdbcSourceConfig, connector: str) -> None:
        self._config = config
        self._connector = connector
        self._session = Session(config.login, connector, Timeouts())
        self.where = self._session.where
        self._catalog = address(config.login).database
        """Empty for the login's default database. Its name may hold dots."""
        self._warned = False

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._session.transaction(reading=True):
            if self._session.keeps_versions is False and not self._warned:
                log.warning(
                    "connector %s: %s keeps no versions of rows, so writers wait while rows are "
                    "read. Run ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
                    *(self._connector, self.where),
                )
                self._warned = True
            yield

    def tables(self, kinds: Sequence[str]) -> Sequence[TableId]:
        sql = _TABLES.format(
            kinds=", ".join(literal(_KINDS[k]) for k in kinds),
            schema=_text(self._config.schema_pattern or "%"),
            catalog=_text(self._config.catalog_pattern or "%"),
        )
        rows = self._session.query(sql).to_pylist()
        return [TableId(row["d"], row["s"], row["t"]) for row in rows]

    def table(self, name: str) -> TableId:
        database, rest = name[: len(self._catalog)], name[len(self._catalog) :]
        is_known = database.lower() == self._catalog.lower()
        if is_known and rest.startswith(".") and rest.count(".") > 1:
            return TableId(database, *rest[1:].split(".", 1))
        if name.count(".") > 1:
            return TableId(*name.split(".", 2))
        schema, _, table = name.rpartition(".")
        return TableId(None, schema or "dbo", table)

    def columns(self, table: TableId) -> Sequence[Column]:
        sql = _CATALOG.format(at=_text(table.quoted))
        facts = {row["name"]: row for row in self._session.query(sql).to_pylist()}
        if not facts:
            return []
        # Babelfish keeps a name in lower case, and announces it as it was declared.
        facts = {name.lower(): row for name, row in facts.items()} | facts
        return [
            c if row is None else replace(c, nullable=row["nullable"] > 0, counts=row["counts"] > 0)
            for c in self._described(table)
            for row in [facts.get(c.name) or facts.get(c.name.lower())]  # none if only just added
        ]

    def columns_of(self, query: str) -> Sequence[Column]:
        if not _is_balanced(query):
            raise Unreadable(f"{self.where}: its parentheses do not match")
        try:
            with self.snapshot():
                return self._described(None)
        except SchemaChanged as error:
            raise Unreadable(f"{error}. {_WITHIN}") from None

    def _described(self, table: TableId | None) -> Sequence[Column]:
        rows = source(self._config, table)
        return [self._column(c) for c in self._session.columns(f"SELECT * FROM {rows} WHERE 1 = 0")]

    def _column(self, announced: ResultColumn) -> Column:
        """A column as the server announces it."""
        name, type_ = announced.name, announced.type
        declared = type_ or "a type of .NET"

        def column(kind: pa.DataType, expression: str = "", digits: int = _MICROSECONDS) -> Column:
            nullable, counts = announced.nullable, announced.identity
            return Column(name, declared, kind, nullable, counts, digits, expression)

        if type_ in _TIMES:
            fixed = _TIMES[type_]
            digits = announced.scale if fixed is None else fixed
            declared = f"{type_}({digits})" if fixed is None else type_
            expression = _selected(Column(name, declared, INSTANT))
            return column(INSTANT, expression, min(digits, _MICROSECONDS))
        if type_ in ("money", "smallmoney"):
            return column(numeric_type(*_MONEY[type_], self._config.numerics))
        if type_ in ("decimal", "numeric"):
            declared = f"{type_}({announced.precision},{announced.scale})"
            return column(numeric_type(announced.precision, announced.scale, self._config.numerics))
        if type_ in _AS_THEY_ARE:
            return column(_AS_THEY_ARE[type_])
        if type_ in _TEXTS:
            return column(pa.string(), f"CAST({quote(name)} AS {_TEXTS[type_]})")
        return column(pa.binary(), f"CAST({quote(name)} AS varbinary(max))")  # of .NET

    def now(self) -> int:
        sql = "SELECT CAST(SYSUTCDATETIME() AS datetime2(6)) AS now"
        with self.snapshot(), closing(self.stream(sql)) as rows:
            (batch,) = list(rows)
        return int(batch.column(0).cast(pa.timestamp("us")).cast(pa.int64())[0].as_py())

    def stream(self, sql: str, widest: str | None = None) -> Generator[pa.RecordBatch, None, None]:
        for block in self._session.blocks(sql):
            yield from block.combine_chunks().to_batches()

    def limited(self, query: str, rows: int) -> str:
        return f"{query} OFFSET 0 ROWS FETCH NEXT {rows} ROWS ONLY"

    def time(self, column: Column) -> str:
        """To the microsecond at most, as positions are; DATETIME to the millisecond, as it is
        displayed."""
        if column.type == "smalldatetime":
            raise Unreadable(
                f"timestamp.column.name={column.name} is of type smalldatetime: rows of the minute "
                "that was read would be left out. It must be datetime2, datetimeoffset or datetime"
            )
        return _moment(column)

    def sooner(self, microseconds: int, column: Column, timezone: str) -> Sequence[str]:
        if _moment(column) == quote(column.name):
            return []
        earlier = max(microseconds - _TICK, _FIRST)
        return [f"{quote(column.name)} >= {self.instant(earlier, column, timezone)}"]

    def instant(self, microseconds: int, column: Column, timezone: str) -> str:
        if column.type.startswith("datetimeoffset"):
            return f"CAST('{wall(microseconds, None)} +00:00' AS datetimeoffset({_MICROSECONDS}))"
        return f"CAST('{wall(microseconds, timezone)}' AS datetime2({_MICROSECONDS}))"


def _is_balanced(query: str) -> bool:
    """Whether each parenthesis is closed after it was opened: so the text stays within those that
    semel puts around it, where the server takes one statement."""
    depth = at = 0
    while match := _PARTS.search(query, at):
        at = match.end() if match[0] != "/*" else _after_comment(query, match.end())
        depth += (match[0] == "(") - (match[0] == ")")
        if depth < 0 or at < 0:
            return False
    return depth == 0


def _after_comment(query: str, at: int) -> int:
    """Where a comment that begins before ``at`` ends, with those inside it; -1 if it does not."""
    inside = 1
    for match in re.compile(r"/\*|\*/").finditer(query, at):
        inside += 1 if match[0] == "/*" else -1
        if not inside:
            return match.end()
    return -1


def _moment(column: Column) -> str:
    """A time without the digits that it does not show, or that a position does not have. One with a
    zone is never given by its bare name, which ORDER BY would take to mean the selected text."""
    type_, _, scale = column.type.partition("(")
    if type_ == "datetime":
        return f"CAST({quote(column.name)} AS datetime2(3))"
    if scale == "7)" or type_ == "datetimeoffset":
        return f"CAST({quote(column.name)} AS {type_}({_MICROSECONDS}))"
    return quote(column.name)


def _selected(column: Column) -> str:
    """A time as it is read: one with a zone as text in UTC, which Arrow reads."""
    if not column.type.startswith("datetimeoffset"):
        return _moment(column)
    utc = f"CAST(SWITCHOFFSET({_moment(column)}, '+00:00') AS datetime2({_MICROSECONDS}))"
    return f"CONVERT(varchar(30), {utc}, 126) + 'Z'"


def _text(text: str) -> str:
    return f"N{literal(text)}"  # else in the code page of the database
