"""What the benchmark of workers does with a system that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import worker
from benchmarks.report import megabytes


def test_a_side_that_fails_with_many_connectors_leaves_the_other_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(worker, "_many", fail)
    said: list[str] = []
    rig: Any = SimpleNamespace(say=said.append)
    system: Any = SimpleNamespace(name="Kafka Connect")
    found = worker._many_or_why_not(rig, system, "t", 50, 100)
    assert found["error"] == "out of memory"
    assert said == ["worker: Kafka Connect: out of memory"]
    show = worker._unless_failed(megabytes)
    assert (show(found["pss"]), show(2.0**20)) == ("failed", "1")


def test_a_connector_that_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_rows", lambda *_arguments: 0)
    failed = {"connector": {"state": "RUNNING"}, "tasks": [{"state": "FAILED", "trace": "because"}]}
    system: Any = SimpleNamespace(name="semel", ask=lambda *_arguments: failed)
    rig: Any = None
    with pytest.raises(RuntimeError, match="many_1 has failed: because"):
        worker._caught_up(rig, system, "many_1")
