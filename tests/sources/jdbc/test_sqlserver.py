"""SQL Server as a source: what is asked of it, and what is made of its answers. The answers are
made up, except in the last tests, which need a server."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pytds
import pytest
from pytds import tds_types as t

from semel.config import read
from semel.core.errors import ConfigError
from semel.databases.sqlserver.client import ResultColumn, _announced
from semel.driver.planning import plan_source
from semel.sources.base import Source
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import INSTANT, TableId
from semel.sources.jdbc.sqlserver import SqlServer
from tests.databases import sqlserver_session
from tests.sources.jdbc.conftest import Execute, Make, rows

URL = "jdbc:sqlserver://db:1433;databaseName=shop;user=reader;password=secret;encrypt=false"
Row = dict[str, Any]


def described(
    name: str, type_: str, precision: int = 0, scale: int = 0, **facts: bool
) -> ResultColumn:
    """A column that may be null, unless told otherwise."""
    return ResultColumn(name, type_, precision, scale, **facts)


ID = described("id", "bigint", 19, nullable=False, identity=True)
AT = described("at", "datetime2", 27, 7, nullable=False)


class Server:
    """Answers what a source asks, and notes the queries of rows."""

    where = "SQL Server at db:1433/shop"

    def __init__(self, columns: Sequence[ResultColumn], blocks: Sequence[pa.Table]) -> None:
        self.announced = columns
        self.blocks_of_rows: Sequence[pa.Table] = blocks
        self.asked: list[str] = []
        self.keeps_versions = True
        self.time = datetime.datetime(2024, 7, 1, 12)

    @contextmanager
    def transaction(self, *, reading: bool) -> Iterator[None]:
        assert reading
        yield

    def query(self, sql: str) -> pa.Table:
        if "sys.objects" in sql:
            return pa.table({"d": ["shop"], "s": ["dbo"], "t": ["orders"]})
        if "OBJECT_ID" in sql:
            facts = [(c.name, int(c.nullable), int(c.identity)) for c in self.announced]
            return pa.Table.from_pylist(
                [{"name": n, "nullable": o, "counts": i} for n, o, i in facts]
            )
        raise AssertionError(sql)

    def columns(self, sql: str) -> Sequence[ResultColumn]:
        assert sql.endswith(" WHERE 1 = 0")
        return self.announced

    def blocks(self, sql: str) -> Iterator[pa.Table]:
        if "SYSUTCDATETIME" in sql:
            yield pa.table({"now": [self.time]})
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


def test_the_name_of_the_database_may_hold_dots() -> None:
    dotted = database(**{"connection.url": "jdbc:sqlserver://db;databaseName=My.Shop"})
    assert dotted.table("My.Shop.dbo.v1.orders") == TableId("My.Shop", "dbo", "v1.orders")


def database(**keys: str) -> SqlServer:
    raw = {"connection.url": URL, "mode": "bulk", "topic.prefix": "", **keys}
    return SqlServer(read(JdbcSourceConfig, raw), "rows")


def test_incrementing_continues_after_a_number() -> None:
    server = Server([ID, described("text", "nvarchar")], [block(id=[6, 7], text=["a", None])])
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
        ("datetime", 2, 'CAST("at" AS datetime2(3))', 'CAST("at" AS datetime2(3))', True),
        ("datetime2", 6, '"at"', '"at"', False),
        ("datetime2", 3, '"at"', '"at"', False),
        (
            "datetimeoffset",
            6,
            'CONVERT(varchar(30), CAST(SWITCHOFFSET(CAST("at" AS datetimeoffset(6)), '
            "'+00:00') AS datetime2(6)), 126) + 'Z'",
            'CAST("at" AS datetimeoffset(6))',
            True,
        ),
        (
            "datetimeoffset",
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


def test_rows_of_a_datetime_are_read_once_no_more_of_their_time_can_come() -> None:
    """The server rounds 12:00:00.0049 down to .003, also for a row that is written after it."""
    server = Server([ID, described("at", "datetime", 23, 3, nullable=False)], [])
    server.time = datetime.datetime(2024, 7, 1, 12, 0, 0, 4_900)
    rows(source(server, **TIMESTAMP))
    assert "< CAST('2024-07-01 12:00:00.000000' AS datetime2(6))" in server.asked[0]


def test_the_earliest_time_has_no_earlier_one() -> None:
    asked = database()
    column = asked._column(AT)
    assert asked.sooner(-62_135_596_800_000_000, column, "UTC") == [
        "\"at\" >= CAST('0001-01-01 00:00:00.000000' AS datetime2(6))"
    ]


def test_times_have_the_databases_zone_or_their_own() -> None:
    noon = 1_719_835_200_000_000
    asked = database()
    plain, zoned = asked._column(AT), asked._column(described("at", "datetimeoffset", 34, 7))
    assert asked.instant(noon, plain, "Europe/Berlin") == (
        "CAST('2024-07-01 14:00:00.000000' AS datetime2(6))"
    )
    assert asked.instant(noon, zoned, "Europe/Berlin") == (
        "CAST('2024-07-01 12:00:00.000000 +00:00' AS datetimeoffset(6))"
    )
    server = Server(
        [ID, described("at", "datetimeoffset", 34, 7, nullable=False)],
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
    server = Server([ID, described("at", "smalldatetime", 16, 0, nullable=False)], [])
    with pytest.raises(ConfigError, match=r"name=at is of type smalldatetime.*must be datetime2"):
        rows(source(server, **TIMESTAMP))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (described("c", "bit"), pa.int8()),
        (described("c", "tinyint"), pa.int16()),
        (described("c", "int"), pa.int32()),
        (described("c", "real"), pa.float32()),
        (described("c", "decimal", 7, 2), pa.decimal128(7, 2)),
        (described("c", "money", 19, 4), pa.decimal128(19, 4)),
        (described("c", "nvarchar"), pa.string()),
        (described("c", "uniqueidentifier"), pa.string()),
        (described("c", "xml"), pa.string()),
        (described("c", "varbinary"), pa.binary()),
        (described("c", ""), pa.binary()),
        (described("c", "date"), pa.date32()),
        (described("c", "time", 16, 7), pa.time64("us")),
        (described("c", "smalldatetime", 16, 0), INSTANT),
    ],
)
def test_types_are_those_that_confluents_connector_gives_them(
    row: ResultColumn, kind: pa.DataType
) -> None:
    assert database()._column(row).arrow == kind


@pytest.mark.parametrize(
    ("serializer", "found"),
    [
        (t.IntNSerializer(t.TinyIntType()), ResultColumn("c", "tinyint")),
        (t.IntNSerializer(t.BigIntType()), ResultColumn("c", "bigint")),
        (t.MoneyNSerializer(4), ResultColumn("c", "smallmoney")),
        (t.MsDecimalSerializer(7, 2), ResultColumn("c", "decimal", 7, 2)),
        (t.DateTime2Serializer(t.DateTime2Type(7)), ResultColumn("c", "datetime2", 7, 7)),
        (t.DateTimeNSerializer(4), ResultColumn("c", "smalldatetime")),
        (t.NVarCharMaxSerializer(), ResultColumn("c", "ntext")),  # to python-tds they are one
        (t.XmlSerializer(), ResultColumn("c", "xml")),
        (t.MsUniqueSerializer(), ResultColumn("c", "uniqueidentifier")),
        (t.VariantSerializer(), ResultColumn("c", "sql_variant")),
        (t.UDT72Serializer(9, "", "sys", "geometry", ""), ResultColumn("c", "")),
    ],
)
def test_what_the_protocol_says_of_a_column_is_understood(
    serializer: Any, found: ResultColumn
) -> None:
    column = pytds.Column("c")
    column.serializer = serializer
    assert _announced(column) == found
    column.flags = pytds.Column.fIdentity
    assert _announced(column) == replace(found, nullable=False, identity=True)


def test_values_are_of_their_columns_types() -> None:
    columns = [
        ID,
        described("yes", "bit"),
        described("price", "decimal", 7, 2),
        described("whole", "numeric", 5, 0),
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


def test_a_database_without_versions_of_rows_is_reported_once(
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


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("url", ["sqlserver"], indirect=True)
class TestServer:
    """A server as its documentation says."""

    @pytest.mark.parametrize(
        "kind", ["datetime2", "datetime2(3)", "datetime", "datetimeoffset", "datetimeoffset(3)"]
    )
    def test_rows_are_read_once_by_times_of_each_type(
        self, kind: str, make: Make, execute: Execute
    ) -> None:
        execute(f"CREATE TABLE t (id int IDENTITY PRIMARY KEY, at {kind} NOT NULL)")
        for n in range(5):
            execute(f"INSERT INTO t VALUES ('2024-01-01T00:00:0{n // 2}.127')")
        for keys in (BOTH, TIMESTAMP, INCREMENTING):
            made = make(**keys)
            found, offset = rows(made)
            assert [r["id"] for r in found] == [1, 2, 3, 4, 5]
            assert rows(made, offset) == ([], None)
            execute("INSERT INTO t VALUES ('2024-01-01T00:00:02.130')")
            assert len(rows(made, offset)[0]) == 1
            execute("DELETE FROM t WHERE id > 5")

    def test_a_row_of_an_open_transaction_is_not_waited_for_and_read_once_it_commits(
        self, url: str, make: Make, execute: Execute
    ) -> None:
        with suppress(pytds.Error):  # Babelfish always keeps versions of rows
            execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
        execute("CREATE TABLE t (id int IDENTITY PRIMARY KEY, at datetime2 NOT NULL)")
        insert = "INSERT INTO t VALUES (SYSUTCDATETIME())"
        with sqlserver_session(url) as open_:
            open_.execute("BEGIN TRANSACTION")
            open_.execute(insert)
            execute(insert)
            delayed = make(**TIMESTAMP, timestamp_delay_interval_ms="3600000")
            assert rows(delayed) == ([], None)
            assert [r["id"] for r in rows(make(**INCREMENTING))[0]] == [2]
            open_.execute("COMMIT TRANSACTION")
        found, _ = rows(make(**TIMESTAMP))  # as if the delay was over
        assert [r["id"] for r in found] == [1, 2]

    @pytest.mark.parametrize(
        "query", ["WITH n AS (SELECT 1 AS id) SELECT id FROM n", "SELECT nothing FROM sys.objects"]
    )
    def test_a_query_that_cannot_be_read_is_refused_with_what_it_must_be(
        self, query: str, make: Make
    ) -> None:
        with pytest.raises(ConfigError, match=r"query: SQL Server .*must not begin with WITH"):
            make(**INCREMENTING, query=query).check()

    def test_names_are_those_that_were_declared(self, make: Make, execute: Execute) -> None:
        execute(
            'CREATE TABLE "Order Lines" ("Id" int IDENTITY PRIMARY KEY, "It\'s [größe]" int)',
            'INSERT INTO "Order Lines" ("It\'s [größe]") VALUES (7)',
        )
        made = make(**INCREMENTING)
        assert rows(made)[0] == [{"Id": 1, "It's [größe]": 7}]
        assert [made.topic_of(p).lower() for p in made.partitions()] == ["t-order lines"]

    @pytest.mark.parametrize("mapping", ["none", "best_fit"])
    def test_values_have_the_types_that_are_documented(
        self, mapping: str, make: Make, execute: Execute
    ) -> None:
        with suppress(pytds.Error):  # Babelfish has ROWVERSION only if told so
            execute("EXEC sp_babelfish_configure 'escape_hatch_rowversion', 'ignore', 'server'")
        execute(
            "CREATE TABLE t (id bigint IDENTITY PRIMARY KEY, yes bit, tiny tinyint, "
            "small smallint, price decimal(7,2), whole numeric(5,0), paid money, less smallmoney, "
            "half real, ratio float, day date, clock time(3), moment datetime2(7), old datetime, "
            "zoned datetimeoffset, coarse smalldatetime, name nvarchar(20), code varchar(20), "
            "fixed nchar(4), body nvarchar(max), raw varbinary(8), uid uniqueidentifier, doc xml, "
            "version rowversion)",
            "INSERT INTO t (yes, tiny, small, price, whole, paid, less, half, ratio, day, clock, "
            "moment, old, zoned, coarse, name, code, fixed, body, raw, uid, doc) VALUES "
            "(1, 255, -3, 3.25, 12, 1234.5678, 1.5, 0.5, 0.1, '2024-02-29', '12:30:00.250', "
            "'2024-07-01 12:00:00.123456', '2024-07-01 12:00:00.127', "
            "'2024-07-01 14:00:00.5 +02:00', '2024-07-01 12:01:00', N'ü€', 'x', N'ab', "
            "N'long', 0x00FF, '6F9619FF-8B86-D011-B42D-00C04FC964FF', '<a/>')",
            "INSERT INTO t (yes) VALUES (NULL)",
        )
        made = make(**INCREMENTING, numeric_mapping=mapping, db_timezone="Europe/Berlin")
        (partition,) = made.partitions()
        with closing(made.read(partition, None)) as reading:  # type: ignore[type-var]
            batches = list(takewhile(bool, reading))
        best = mapping == "best_fit"
        values = [r.values for batch in batches if batch is not None for r in batch.records]
        kinds = {f.name: f.type for f in values[0].type}
        assert kinds == {
            "id": pa.int64(),
            "yes": pa.int8(),
            "tiny": pa.int16(),
            "small": pa.int16(),
            "price": pa.float64() if best else pa.decimal128(7, 2),
            "whole": pa.int32() if best else pa.decimal128(5, 0),
            "paid": pa.decimal128(19, 4),
            "less": pa.float64() if best else pa.decimal128(10, 4),
            "half": pa.float32(),
            "ratio": pa.float64(),
            "day": pa.date32(),
            "clock": pa.time64("us"),
            **dict.fromkeys(("moment", "old", "zoned", "coarse"), INSTANT),
            **dict.fromkeys(("name", "code", "fixed", "body", "uid", "doc"), pa.string()),
            **dict.fromkeys(("raw", "version"), pa.binary()),
        }
        row, empty = [row for v in values for row in v.to_pylist()]
        assert len(row.pop("version")) == len(empty.pop("version")) == 8
        assert {name for name, value in empty.items() if value is not None} == {"id"}

        def utc(*time: int) -> datetime.datetime:
            return datetime.datetime(2024, 7, 1, *time, tzinfo=datetime.UTC)

        assert row == {
            "id": 1,
            "yes": 1,
            "tiny": 255,
            "small": -3,
            "price": Decimal("3.25"),
            "whole": 12,
            "paid": Decimal("1234.5678"),
            "less": Decimal("1.5"),
            "half": 0.5,
            "ratio": 0.1,
            "day": datetime.date(2024, 2, 29),
            "clock": datetime.time(12, 30, 0, 250_000),
            "moment": utc(10, 0, 0, 123_456),
            "old": utc(10, 0, 0, 127_000),
            "zoned": utc(12, 0, 0, 500_000),
            "coarse": utc(10, 1),
            "name": "ü€",
            "code": "x",
            "fixed": "ab  ",
            "body": "long",
            "raw": b"\x00\xff",
            "uid": "6F9619FF-8B86-D011-B42D-00C04FC964FF",
            "doc": "<a/>",
        }
