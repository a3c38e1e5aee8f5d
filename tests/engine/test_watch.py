"""Records are committed only once Kafka has said that they are still of the ledger's topic."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from semel.core.errors import ServiceError, Unavailable
from semel.core.ledger import LedgerEntry, LogId
from semel.tasks.direct import watch
from semel.tasks.direct.watch import LogWatch, Recreated

BEFORE, NOW = LogId("cluster", "before"), LogId("cluster", "now")
FAILED = KafkaException(KafkaError(KafkaError._TRANSPORT))


class Kafka:
    """Answers with a log each, with errors, or never."""

    def __init__(self, *answers: LogId | KafkaException | None) -> None:
        self.answers = list(answers)
        self.asked: list[set[str]] = []
        self.clients, self.parted = 1, 0
        self.config = {"bootstrap.servers": "b:1"}

    def ask_topics(self, topics: Any) -> Answer:
        self.asked.append(set(topics))
        return Answer(self.answers.pop(0), topics)

    ask_logs = ask_topics

    def reconnect(self) -> None:
        self.clients += 1

    def disconnect(self) -> None:
        self.parted += 1


def of(*ids: str) -> Callable[[str], LogId]:
    return lambda _topic: LogId("", *ids)


class Answer:
    def __init__(self, answer: LogId | KafkaException | None, topics: Any) -> None:
        self._answer, self._topics = answer, topics

    def done(self, _patience: float = 0) -> bool:
        return self._answer is not None

    def answer(self) -> dict[str, LogId]:
        if isinstance(self._answer, KafkaException):
            raise self._answer
        assert self._answer is not None
        return {t: self._answer for t in self._topics if any(self._answer)}


def watching(kafka: Kafka, log: LogId = BEFORE) -> LogWatch:
    found = LogWatch(cast(Any, kafka))
    topics = ("orders", "stock")
    found.expect([LedgerEntry(topic, 0, 5, 0, **log._asdict()) for topic in topics])
    return found


def test_records_wait_for_an_answer_to_a_question_put_after_they_came() -> None:
    kafka = Kafka(BEFORE, NOW)
    found = watching(kafka)
    found.check(["orders"], of()).confirm()
    check = found.check(["orders"], of())
    assert kafka.asked == [{"orders"}, {"orders"}]
    with pytest.raises(Recreated, match="topic orders was created again"):
        check.confirm()


def test_what_the_consumer_fetches_counts_whatever_a_broker_answers() -> None:
    kafka = Kafka(BEFORE)
    found = watching(kafka)
    found.check(["orders"], of("before")).confirm()
    with pytest.raises(Recreated, match="the topic orders in Kafka is not the one"):
        found.check(["orders"], of("now"))


def test_what_was_confirmed_is_not_asked_again_when_its_commit_is_tried_again() -> None:
    kafka = Kafka(BEFORE)
    check = watching(kafka).check(["orders"], of())
    check.confirm()
    check.confirm()
    assert len(kafka.asked) == 1


@pytest.mark.parametrize("answer", [None, FAILED])
def test_without_an_answer_records_are_not_committed_and_a_new_client_asks_again(
    answer: KafkaException | None,
) -> None:
    kafka = Kafka(answer, BEFORE)
    check = watching(kafka).check(["orders"], of())
    with pytest.raises(Unavailable):
        check.confirm()
    assert kafka.clients == 2
    check.confirm()


def test_a_refusal_ends_the_connector() -> None:
    denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ServiceError, match="Kafka at b:1 refused the request"):
        watching(Kafka(denied)).check(["orders"], of()).confirm()


def test_the_last_records_of_a_topic_that_is_gone_are_committed() -> None:
    watching(Kafka(LogId())).check(["orders"], of()).confirm()


def test_nobody_is_asked_about_topics_whose_ids_brokers_do_not_tell() -> None:
    kafka = Kafka()
    watching(kafka, LogId("cluster")).check(["orders"], of()).confirm()
    assert not kafka.asked


def test_silent_topics_are_asked_about_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now))
    kafka = Kafka(BEFORE, FAILED, NOW)
    found = watching(kafka)
    assert not found.changed()
    assert not kafka.asked
    seen = []
    for _ in range(3):
        now += 6
        seen += [found.changed(), found.changed()]
    assert seen == [False, False, False, False, False, True]
    assert kafka.asked == [{"orders", "stock"}] * 3
    assert kafka.clients == 2


def test_a_task_that_rests_asks_once_a_minute_and_holds_no_connection_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now))
    kafka = Kafka(BEFORE, NOW)
    found = watching(kafka)
    now += 6
    assert not found.changed(seldom=True)
    assert (kafka.asked, kafka.parted) == ([], 1)
    now += 53
    assert not found.changed(seldom=True)
    assert (kafka.asked, kafka.parted) == ([], 2)
    now += 2
    found.changed(seldom=True)
    assert (len(kafka.asked), kafka.parted) == (1, 2), "the answer is still under way"
    found.changed(seldom=True)
    found.changed(seldom=True)
    assert kafka.parted == 3
    now += 61
    found.changed(seldom=True)
    assert found.changed(seldom=True)
