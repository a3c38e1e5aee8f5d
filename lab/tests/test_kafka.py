"""The embedded Kafka: it starts, comes back with its data, and ends with its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from semel.core.errors import ServiceError
from semel_lab.embedded import Kafka
from semel_lab.embedded.java import find_java, java_release
from semel_lab.embedded.kafka import Broker
from semel_lab.embedded.process import comes_true
from tests.conftest import MakeTopic, Produce, wait_ended, wait_gone
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


def read(kafka: Kafka, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    """``count`` values of a partition from its start."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE
    while len(values) < count and time.monotonic() < deadline:
        values += [m.value() for m in consumer.consume(count, 0.2) if m.error() is None]
    consumer.close()
    return values


def offsets(kafka: Kafka, topic: str, partition: int = 0) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE)
    consumer.close()
    return low, high


def test_topic_can_be_written_and_read_as_soon_as_it_is_created(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(partitions=3)
    produce(name, [b"a", None, b"c"], partition=2)
    assert read(kafka, name, 3, partition=2) == [b"a", None, b"c"]


def test_records_without_partition_and_keys_go_to_the_partitions_in_turn(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, ["0", "1", "2"], headers=[[("h", b"1")], None, []], timestamps=[1, 2, 3])
    assert offsets(kafka, name, 0) == (0, 2)
    assert offsets(kafka, name, 1) == (0, 1)


def test_topics_are_not_created_by_themselves(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.list_topics("never-created", timeout=PATIENCE)
    assert "never-created" not in admin.list_topics(timeout=PATIENCE).topics


def test_creating_a_topic_twice_is_refused_with_its_name(kafka: Kafka, topic: MakeTopic) -> None:
    name = topic()
    with pytest.raises(ServiceError, match=name):
        kafka.create_topic(name)


def test_partitions_can_be_added(kafka: Kafka, topic: MakeTopic, produce: Produce) -> None:
    name = topic(partitions=1)
    kafka.increase_partitions(name, 3)
    produce(name, [b"x"], partition=2)
    assert read(kafka, name, 1, partition=2) == [b"x"]


def test_deleted_records_are_gone_and_offsets_stay(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    produce(name, [b"a", b"b", b"c"])
    kafka.delete_records(name, {0: 2})
    assert offsets(kafka, name) == (2, 3)


def test_group_may_have_short_sessions_and_forms_at_once(
    kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    produce(name, [b"a"])
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 1000,
            "heartbeat.interval.ms": 300,
        }
    )
    consumer.subscribe([name])
    messages = consumer.consume(1, PATIENCE)
    consumer.close()
    assert [message.value() for message in messages] == [b"a"]


@pytest.mark.long
def test_data_survives_kill_and_restart_on_the_same_port(
    own_kafka: Callable[[], Kafka], produce: Produce
) -> None:
    kafka = own_kafka()
    where, first = kafka.bootstrap_servers, kafka.pid
    kafka.create_topic("kept", config={"retention.ms": "-1"})
    produce("kept", [b"before"], bootstrap_servers=where)

    kafka.kill()
    assert kafka.pid is None
    kafka.start()
    assert kafka.bootstrap_servers == where
    assert kafka.pid != first
    produce("kept", [b"between"], bootstrap_servers=where)

    kafka.restart()
    produce("kept", [b"after"], bootstrap_servers=where)
    assert read(kafka, "kept", 3) == [b"before", b"between", b"after"]

    # Another object on the same directory, as another process would have it, is the same Kafka.
    again = Kafka(kafka.directory)
    assert (again.pid, again.port) == (kafka.pid, kafka.port)
    with pytest.raises(ServiceError, match=r"is running in .* already"):
        again.start()
    again.stop()
    assert kafka.pid is None


@pytest.mark.long
def test_transactions_go_on_while_one_of_three_brokers_is_away(tmp_path: Path) -> None:
    with Kafka(tmp_path, heap="256m", brokers=3, session=2) as kafka:
        kafka.create_topic("kept", 3, config={"retention.ms": "-1"})
        client = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        producer = Producer({**client, "transactional.id": "mine", "retry.backoff.ms": 10})
        producer.init_transactions(PATIENCE)

        def transaction(meanwhile: Callable[[], object]) -> None:
            producer.begin_transaction()
            for partition in range(3):
                producer.produce("kept", b"x", partition=partition)
            producer.flush(PATIENCE)
            meanwhile()
            producer.commit_transaction(PATIENCE)

        first, second = kafka.others
        for broker, end in ((first, first.kill), (second, second.stop)):
            transaction(end)
            assert broker.pid is None
            broker.start()
            transaction(lambda: None)
        assert len(read(kafka, "kept", 4, partition=2)) == 4

        kafka.restart()
        assert [len(read(kafka, "kept", 4, partition)) for partition in range(3)] == [4, 4, 4]
        running = [kafka, *kafka.others]
        pids = [each.pid for each in running]
        assert None not in pids
    assert not any(each.pid for each in running)


@pytest.mark.long
def test_cluster_starts_again_although_its_first_broker_may_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kafka, "start_timeout", 120.0)
    with Kafka(tmp_path, heap="256m", brokers=3, session=2) as kafka:
        kafka.create_topic("kept", 3)
        for other in kafka.others:
            other.stop()
        Broker.kill(kafka)  # the last one in sync is killed: it was too slow to stop
        kafka.start()
        kafka.create_topic("new", 3)


@pytest.mark.long
def test_broker_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    kafka = Kafka(tmp_path, heap="256m")
    thread = threading.Thread(target=kafka.start)
    thread.start()
    wait_ended(thread)
    try:
        assert kafka.pid is not None
        kafka.create_topic("alive")
    finally:
        kafka.kill()


@pytest.mark.long
def test_broker_is_gone_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from semel_lab.embedded import Kafka\n"
        "print(Kafka(Path(sys.argv[1]), heap='256m').start().pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.send_signal(signal.SIGKILL)
        assert wait_gone(pid)


def test_a_late_answer_and_a_fenced_broker_are_not_mistaken_for_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced = "Unable to replicate the partition: All brokers are currently fenced."
    answers = [
        KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, fenced),
        KafkaError(KafkaError._TIMED_OUT),
        KafkaError(KafkaError.TOPIC_ALREADY_EXISTS),  # of what was asked for before
    ]
    leaders = [None, -1, 1]

    class Admin:
        def create_topics(self, _topics: object, **_timeouts: float) -> dict[str, Future[None]]:
            answer: Future[None] = Future()
            answer.set_exception(KafkaException(answers.pop(0)))
            return {"t": answer}

        def list_topics(self, _topic: str, *, timeout: float) -> Any:
            if (leader := leaders.pop(0)) is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            partitions = {0: SimpleNamespace(leader=leader)}
            return SimpleNamespace(topics={"t": SimpleNamespace(partitions=partitions)})

    kafka = Kafka(tmp_path)
    monkeypatch.setattr(kafka, "_administer", Admin)
    kafka.create_topic("t")
    assert not answers
    assert not leaders
    answers.append(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
    with pytest.raises(ServiceError, match="refuses to create topic t"):
        kafka.create_topic("t")


def test_a_condition_is_asked_once_more_when_the_time_is_up() -> None:
    def stalled() -> bool:
        time.sleep(0.02)
        return bool(asked.pop())

    asked = [1, 0]
    assert comes_true(stalled, 0.01)
    asked = [1, 0, 0]
    assert not comes_true(stalled, 0.01)


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"Kafka cannot listen on 127\.0\.0\.1:{port}"):
            Kafka(tmp_path, port=port).start()


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"(?s)kafka\.log.*Invalid initial heap size"):
        Kafka(tmp_path, heap="1k2m").start()


def test_missing_java_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match=r"no java on PATH.*openjdk-17"):
        Kafka(tmp_path / "kafka").start()


def test_too_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("""#!/bin/sh\necho 'openjdk version "1.8.0_402"' >&2\n""")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match=r"bin/java \(from JAVA_HOME\) is Java 8"):
        find_java()
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert java_release(java) == 11
    (tmp_path / "release").write_text('JAVA_VERSION="21"\n')
    assert find_java() == java


def test_java_on_path_is_taken_when_java_home_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert os.access(find_java(), os.X_OK)
