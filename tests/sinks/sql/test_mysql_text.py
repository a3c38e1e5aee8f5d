"""Arrow columns as SQL literals and as lines for LOAD DATA."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa

from semel.databases.columns import column
from semel.databases.login import Login, Timeouts
from semel.sinks.sql.mysql import MysqlDialect, lines, values

ROWS = pa.table(
    {
        "i": pa.array([1, None, 3]),
        "s": pa.array(["it's\t\\\n", None, ""]),
        "x": pa.array([b"\x00\xff", None, b""]),
        "b": pa.array([True, False, None]),
        "f": pa.array([1.5, float("nan"), None]),
        "t": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, 6), None, None]).cast(
            pa.timestamp("us", "Europe/Berlin")
        ),
    }
)


def test_literals_need_no_escapes_but_doubled_quotes() -> None:
    assert list(values(ROWS, 1 << 20)) == [
        b"(1,'it''s\t\\\n',X'00FF',1,'1.5','2024-01-02 03:04:05.000006'),"
        b"(NULL,NULL,NULL,0,'nan',NULL),(3,'',X'',NULL,NULL,NULL)"
    ]


def test_a_small_decimal_is_not_taken_for_a_float() -> None:
    rows = pa.table({"d": [Decimal("0.00000012345678901234567890")]})
    assert list(values(rows, 99)) == [b"('1.2345678901234567890E-7')"]


def test_lines_escape_what_ends_a_field() -> None:
    assert lines(ROWS).to_pybytes() == (
        b"1\tit's\\t\\\\\\n\t00FF\t1\t1.5\t2024-01-02 03:04:05.000006\t\n"
        b"\\N\t\\N\t\\N\t0\tnan\t\\N\t\n"
        b"3\t\t\t\\N\t\\N\t\\N\t\n"
    )


def test_slices_are_written_from_where_they_begin() -> None:
    assert list(values(ROWS.slice(2), 99)) == [b"(3,'',X'',NULL,NULL,NULL)"]
    assert lines(ROWS.slice(2)).to_pybytes() == b"3\t\t\t\\N\t\\N\t\\N\t\n"


def test_pieces_are_no_larger_than_asked_for_and_hold_each_row_once() -> None:
    rows = pa.table({"s": pa.array(["x" * (n % 50) for n in range(1000)])})
    pieces = list(values(rows, 200))
    assert max(map(len, pieces)) <= 200
    assert b",".join(pieces) == b",".join(values(rows, 1 << 20))


def test_a_row_that_is_larger_than_a_piece_makes_a_piece_of_its_own() -> None:
    rows = pa.table({"s": pa.array(["a", "b" * 99, "c"])})
    assert [len(p) for p in values(rows, 20)] == [5, 103, 5]


def test_a_boolean_is_a_bit() -> None:
    session = MysqlDialect(Login("jdbc:mysql://h/d"), "c", Timeouts())
    flags = pa.chunked_array([[True, None, False]])
    for type_, true, false in (("bit(1)", b"\1", b"\0"), ("bit(9)", b"\0\1", b"\0\0")):
        bits = session.fit(flags, column("b", type_, pa.binary()))
        assert bits.values.to_pylist() == [true, None, false]
