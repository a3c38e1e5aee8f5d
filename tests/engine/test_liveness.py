"""Whether a consumer that reads nothing has been forgotten, or has nothing to read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from semel.core.ledger import TopicPartition
from semel.tasks.direct import subscription as module
from semel.tasks.direct.subscription import Liveness

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("then", "ends", "now", "still"),
    [
        ({A: 5, B: 5}, {A: 9, B: 5}, {A: 5, B: 5}, [A]),
        ({A: 5, B: 5}, {A: 9, B: 9}, {A: 5, B: 5}, [A, B]),
        ({A: 5, B: 5}, {A: 9, B: 9}, {A: 5, B: 9}, [A]),
        ({A: 5, B: 5}, {A: 9, B: 9}, {A: 5, B: 7}, []),  # it still has to read elsewhere
        ({A: 5, B: 5}, {A: 9, B: 5}, {A: 9, B: 5}, []),
        ({A: 5, B: 5}, {A: 9, B: 5}, {B: 5}, []),  # no longer its own
        ({A: 5, B: 5}, {A: 5, B: 5}, {A: 5, B: 5}, []),
    ],
)
def test_partitions_stand_still_if_records_wait_there_and_nowhere_else(
    then: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    now: dict[TopicPartition, int],
    still: list[TopicPartition],
) -> None:
    liveness = Liveness(45.0)
    assert liveness.standing_still(then, ends) == []  # nothing to compare with yet
    assert liveness.standing_still(now, {A: 20, B: 20}) == still


def test_a_look_is_forgotten_after_a_change() -> None:
    liveness = Liveness(45.0)
    for change in (liveness.restart, liveness.forget_positions):
        liveness.standing_still({A: 5}, {A: 9})
        change()
        assert liveness.standing_still({A: 5}, {A: 9}) == []


def test_each_successor_gets_more_time_until_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock))
    liveness = Liveness(10.0)
    clock = 30.0
    assert liveness.is_doubtful
    liveness.replaced()
    assert not liveness.is_doubtful
    clock = 60.0
    assert liveness.is_doubtful
    liveness.standing_still({A: 5}, {A: 9})
    liveness.standing_still({A: 9}, {A: 9})
    liveness.note_answer()
    clock = 90.0
    assert liveness.is_doubtful
