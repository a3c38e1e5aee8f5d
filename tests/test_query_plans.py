"""How connectors with a query over streams are planned, without any service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.errors import ConfigError
from semel.driver.planning import plan
from semel.driver.planning.programs import Query

BASE = {
    "name": "per-minute",
    "connector.class": "postgresql",
    "connection.url": "postgresql://localhost/shop",
    "topics": "orders,payments",
    "bootstrap.servers": "none:9092",
    "query": "SELECT 1",
    "checkpoint.location": "state",
}


def planned(**more: str) -> Any:
    return plan(BASE | {k.replace("_", "."): v for k, v in more.items()})


def test_describe_says_engine_guarantee_and_where_the_state_is() -> None:
    facts = planned().facts()
    assert facts["engine"] == "micro-batch" and facts["query"] == "SELECT 1"
    assert facts["delivery"] == "exactly-once (transactional)"
    assert facts["state"] == f"RocksDB, kept in file:{Path('state').absolute()}"
    assert facts["output"] == "append"
    assert facts["event time"] == "the timestamp that Kafka has; 10 minutes late at most"
    keyed = planned(insert_mode="upsert", pk_mode="record_value", pk_fields="k")
    assert keyed.facts()["output"].startswith("update")


@pytest.mark.parametrize(
    ("more", "table"),
    [({}, "per-minute"), ({"table_name_format": "x_${topic}"}, "x_per-minute")],
)
def test_the_rows_of_all_topics_go_to_one_target(more: dict[str, str], table: str) -> None:
    assert f"table {table} " in planned(**more).facts()["writes"]


@pytest.mark.parametrize("place", ["s3a://bucket/x", "hdfs://name/x", "file:/x"])
def test_the_place_of_the_state_is_what_spark_takes(place: str) -> None:
    found = planned(checkpoint_location=place)
    assert found.connector.checkpoint_location == place
    assert found.is_local == place.startswith("file:")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"checkpoint_location": ""}, "checkpoint.location is not set"),
        ({"topics": "", "topics_regex": "a.*"}, "a query names its topics"),
        ({"provenance": "true"}, "rows of a query are made of many records"),
        ({"offset_out_of_range": "earliest"}, "offset.out.of.range=earliest: the state"),
        ({"topic_recreated": "earliest"}, "topic.recreated=earliest: the state"),
        ({"log_truncated": "continue"}, "log.truncated=continue: the state"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss=false: the state"),
        ({"engine": "direct"}, "a query needs engine=micro-batch"),
        ({"query_output_mode": "complete"}, "query.output.mode"),
        ({"connector_class": "kafka", "topic_rename_format": "x.copy"}, "does not take the rows"),
        ({"connector_class": "FileStreamSink", "file": "x"}, "does not take the rows"),
    ],
)
def test_what_a_query_cannot_keep_is_refused(more: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(**more)
    assert says in str(raised.value)


def test_a_query_takes_the_place_of_a_transform() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        plan(BASE, lambda batch: batch)
    with pytest.raises(ConfigError, match="exclude each other"):
        semel.plan(BASE, query=lambda *frames: frames[0])
    with pytest.raises(ConfigError, match="exclude each other"):
        semel.run(BASE | {"query": ""}, lambda batch: batch, query=lambda *frames: frames[0])
    with pytest.raises(ConfigError, match="keeps the state of a query"):
        plan(BASE | {"query": ""}, lambda batch: batch)
    with pytest.raises(ConfigError, match="must be a function"):
        semel.plan(BASE, query="SELECT 1")  # type: ignore[arg-type]


def test_a_file_for_a_programs_query_can_be_looked_at_but_not_run_alone() -> None:
    found = planned(query="")
    assert found.query == Query() and found.facts()["query"] == "in a program"
    with pytest.raises(ConfigError, match="for a query, and there is none"):
        found.check_runnable(None)


def test_keys_of_queries_are_named_where_there_is_none() -> None:
    warnings = planned(query="", checkpoint_location="", watermark="1 minute").warnings
    assert "watermark has no effect without a query" in warnings
