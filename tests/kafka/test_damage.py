"""What is believed of a record batch that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import BadRecord
from semel.kafka import damage
from semel.kafka.errors import UNREADABLE
from semel.ledger import OffsetRange, TopicPartition

ZERO = TopicPartition("t", 0)


class Event:
    """A record, or the error of a consumer."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._code = offset, code

    def error(self) -> Event | None:
        return None if self._code is None else self

    def code(self) -> int | None:
        return self._code

    def str(self) -> str:
        return "failed CRC32C check"

    def offset(self) -> int:
        return self._offset


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


@pytest.mark.parametrize("position", [30, 40, 45])
def test_a_batch_is_damaged_from_its_first_to_its_last_offset(
    answers: Callable[[Callable[[int], Event]], None], position: int
) -> None:
    answers(lambda at: damaged(40) if at < 50 else Event(at))
    found = examined(position)
    assert found is not None
    assert found.range == OffsetRange("t", 0, 40, 50)


def test_a_batch_that_can_be_read_again_is_not_damaged(
    answers: Callable[[Callable[[int], Event]], None],
) -> None:
    answers(Event)
    assert examined(40) is None


@pytest.mark.parametrize("base", [-7, 0, 20, 100, 7_311_721_685_388_894_768])
def test_a_first_offset_that_is_damaged_itself_is_not_believed(
    answers: Callable[[Callable[[int], Event]], None], base: int
) -> None:
    """No checksum covers it. A range that ends before it would be taken for read."""
    answers(lambda at: damaged(base) if 40 <= at < 50 else Event(at))
    with pytest.raises(BadRecord, match=r"t-0 cannot be read at offset 40.* is not known"):
        examined(40)


def test_damage_before_the_position_is_not_believed(
    answers: Callable[[Callable[[int], Event]], None],
) -> None:
    answers(lambda at: damaged(10) if at < 20 or at == 40 else Event(at))
    with pytest.raises(BadRecord, match="t-0 cannot be read at offset 40"):
        examined(40)
