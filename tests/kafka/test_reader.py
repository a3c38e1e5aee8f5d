"""Reading ranges from a Kafka that is silent, or in a process that was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import TransientError
from semel.core.ledger import TopicPartition
from semel.kafka import reader

ZERO = TopicPartition("t", 0)
CONNECTOR = read(
    ConnectorConfig,
    {
        "name": "c",
        "connector.class": "postgresql",
        "topics": "t",
        "bootstrap.servers": "none:9092",
    },
)


class Record(SimpleNamespace):
    def __len__(self) -> int:
        return 1


class Silent:
    """A consumer whose polls take ``polls`` seconds each, and find a record in the end."""

    polls: list[float]
    now: float

    def __init__(self, _config: object, **_more: object) -> None: ...

    def consume(self, _most: int, _timeout: float) -> list[Any]:
        if not self.polls:
            parts = {"topic": "t", "partition": 0, "offset": 0, "error": None}
            return [Record(**{k: lambda v=v: v for k, v in parts.items()})]
        Silent.now += self.polls.pop(0)
        return []

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: None


def _records(polls: list[float], monkeypatch: pytest.MonkeyPatch) -> int:
    Silent.polls, Silent.now = polls, 0.0
    monkeypatch.setattr(reader, "Consumer", Silent)
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: Silent.now))
    found = reader.read_ranges(CONNECTOR, {ZERO: 0}, {ZERO: 1}, client={})
    return sum(map(len, found))


def test_a_reader_that_was_frozen_listens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _records([600.0, 0.1], monkeypatch) == 1


def test_a_silence_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransientError, match="sent nothing for 30 s; t-0 could not be read"):
        _records([0.1] * 1000, monkeypatch)
