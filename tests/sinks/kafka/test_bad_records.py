"""Records that cannot be converted, or that the target refuses, and offsets changed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import BadRecord, ConfigError
from semel.core.ledger import TopicPartition, firsts
from semel.driver.planning import plan
from semel.kafka.groups import Groups
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import (
    LocalSpark,
    caught_up,
    once_let_go,
    positions,
    records,
    recreate,
    wait_until,
)
from tests.sinks.kafka.conftest import Configure, Start
from tests.sinks.kafka.copying import assert_each_once, consume, target

pytestmark = pytest.mark.integration

DEAD = {
    "errors.tolerance": "all",
    "errors.deadletterqueue.topic.replication.factor": "1",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


def test_dead_letters_are_in_the_transaction(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure, points: Path
) -> None:
    source = topic(partitions=2)
    dead = f"{source}.dead"
    values = [b"no json" if i % 10 == 0 else v for i, v in enumerate(records(200))]
    produce(source, values)
    config = configure(
        source,
        {
            **DEAD,
            "errors.deadletterqueue.topic.name": dead,
            "consumer.override.max.poll.records": 40,
        },
    )
    for skip, place in enumerate(("sink.before_commit", "sink.after_commit")):
        failpoints.arm(points, place, "kill-worker", skip=skip + 1)
    caught_up(config, spark=LocalSpark(points))
    letters = consume(kafka.bootstrap_servers, dead)
    offsets = {dict(x.headers)["__connect.errors.offset"] for x in letters}
    assert len(letters) == len(offsets) == 20  # all of one partition
    assert {x.value for x in letters} == {b"no json"}
    assert_each_once(config, [i for i in range(200) if i % 10])


@pytest.mark.long
def test_an_audit_tells_dead_letters_of_a_former_topic_from_those_of_the_new_one(
    kafka: Kafka, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    values = [b"no json" if i in (3, 4) else v for i, v in enumerate(records(10))]
    source = topic(values=values)
    keys = {
        "errors.deadletterqueue.topic.name": f"{source}.dead",
        "topic.recreated": "earliest",
        "consumer.override.session.timeout.ms": 1500,
        "consumer.override.heartbeat.interval.ms": 300,
    }
    config = configure(source, {**DEAD, **keys})
    caught_up(config)
    recreate(kafka, source)
    groups = Groups({"bootstrap.servers": kafka.bootstrap_servers})
    wait_until(lambda: groups.is_idle(f"connect-{config['name']}"))
    values = [b"no json" if i in (4, 5) else v for i, v in enumerate(records(10, start=10))]
    produce(source, values)
    caught_up(config)
    found = audit(config)
    assert (found.lost, found.duplicated, found.exact, found.complete) == (0, 0, True, True)


@pytest.mark.long
def test_a_record_that_the_target_refuses_is_a_bad_one(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    values = records(50)
    values[7] = b'{"id": 7, "text": "%s"}' % (b"x" * 5000)
    values[31] = b'{"id": 31, "text": "%s"}' % (b"x" * 5000)
    source = topic(values=values)
    copy, dead = topic(config={"max.message.bytes": "3000"}), topic()
    config = configure(source, {"topic.rename.format": copy, "max.poll.records": 20})
    with pytest.raises(BadRecord, match=rf"{source}-0 offset 7 failed in TASK_PUT.*too large"):
        caught_up(config)
    assert positions(config) == {TopicPartition(source, 0): 7}
    assert_each_once(config, range(7))
    config |= {**DEAD, "errors.deadletterqueue.topic.name": dead}
    caught_up(config)
    assert_each_once(config, [i for i in range(50) if i not in (7, 31)])
    assert [x.value for x in consume(kafka.bootstrap_servers, dead)] == [values[7], values[31]]


@pytest.mark.long
def test_offsets_are_not_changed_under_a_run(
    topic: MakeTopic, configure: Configure, start: Start
) -> None:
    source = topic(values=records(10))
    session = {"session.timeout.ms": 8000, "heartbeat.interval.ms": 300}
    config = configure(source, {f"consumer.override.{k}": v for k, v in session.items()})
    running = start(config)
    running.until(lambda p: p.rows == 10)
    sink = plan(config).sink
    with pytest.raises(ConfigError, match="is running"):
        sink.set_positions(firsts({TopicPartition(source, 0): 5}))
    with pytest.raises(ConfigError, match="is running"):
        sink.set_positions(None)
    running.stop()
    once_let_go(lambda: sink.set_positions(firsts({TopicPartition(source, 0): 5})))
    assert positions(config) == {TopicPartition(source, 0): 5}
    sink.set_positions(None)
    assert positions(config) == {}
    sink.set_positions(None)
    sink.close()
    caught_up(config)
    assert len(consume(config["bootstrap.servers"], target(config))) == 20
    assert audit(config).duplicated == 10
