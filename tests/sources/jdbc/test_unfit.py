"""Rows with values that no record can hold: each is named, and no other row is left out."""

from __future__ import annotations

from contextlib import closing

import pytest

from semel.core.errors import ConfigError
from semel.sources.base import Source, SourceOffset
from tests.engine.harness import some
from tests.sources.jdbc.conftest import Execute, Make, values

pytestmark = pytest.mark.integration

BY_TIME = {
    "mode": "timestamp",
    "timestamp_column_name": "changed",
    "table_whitelist": "t",
    "validate_non_null": "false",
}
TIMELESS = {"postgresql": "'infinity'", "sqlite": "'now'", "duckdb": "'infinity'", "mariadb": "0"}


def read(
    source: Source, offset: SourceOffset | None = None
) -> tuple[list[int], list[str], SourceOffset | None]:
    """The numbers of the rows that can be read now, what is said of the others, and the offset."""
    (partition,) = source.partitions()
    found: list[int] = []
    told: list[str] = []
    with closing(source.read(partition, offset)) as reading:  # type: ignore[type-var]
        while (batch := next(reading)) is not None:
            found += [row["id"] for row in values(batch)]
            told += [unread.message for unread in batch.unread]
            offset = batch.offset
    return found, told, offset


@pytest.mark.parametrize("url", some([*TIMELESS], {"sqlite", "postgresql"}), indirect=True)
def test_a_row_whose_time_is_none_is_named_whenever_it_comes(
    make: Make, execute: Execute, url: str
) -> None:
    value = TIMELESS[url.removeprefix("jdbc:").partition(":")[0]]
    execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, changed TIMESTAMP NULL)",
        f"INSERT INTO t VALUES (1, '2024-01-01'), (2, {value}), (3, '2024-01-02')",
    )
    source = make(**BY_TIME)
    found, told, offset = read(source)
    assert found == [1, 3]
    assert len(told) == 1
    assert "t: the row with id=2: column changed of type " in told[0]
    execute(f"INSERT INTO t VALUES (4, {value}), (5, '2024-01-03')")
    found, told, _ = read(source, offset)
    assert found == [5]
    assert [("id=4" in message) for message in told] == [True], "the other one is known"
    assert len(read(make(**BY_TIME), offset)[1]) == 2, "a new task names both"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_number_that_is_none_stops_the_connector(make: Make, execute: Execute) -> None:
    execute("CREATE TABLE t (id INTEGER NOT NULL, v TEXT)", "INSERT INTO t VALUES ('x', 'a')")
    with pytest.raises(ConfigError, match=r"column id of type INTEGER has .*\bx\b.* positions are"):
        read(make(mode="incrementing", incrementing_column_name="id"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_text_fits_in_a_column_whose_type_sqlite_does_not_know(
    make: Make, execute: Execute
) -> None:
    execute(
        "CREATE TABLE t (id INTEGER NOT NULL, size ENUM, n NUMBER)",
        "INSERT INTO t VALUES (1, 'large', 1.5), (2, 3, 'x')",
    )
    found, told, _ = read(make(mode="incrementing", incrementing_column_name="id"))
    assert found == [1]
    assert ["id=2: column n of type NUMBER" in message for message in told] == [True]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_only_the_rows_that_do_not_fit_are_left_out(make: Make, execute: Execute) -> None:
    execute(
        "CREATE TABLE t (a INTEGER, id INTEGER NOT NULL, n NUMERIC(4,1), day DATE, "
        "PRIMARY KEY (a, id))",
        "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 5000) "
        "INSERT INTO t SELECT 7, i, CASE i WHEN 4321 THEN 'x' WHEN 99 THEN 1.25 ELSE i % 100 END, "
        "CASE i WHEN 4321 THEN '' ELSE '2024-01-01' END FROM r",
    )
    found, told, offset = read(make(mode="incrementing", incrementing_column_name="id"))
    assert sorted({*range(1, 5001)} - {*found}) == [99, 4321]
    assert offset == {"incrementing": 5000}
    assert sorted(told) == [
        "table t: the row with a=7, id=4321: column day of type DATE has a value that is not of "
        "type date32[day]: text ''. Correct it, or leave it out or convert it with query",
        "table t: the row with a=7, id=4321: column n of type NUMERIC(4,1) has a value that is not "
        "of type decimal128(4, 1): The string 'x' is not a valid decimal128 number. Correct it, or "
        "leave it out or convert it with query",
        "table t: the row with a=7, id=99: column n of type NUMERIC(4,1) has a value that is not "
        "of type decimal128(4, 1): Rescaling Decimal value would cause data loss. Correct it, or "
        "leave it out or convert it with query",
    ]
