"""Which rows are committed together, and the position after them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.sources.jdbc import batches
from semel.sources.jdbc.batches import CommitUnit, Rows
from semel.sources.jdbc.database import INSTANT, Column
from semel.sources.jdbc.offsets import Position
from semel.sources.jdbc.queries import Shape, Unreadable
from tests.patience import PATIENCE


def rows(*times: int) -> Rows:
    values = pa.StructArray.from_arrays([pa.array(times)], ["t"])
    return Rows(values, None, pa.array(times))


def shown(together: CommitUnit) -> tuple[list[Any], int | None]:
    found, position = together
    return [v["t"] for rows in found for v in rows.fitting.to_pylist()], position.timestamp


def test_rows_of_one_time_are_never_divided() -> None:
    found = batches.in_order([rows(1, 2, 2), rows(2, 2), rows(2, 3, 3), rows(4)])
    assert list(map(shown, found)) == [([1], 1), ([2, 2, 2, 2, 2], 2), ([3, 3], 3), ([4], 4)]


def numbered(*numbers: int, times: Sequence[int] | None = None) -> Rows:
    values = pa.StructArray.from_arrays([pa.array(numbers)], ["t"])
    return Rows(values, pa.array(numbers), None if times is None else pa.array(times))


def test_rows_of_one_number_are_never_divided_even_if_it_is_not_unique() -> None:
    found = [
        (len(values[0]) + sum(map(len, values[1:])), position.incrementing)
        for values, position in batches.in_order([numbered(1, 2, 2), numbered(2, 3)])
    ]
    assert found == [(1, 1), (3, 2), (1, 3)]


def test_rows_of_one_time_are_divided_between_their_numbers() -> None:
    (first, second) = batches.in_order([numbered(7, 1, 2, times=[1, 2, 2])])
    assert first[1] == Position(1, 2)
    assert second[1] == Position(2, 2)


def test_no_rows_give_no_position() -> None:
    assert list(batches.in_order([])) == []
    assert list(batches.in_order([rows()])) == []


def test_all_rows_of_a_query_in_bulk_come_together() -> None:
    (found,) = batches.at_once([rows(1, 2), rows(), rows(3)], Position(queried_ms=9))
    assert shown(found)[0] == [1, 2, 3]
    assert found[1] == Position(queried_ms=9)


def test_rows_that_must_be_committed_together_but_are_too_large_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "LARGEST", 100)
    with pytest.raises(Unreadable, match=r"rows of .* bytes have the same position"):
        list(batches.in_order([rows(*[1] * 10), rows(*[1] * 10)]))


def test_a_time_with_more_nanoseconds_than_a_number_holds_is_refused() -> None:
    """Year 2300; another time would be the result."""
    column = Column("at", "timestamp", INSTANT)
    batch = pa.record_batch({"at": pa.array([10_413_792_000_000_000], INSTANT)})
    shape = Shape((column,), None, ())
    assert len(batches.rows(batch, shape, "UTC", "micros_long")) == 1
    for granularity in ("nanos_long", "nanos_string"):
        found = batches.rows(batch, shape, "UTC", granularity)
        assert len(found.fitting) == 0
        assert f"timestamp.granularity={granularity} cannot" in found.unfit[0].message


@pytest.mark.parametrize(
    ("shown", "zone", "utc"),
    [
        ("2024-07-01 12:00:00", "Europe/Berlin", "2024-07-01 10:00:00"),
        ("2040-07-01 12:00:00", "Europe/Berlin", "2040-07-01 10:00:00"),
        ("2040-01-01 12:00:00", "Europe/Berlin", "2040-01-01 11:00:00"),
        ("9999-12-31 23:59:59.999999", "Asia/Tokyo", "9999-12-31 14:59:59.999999"),
        ("2024-03-31 02:30:00", "Europe/Berlin", "2024-03-31 01:30:00"),  # skipped
        ("2040-03-25 02:30:00", "Europe/Berlin", "2040-03-25 01:30:00"),
        ("2024-10-27 02:30:00", "Europe/Berlin", "2024-10-27 00:30:00"),  # shown twice
        ("2040-10-28 02:30:00", "Europe/Berlin", "2040-10-28 00:30:00"),
    ],
)
def test_times_without_a_zone_are_those_of_the_clocks_there(
    shown: str, zone: str, utc: str
) -> None:
    column = Column("at", "timestamp", INSTANT)
    given = pa.array([shown, None]).cast(pa.timestamp("us"))
    found = batches.rows(pa.record_batch({"at": given}), Shape([column]), zone, "connect_logical")
    expected = [microseconds(utc), None]
    assert pc.struct_field(found.values, "at").cast(pa.int64()).to_pylist() == expected


def microseconds(text: str) -> int:
    return int(pa.scalar(text).cast(pa.timestamp("us")).value)


@pytest.mark.parametrize("shown", ["2024-03-31 02:30:00", "2040-03-25 02:30:00"])
def test_a_position_is_made_of_no_time_that_clocks_skip(shown: str) -> None:
    column = Column("at", "timestamp", INSTANT)
    given = pa.record_batch({"at": pa.array([shown]).cast(pa.timestamp("us"))})
    with pytest.raises(Unreadable, match="doesn't exist in timezone 'Europe/Berlin'"):
        batches.rows(given, Shape([column], None, [column]), "Europe/Berlin", "connect_logical")


def test_the_next_batch_is_fetched_while_one_is_processed() -> None:
    fetched: list[int] = []
    second = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(1, 4):
            fetched.append(number)
            if number == 2:
                second.set()
            yield number

    ahead = batches.fetched_ahead(numbers())
    assert next(ahead) == 1
    assert second.wait(PATIENCE)
    assert list(ahead) == [2, 3] == fetched[1:]


def test_a_fetch_that_fails_fails_in_its_turn() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = batches.fetched_ahead(broken())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="gone"):
        next(ahead)


def test_whoever_stops_early_waits_for_the_fetch_in_progress() -> None:
    """What it fetches from is closed next, and must not be in use."""
    begun, may_end, done = threading.Event(), threading.Event(), list[bool]()

    def slow() -> Iterator[int]:
        yield 1
        begun.set()
        may_end.wait(PATIENCE)
        done.append(True)
        yield 2

    ahead = batches.fetched_ahead(slow())
    assert next(ahead) == 1
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, may_end.set).start()
    ahead.close()
    assert done == [True]
