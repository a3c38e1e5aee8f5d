"""What a worker process keeps between jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from semel.engine.workers import Workers


@dataclass
class Spec:
    run: str
    environment: dict[str, str] = field(default_factory=dict)


class Worker:
    def __init__(self, *, fails: bool = False) -> None:
        self.heard: list[str] = []
        self.closed = False
        self._fails = fails

    def renew(self, spec: Spec) -> None:
        if self._fails:
            raise ValueError(spec.run)
        self.heard.append(spec.run)

    def close(self) -> None:
        self.closed = True


def test_a_run_keeps_its_worker_and_tells_it_each_time() -> None:
    workers: Workers[Worker] = Workers()
    first = workers.of(Spec("a"), Worker)
    assert workers.of(Spec("a"), Worker) is first
    assert first.heard == ["a", "a"]


def test_the_run_that_waited_longest_is_closed_first() -> None:
    workers: Workers[Worker] = Workers()
    made = [workers.of(Spec(run), Worker) for run in "abcd"]
    workers.of(Spec("a"), Worker)
    workers.of(Spec("e"), Worker)
    assert [worker.closed for worker in made] == [False, True, False, False]


def test_a_worker_that_cannot_take_a_newer_spec_is_not_kept() -> None:
    workers: Workers[Worker] = Workers()
    with pytest.raises(ValueError, match="a"):
        workers.of(Spec("a"), lambda: Worker(fails=True))
    assert workers.of(Spec("a"), Worker).heard == ["a"]
