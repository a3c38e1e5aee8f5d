"""Spark's schema strings."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.converters import ddl
from semel.core.errors import ConfigError

UTC_MICROS = pa.timestamp("us", "UTC")


def test_a_schema_is_read() -> None:
    text = """id BIGINT NOT NULL, name STRING, price DECIMAL(10,2), at TIMESTAMP,
        tags ARRAY<STRING>, doc STRUCT<a: INT, b: ARRAY<STRUCT<c: DATE>>>, any JSON"""
    assert ddl.parse(text) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("at", UTC_MICROS),
            ("tags", pa.list_(pa.string())),
            (
                "doc",
                pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.date32())])))]),
            ),
            ("any", pa.json_()),
        ]
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("time", pa.time64("us")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("timestamp_ltz", UTC_MICROS),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("numeric ( 38 , 38 )", pa.decimal128(38, 38)),
        ("varchar(10)", pa.string()),
        ("char(1)", pa.string()),
        ("map<string, array<int>>", pa.map_(pa.string(), pa.list_(pa.int32()))),
        (
            "struct<a int not null, `b c`: string>",
            pa.struct([pa.field("a", pa.int32(), nullable=False), ("b c", pa.string())]),
        ),
        ("int comment 'it''s, <fine>'", None),
        ("int comment 'a, b'", pa.int32()),
    ],
)
def test_types_are_spelled_as_in_spark(text: str, wanted: pa.DataType | None) -> None:
    if wanted is None:
        with pytest.raises(ConfigError):
            ddl.parse(f"x {text}")
        return
    assert ddl.parse(f"x {text}").field("x").type == wanted


def test_names_may_be_quoted_and_separated_by_a_colon() -> None:
    assert ddl.parse("`a``b c` INT, date: DATE").names == ["a`b c", "date"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no fields"),
        ("id", "expected a type for field id, found the end"),
        ("id BIGNT", "unknown type 'BIGNT' of field id; did you mean BIGINT?"),
        ("id BIGINT,", "expected a field name, found the end"),
        ("id BIGINT name STRING", "expected a comma after field id, found 'name STRING'"),
        ("id INT, id INT", "field id is declared twice"),
        ("id INT NOT", "expected 'NULL' after NOT of field id, found the end"),
        ("t ARRAY", "expected '<' after ARRAY of field t"),
        ("t ARRAY<INT", "expected '>' to close ARRAY of field t"),
        ("t MAP<INT>", "expected ',' between key and value of MAP of field t"),
        ("t STRUCT<a>", "expected a type for field a, found '>'"),
        ("d DECIMAL(39,2)", "DECIMAL(39,2) of field d: precision is 1 to 38"),
        ("d DECIMAL(2,3)", "scale at most precision"),
        ("d DECIMAL(a)", "'a' does not belong in the type of field d"),
        ("a INT; b INT", "cannot read '; b INT'"),
        ("<", "expected a field name, found '<'"),
    ],
)
def test_an_error_names_the_bad_part(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ddl.parse(text, where="value.converter.schema")
    assert problem in str(raised.value)
    assert str(raised.value).startswith("value.converter.schema: ")
