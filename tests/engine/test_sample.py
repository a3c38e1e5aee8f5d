"""Samples of topics: in order, some at once, no more in memory than that."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from semel.core.errors import OffsetOutOfRange
from semel.driver import sample
from tests.patience import PATIENCE


def test_many_topics_are_sampled_at_once_and_given_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(4)
    held: set[str] = set()
    most = 0

    def read(_connector: Any, _cluster: Any, topic: str, *_more: Any) -> Any:
        nonlocal most
        held.add(topic)
        most = max(most, len(held))
        together.wait(PATIENCE)
        return None if topic == "t05" else topic.upper()

    monkeypatch.setattr(sample, "_AT_ONCE", 4)
    monkeypatch.setattr(sample, "_sample", read)
    topics = [f"t{n:02}" for n in range(16)]
    found = []
    nothing: Any = None
    for topic, table in sample._samples(nothing, nothing, topics, {}):
        found.append((topic, table))
        held.discard(topic)
        held.discard("t05")
    assert found == [(t, t.upper()) for t in topics if t != "t05"]
    assert most <= 5


def test_what_fails_for_one_topic_ends_the_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_connector: Any, _cluster: Any, topic: str, *_more: Any) -> Any:
        if topic == "b":
            raise OffsetOutOfRange("b no longer has the records")
        return topic

    monkeypatch.setattr(sample, "_sample", read)
    nothing: Any = None
    with pytest.raises(OffsetOutOfRange, match="b no longer"):
        list(sample._samples(nothing, nothing, ["a", "b", "c"], {}))
