"""A task does not read the same records forever: it continues, or stops and says why."""

from __future__ import annotations

import pytest

from semel.core.errors import BadRecord, OffsetOutOfRange, ServiceError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.consumer import OutOfOrder
from semel.tasks.direct.reader import OutOfOrderPolls
from semel.tasks.poll import TooEarly
from semel.tasks.ranges import assignment

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


def entry(epoch: int = 3, after: int = 10, position: int = 16) -> LedgerEntry:
    """The last record was at ``after`` - 1; no record was seen between it and the position."""
    return LedgerEntry(*ONE, position, 0, leader_epoch=epoch, epoch_offset=after)


class Task:
    """OutOfOrderPolls, and what they have said and how long they have waited."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.paused: list[float] = []
        self.polls = OutOfOrderPolls("c", self.told.append, self.paused.append)

    def early(self, offset: int, epoch: int, entry: LedgerEntry) -> None:
        self.polls.note(TooEarly(ONE, offset, epoch), {ONE: entry})

    def offsets(self, entry: LedgerEntry) -> list[int]:
        return [p.offset for p in self.polls.assignments({ONE: entry})]


def test_a_record_of_a_later_epoch_before_the_position_proves_a_cut() -> None:
    task = Task()
    task.early(12, 4, entry())
    assert task.polls.diverged == {ONE: 12}


@pytest.mark.parametrize(
    ("offset", "epoch", "stored"),
    [
        pytest.param(12, 3, entry(), id="of the same epoch"),
        pytest.param(12, 0, entry(), id="of an earlier epoch"),
        pytest.param(12, -1, entry(), id="of an epoch that is not known"),
        pytest.param(4, 3, entry(epoch=-1, after=-1), id="the entry knows no epoch"),
        pytest.param(4, 9, entry(), id="before the last record"),
    ],
)
def test_a_record_before_the_position_that_nothing_explains_stops_it(
    offset: int, epoch: int, stored: LedgerEntry
) -> None:
    task = Task()
    for _ in range(4):  # it may be a leftover of the assignment before
        task.early(offset, epoch, stored)
    task.polls.moved([TWO])
    with pytest.raises(
        OffsetOutOfRange, match=rf"orders-0 has a record at offset {offset} .* position 16.*offsets"
    ):
        task.early(offset, epoch, stored)
    assert not task.polls.diverged


def test_a_partition_that_has_moved_begins_anew() -> None:
    task = Task()
    for _ in range(20):
        task.early(12, 3, entry())
        task.polls.moved([ONE])
    assert not task.told


def test_other_disorders_are_reported_slowed_down_and_end_though_other_partitions_move() -> None:
    task = Task()
    with pytest.raises(ServiceError, match=r"orders-0: out of range: the same 60 times in a row"):
        for _ in range(100):
            task.polls.note(OutOfOrder("orders-0: out of range", ONE), {})
            task.polls.moved([TWO])
    assert len(task.told) == 2
    assert len(task.paused) == 40


def test_what_cannot_be_read_before_the_position_is_not_read_again() -> None:
    task = Task()
    stored = entry()
    assert task.offsets(stored) == [10]
    task.polls.whole(ONE, stored, 16, "failed CRC32C check")
    assert task.offsets(stored) == [16]
    assert "cannot be read between its last record and the position, 16" in task.told[0]
    task.polls.moved([ONE])
    assert task.offsets(stored) == [10]


def test_damage_after_the_task_has_read_on_is_not_mistaken_for_damage_before_the_position() -> None:
    task = Task()
    task.polls.whole(ONE, entry(), 40, "failed CRC32C check")
    assert task.offsets(entry()) == [10]
    assert "it was intact when read" in task.told[0]


def test_what_only_the_task_cannot_read_stops_it() -> None:
    task = Task()
    stored = entry(after=16)
    with pytest.raises(BadRecord, match=r"at offset 16: failed CRC32C check.*5 times in a row"):
        for _ in range(10):
            task.polls.whole(ONE, stored, 16, "failed CRC32C check")
    assert len(task.told) == 4


@pytest.mark.parametrize(
    ("stored", "begins"),
    [
        (entry(), (10, 3)),
        (entry(epoch=-1, after=-1), (16, None)),
        pytest.param(entry(after=-1), (16, None), id="an older entry's epoch without its offset"),
        pytest.param(entry(after=20), (16, None), id="a position that was moved back"),
    ],
)
def test_reading_never_begins_after_the_position(
    stored: LedgerEntry, begins: tuple[int, int | None]
) -> None:
    found = assignment(stored)
    assert (found.offset, found.leader_epoch) == begins
