"""Which fences end a run."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState

from semel.config import ConnectorConfig, read
from semel.core.errors import Displaced, Fenced, SemelError, ServiceError, Unavailable
from semel.tasks.direct import membership as module
from semel.tasks.direct.membership import StaticMembership

LOST, DECIDES = "its session had just expired", "the place of task 0 decides between two runs"
NOBODY = "nobody else has taken its place"
LATE = "an earlier request of its own to join may have been answered late"
MOVES = Unavailable("the coordinator moves")
FORBIDDEN = ServiceError("not authorized")
Answer = str | SemelError
"""Who has the place, as the group's coordinator answers."""


class Clock:
    """Time that passes only while the task waits. The driver says stop at ``stops_at``."""

    def __init__(self, stops_at: float = float("inf")) -> None:
        self.passed = 0.0
        self._stops_at = stops_at

    def monotonic(self) -> float:
        return 1000.0 + self.passed

    def wait(self, seconds: float) -> bool:
        self.passed += seconds
        return self.passed >= self._stops_at


def place(
    clock: Clock, answers: Iterable[Answer], monkeypatch: pytest.MonkeyPatch, *, task: int = 0
) -> StaticMembership:
    """A place whose session takes 10 s. Kafka repeats its last answer."""
    left = list(answers)

    def describe(_group: str) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, SemelError):
            raise answer
        who, _, rebalances = answer.partition(" ")
        members = [SimpleNamespace(group_instance_id=f"g-{task}", member_id=who)]
        members.append(SimpleNamespace(group_instance_id="g-7", member_id="a sibling"))
        state = (
            ConsumerGroupState.PREPARING_REBALANCING if rebalances else ConsumerGroupState.STABLE
        )
        return SimpleNamespace(members=members[who == "nobody" :], state=state)

    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "Groups", lambda _config: SimpleNamespace(describe=describe))
    connector = read(
        ConnectorConfig,
        {"name": "c", "connector.class": "postgresql", "topics": "t", "bootstrap.servers": "b:1"},
    )
    consumer = {"group.instance.id": f"g-{task}", "session.timeout.ms": 10_000}
    made = StaticMembership(connector, task, consumer, lambda _line: None, clock.wait)
    made.note_id("me")
    return made


@pytest.mark.parametrize(
    ("answers", "task", "reason", "waits"),
    [
        (["another"], 0, None, 0.0),
        (["another rebalances"], 0, None, 0.0),
        (["another"], 1, DECIDES, 40.0),
        (["another", "nobody"], 1, NOBODY, 0.5),
        (["nobody"], 0, NOBODY, 0.0),
        (["me"], 0, NOBODY, 0.0),
        ([MOVES, MOVES, "another"], 0, None, 1.0),
        ([FORBIDDEN], 0, None, 0.0),
    ],
)
def test_another_member_in_its_place_ends_the_run_of_task_0(
    answers: list[Answer],
    task: int,
    reason: str | None,
    waits: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run may hold the place of one task of the other: exactly one of them must end."""
    clock = Clock()
    there = place(clock, answers, monkeypatch, task=task)
    assert there.false_fence_reason(Displaced("fenced")) == reason
    assert clock.passed == waits


@pytest.mark.parametrize(
    ("answers", "task", "ends", "waits"),
    [
        pytest.param(["another"], 0, True, 20.0, id="another run"),
        pytest.param(["another"], 1, True, 40.0, id="another run, beside task 0"),
        pytest.param(["nobody"], 0, False, 0.0, id="nobody"),
        pytest.param([*["another"] * 3, "nobody"], 0, False, 1.5, id="its own, and it expires"),
        pytest.param(["another", "a-third"], 0, True, 20.5, id="two in turn"),
        pytest.param([*["another rebalances"] * 9, "another"], 0, True, 24.0, id="a rebalance"),
        pytest.param(["another", MOVES, "another"], 0, True, 21.0, id="no answer meanwhile"),
        pytest.param([MOVES, MOVES, "nobody"], 0, False, 1.0, id="no answer before"),
        pytest.param([FORBIDDEN], 0, False, 0.0, id="never an answer"),
    ],
)
@pytest.mark.parametrize(
    ("fence", "own"),
    [(Displaced("fenced"), LOST), (Fenced("conflicts"), LOST), (Displaced("fenced"), LATE)],
)
def test_a_member_that_may_be_the_tasks_own_must_stay_to_count_as_another_run(
    answers: list[Answer],
    task: int,
    ends: bool,
    waits: float,
    fence: Fenced,
    own: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task may have asked for it without hearing the answer."""
    clock = Clock()
    there = place(clock, answers, monkeypatch, task=task)
    if own == LOST:
        there.note_loss()
    else:
        there.note_rejoin()
        there.note_assignment("me, too")
    assert there.false_fence_reason(fence) == (own if not ends else DECIDES if task else None)
    assert clock.passed == waits


@pytest.mark.parametrize("answer", ["another", MOVES])
def test_a_task_that_is_told_to_stop_waits_no_longer(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(stops_at=2.0)
    there = place(clock, [answer], monkeypatch)
    there.note_loss()
    assert there.false_fence_reason(Displaced("fenced")) == LOST
    assert clock.passed == 2.0


def test_later_fences_have_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    there = place(clock, ["another"], monkeypatch)
    there.note_rejoin()
    there.note_loss()
    there.note_assignment("me")
    clock.passed = 31.0
    assert there.false_fence_reason(Fenced("conflicts")) is None
    assert there.false_fence_reason(Displaced("fenced")) is None
    assert clock.passed == 31.0


def test_a_late_join_does_not_excuse_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    there = place(Clock(), ["nobody"], monkeypatch)
    there.note_rejoin()
    assert there.false_fence_reason(Fenced("conflicts")) is None
