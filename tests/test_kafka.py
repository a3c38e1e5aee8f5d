"""Questions to a Kafka cluster, answered in ways that a broker can hardly be brought to."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from semel.errors import TransientError
from semel.kafka import Cluster
from semel.ledger import TopicPartition

ZERO = TopicPartition("t", 0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a new client says of the end of a partition, once each; the last one again and again."""
    offsets: list[int] = []

    def answer(_client: AdminClient, request: dict[Any, Any], **_keys: Any) -> dict[Any, Any]:
        offset = offsets.pop(0) if len(offsets) > 1 else offsets[0]
        found: dict[Any, Future[ListOffsetsResultInfo]] = {place: Future() for place in request}
        for future in found.values():
            future.set_result(ListOffsetsResultInfo(offset, -1, -1))
        return found

    monkeypatch.setattr(AdminClient, "list_offsets", answer)
    return offsets


def test_an_end_that_is_none_during_an_election_is_asked_for_again(answers: list[int]) -> None:
    answers += [-1, -1001, 7]
    assert Cluster({"bootstrap.servers": "localhost:1"}).latest([ZERO]) == {ZERO: 7}
    assert answers == [7]


def test_an_end_that_stays_unknown_is_no_answer(answers: list[int]) -> None:
    answers += [-1]
    with pytest.raises(TransientError):
        Cluster({"bootstrap.servers": "localhost:1"}).latest([ZERO], patience=0.2)
