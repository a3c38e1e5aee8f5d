"""What SQL Server's columns take."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest

from semel.sinks.sql.convert import UNFIT, convert
from semel.sinks.sql.sqlserver_types import column_of


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
        "is_json": 0,
    }
    column = column_of(row)
    values = pa.chunked_array([[datetime(2026, 1, 1, 0, 0, 0, microseconds)]]).cast(column.arrow)
    if fits:
        assert convert(values, column).values == values
    else:
        with pytest.raises(UNFIT, match=f"more than {scale} decimal digits"):
            convert(values, column)
