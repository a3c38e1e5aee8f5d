"""Memory that a task returns when it has nothing to do."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from semel.tasks import memory

Clock = tuple[list[float], list[float]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The present time, which a test sets, and the times at which memory was given back."""
    now, given = [100.0], list[float]()
    monkeypatch.setattr(memory, "give_back", lambda: given.append(now[0]))
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now, given


@pytest.mark.long
def test_an_idle_task_gives_memory_back_but_not_after_each_small_commit(clock: Clock) -> None:
    now, given = clock
    garbage = memory.Garbage()
    garbage.collect()
    assert given == []  # nothing was committed
    for second in (100.0, 101.0, 109.0, 111.0, 112.0):
        now[0] = second
        garbage.note(1000)
        garbage.collect()
    assert given == [100.0, 111.0]
    gc.unfreeze()  # it is this process's garbage


@pytest.mark.long
def test_a_task_in_full_flow_gives_memory_back_now_and_then(clock: Clock) -> None:
    now, given = clock
    garbage = memory.Garbage(every=1.0)
    for second in (100.0, 100.4, 100.9, 101.2, 101.3):
        now[0] = second
        garbage.note(memory.LARGE + 1)
    assert given == [100.0, 101.2]
    garbage.collect()  # nothing waits any more
    assert given == [100.0, 101.2, 101.3]
    gc.unfreeze()
