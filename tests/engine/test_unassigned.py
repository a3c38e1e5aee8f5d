"""When a task looks for partitions that its group has assigned to nobody."""

from __future__ import annotations

import gc
import weakref

import pytest

from semel.core.errors import ServiceError
from semel.core.ledger import TopicPartition
from semel.tasks.direct import membership
from semel.tasks.direct.membership import UnassignedPartitions
from tests.engine.harness import wait_until

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(membership, "time", clock)
    return clock


def look(looking: UnassignedPartitions) -> set[TopicPartition]:
    """Start a look, if one is due, and take its answer."""
    assert looking.look(["t"]) == set()
    begun = looking._looking
    if begun is None:
        return set()
    wait_until(lambda: begun.ended(0))
    return set(looking.look(["t"]))


def test_it_looks_at_ever_longer_intervals_while_partitions_are_unassigned(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = frozenset[TopicPartition]()
    answers = [None, frozenset({ONE, TWO}), frozenset({ONE}), nothing, frozenset({TWO}), None]
    monkeypatch.setattr(UnassignedPartitions, "_ask", lambda _self, _topics: answers.pop(0))
    looking = UnassignedPartitions({}, "group")
    looking.assigned(new_member=True)
    found = {}
    for second in range(1500):
        clock.now = float(second)
        left = len(answers)
        answer = look(looking)
        if len(answers) < left:
            found[second] = answer
    assert found == {1: set(), 3: {ONE, TWO}, 7: {ONE}, 15: set(), 615: {TWO}, 1215: set()}


def test_a_look_that_fails_leaves_no_client_behind(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks collect no garbage while they are idle."""
    made: list[weakref.ref[object]] = []

    class Refusing:
        def __init__(self, _admin: object) -> None:
            made.append(weakref.ref(self))

        def topics(self) -> None:
            raise ServiceError("no")

    monkeypatch.setattr(membership, "Cluster", Refusing)
    monkeypatch.setattr(membership.log, "disabled", True)  # pytest keeps what is logged
    looking = UnassignedPartitions({}, "group")
    looking.assigned(new_member=True)
    gc.disable()
    try:
        for _ in range(3):
            clock.now += 1000
            assert look(looking) == set()
        assert [ref() for ref in made] == [None] * 3
    finally:
        gc.enable()
