"""Topics that delete what was just written, because it has an older record's timestamp."""

from __future__ import annotations

from typing import Any

import pytest

from semel.driver.planning import plan
from semel.kafka.cluster import Cluster
from semel.kafka.topics import create_dead_letter_topic, of_copy, of_dead_letters
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.harness import name

WEEK = str(7 * 24 * 3600 * 1000)
DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": WEEK,
    "message.timestamp.type": "CreateTime",
}


@pytest.mark.parametrize(
    ("there", "here", "warns"),
    [
        ({}, {}, False),
        ({}, {"retention.ms": "-1"}, True),
        ({}, {"retention.ms": str(2 * int(WEEK))}, True),
        ({}, {"retention.ms": "1000"}, False),
        ({}, {"cleanup.policy": "compact"}, True),
        ({}, {"message.timestamp.type": "LogAppendTime"}, True),
        ({"retention.ms": "-1"}, {"retention.ms": "-1"}, False),
        ({"cleanup.policy": "compact"}, {"retention.ms": "-1"}, False),
        ({"cleanup.policy": "compact,delete"}, {"retention.ms": "-1"}, True),
        ({"message.timestamp.type": "LogAppendTime"}, {"retention.ms": "-1"}, False),
    ],
)
def test_a_copy_is_warned_of_if_its_target_deletes_what_the_source_still_has(
    there: dict[str, str], here: dict[str, str], warns: bool
) -> None:
    warning = of_copy("t.copy", DEFAULTS | there, "t", DEFAULTS | here)
    assert (warning is not None) is warns
    assert not warns or "topic t.copy deletes records 7 days after their own" in str(warning)


@pytest.mark.parametrize(
    ("config", "warns"),
    [
        ({}, True),
        ({"retention.ms": "-1"}, False),
        ({"message.timestamp.type": "LogAppendTime"}, False),
    ],
)
def test_a_dead_letter_topic_is_warned_of_if_it_goes_by_the_records_own_timestamps(
    config: dict[str, str], warns: bool
) -> None:
    assert (of_dead_letters("dead", DEFAULTS | config) is not None) is warns


def _config(kafka: Kafka, topics: str, **keys: str) -> dict[str, Any]:
    return {
        "name": name(),
        "connector.class": "kafka",
        "topics": topics,
        "topic.rename.format": "${topic}.copy",
        "bootstrap.servers": kafka.bootstrap_servers,
        "auto.create": "true",
        **keys,
    }


def _set(kafka: Kafka, topic: str) -> dict[str, str]:
    found = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).topic_config(topic)
    assert found is not None
    return found


@pytest.mark.integration
def test_a_dead_letter_topic_keeps_its_letters(
    kafka: Kafka, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    source = topic()
    keys = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{source}-dead",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    planned = plan(_config(kafka, source, **keys))
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    create_dead_letter_topic(planned.connector, cluster)
    assert _set(kafka, f"{source}-dead")["retention.ms"] == "-1"
    planned.sink.prepare([source])
    assert "deletes records" not in caplog.text
    planned.sink.close()
    kept = topic(config={"retention.ms": WEEK})
    keys["errors.deadletterqueue.topic.name"] = kept
    create_dead_letter_topic(plan(_config(kafka, source, **keys)).connector, cluster)
    assert f"dead letter topic {kept} deletes records 7 days after their own" in caplog.text


@pytest.mark.integration
def test_a_target_that_is_created_takes_its_sources_retention(
    kafka: Kafka, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = {"cleanup.policy": "compact,delete", "retention.ms": str(123 * 24 * 3600 * 1000)}
    source = topic(config=wanted)
    planned = plan(_config(kafka, source))
    planned.sink.prepare([source])
    assert wanted.items() <= _set(kafka, f"{source}.copy").items()
    assert "deletes records" not in caplog.text
    planned.sink.close()
    short = topic(config={"retention.ms": WEEK})
    planned = plan(_config(kafka, source, **{"topic.rename.format": short}))
    planned.sink.prepare([source])
    assert f"topic {short} deletes records 7 days after their own timestamps" in caplog.text
    planned.sink.close()
