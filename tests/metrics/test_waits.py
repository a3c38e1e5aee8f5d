"""What a running connector waits for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from semel.driver.base import State, Wait, WaitKind
from semel.worker.observed import Answers, Lags, ObservedConnector, waits
from tests.metrics.test_collector import SINK, SOURCE, TP, observed

BEFORE = time.time() - 60


class Kafka(Lags):
    """Answers that there are this many records left to read, or fails."""

    def __init__(self, left: int | None) -> None:
        super().__init__()
        self._left = left

    _ask = Answers._ask

    def _answer(self, each: ObservedConnector) -> Mapping[Any, int]:
        if self._left is None:
            raise RuntimeError("no broker answers")
        return {TP: self._left}


def running(config: Mapping[str, str] = SINK, **changes: Any) -> ObservedConnector:
    return replace(observed(config), tasks={1: State.RUNNING}, moved=BEFORE, **changes)


def awaited(each: ObservedConnector, left: int | None = 0) -> Wait | None:
    lags = Kafka(left)
    lags.of([each])
    return waits([each], lags).get(each.name)


def test_a_sink_that_has_read_everything_waits_for_records_since_the_last_one() -> None:
    found = awaited(running())
    assert found is not None
    assert (found.on, found.since) == (WaitKind.RECORDS, BEFORE)


def test_a_sink_with_something_to_read_waits_for_nothing() -> None:
    assert awaited(running(), left=1) is None


def test_a_sink_waits_for_a_kafka_that_does_not_answer() -> None:
    found = awaited(running(), left=None)
    assert found is not None
    assert (found.on, found.why) == (WaitKind.SERVICE, "no broker answers")


def test_a_sink_whose_records_move_waits_for_nothing_although_its_lag_is_unknown() -> None:
    each, lags = running(), Kafka(None)
    lags.of([each])
    trouble = lags.trouble(each.name)
    assert trouble is not None
    assert waits([replace(each, moved=trouble.since + 1)], lags) == {}


def test_a_source_waits_once_all_of_its_tasks_have_caught_up() -> None:
    source = running(SOURCE)
    assert awaited(source) is None
    report = replace(source.progress.tasks[1], caught_up=True)
    caught_up = replace(source, progress=replace(source.progress, tasks={1: report}))
    found = awaited(caught_up)
    assert found is not None
    assert found.on is WaitKind.RECORDS
    assert awaited(replace(caught_up, tasks={0: State.RUNNING, 1: State.RUNNING})) is None


def test_what_has_held_up_a_task_for_longest_comes_first() -> None:
    old, new = (Wait(WaitKind.SERVICE, str(since), since) for since in (1.0, 2.0))
    assert awaited(running(waiting=[new, old])) == old


@pytest.mark.parametrize("state", [State.PAUSED, State.STOPPED, State.FAILED])
def test_only_a_running_connector_waits(state: State) -> None:
    held_up = Wait(WaitKind.TOPIC, "there is none", 1.0)
    assert awaited(running(state=state, waiting=[held_up])) is None
