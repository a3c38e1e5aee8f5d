"""What the micro-batch engine refuses, and how it says so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F

from semel.core.errors import BadRecord, ConfigError, ServiceError
from semel.core.ledger import TopicPartition
from semel.core.records import HEADERS
from semel.driver.microbatch.engine import kafka_options, require_source
from semel.driver.microbatch.plan import raw_columns, wants_headers
from semel.sinks.base import Capabilities
from semel.spark.session import micro_batch_session
from tests.conftest import MakeTopic
from tests.engine.microbatch.conftest import Go, MakeConfig, Query, connector, position
from tests.engine.microbatch.transforms import KEYED, grouped, rows

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("more", "column"),
    [
        ({"provenance": "true"}, "__connect_"),
        pytest.param({"pk_mode": "kafka"}, "__connect_", marks=pytest.mark.long),
        ({**KEYED}, "__connect_key"),
        pytest.param(
            {
                "insert_mode": "upsert",
                "pk_mode": "record_value",
                "pk_fields": "id",
                "delivery_mechanism": "idempotent",
            },
            "delivery.mechanism=idempotent needs",
            marks=pytest.mark.long,
        ),
    ],
)
def test_settings_that_need_metadata_refuse_a_transform_that_drops_it(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, more: dict[str, str], column: str
) -> None:
    t = topic(1, values=rows(2))
    with pytest.raises(ConfigError, match=column):
        go(configure(t, **more), grouped)
    assert position(query) == 0


@pytest.mark.long
def test_a_transform_that_does_not_fit_is_a_configuration_error(
    topic: MakeTopic, configure: MakeConfig, go: Go
) -> None:
    t = topic(1, values=rows(2))
    with pytest.raises(ConfigError, match="missing_column"):
        go(configure(t), lambda df: df.select("missing_column"))
    with pytest.raises(ConfigError, match="must return a DataFrame"):
        go(configure(t), lambda df: df.columns)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        go(configure(t), lambda df: 1 / 0)


def test_a_transform_that_fails_on_a_record_stops_the_connector(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=rows(3))

    def broken(i):  # type: ignore[no-untyped-def]
        raise ValueError(f"no good: {i}")

    with pytest.raises(BadRecord, match="ValueError: no good: 0"):
        go(configure(t), lambda df: df.withColumn("x", F.udf(broken, "long")("id")))
    with pytest.raises(BadRecord, match=r"(?i)divi"):
        go(configure(t), lambda df: df.withColumn("x", F.expr("1 div id")))
    assert position(query) == 0


def test_a_session_without_the_kafka_source_is_explained() -> None:
    utils = SimpleNamespace(classIsLoadable=lambda _name: False)
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(
        spark=SimpleNamespace(util=SimpleNamespace(Utils=utils)))))  # fmt: skip
    with pytest.raises(ConfigError, match=r"--packages org\.apache\.spark"):
        require_source(SimpleNamespace(_jvm=jvm))  # type: ignore[arg-type]


def test_unavailable_jars_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(_jars: object) -> list[Path]:
        raise ServiceError("Cannot get it.")

    monkeypatch.setattr("semel.spark.session.resolve", unavailable)
    with pytest.raises(ServiceError, match=r"spark\.jars\.packages=org\.apache"):
        micro_batch_session(connector())


def test_consumer_settings_reach_spark_under_their_java_names() -> None:
    raw = {
        "consumer.override.security.protocol": "SASL_SSL",
        "consumer.override.sasl.mechanism": "SCRAM-SHA-512",
        "consumer.override.sasl.username": "me",
        "consumer.override.sasl.password": 'a"b',
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.fetch.min.bytes": "1000",
    }
    positions = {TopicPartition("t", 1): 5, TopicPartition("t", 0): 7}
    options = kafka_options(connector(**raw), positions, headers=False)
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.fetch.min.bytes"] == "1000"
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b";'
    )
    assert json.loads(options["startingOffsets"]) == {"t": {"1": 5, "0": 7}}
    assert "kafka.auto.offset.reset" not in options


@pytest.mark.parametrize(
    ("carries", "raw", "expected"),
    [
        ((), {}, False),
        ((HEADERS,), {}, True),
        ((), {"errors.deadletterqueue.topic.name": "dead"}, True),
    ],
    ids=["nobody", "the sink", "dead letters"],
)
def test_headers_are_read_for_whoever_wants_them(
    carries: tuple[str, ...], raw: dict[str, str], expected: bool
) -> None:
    wants = Capabilities(uses_key=False, carries=frozenset(carries))
    run: Any = SimpleNamespace(
        connector=connector(**raw, **{"errors.tolerance": "all"}),
        sink=SimpleNamespace(capabilities=wants),
    )
    base: Any = SimpleNamespace(select=lambda *names: names)
    assert ("headers" in raw_columns(run, base, key=False)) is expected
    assert kafka_options(run.connector, {}, headers=wants_headers(run))["includeHeaders"] == (
        "true" if expected else "false"
    )
