"""A worker's place in its group."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from semel.config import read
from semel.config.worker import ClusterConfig
from semel.core.errors import ServiceError
from semel.worker.cluster import membership as module
from semel.worker.cluster.membership import Group, Membership
from semel_lab.drill.cluster.reached import ProxiedKafka
from semel_lab.embedded.process import LOOPBACK
from tests.engine.harness import wait_until

URL = f"http://{LOOPBACK}:8083"


def given(servers: str, **times: str) -> ClusterConfig:
    return read(
        ClusterConfig,
        {
            "bootstrap.servers": servers,
            "listeners": URL,
            "group.id": "workers",
            "session.timeout.ms": "3000",
            "heartbeat.interval.ms": "500",
            **times,
            "config.storage.topic": "configs",
            "status.storage.topic": "statuses",
            "offset.storage.topic": "offsets",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        },
    )


def made(config: ClusterConfig) -> Membership:
    client = {"bootstrap.servers": config.bootstrap_servers, "reconnect.backoff.max.ms": 1000}
    return Membership(config, client, lambda: None)


@pytest.mark.integration
@pytest.mark.long  # a broker of its own
def test_a_worker_that_was_cut_off_from_kafka_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question to the coordinator that has timed out takes librdkafka down when the coordinator
    is back."""
    monkeypatch.setattr(module, "_ASKED_IN", 1.0)
    kafka = ProxiedKafka(tmp_path / "kafka", 1, session=3)
    try:
        kafka.start()
        kafka.create_topic("configs", 1)
        way = kafka.ways[0]
        config = given(f"{LOOPBACK}:{way.port}")
        membership = made(config)
        membership.start()
        try:
            for cut in (lambda: way.silence(new=True), way.refuse) * 2:
                wait_until(lambda: config.url in membership.group.members)
                cut()
                wait_until(lambda: not membership.group.members)
                way.cut()
                way.accept()
            wait_until(lambda: config.url in membership.group.members)
            assert membership.absences >= 5  # the first join counts, too
        finally:
            membership.leave()
    finally:
        kafka.close()


@pytest.mark.parametrize("session, rebalance", [(70_000, 60_000), (3_600_000, 86_400_000)])
def test_a_worker_may_have_any_session_and_rebalance_timeout(session: int, rebalance: int) -> None:
    times = {"session.timeout.ms": str(session), "rebalance.timeout.ms": str(rebalance)}
    worker = made(given("127.0.0.1:1", **times))
    worker.start()
    worker._joins.set()
    try:
        staying = worker._threads[0]
        staying.join(0.5)
        assert staying.is_alive()
    finally:
        worker.leave()


def test_a_session_that_the_brokers_refuse_ends_a_worker() -> None:
    worker = made(given("127.0.0.1:1"))
    worker._judge(KafkaError(KafkaError.INVALID_SESSION_TIMEOUT))
    with pytest.raises(ServiceError, match=r"session\.timeout\.ms=3000: the brokers refuse it"):
        assert worker.group


def looks(worker: Membership, group: Group, times: int) -> None:
    for _ in range(times):
        worker._note(group, time.monotonic())


def refused(worker: Membership) -> bool:
    try:
        assert worker.group is not None
    except ServiceError as error:
        assert f"another worker of the group already uses {URL}." in str(error)
        return True
    return False


def test_a_worker_does_not_join_beside_another_one_at_the_same_address() -> None:
    worker = made(given("127.0.0.1:1"))
    looks(worker, Group(frozenset({URL})), 18)
    assert not worker._joins.is_set()
    assert worker.absences == 0, "it is not a member itself"
    looks(worker, Group(frozenset({URL})), 1)
    assert refused(worker)


def test_a_worker_joins_once_its_former_process_has_left_the_group() -> None:
    worker = made(given("127.0.0.1:1"))
    looks(worker, Group(frozenset({URL})), 18)
    looks(worker, Group(frozenset({"http://other:8083"})), 1)
    assert worker._joins.is_set()
    looks(worker, Group(frozenset({URL})), 100)
    assert not refused(worker)
    assert worker.group.members == {URL}


def test_a_worker_that_was_out_of_the_group_for_a_moment_was_absent() -> None:
    worker = made(given("127.0.0.1:1"))
    others, both = Group(frozenset({"http://o:8083"})), Group(frozenset({"http://o:8083", URL}))
    for times, group in enumerate([others, both] * 3):
        looks(worker, group, 2)
        assert worker.absences == (times + 1) // 2


def test_a_worker_was_absent_if_the_answer_came_after_its_session() -> None:
    """A question that was asked in time can be answered late: meanwhile, the group looked empty."""
    worker = made(given("127.0.0.1:1"))
    looks(worker, Group(), 1)
    now, group = time.monotonic(), Group(frozenset({URL}))
    worker._note(group, now - 4)
    assert not worker.group.members
    worker._note(group, now - 2)
    assert (worker.group.members, worker.absences) == ({URL}, 2)


def test_a_worker_ends_if_another_one_has_joined_with_its_address() -> None:
    worker = made(given("127.0.0.1:1"))
    looks(worker, Group(), 1)
    both = Group(frozenset({URL}), None, frozenset({URL}))
    for _ in range(2):  # its own former session may be there for a while
        looks(worker, both, 18)
        looks(worker, Group(frozenset({URL})), 1)
    assert not refused(worker)
    looks(worker, both, 19)
    assert refused(worker)


@pytest.mark.parametrize(
    ("code", "joins"),
    [
        (KafkaError.GROUP_ID_NOT_FOUND, True),
        (KafkaError._INVALID_ARG, True),  # as of Kafka Connect's groups: joining tells
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
        (KafkaError._TRANSPORT, False),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, False),
    ],
)
def test_a_worker_that_cannot_see_the_group_joins_only_if_that_tells_more(
    code: int, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = made(given("127.0.0.1:1"))
    asked: list[None] = []

    def describe(*_of: object) -> Group:
        asked.append(None)
        if len(asked) == 2:
            worker._stop.set()
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(module, "described", describe)
    monkeypatch.setattr(module, "admin_client", lambda _client: None)
    worker._look()
    assert worker._joins.is_set() == joins
