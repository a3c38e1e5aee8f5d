"""What is counted by ``max.retries``, and what is waited for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import (
    Fenced,
    GaveUp,
    LedgerConflict,
    SemelError,
    TargetChanged,
    TransientError,
    Unavailable,
)
from semel.tasks import retry
from semel.tasks.retry import LONGEST, Backoff, Retries
from semel.tasks.source import task
from semel.tasks.source.commit import EncodedBatch, SourceCommitter
from semel.tasks.source.task import SourceTask

RAW = {"name": "c", "connector.class": "postgresql", "bootstrap.servers": "b:1", "topics": "t"}


def retries(told: list[str], **keys: Any) -> Retries:
    raw = {**RAW, **{k.replace("_", "."): str(v) for k, v in keys.items()}}
    return Retries(read(ConnectorConfig, raw), told.append)


def test_what_a_batch_runs_into_is_counted() -> None:
    told: list[str] = []
    some = retries(told, max_retries=2)
    some.failed(TransientError("deadlock"))
    some.failed(TransientError("deadlock"))
    with pytest.raises(GaveUp, match=r"gave up after 2 retries \(max.retries\): deadlock"):
        some.failed(TransientError("deadlock"))
    assert told == ["deadlock; trying again (1 of 2)", "deadlock; trying again (2 of 2)"]


def test_a_success_forgets_the_failures_before_it() -> None:
    some = retries([], max_retries=1)
    for _ in range(5):
        some.failed(TransientError("deadlock"))
        some.succeeded()


def test_an_outage_is_waited_for_without_end_and_with_longer_and_longer_pauses() -> None:
    some = retries([])
    pauses = [some.failed(Unavailable("unreachable")) for _ in range(1000)]
    assert pauses[:5] == [3, 6, 12, 24, LONGEST]
    assert set(pauses[4:]) == {LONGEST}


def test_an_outage_ends_the_connector_where_max_retries_is_set() -> None:
    some = retries([], max_retries=1)
    some.failed(Unavailable("unreachable"))
    with pytest.raises(GaveUp):
        some.failed(Unavailable("unreachable"))


def test_an_outage_counts_nothing_of_what_a_batch_may_run_into() -> None:
    some = retries([])
    for _ in range(10):
        some.failed(TransientError("deadlock"))
        some.failed(Unavailable("unreachable"))
    with pytest.raises(GaveUp, match="after 10 retries"):
        some.failed(TransientError("deadlock"))


def test_an_outage_is_reported_once_a_minute_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now))
    told: list[str] = []
    some = retries(told)
    until = now + 150
    while now < until:
        now += some.failed(Unavailable("unreachable"))
    some.succeeded()
    assert len(told) == 4
    assert told[0] == "unreachable; waiting for it to recover"
    assert "unreachable; waited" in told[1]
    assert told[-1].startswith("recovered after 1")
    assert told[-1].endswith(" s: unreachable")


def test_a_pause_that_is_cut_short_ends_the_retries_without_counting_one() -> None:
    told: list[str] = []

    def fails() -> None:
        raise TransientError("deadlock")

    with pytest.raises(TransientError, match="deadlock"):
        retries(told).run(fails, lambda _seconds: True)
    assert not told


def test_an_action_runs_until_it_succeeds_and_a_changed_target_is_not_tried_again() -> None:
    failures: list[Exception] = [TransientError("deadlock"), TransientError("deadlock")]

    def action() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retries([]).run(action, lambda _seconds: False) == "done"
    failures[:] = [TransientError("never reached"), TargetChanged("another table")]
    with pytest.raises(TargetChanged):
        retries([]).run(action, lambda _seconds: False)


def test_pauses_double_up_to_a_minute_until_it_has_lasted_for_long() -> None:
    backoff = Backoff()
    assert [backoff.after(lasted=0.1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [backoff.after(lasted=61), backoff.after(lasted=0.1)] == [1, 2]


class AbortedTask(SourceTask):
    """The broker has aborted the transaction of its first step; it is stopped in its second one,
    while the ``last`` error awaits it."""

    def __init__(self, last: SemelError | None = None) -> None:
        self.steps = 0
        self._last = last
        self._line = cast(Any, SimpleNamespace(stop=threading.Event()))
        self._reporter = cast(Any, SimpleNamespace(report=lambda _kind: None))
        self._offsets = cast(Any, SimpleNamespace(owner=self._nobody_answers))
        self._retries = retries([], retry_backoff_ms=1)
        self._waiting = EncodedBatch()

    def _nobody_answers(self) -> None:
        raise Unavailable("Kafka is away")

    def _step(self) -> None:
        self.steps += 1
        if self.steps == 1:
            raise LedgerConflict("the transaction was aborted")
        self._line.stop.set()

    def _settle(self) -> None:
        if self._last is not None:
            raise self._last

    def _drop(self) -> None: ...

    def _close(self) -> None: ...


@pytest.mark.parametrize("last", [None, LedgerConflict("aborted, too"), Unavailable("away")])
def test_a_source_that_cannot_ask_who_owns_it_waits_and_ends_in_peace(
    last: SemelError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "STOP_DELAY", 0.0)
    some = AbortedTask(last)
    some.run()
    assert some.steps == 2


def test_a_source_that_another_run_has_fenced_says_so_even_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "STOP_DELAY", 0.0)
    with pytest.raises(Fenced):
        AbortedTask(Fenced("another run has taken over")).run()


class IdleTask(SourceTask):
    """Its source has no records, and cannot be read every other time."""

    def __init__(self) -> None:
        self.reads = 0
        self._pause = 0.0
        self._readers = None
        self._waiting = EncodedBatch()
        stop, paused = threading.Event(), threading.Event()
        self._line = cast(Any, SimpleNamespace(stop=stop, paused=paused))
        self._reporter = cast(
            Any, SimpleNamespace(caught_up=lambda _: None, report_in_time=lambda: None)
        )
        self._garbage = cast(Any, SimpleNamespace(collect=lambda: None))
        self._retries = retries([], max_retries=1, retry_backoff_ms=1)

    def _begin(self) -> Any: ...

    def _read(self, _readers: object) -> bool:
        self.reads += 1
        if self.reads % 2:
            raise TransientError("deadlock")
        return False

    def _settle(self) -> None: ...


def test_failures_of_an_idle_source_do_not_add_up() -> None:
    some = IdleTask()
    for _ in range(3):
        with pytest.raises(TransientError) as error:
            some._step()
        some._retries.failed(error.value)
        some._step()
    assert some.reads == 6


class NarrowTopicTask(IdleTask):
    """Its first record is for a topic that takes small batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.dropped = 0
        self._topics = cast(Any, SimpleNamespace(largest=None, ensure=self._narrow))
        transactions = SimpleNamespace(is_open=True, limit=self._close_producer)
        self._committer = SourceCommitter.__new__(SourceCommitter)
        self._committer._exactly_once = True
        self._committer._transactions = cast(Any, transactions)
        self._batch_limit = None

    def _narrow(self, _topic: str) -> None:
        cast(Any, self._topics).largest = 1000

    def _close_producer(self, _batch: int) -> None:
        cast(Any, self._committer._transactions).is_open = False

    def _begin(self) -> Any:
        self.begun += 1
        cast(Any, self._committer._transactions).is_open = True

    def _read(self, _readers: object) -> bool:
        self._ensure("narrow")
        return False

    def _drop(self) -> None:
        self.dropped += 1


def test_a_source_whose_producer_must_be_another_begins_again_before_it_commits() -> None:
    """Between the two producers, a task that has taken its place may have written the records."""
    some = NarrowTopicTask()
    some._attempt()
    assert (some.begun, some.dropped) == (1, 1)
    some._attempt()
    assert (some.begun, some.dropped) == (2, 1)


def test_a_limit_that_a_failed_commit_kept_from_the_producer_is_set_later() -> None:
    class FailedCommit(NarrowTopicTask):
        def _settle(self) -> None:
            if not self.begun:
                self.begun = 1
                raise TransientError("the outcome is unknown")

    some = FailedCommit()
    with pytest.raises(TransientError):
        some._ensure("narrow")
    with pytest.raises(task._ProducerGone):
        some._ensure("narrow")
