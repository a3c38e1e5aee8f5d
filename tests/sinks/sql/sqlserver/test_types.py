"""What SQL Server's columns take."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from semel.databases.columns import Column
from semel.databases.login import Login, Timeouts
from semel.databases.sqlserver.types import column_of, shown
from semel.sinks.sql.convert import UNFIT, convert
from semel.sinks.sql.sqlserver import SqlServerDialect


@pytest.mark.parametrize(
    ("kind", "scale", "microseconds", "fits"),
    [
        ("datetime2", 7, 123_456, True),
        ("datetime2", 3, 123_000, True),
        ("datetime2", 3, 123_400, False),
        ("datetimeoffset", 0, 1, False),
        ("datetime", 3, 123_456, True),  # to 1/300 s, as documented
    ],
)
def test_fractions_of_a_second_that_a_column_would_round_are_refused(
    kind: str, scale: int, microseconds: int, fits: bool
) -> None:
    row = {
        "name": "at",
        "kind": kind,
        "scale": scale,
        "precision": 27,
        "max_length": 8,
        "collation": None,
        "is_identity": False,
        "is_computed": False,
        "has_default": 0,
        "is_nullable": 1,
        "is_json": 0,
    }
    column = column_of(row)
    values = pa.chunked_array([[datetime(2026, 1, 1, 0, 0, 0, microseconds)]]).cast(column.arrow)
    if fits:
        assert convert(values, column).values == values
    else:
        with pytest.raises(UNFIT, match=f"more than {scale} decimal digits"):
            convert(values, column)


def of_type(kind: str, **facts: Any) -> Column:
    row = {"name": "v", "kind": kind, "scale": 0, "precision": 10, "max_length": 8}
    row |= {"collation": None, "is_identity": False, "is_computed": False}
    return column_of({**row, "has_default": 0, "is_nullable": 1, "is_json": 0, **facts})


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        (of_type("int"), 'CONVERT(nvarchar(max), "v")'),
        (of_type("decimal", scale=2), 'CONVERT(nvarchar(max), "v")'),
        (of_type("nvarchar", max_length=-1), 'CONVERT(nvarchar(max), "v")'),
        (of_type("float"), 'CONVERT(varchar(64), "v", 3)'),
        (of_type("money"), 'CONVERT(varchar(64), "v", 2)'),
        (of_type("datetime2", scale=6), 'CONVERT(varchar(64), "v", 121)'),
        (of_type("datetimeoffset", scale=6), 'CONVERT(varchar(64), "v", 121)'),
        (
            of_type("varbinary", max_length=-1),
            'CONVERT(varchar(max), CONVERT(varbinary(max), "v"), 2)',
        ),
        (of_type("sql_variant"), None),
        (of_type("geography"), None),
    ],
)
def test_the_audit_reads_values_with_all_their_digits(
    column: Column, expression: str | None
) -> None:
    assert shown(column, '"v"') == expression


def test_a_uuid_is_one_text_and_nothing_follows_it() -> None:
    session = SqlServerDialect(Login("jdbc:sqlserver://h;databaseName=d"), "c", Timeouts())
    column, given = of_type("uniqueidentifier"), "6f9619ff-8b86-d011-b42d-00c04fc964ff"
    alike = pa.chunked_array([[given, f"{{{given}}}", given.upper(), None]])
    assert session.fit(alike, column).values.to_pylist() == [given.upper()] * 3 + [None]
    for wrong in (f"{given}0", f"{{{given}", "", f"{given}\n"):
        with pytest.raises(UNFIT, match="not a UUID"):
            session.fit(pa.chunked_array([[wrong]]), column)
