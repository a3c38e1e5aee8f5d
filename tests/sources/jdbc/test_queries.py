"""The SQL of each mode, and which columns of a table are refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from semel.config import read
from semel.core.errors import ConfigError
from semel.sources.jdbc import offsets
from semel.sources.jdbc.config import JdbcSourceConfig
from semel.sources.jdbc.database import (
    INSTANT,
    Column,
    TableId,
    database_of,
    numeric_type,
    unbounded_type,
)
from semel.sources.jdbc.offsets import Position
from semel.sources.jdbc.queries import Query, Unreadable, check_zones, floor, shape

ID = Column("id", "bigint", pa.int64(), nullable=False, counts=True)
TIME = Column("at", "timestamp with time zone", INSTANT, nullable=False)
OTHER = Column("made", "timestamp with time zone", INSTANT)
TEXT = Column("text", "text", pa.string())
ORDERS = TableId(None, "public", "orders")


def configured(**keys: Any) -> JdbcSourceConfig:
    raw = {"connection.url": "jdbc:postgresql://localhost/db", "topic.prefix": "t-"}
    return read(JdbcSourceConfig, raw | {k.replace("_", "."): v for k, v in keys.items()})


def sql(position: Position, until: int | None = None, **keys: Any) -> str:
    config = configured(**keys)
    table = None if config.query else ORDERS
    found = shape(config, [ID, TIME, OTHER], of_query=table is None)
    return Query(config, database_of(config, "c"), table, found, position, until).sql


SELECT = 'SELECT "id", "at", "made" FROM "public"."orders"'


def test_bulk_reads_everything() -> None:
    assert sql(Position(queried_ms=5), mode="bulk") == SELECT


def test_incrementing_continues_after_a_number_in_its_order() -> None:
    keys = {"mode": "incrementing", "incrementing_column_name": "id"}
    assert sql(Position(), **keys) == f'{SELECT} ORDER BY "id"'
    assert sql(Position(7), **keys) == f'{SELECT} WHERE "id" > 7 ORDER BY "id"'


def test_incrementing_finds_the_column_that_the_database_numbers() -> None:
    assert sql(Position(7), mode="incrementing").endswith('WHERE "id" > 7 ORDER BY "id"')


def test_timestamp_reads_between_two_times() -> None:
    found = sql(Position(None, 0), 1_500_000, mode="timestamp", timestamp_column_name="at")
    assert found == (
        f"{SELECT} WHERE \"at\" < TIMESTAMPTZ '1970-01-01 00:00:01.500000+00' "
        'AND "at" > TIMESTAMPTZ \'1970-01-01 00:00:00.000000+00\' ORDER BY "at"'
    )


def test_several_timestamp_columns_are_coalesced() -> None:
    found = sql(Position(), 0, mode="timestamp", timestamp_column_name=" made , at")
    assert found.endswith('ORDER BY COALESCE("made", "at")')


@pytest.mark.parametrize(
    ("url", "types"),
    [
        ("postgresql://localhost/db", ("timestamp with time zone", "timestamp without time zone")),
        ("mysql://localhost/db", ("TIMESTAMP", "DATETIME")),
        ("sqlserver://localhost;databaseName=db", ("datetimeoffset(6)", "datetime2(6)")),
        ("duckdb:/db", ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")),
    ],
)
def test_times_with_and_without_a_zone_are_compared_only_in_utc(
    url: str, types: tuple[str, str]
) -> None:
    given = configured(mode="bulk", connection_url=f"jdbc:{url}")
    database = database_of(given, "c")
    times = [replace(TIME, type=type_) for type_ in types]
    check_zones(database, times, "UTC")
    for time in times:
        check_zones(database, [time, time], "Europe/Berlin")
    with pytest.raises(Unreadable, match=r"some have a time zone and others are in db\."):
        check_zones(database, times, "Europe/Berlin")


@pytest.mark.parametrize(
    ("microseconds", "timezone", "text"),
    [
        (-62_135_596_800_000_000 - 33_539_000_000, "Asia/Tokyo", "0001-01-01 00:00:00.000000"),
        (-62_135_596_800_000_000, "America/New_York", "0001-12-31 19:03:58.000000 BC"),
        (-63_517_780_800_000_000, "UTC", "0044-03-15 12:00:00.000000 BC"),
        (253_402_300_799_999_999, "Asia/Tokyo", "10000-01-01 09:18:58.999999"),
    ],
)
def test_a_position_may_be_in_a_year_that_python_has_not(
    microseconds: int, timezone: str, text: str
) -> None:
    column = replace(TIME, type="timestamp without time zone")
    config = configured(mode="timestamp", timestamp_column_name="at", db_timezone=timezone)
    position = Position(None, microseconds)
    assert offsets.position(position.offset) == position
    query = Query(
        config, database_of(config, "c"), ORDERS, shape(config, [column], of_query=False),
        position, None,
    )  # fmt: skip
    assert f"\"at\" > TIMESTAMP '{text}' ORDER BY" in query.sql


def test_timestamp_and_number_continue_after_both() -> None:
    found = sql(Position(7, 0), 10**6, mode="timestamp+incrementing", timestamp_column_name="at")
    at = "TIMESTAMPTZ '1970-01-01 00:00:00.000000+00'"
    assert f'("at" > {at} OR ("at" = {at} AND "id" > 7)) AND "at" >= {at}' in found
    assert found.endswith('ORDER BY "at", "id"')


def test_a_query_is_read_like_a_table_even_if_it_ends_with_a_comment() -> None:
    keys = {"mode": "incrementing", "incrementing_column_name": "id"}
    query = "SELECT * FROM orders JOIN items USING (id) -- all;"
    assert sql(Position(7), query=query, **keys) == (
        f'SELECT "id", "at", "made" FROM ({query.rstrip(";")}\n) AS semel_rows '
        'WHERE "id" > 7 ORDER BY "id"'
    )


def test_a_suffix_ends_each_query() -> None:
    assert sql(Position(), mode="bulk", query_suffix="LIMIT 5") == f"{SELECT} LIMIT 5"


def test_a_column_is_found_in_any_case_and_a_missing_one_is_named() -> None:
    assert shape(
        configured(mode="incrementing", incrementing_column_name="ID"), [ID], of_query=True
    )
    config = configured(mode="incrementing", incrementing_column_name="number")
    with pytest.raises(
        Unreadable, match=r"has no column number, which incrementing\.column\.name names.*id, text"
    ):
        shape(config, [ID, TEXT], of_query=False)


def test_columns_that_differ_only_in_case_must_be_named_exactly() -> None:
    columns = [replace(ID, name="Id"), replace(ID, name="ID")]
    exact = configured(mode="incrementing", incrementing_column_name="ID")
    assert shape(exact, columns, of_query=False)
    config = configured(mode="incrementing", incrementing_column_name="id")
    with pytest.raises(Unreadable, match=r"columns Id and ID, and incrementing\.column\.name=id"):
        shape(config, columns, of_query=False)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mode": "incrementing", "incrementing_column_name": "text"}, "must be a whole number"),
        ({"mode": "timestamp", "timestamp_column_name": "text"}, "must be a timestamp"),
        ({"mode": "timestamp", "timestamp_column_name": "made"}, r"\(made\) may be null"),
    ],
)
def test_a_column_that_finds_no_new_rows_is_refused(keys: dict[str, str], message: str) -> None:
    columns = [ID, TIME, OTHER, TEXT]
    with pytest.raises(Unreadable, match=message):
        shape(configured(**keys), columns, of_query=False)


def test_columns_that_may_be_null_are_read_without_their_nulls_if_that_is_allowed() -> None:
    column = Column("id", "bigint", pa.int64())
    config = configured(
        mode="incrementing", incrementing_column_name="id", validate_non_null="false"
    )
    found = shape(config, [column], of_query=False)
    query = Query(config, database_of(config, "c"), ORDERS, found, Position(7), None)
    assert query.sql.endswith('WHERE "id" > 7 AND "id" IS NOT NULL ORDER BY "id"')


def test_the_second_that_has_begun_is_left_for_later_where_times_have_no_fraction() -> None:
    assert floor(1_999_999, 0) == 1_000_000
    assert floor(1_999_999, 3) == 1_999_000
    assert floor(1_999_999, 6) == 1_999_999


@pytest.mark.parametrize(
    ("mapping", "precision", "scale", "kind"),
    [
        ("none", 5, 0, pa.decimal128(5, 0)),
        ("precision_only", 5, 0, pa.int32()),
        ("precision_only", 5, 2, pa.decimal128(5, 2)),
        ("best_fit", 2, 0, pa.int8()),
        ("best_fit", 3, -2, pa.int32()),
        ("best_fit", 17, -2, pa.string()),
        ("best_fit", 18, 0, pa.int64()),
        ("best_fit", 19, 0, pa.decimal128(19, 0)),
        ("best_fit", 5, 2, pa.float64()),
        ("best_fit", 30, 2, pa.decimal128(30, 2)),
        ("best_fit_eager_double", 30, 2, pa.float64()),
    ],
)
def test_numeric_mapping(mapping: str, precision: int, scale: int, kind: pa.DataType) -> None:
    assert numeric_type(precision, scale, mapping) == kind


def test_a_vector_of_mysql_is_bytes() -> None:
    database = database_of(configured(mode="bulk", connection_url="jdbc:mysql://h/d"), "c")
    field = SimpleNamespace(name="v", type_code=242, flags=0, length=12, scale=31, charsetnr=63)
    column = database._column(field)  # type: ignore[attr-defined]
    assert (column.arrow, column.sql) == (pa.binary(), 'CAST("v" AS BINARY)')


def test_numeric_without_a_precision_keeps_its_digits_unless_best_fit_is_set() -> None:
    assert unbounded_type("none") == pa.string()
    assert unbounded_type("best_fit") == pa.float64()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mode": "timestamp"}, "timestamp.column.name is required"),
        ({"mode": "incrementing", "query": "SELECT 1"}, "incrementing.column.name is required"),
        ({"mode": "bulk", "query": "SELECT 1", "topic_prefix": ""}, "it is the topic"),
        ({"mode": "bulk", "query": "SELECT 1", "table_whitelist": "a"}, "exclude each other"),
        ({"mode": "bulk", "query": "SELECT 1", "query_masked": "SELECT 2"}, "exclude each other"),
        ({"mode": "bulk", "table_blacklist": "b", "table_whitelist": "a"}, "exclude each other"),
        ({"mode": "bulk", "table_include_list": "("}, "is not a regular expression"),
        ({"mode": "bulk", "db_timezone": "Middle/Earth"}, "time zone"),
        ({"mode": "bulk", "incrementing_relaxed_monotonic": "true"}, "out of order"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(**keys)


def test_tables_are_chosen_by_name_or_full_name() -> None:
    assert configured(mode="bulk").takes("orders", "public.orders")
    for given in ("orders", "public.orders", '"public"."orders"', "a, orders "):
        assert configured(mode="bulk", table_whitelist=given).takes("orders", "public.orders")
        assert not configured(mode="bulk", table_blacklist=given).takes("orders", "public.orders")
    assert not configured(mode="bulk", table_whitelist="order").takes("orders", "public.orders")
    assert configured(mode="bulk", table_include_list=r"public\..*").takes("a", "public.a")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"incrementing.column.mapping": "a"},
            r"must be a list of .*'a' is not one",
        ),
        ({"incrementing.column.mapping": "(:id"}, "is not a regular expression"),
        ({"incrementing.column.mapping": "a:id", "incrementing.column.name": "id"}, "set one"),
        ({"incrementing.column.mapping": "a:id", "query": "SELECT 1"}, "is for tables: with query"),
        ({"jdbc.credentials.provider.class": "com.example.Vault"}, "it is a Java class"),
    ],
)
def test_mappings_that_make_no_sense_are_refused(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(mode="incrementing", **keys)
