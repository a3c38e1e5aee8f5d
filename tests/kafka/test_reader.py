"""Reading ranges from a Kafka that is silent, or in a process that was."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

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


def _message(error: int | None = None) -> Record:
    parts: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 0, "key": None}
    parts["error"] = None if error is None else KafkaError(error)
    return Record(**{k: lambda v=v: v for k, v in parts.items()})


class Silent:
    """A consumer whose polls take ``polls`` seconds each, and find a record in the end. The first
    one finds ``first``."""

    polls: list[float]
    now: float
    first: list[Record]

    def __init__(self, _config: object, **_more: object) -> None: ...

    def consume(self, _most: int, _timeout: float) -> list[Any]:
        if not self.polls:
            return [_message()]
        Silent.now += self.polls.pop(0)
        first, Silent.first = Silent.first, []
        return first

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: None


def _records(
    polls: list[float], monkeypatch: pytest.MonkeyPatch, first: Sequence[Record] = ()
) -> int:
    Silent.polls, Silent.now, Silent.first = polls, 0.0, [*first]
    monkeypatch.setattr(reader, "Consumer", Silent)
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: Silent.now))
    found = reader.read_ranges(CONNECTOR, {ZERO: 0}, {ZERO: 1}, client={})
    return sum(map(len, found))


def test_a_reader_that_was_frozen_listens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _records([600.0, 0.1], monkeypatch) == 1


def test_a_silence_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransientError, match="sent nothing for 30 s; t-0 could not be read"):
        _records([0.1] * 1000, monkeypatch)


def test_an_end_before_the_end_of_the_range_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has not heard yet that all replicas have the record."""
    assert _records([0.1, 0.1], monkeypatch, [_message(KafkaError._PARTITION_EOF)]) == 1
