"""Class names by Kafka Connect's aliases."""

from __future__ import annotations

import pytest

from semel import converters, sinks
from semel.config import extras
from semel.core.errors import ConfigError
from semel.driver.planning import plan
from semel.sinks import jdbc

RAW = {
    "name": "orders",
    "topics": "orders",
    "bootstrap.servers": "kafka:9092",
    "connection.url": "jdbc:postgresql://db/shop",
}


@pytest.mark.parametrize("alias", ["JdbcSink", "JdbcSinkConnector"])
def test_a_sink_may_be_named_by_its_alias(alias: str) -> None:
    planned = plan({**RAW, "connector.class": alias})
    assert planned.connector.connector_class == "io.confluent.connect.jdbc.JdbcSinkConnector"


def test_an_alias_of_two_sinks_that_differ_is_refused_in_connects_words() -> None:
    with pytest.raises(
        ConfigError,
        match=r"More than one connector matches alias JdbcSink\. Please use full package and class "
        r"name instead\. Classes found: io\.confluent.*io\.debezium",
    ):
        plan({**RAW, "connector.class": "JdbcSink", "primary.key.mode": "record_key"})
    full = {**RAW, "connector.class": jdbc.DEBEZIUM, "primary.key.mode": "kafka"}
    assert plan(full).connector.connector_class == jdbc.DEBEZIUM


def test_classes_that_load_different_things_are_never_guessed() -> None:
    classes = {"a.XSinkConnector": "one", "b.XSinkConnector": "two", "c.YSink": "three"}
    with pytest.raises(ConfigError, match=r"found: a\.XSinkConnector, b\.XSinkConnector$"):
        extras.full_name("XSink", classes, "Connector")
    assert extras.full_name("YSink", classes, "Connector") == "c.YSink"
    assert extras.full_name("Z", classes, "Connector") == "Z"


@pytest.mark.parametrize("alias", ["Json", "JsonConverter"])
def test_a_converter_may_be_named_by_its_alias(alias: str) -> None:
    assert converters.full_name(alias) == "org.apache.kafka.connect.json.JsonConverter"


def test_every_class_of_a_sink_has_an_alias_or_needs_its_full_name() -> None:
    for full in sinks.names():
        if "." in full:
            alias = full.rpartition(".")[2].removesuffix("Connector")
            assert sinks.full_name(alias) in sinks.names()
