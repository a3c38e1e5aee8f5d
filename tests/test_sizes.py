"""How many records are taken at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.driver.microbatch.job import fits
from semel.kafka.consumer import Sizes

MIB = 1024 * 1024


class Record:
    """A record with a value, and perhaps a key, of so many bytes."""

    def __init__(self, value: int, key: int = 0) -> None:
        self.size = value
        self._key = range(key)

    def __len__(self) -> int:
        return self.size

    def key(self) -> range:
        return self._key


class Queue:
    """What librdkafka holds ready."""

    def __init__(self, sizes: list[int]) -> None:
        self.records = [Record(n) for n in sizes]
        self.calls = 0

    def consume(self, most: int, _wait: float) -> list[Record]:
        self.calls += 1
        given, self.records = self.records[:most], self.records[most:]
        return given


def gathered(queue: Queue, sizes: Sizes, *, most: int = 50_000, room: int = 16 * MIB) -> list[int]:
    into: list[Record] = []
    sizes.gather(queue.consume, into, most=most, room=room, wait=0)  # type: ignore[arg-type]
    return list(map(len, into))


def test_small_records_are_taken_at_once() -> None:
    queue, sizes = Queue([115] * 200_000), Sizes()
    assert len(gathered(queue, sizes)) == 50_000
    queue.calls = 0
    assert len(gathered(queue, sizes)) == 50_000
    assert queue.calls == 1


@given(st.lists(st.sampled_from([0, 100, 4096, MIB, 4 * MIB, 40 * MIB]), max_size=60))
def test_all_records_come_in_order(each: list[int]) -> None:
    queue, sizes, came = Queue(each), Sizes(), []
    while poll := gathered(queue, sizes):
        came += poll
    assert came == each


@pytest.mark.parametrize("size", [MIB, 4 * MIB, 15 * MIB])
def test_a_poll_of_large_records_holds_no_more_than_its_room(size: int) -> None:
    queue, sizes = Queue([size] * 100), Sizes()
    polls = []
    while poll := gathered(queue, sizes):
        polls.append(sum(poll))
    assert max(polls) <= 16 * MIB


def test_tombstones_of_large_keys_fill_a_poll_too() -> None:
    queue, sizes = Queue([]), Sizes()
    queue.records = [Record(0, MIB) for _ in range(500)]
    assert 1 <= len(gathered(queue, sizes)) <= 64
    assert len(gathered(queue, sizes)) == 16


def test_one_small_record_does_not_vouch_for_all_that_follow() -> None:
    queue = Queue([1] + [MIB] * 500)
    assert sum(gathered(queue, Sizes())) <= 64 * MIB + 1


def test_one_record_larger_than_the_room_goes_alone() -> None:
    queue, sizes = Queue([40 * MIB, 10, 10]), Sizes()
    assert gathered(queue, sizes) == [40 * MIB]
    assert gathered(queue, sizes) == [10, 10]


@pytest.mark.parametrize(
    ("average", "records"),
    [(0, 1_000_000), (115, 1_000_000), (50_000, 2684), (4 * MIB, 32), (100 * MIB, 4)],
)
def test_a_micro_batch_has_as_many_records_as_its_partitions_can_hold(
    average: int, records: int
) -> None:
    assert fits(32 * MIB, 4, average, 1_000_000) == records
