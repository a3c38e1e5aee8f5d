"""Questions to a Kafka cluster, with answers that a real broker can hardly be made to give."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

import semel.kafka.cluster
from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError, SemelError, ServiceError, TransientError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.kafka import cluster as kafka
from semel.kafka.answers import failure
from semel.kafka.clients import IDEMPOTENCE, is_idempotent
from semel.kafka.cluster import Cluster
from tests.patience import PATIENCE

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


def test_an_invalid_end_offset_during_an_election_is_asked_for_again(answers: list[int]) -> None:
    answers += [-1, -1001, 7]
    assert Cluster({"bootstrap.servers": "localhost:1"}).latest([ZERO]) == {ZERO: 7}
    assert answers == [7]


def test_an_end_that_stays_unknown_is_no_answer(answers: list[int]) -> None:
    answers += [-1]
    with pytest.raises(TransientError):
        Cluster({"bootstrap.servers": "localhost:1"}).latest([ZERO], timeout=0.2)


def test_an_error_without_a_text_is_named() -> None:
    error = KafkaError(KafkaError.NOT_COORDINATOR, "ConsumerGroupDescribe: ")
    told = str(failure("k:9092", KafkaException(error)))
    assert "answers at k:9092: ConsumerGroupDescribe: NOT_COORDINATOR. Check" in told


UNKNOWN, SILENCE = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TIMED_OUT


@pytest.mark.parametrize(
    ("codes", "found"),
    [
        ([SILENCE, UNKNOWN, UNKNOWN], True),
        ([UNKNOWN, UNKNOWN], True),
        ([UNKNOWN, UNKNOWN, UNKNOWN], False),
    ],
)
def test_a_partition_is_gone_when_it_has_been_said_for_a_while_and_thrice(
    codes: list[int], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_GONE_AFTER", 0.05)
    left = list(codes)

    def answer(_client: AdminClient, request: dict[Any, Any], **_keys: Any) -> dict[Any, Any]:
        if left:
            raise KafkaException(KafkaError(left.pop(0)))
        future: Future[ListOffsetsResultInfo] = Future()
        future.set_result(ListOffsetsResultInfo(7, -1, -1))
        return dict.fromkeys(request, future)

    monkeypatch.setattr(AdminClient, "list_offsets", answer)
    cluster = Cluster({"bootstrap.servers": "localhost:1"})
    with nullcontext() if found else pytest.raises(ServiceError, match="Was a topic deleted"):
        assert cluster.latest([ZERO]) == {ZERO: 7}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (UNKNOWN, "topic orders does not exist in"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "does not let this user describe topic orders"),
    ],
)
def test_a_topic_that_is_not_listed_may_be_hidden(
    code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: Future[Any] = Future()
    hidden.set_exception(KafkaException(KafkaError(code)))
    monkeypatch.setattr(AdminClient, "describe_topics", lambda *_, **__: {"orders": hidden})
    cluster = Cluster({"bootstrap.servers": "localhost:1"})
    monkeypatch.setattr(cluster, "topics", lambda *_: {"others": 1})
    raw = {"name": "c", "topics": "orders", "connector.class": "postgresql"}
    with pytest.raises(SemelError, match=says):
        cluster.matching(read(ConnectorConfig, {**raw, "bootstrap.servers": "localhost:1"}))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._TIMED_OUT, TransientError),
        (KafkaError.NOT_CONTROLLER, TransientError),
        (KafkaError.INVALID_REPLICATION_FACTOR, ServiceError),
    ],
)
def test_a_topic_whose_creation_nobody_confirms_may_be_there_later(
    code: int, error: type[SemelError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(_client: AdminClient, topics: list[Any], **_keys: Any) -> dict[str, Future[None]]:
        future: Future[None] = Future()
        future.set_exception(KafkaException(KafkaError(code)))
        return {topics[0].topic: future}

    monkeypatch.setattr(AdminClient, "create_topics", create)
    monkeypatch.setattr(Cluster, "topics", lambda _self: {})
    monkeypatch.setattr(semel.kafka.cluster, "_CREATES_FOR", 0.0)
    with pytest.raises(error):
        Cluster({"bootstrap.servers": "localhost:1"}).create_topic("t", 1)


@pytest.mark.parametrize(
    "passing",
    [
        KafkaError(KafkaError._DESTROY_BROKER),
        KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced."),
    ],
)
def test_creating_a_topic_outlives_transient_errors(
    passing: KafkaError, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def create(_client: AdminClient, topics: list[Any], **_keys: Any) -> dict[str, Future[None]]:
        asked.append(topics)
        future: Future[None] = Future()
        if len(asked) == 1:
            future.set_exception(KafkaException(passing))
        else:
            future.set_result(None)
        return {topics[0].topic: future}

    monkeypatch.setattr(AdminClient, "create_topics", create)
    monkeypatch.setattr(Cluster, "topics", lambda _self: {})
    Cluster({"bootstrap.servers": "localhost:1"}).create_topic("t", 1)
    assert len(asked) == 2


@pytest.mark.parametrize("value", ["true", "TRUE", "t", "T", "1", "false", "f", "0"])
def test_a_producer_is_idempotent_where_librdkafka_takes_it_so(value: str) -> None:
    config = {IDEMPOTENCE: value}
    # librdkafka demands confirmation by all of producers that are, only.
    try:
        Producer({**config, "acks": "1"})
    except KafkaException:
        expected = True
    else:
        expected = False
    assert is_idempotent(config) is expected
    raw = {"name": "c", "topics": "t", "bootstrap.servers": "localhost:1"}
    raw |= {"connector.class": "kafka", "topic.rename.format": "to_${topic}"}
    raw |= {f"producer.override.{IDEMPOTENCE}": value}
    refusal = nullcontext() if expected else pytest.raises(ConfigError, match="idempotence")
    with refusal:
        plan(raw).sink.close()


def test_a_client_is_dropped_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: queue.Queue[str] = queue.Queue()

    class Client:
        def __len__(self) -> int:  # as an AdminClient with an empty queue
            return 0

        def __del__(self) -> None:
            ended.put(threading.current_thread().name)

    monkeypatch.setattr(kafka, "admin_client", lambda _config: Client())
    cluster = Cluster({"bootstrap.servers": "nowhere:9092"})
    cluster.disconnect()
    assert not cluster.is_connected
    assert cluster._admin is not None
    assert cluster.is_connected
    cluster.disconnect()
    assert ended.get(timeout=PATIENCE) == "semel: disconnecting from Kafka"
    assert not cluster.is_connected
