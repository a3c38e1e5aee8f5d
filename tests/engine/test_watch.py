"""Records that come after a pause wait until Kafka has said which log they are of."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from semel.engine import watch
from semel.engine.watch import LogWatch
from semel.errors import Unavailable
from semel.ledger import LedgerEntry, LogId

BEFORE, NOW = LogId("cluster", "before"), LogId("cluster", "now")


class Kafka:
    """Answers with a log, with an error, or never."""

    def __init__(self, answer: LogId | KafkaException | None) -> None:
        self._answer = answer
        self.questions = 0

    def ask_logs(self, _topics: Any) -> Kafka:
        self.questions += 1
        return self

    def done(self, _patience: float) -> bool:
        return self._answer is not None

    def answer(self) -> dict[str, LogId]:
        assert self._answer is not None
        if isinstance(self._answer, KafkaException):
            raise self._answer
        return {"orders": self._answer}


def watching(kafka: Kafka) -> LogWatch:
    found = LogWatch(cast(Any, kafka))
    found.expect([LedgerEntry("orders", 0, 5, 0, **BEFORE._asdict())])
    return found


def after_a_pause(found: LogWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(watch.time, "monotonic", lambda: now + 1)
    found.hear(["orders"])


@pytest.mark.parametrize(("log", "changed"), [(BEFORE, False), (NOW, True)])
def test_records_after_a_pause_may_be_of_another_topic(
    log: LogId, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = Kafka(log)
    found = watching(kafka)
    after_a_pause(found, monkeypatch)
    assert found.changed() is changed
    assert kafka.questions == 1


def test_records_that_keep_coming_are_not_asked_about() -> None:
    kafka = Kafka(NOW)
    found = watching(kafka)
    found.hear(["orders"])
    assert not found.changed()
    assert kafka.questions == 0


@pytest.mark.parametrize("answer", [None, KafkaException(KafkaError(KafkaError._TRANSPORT))])
def test_without_an_answer_records_are_not_committed_but_read_again(
    answer: KafkaException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watching(Kafka(answer))
    after_a_pause(found, monkeypatch)
    with pytest.raises(Unavailable):
        found.changed()
