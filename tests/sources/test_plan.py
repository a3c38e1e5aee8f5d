"""A source connector's configuration is checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from semel.config.reading import VALUE_CONVERTER
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError
from semel.driver.planning import plan, plan_any, plan_source

CONNECTS_OWN = {
    "name": "local-file-source",
    "connector.class": "FileStreamSource",
    "tasks.max": "1",
    "file": "test.txt",
    "topic": "connect-test",
}
"""Kafka's config/connect-file-source.properties."""
RAW = {**CONNECTS_OWN, "bootstrap.servers": "localhost:1"}


def test_kafka_connects_own_example_is_taken_as_it_is() -> None:
    planned = plan_any(RAW)
    assert planned.warnings == [VALUE_CONVERTER]  # the worker's file says which
    assert planned.engine == "source"
    assert planned.guarantee.delivery is Delivery.EXACTLY_ONCE


def test_a_relative_file_is_found_from_anywhere_and_keeps_its_name() -> None:
    """Executors have another working directory; the name is part of the offsets."""
    source = plan_source(RAW).source
    assert source.partitions() == [{"filename": "test.txt"}]
    assert source.describe()["reads"] == f"lines of {Path('test.txt').absolute()}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"file": ""}, "file is required"),
        ({"topic": ""}, "topic is required"),
        ({"batch.size": "0"}, "batch.size='0' must be at least 1"),
        ({"transaction.boundary": "connector"}, "does not say where its transactions end"),
        ({"transaction.boundary": "never"}, "must be one of poll, interval, connector"),
        ({"delivery": "at-most-once"}, "delivery=at-most-once is for sink connectors"),
        (
            {"exactly.once.support": "required", "delivery": "at-least-once"},
            "exactly.once.support=required, but delivery=at-least-once",
        ),
        ({"value.converter": "SomeConverter"}, "no such converter"),
        ({"producer.override.transactional.id": "mine"}, "Remove it"),
        (
            {"topic.creation.default.partitions": "3"},
            "topic.creation.default.replication.factor is required",
        ),
        (
            {
                "topic.creation.default.partitions": "0",
                "topic.creation.default.replication.factor": "x",
            },
            "2 problems",
        ),
        ({"transforms": "route"}, "transforms.route.type is required"),
        ({"offsets.storage.topic": "a b"}, "is not the name of a topic"),
        ({"offsets.storage.topic": "müll"}, "is not the name of a topic"),
        ({"offsets.storage.topic": ".."}, "is not the name of a topic"),
        (
            {"offset.storage.file.filename": "f", "exactly.once.support": "required"},
            "keeps the source offsets in a file, which no Kafka transaction holds",
        ),
        (
            {"offset.storage.file.filename": "f", "spark.master": "yarn"},
            "is on one machine, but spark.master=yarn",
        ),
        (
            {"offset.storage.jdbc.url": "jdbc:sqlite:f", "spark.master": "yarn"},
            "is on one machine, but spark.master=yarn",
        ),
        (
            {
                "offset.storage.jdbc.url": "jdbc:postgresql://h/db",
                "exactly.once.support": "required",
            },
            "in a table of a database, which no Kafka transaction holds",
        ),
        (
            {
                "offset.storage.jdbc.url": "jdbc:postgresql://h/db",
                "offset.storage.file.filename": "f",
            },
            "exclude each other: set one",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_set(
    changed: Mapping[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_any({**RAW, **changed})
    assert message in str(refused.value)
    assert str(refused.value).startswith("connector local-file-source: ")


def test_a_missing_prefix_hides_no_other_mistake() -> None:
    wrong = {
        "connector.class": "JdbcSource",
        "connection.url": "jdbc:oracle:thin:@h",
        "mode": "weekly",
        "table.whitelist": "a",
        "table.blacklist": "b",
    }
    with pytest.raises(ConfigError) as refused:
        plan_any({"name": "n", "bootstrap.servers": "localhost:1", **wrong})
    assert {p.key for p in refused.value.problems} == {
        "topic.prefix",
        "connection.url",
        "mode",
        "table.whitelist",
    }


def test_a_query_is_told_all_that_it_contradicts() -> None:
    wrong = {"connector.class": "JdbcSource", "mode": "bulk", "connection.url": "jdbc:sqlite:db"}
    wrong |= {"query": "SELECT 1", "query.masked": "SELECT 2", "table.whitelist": "a"}
    with pytest.raises(ConfigError) as refused:
        plan_any({"name": "n", "bootstrap.servers": "localhost:1", **wrong})
    assert {p.key for p in refused.value.problems} == {"query", "topic.prefix", "table.whitelist"}


def test_a_source_is_no_sink() -> None:
    with pytest.raises(ConfigError, match="is a source connector"):
        plan(RAW)


def test_at_least_once_may_be_declared() -> None:
    guarantee = plan_source({**RAW, "delivery": "at-least-once"}).guarantee
    assert (guarantee.delivery, guarantee.mechanism) == (Delivery.AT_LEAST_ONCE, None)


def test_offsets_in_a_file_are_at_least_once_and_described() -> None:
    planned = plan_source({**RAW, "offset.storage.file.filename": "connect.offsets"})
    assert planned.guarantee.delivery is Delivery.AT_LEAST_ONCE
    assert "no Kafka transaction holds" in planned.guarantee.why
    told = planned.facts()["offsets"]
    assert told == f"offsets file {Path('connect.offsets').absolute()}, in Kafka Connect's format"


def test_offsets_in_a_database_are_at_least_once_and_described() -> None:
    url = "postgresql://me:hidden@localhost:1/db"
    planned = plan_source({**RAW, "offset.storage.jdbc.connection.url": url})
    assert planned.guarantee.delivery is Delivery.AT_LEAST_ONCE
    assert "in a table of a database, which no Kafka transaction holds" in planned.guarantee.why
    told = planned.facts()["offsets"]
    assert told.startswith("offsets table semel_source_offsets of ")
    assert "hidden" not in told


def test_topic_groups_are_asked_in_their_order_and_the_default_last() -> None:
    """KIP-158: what a group does not say it takes from the default group."""
    given = {
        "topic.creation.groups": "compacted,inventory",
        "topic.creation.default.replication.factor": "3",
        "topic.creation.default.partitions": "10",
        "topic.creation.compacted.include": "status.*, .*_state",
        "topic.creation.compacted.exclude": "status_old",
        "topic.creation.compacted.cleanup.policy": "compact",
        "topic.creation.inventory.include": "inv.*,status.*",
        "topic.creation.inventory.partitions": "20",
    }
    creation = plan_source({**RAW, **given}).connector.topic_creation

    def settings(topic: str) -> tuple[str, int, int, Mapping[str, str]]:
        group = creation.group_of(topic)
        assert group is not None
        return group.name, group.partitions, group.replication, group.config

    assert settings("status1") == ("compacted", 10, 3, {"cleanup.policy": "compact"})
    assert settings("status_old") == ("inventory", 20, 3, {})
    assert settings("other") == ("default", 10, 3, {})


def test_without_settings_topics_are_created_as_the_brokers_do() -> None:
    planned = plan_source(RAW)
    creation = planned.connector.topic_creation
    group = creation.group_of("connect-test")
    assert group is not None
    assert (group.partitions, group.replication, group.config) == (-1, -1, {})
    assert creation.as_brokers_do
    assert "if auto.create.topics.enable=true there" in planned.facts()["missing topics"]


def test_topics_must_exist_if_none_may_be_created() -> None:
    bare = plan_source({**RAW, "topic.creation.enable": "false"})
    assert bare.connector.topic_creation.group_of("connect-test") is None
    assert "stop the connector" in bare.facts()["missing topics"]
    disabled = {
        "topic.creation.enable": "false",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }
    found = plan_source({**RAW, **disabled}).connector.topic_creation
    assert found.group_of("connect-test") is None


def test_the_default_group_takes_what_no_other_takes() -> None:
    keys = {"include": "a", "partitions": "1", "replication.factor": "1"}
    default = {f"topic.creation.default.{key}": value for key, value in keys.items()}
    plan = plan_source({**RAW, **default})
    assert plan.connector.topic_creation.group_of("connect-test") is not None
    assert plan.warnings[0].startswith("topic.creation.default.include has no effect: ")


def test_the_transactional_id_is_kafka_connects() -> None:
    connector = plan_source({**RAW, "group.id": "connect"}).connector
    assert connector.transactional_id(2) == "connect-local-file-source-2"


def test_dead_letters_are_for_sinks() -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead"}
    letters, converter = plan_source({**RAW, **keys}).warnings
    assert letters.startswith("errors.deadletterqueue.topic.name has no effect: dead letters are")
    assert converter.startswith("value.converter")
    assert "counted and skipped" in plan_any({**RAW, **keys}).facts()["bad records"]
