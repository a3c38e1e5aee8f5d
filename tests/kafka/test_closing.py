"""A consumer that does not close is left behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core import abandoned
from semel.core.ledger import TopicPartition
from semel.kafka import consumer, damage


def test_a_consumer_that_does_not_close_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(consumer, "_END", 0.05)
    damaged: Any = SimpleNamespace(
        assign=lambda _partitions: None,
        poll=lambda _seconds: SimpleNamespace(topic=lambda: "t"),
        close=over.wait,
    )
    monkeypatch.setattr(damage, "Consumer", lambda _config, **_more: damaged)
    try:
        assert damage._first("c", {}, TopicPartition("t", 0), 5).topic() == "t"
        assert "closing a Kafka consumer" in abandoned.abandoned()
    finally:
        over.set()
