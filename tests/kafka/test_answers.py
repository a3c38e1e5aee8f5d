"""Answers that are late, or never come."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from semel.core.errors import LedgerConflict, SemelError, ServiceError, TransientError, Unavailable
from semel.core.ledger import TopicPartition
from semel.kafka import answers
from semel.kafka.cluster import Cluster, admin_client
from semel_lab.embedded import Kafka
from semel_lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic
from tests.engine.harness import wait_until
from tests.patience import PATIENCE


class Client(AdminClient):
    """A client that supports weak references."""


def test_an_answer_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LATE", 0.1)
    with pytest.raises(KafkaException) as refused:
        answers.answer_of(admin_client({"bootstrap.servers": "localhost:1"}), Future(), 0.1)
    assert refused.value.args[0].code() == KafkaError._TIMED_OUT


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TIMED_OUT, Unavailable),
        (KafkaError._ALL_BROKERS_DOWN, Unavailable),
        (KafkaError._MSG_TIMED_OUT, Unavailable),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, Unavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, Unavailable),
        (KafkaError.INVALID_TXN_STATE, TransientError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ServiceError),
        (KafkaError.PRODUCER_FENCED, LedgerConflict),
    ],
)
def test_a_producer_waits_for_brokers_that_are_away(code: int, kind: type[SemelError]) -> None:
    error = answers.producer_failure("connector c", KafkaException(KafkaError(code)))
    assert type(error) is kind


def test_a_partition_without_a_leader_is_waited_for() -> None:
    error = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "t-0 has no leader"))
    assert isinstance(answers.failure("k:9092", error), Unavailable)


def test_a_refusal_does_not_keep_the_client_alive() -> None:
    """Tasks collect no garbage while they are idle, and a client has threads and connections."""

    def refused() -> weakref.ref[Client]:
        client, question = Client({"bootstrap.servers": "localhost:1"}), Future[object]()
        question.set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
        with contextlib.suppress(KafkaException):
            answers.coordinators_answer(client, question, 1.0)
        return weakref.ref(client)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()


@pytest.mark.integration
def test_a_thread_may_replace_the_client_while_another_one_waits_for_an_answer(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LATE", 2 * PATIENCE)  # the client is held: nothing waits so long
    asked = threading.Event()

    class Asked(AdminClient):
        def list_offsets(self, *request: object, **more: object) -> dict[object, Future[object]]:
            found: dict[object, Future[object]] = super().list_offsets(*request, **more)
            asked.set()
            return found

    monkeypatch.setattr("semel.kafka.cluster.AdminClient", Asked)
    place = TopicPartition(topic(1), 0)
    host, port = kafka.bootstrap_servers.split(":")
    with Proxy(host, int(port)) as proxy:
        proxy.silence(new=True)
        cluster = Cluster({"bootstrap.servers": f"127.0.0.1:{proxy.port}"})
        ends: list[dict[TopicPartition, int]] = []
        waiting = threading.Thread(target=lambda: ends.append(cluster.latest([place])), daemon=True)
        waiting.start()
        assert asked.wait(PATIENCE)
        cluster.reconnect()
        proxy.cut()
        proxy.accept()
        wait_until(lambda: bool(ends))
    assert ends == [{place: 0}]
