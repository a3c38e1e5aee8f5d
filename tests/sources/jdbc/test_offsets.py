"""Source partitions and offsets of the JDBC source have Confluent's form."""

from __future__ import annotations

from typing import Any

import pytest

from semel.sources.jdbc import offsets
from semel.sources.jdbc.database import TableId
from semel.sources.jdbc.offsets import Load, Position


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        (Position(7), {"incrementing": 7}),
        (
            Position(None, 1_700_000_000_123_456),
            {"timestamp": 1_700_000_000_123, "timestamp_nanos": 123_456_000},
        ),
        (
            Position(7, 1_700_000_000_000_000),
            {"incrementing": 7, "timestamp": 1_700_000_000_000, "timestamp_nanos": 0},
        ),
        (Position(None, -1_500_000), {"timestamp": -1500, "timestamp_nanos": 500_000_000}),
        (Position(queried_ms=5), {"bulk": 5}),
        (
            Position(load=Load(5, 9, 1_700_000_000_123_456, 7)),
            {
                "loaded": 5,
                "load_until": 9,
                "load_timestamp_us": 1_700_000_000_123_456,
                "load_incrementing": 7,
            },
        ),
    ],
)
def test_an_offset_has_confluents_form_and_is_read_back(
    position: Position, offset: dict[str, Any]
) -> None:
    assert position.offset == offset
    assert offsets.position(offset) == position


def test_an_offset_without_nanoseconds_has_those_of_its_milliseconds() -> None:
    assert offsets.position({"timestamp": 1500}).timestamp == 1_500_000


def test_digits_finer_than_a_microsecond_are_dropped_so_that_no_row_is_skipped() -> None:
    offset = {"timestamp": 1500, "timestamp_nanos": 500_000_999}
    assert offsets.position(offset).timestamp == 1_500_000


@pytest.mark.parametrize(
    "offset",
    [
        {"incrementing": "7"},
        {"incrementing": True},
        {"loaded": 5, "load_until": 9},
        {"timestamp": 1.5},
        {"timestamp": 5, "timestamp_nanos": 10**9},
        {"timestamp": 10**18},
        {"incrementing": 2**63},
        {"position": 5},
    ],
)
def test_an_offset_that_makes_no_sense_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="source offset"):
        offsets.position(offset)


def test_a_table_is_found_again_under_names_that_confluent_has_used() -> None:
    table = TableId(None, "public", "orders")
    assert offsets.partition_of(table) == {"protocol": "1", "table": "public.orders"}
    assert offsets.former(table, ["db.public.orders"]) == [
        {"protocol": "1", "table": "db.public.orders"},
        {"table": "orders"},
    ]


def test_a_partition_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r'such as \{"protocol":"1"'):
        offsets.table_of({"filename": "a"})
