"""What a worker process keeps between jobs."""

from __future__ import annotations

import pytest

from semel.config import ConnectorConfig, read
from semel.engine.workers import Spec, Workers


def spec(run: str) -> Spec:
    raw = {
        "name": "c",
        "connector.class": "delta",
        "topics": "t",
        "bootstrap.servers": "localhost:1",
    }
    return Spec(run=run, connector=read(ConnectorConfig, raw), environment={})


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
    first = workers.of(spec("a"), Worker)
    assert workers.of(spec("a"), Worker) is first
    assert first.heard == ["a", "a"]


def test_the_run_that_waited_longest_is_closed_first() -> None:
    workers: Workers[Worker] = Workers()
    made = [workers.of(spec(run), Worker) for run in "abcd"]
    workers.of(spec("a"), Worker)
    workers.of(spec("e"), Worker)
    assert [worker.closed for worker in made] == [False, True, False, False]


def test_a_worker_that_cannot_take_a_newer_spec_is_not_kept() -> None:
    workers: Workers[Worker] = Workers()
    with pytest.raises(ValueError, match="a"):
        workers.of(spec("a"), lambda: Worker(fails=True))
    assert workers.of(spec("a"), Worker).heard == ["a"]
