"""What is believed of a record batch that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.errors import BadRecord, TransientError
from semel.core.ledger import OffsetRange, TopicPartition
from semel.kafka import damage
from semel.kafka.answers import UNREADABLE
from semel.kafka.consumer import without_events
from semel.kafka.damage import end_of

ZERO = TopicPartition("t", 0)


class Event:
    """A record, or the error of a consumer."""

    def __init__(self, offset: int, code: int | None = None, partition: int = 0) -> None:
        self._offset, self._code, self._partition = offset, code, partition

    def error(self) -> Event | None:
        return None if self._code is None else self

    def code(self) -> int | None:
        return self._code

    def str(self) -> str:
        return "failed CRC32C check"

    def topic(self) -> str:
        return ZERO.topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


@pytest.mark.parametrize("last", [40, 41, 42, 47, 55, 103, 40_000])
def test_the_end_of_a_damaged_batch_is_found_by_asking_for_offsets(last: int) -> None:
    asked: list[int] = []

    def is_inside(offset: int) -> bool:
        asked.append(offset)
        return offset <= last

    assert end_of(40, is_inside) == last + 1
    assert len(asked) < 40


def test_nothing_is_believed_of_a_partition_after_a_batch_that_cannot_be_read() -> None:
    bad, unsupported, seek_again = UNREADABLE[0], UNREADABLE[2], -140
    poll = [
        Event(39),
        Event(40, bad),
        Event(7_311_721_685_388_894_768, unsupported),  # librdkafka's next offset: any number
        Event(70),
        Event(0, partition=1),
        Event(7_311_721_685_388_894_769, seek_again),
    ]
    events = without_events(poll, print)  # type: ignore[arg-type]
    assert [(m.partition(), m.offset()) for m in events.records] == [(0, 39), (1, 0)]
    assert events.unreadable == {ZERO: "failed CRC32C check"}


def damaged(offset: int) -> Event:
    return Event(offset, UNREADABLE[0])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Event]], None]:
    """What a partition answers to a read at an offset."""

    def give(answer: Callable[[int], Event]) -> None:
        def first(*arguments: Any) -> Event:
            return answer(arguments[-1])

        monkeypatch.setattr(damage, "_first", first)
        monkeypatch.setattr(damage, "_PAUSE", 0.0)

    return give


def examined(position: int) -> damage.Damage | None:
    return damage.examine("c", {"group.id": "g"}, ZERO, position)


@pytest.mark.parametrize(("position", "base"), [(30, 40), (40, 40), (45, 40), (40, 20), (40, 0)])
def test_a_batch_is_damaged_up_to_its_last_offset(
    answers: Callable[[Callable[[int], Event]], None], position: int, base: int
) -> None:
    """Whatever its first offset is: nothing before the position is read again."""
    answers(lambda at: damaged(base) if 30 <= at < 50 else Event(at))
    found = examined(position)
    assert found is not None
    assert found.range == OffsetRange("t", 0, max(position, base), 50)
    assert found.is_bounded


def test_a_batch_that_can_be_read_again_is_not_damaged(
    answers: Callable[[Callable[[int], Event]], None],
) -> None:
    answers(Event)
    assert examined(40) is None


@pytest.mark.parametrize("base", [-7, 100, 7_311_721_685_388_894_768])
def test_a_first_offset_that_is_damaged_itself_is_not_believed(
    answers: Callable[[Callable[[int], Event]], None], base: int
) -> None:
    """No checksum covers it. A range that ends before it would be taken for read."""
    answers(lambda at: damaged(base) if 40 <= at < 50 else Event(at))
    found = examined(40)
    assert found is not None
    assert (found.range.from_offset, found.is_bounded) == (40, False)
    connector: Any = SimpleNamespace(name="c", errors_tolerance="all")
    with pytest.raises(BadRecord, match=r"t-0 cannot be read at offset 40.* is not known"):
        found.check_tolerated(connector, 40)


def test_offsets_that_kafka_does_not_show_yet_do_not_count_as_damaged(
    answers: Callable[[Callable[[int], Event]], None],
) -> None:
    """After the start of an open transaction."""

    def answer(at: int) -> Event:
        if at >= 50:
            raise TransientError("nothing came")
        return damaged(40)

    answers(answer)
    found = examined(40)
    assert found is not None
    assert found.range == OffsetRange("t", 0, 40, 50)
