"""SQL Server as a source: what is asked of it, and what is made of its answers. The answers are
made up, except in the last test, which needs a server."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.config import read
from semel.errors import ConfigError
from semel.planning import plan_source
from semel.sources.base import Source
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import TableId
from semel.sources.jdbc.sqlserver import SqlServer
from semel.sources.jdbc.values import INSTANT
from tests.databases import new_sqlserver_database, query
from tests.sources.jdbc.conftest import rows

URL = "jdbc:sqlserver://db:1433;databaseName=shop;user=reader;password=secret;encrypt=false"
Row = dict[str, Any]


def described(name: str, type_: str, precision: int = 0, scale: int = 0, **facts: Any) -> Row:
    """A row of sp_describe_first_result_set."""
    row = {
        "is_hidden": False,
        "name": name,
        "is_nullable": True,
        "system_type_name": type_,
        "user_type_name": None,
        "precision": precision,
        "scale": scale,
        "is_identity_column": False,
    }
    return row | facts


ID = described("id", "bigint", 19, is_nullable=False, is_identity_column=True)
AT = described("at", "datetime2(7)", 27, 7, is_nullable=False)


class Server:
    """Answers what a source asks, and notes the queries of rows."""

    where = "SQL Server at db:1433/shop"

    def __init__(self, columns: Sequence[Row], blocks: Sequence[pa.Table]) -> None:
        self.columns = columns
        self.blocks_of_rows: Sequence[pa.Table] = blocks
        self.asked: list[str] = []
        self.keeps_versions = True

    @contextmanager
    def transaction(self, *, reading: bool) -> Iterator[None]:
        assert reading
        yield

    def query(self, sql: str) -> pa.Table:
        if "sys.objects" in sql:
            return pa.table({"d": ["shop"], "s": ["dbo"], "t": ["orders"]})
        if "OBJECT_ID" in sql:
            return pa.table({"id": [1]})
        assert sql.startswith("EXEC sp_describe_first_result_set N'")
        return pa.Table.from_pylist(list(self.columns))

    def blocks(self, sql: str) -> Iterator[pa.Table]:
        if "SYSUTCDATETIME" in sql:
            yield pa.table({"now": [datetime.datetime(2024, 7, 1, 12)]})
            return
        self.asked.append(sql)
        if "row_count" in sql:
            more = bool(self.blocks_of_rows)
            yield pa.table({"last_number": [2 if more else None], "row_count": [2 * more]})
            return
        blocks, self.blocks_of_rows = self.blocks_of_rows, ()
        yield from blocks

    def close(self) -> None: ...


def source(server: Server, **keys: str) -> Source:
    raw = {
        "name": "rows",
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": URL,
        "topic.prefix": "t-",
        "poll.interval.ms": "0",
        "first.load.range.rows": "0",
        "bootstrap.servers": "localhost:1",
    }
    made: Any = plan_source(raw | {k.replace("_", "."): v for k, v in keys.items()}).source
    made._database._session = server
    found: Source = made
    return found


INCREMENTING = {"mode": "incrementing", "incrementing_column_name": "id"}
TIMESTAMP = {"mode": "timestamp", "timestamp_column_name": "at"}
BOTH = {**INCREMENTING, **TIMESTAMP, "mode": "timestamp+incrementing"}


def test_a_table_is_a_partition_under_the_full_name_that_confluents_connector_gives_it() -> None:
    made = source(Server([ID], []), **INCREMENTING)
    assert made.partitions() == [{"protocol": "1", "table": "shop.dbo.orders"}]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("shop.dbo.orders", TableId("shop", "dbo", "orders")),
        ("sales.orders", TableId(None, "sales", "orders")),
        ("orders", TableId(None, "dbo", "orders")),
    ],
)
def test_a_full_name_is_a_table_again(name: str, found: TableId) -> None:
    assert database().table(name) == found
    assert found.quoted == f'"{found.schema}"."orders"'


def database(**keys: str) -> SqlServer:
    raw = {"connection.url": URL, "mode": "bulk", "topic.prefix": "", **keys}
    return SqlServer(read(JdbcSourceConfig, raw), "rows")


def test_incrementing_reads_on_behind_a_number() -> None:
    server = Server([ID, described("text", "nvarchar(9)")], [block(id=[6, 7], text=["a", None])])
    found, offset = rows(source(server, **INCREMENTING), {"incrementing": 5})
    assert found == [{"id": 6, "text": "a"}, {"id": 7, "text": None}]
    assert offset == {"incrementing": 7}
    assert server.asked[:1] == [
        'SELECT "id", "text" FROM "dbo"."orders" WHERE "id" > 5 ORDER BY "id"'
    ]


def block(**columns: Sequence[Any]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def test_a_time_is_compared_in_the_digits_that_a_position_has() -> None:
    """A datetime2 has 100 ns: compared in all of them, the last row would come again and again."""
    at = datetime.datetime(2024, 1, 1, 0, 0, 0, 123_457)
    server = Server([ID, AT], [block(id=[6], at=[at])])
    stored = {"timestamp": 1_704_067_200_123, "timestamp_nanos": 123_456_000, "incrementing": 5}
    found, offset = rows(source(server, **BOTH), stored)
    assert found[0]["at"] == at.replace(tzinfo=datetime.UTC)
    assert offset == {
        "timestamp": 1_704_067_200_123,
        "timestamp_nanos": 123_457_000,
        "incrementing": 6,
    }
    cast, was = 'CAST("at" AS datetime2(6))', "CAST('2024-01-01 00:00:00.123456' AS datetime2(6))"
    assert server.asked[:1] == [
        f'SELECT "id", {cast} AS "at" FROM "dbo"."orders" '
        f"WHERE {cast} < CAST('2024-07-01 12:00:00.000000' AS datetime2(6)) "
        f'AND ({cast} > {was} OR ({cast} = {was} AND "id" > 5)) AND {cast} >= {was} '
        "AND \"at\" >= CAST('2024-01-01 00:00:00.113456' AS datetime2(6)) "
        f'ORDER BY {cast}, "id"'
    ]


@pytest.mark.parametrize(
    ("type_", "scale", "read_as", "compared", "index"),
    [
        ("datetime", 3, 'CAST("at" AS datetime2(3))', 'CAST("at" AS datetime2(3))', True),
        ("datetime2(6)", 6, '"at"', '"at"', False),
        ("datetime2(3)", 3, '"at"', '"at"', False),
        (
            "datetimeoffset(6)",
            6,
            'CONVERT(varchar(30), CAST(SWITCHOFFSET(CAST("at" AS datetimeoffset(6)), '
            "'+00:00') AS datetime2(6)), 126) + 'Z'",
            'CAST("at" AS datetimeoffset(6))',
            True,
        ),
        (
            "datetimeoffset(7)",
            7,
            'CONVERT(varchar(30), CAST(SWITCHOFFSET(CAST("at" AS datetimeoffset(6)), '
            "'+00:00') AS datetime2(6)), 126) + 'Z'",
            'CAST("at" AS datetimeoffset(6))',
            True,
        ),
    ],
)
def test_each_type_of_time_is_read_as_it_is_compared(
    type_: str, scale: int, read_as: str, compared: str, index: bool
) -> None:
    asked = database()
    column = asked._column(described("at", type_, 27, scale))
    assert (column.sql, asked.time(column), column.digits) == (read_as, compared, min(scale, 6))
    assert bool(asked.sooner(10**15, column, "UTC")) is index


def test_the_earliest_time_has_no_earlier_one() -> None:
    asked = database()
    column = asked._column(AT)
    assert asked.sooner(-62_135_596_800_000_000, column, "UTC") == [
        "\"at\" >= CAST('0001-01-01 00:00:00.000000' AS datetime2(6))"
    ]


def test_times_have_the_databases_zone_or_their_own() -> None:
    noon = 1_719_835_200_000_000
    asked = database()
    plain, zoned = asked._column(AT), asked._column(described("at", "datetimeoffset(7)", 34, 7))
    assert asked.instant(noon, plain, "Europe/Berlin") == (
        "CAST('2024-07-01 14:00:00.000000' AS datetime2(6))"
    )
    assert asked.instant(noon, zoned, "Europe/Berlin") == (
        "CAST('2024-07-01 12:00:00.000000 +00:00' AS datetimeoffset(6))"
    )
    server = Server(
        [ID, described("at", "datetimeoffset(7)", 34, 7, is_nullable=False)],
        [block(id=[1, 2], at=["2024-07-01T10:00:00Z", "2024-07-01T10:00:00.250000Z"])],
    )
    found, offset = rows(source(server, **TIMESTAMP, db_timezone="Europe/Berlin"))
    assert [r["at"].microsecond for r in found] == [0, 250_000]
    assert offset == {"timestamp": 1_719_828_000_250, "timestamp_nanos": 250_000_000}


def test_rows_without_a_number_are_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    nullable = described("id", "bigint", 19)
    server = Server([nullable], [block(n=[1])])
    rows(source(server, **INCREMENTING, validate_non_null="false"))
    assert server.asked[0] == (  # "some" is a word of SQL Server's own
        'SELECT CASE WHEN EXISTS (SELECT 1 FROM "dbo"."orders" WHERE "id" IS NULL) '
        "THEN 1 ELSE 0 END AS n"
    )
    assert "id" in caplog.text


def test_a_time_of_whole_minutes_cannot_be_a_position() -> None:
    server = Server([ID, described("at", "smalldatetime", 16, 0, is_nullable=False)], [])
    with pytest.raises(ConfigError, match=r"name=at is of type smalldatetime.*must be datetime2"):
        rows(source(server, **TIMESTAMP))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (described("c", "bit"), pa.int8()),
        (described("c", "tinyint"), pa.int16()),
        (described("c", "int"), pa.int32()),
        (described("c", "real"), pa.float32()),
        (described("c", "decimal(7,2)", 7, 2), pa.decimal128(7, 2)),
        (described("c", "money", 19, 4), pa.decimal128(19, 4)),
        (described("c", "nvarchar(max)"), pa.string()),
        (described("c", "uniqueidentifier"), pa.string()),
        (described("c", "xml"), pa.string()),
        (described("c", "varbinary(16)"), pa.binary()),
        (described("c", "timestamp"), pa.binary()),
        (described("c", None, user_type_name="geography"), pa.binary()),
        (described("c", "date"), pa.date32()),
        (described("c", "time(7)", 16, 7), pa.time64("us")),
        (described("c", "smalldatetime", 16, 0), INSTANT),
    ],
)
def test_types_are_those_that_confluents_connector_gives_them(row: Row, kind: pa.DataType) -> None:
    assert database()._column(row).arrow == kind


def test_values_are_of_their_columns_types() -> None:
    columns = [
        ID,
        described("yes", "bit"),
        described("price", "decimal(7,2)", 7, 2),
        described("whole", "numeric(5,0)", 5, 0),
        described("part", "smallmoney", 10, 4),
        described("day", "date"),
        described("empty", "int"),
    ]
    given = block(
        id=[1],
        yes=[True],
        price=[Decimal("3.25")],
        whole=[Decimal("12")],
        part=[Decimal("1.5000")],
        day=[datetime.date(2024, 2, 29)],
        empty=[None],
    )
    found, _ = rows(source(Server(columns, [given]), **INCREMENTING, numeric_mapping="best_fit"))
    assert found == [
        {
            "id": 1,
            "yes": 1,
            "price": 3.25,
            "whole": 12,
            "part": 1.5,
            "day": datetime.date(2024, 2, 29),
            "empty": None,
        }
    ]


def test_a_large_table_is_read_in_ranges_without_limit() -> None:
    server = Server([ID], [block(id=[1, 2])])
    rows(source(server, **INCREMENTING, first_load_range_rows="2"))
    assert server.asked[0] == (
        'SELECT max(n) AS last_number, count(*) AS row_count FROM (SELECT "id" AS n FROM '
        '"dbo"."orders" WHERE "id" IS NOT NULL ORDER BY "id" OFFSET 0 ROWS FETCH NEXT 2 ROWS ONLY)'
        " AS semel_range"
    )


def test_the_identity_column_is_found() -> None:
    server = Server([described("a", "int"), ID], [block(a=[3], id=[1])])
    assert rows(source(server, mode="incrementing"))[1] == {"incrementing": 1}


def test_a_database_without_versions_of_rows_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server([ID], [])
    server.keeps_versions = False
    made = source(server, **INCREMENTING)
    for _ in range(2):
        rows(made)
    assert caplog.text.count("SET ALLOW_SNAPSHOT_ISOLATION ON") == 1


@pytest.mark.parametrize(
    "url", ["jdbc:jtds:sqlserver://db:1433/shop", "jdbc:sqlserver://db\\SQLEXPRESS:1433"]
)
def test_urls_of_both_drivers_are_understood(url: str) -> None:
    assert database(**{"connection.url": url}).where.startswith("SQL Server at db:1433")


@pytest.fixture
def server() -> Iterator[str]:
    yield from new_sqlserver_database()


@pytest.mark.integration
@pytest.mark.parametrize(
    "kind", ["datetime2", "datetime2(3)", "datetime", "datetimeoffset", "datetimeoffset(3)"]
)
def test_a_server_is_read_once(kind: str, server: str) -> None:
    query(
        server,
        f"CREATE TABLE t (id int IDENTITY PRIMARY KEY, at {kind} NOT NULL, u uniqueidentifier)",
    )
    for n in range(5):
        query(server, f"INSERT INTO t VALUES ('2024-01-01T00:00:0{n // 2}.127', '{uuid.uuid4()}')")
    raw = {"name": "c", "connector.class": "JdbcSource", "connection.url": server}
    raw |= {"topic.prefix": "t-", "poll.interval.ms": "0", "bootstrap.servers": "localhost:1"}
    for keys in (BOTH, TIMESTAMP, INCREMENTING):
        planned = plan_source(raw | {k.replace("_", "."): v for k, v in keys.items()})
        with closing(planned):
            found, offset = rows(planned.source)
            assert [r["id"] for r in found] == [1, 2, 3, 4, 5]
            assert rows(planned.source, offset) == ([], None)
