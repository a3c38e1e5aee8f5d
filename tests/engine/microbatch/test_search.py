"""Micro-batches into a search server, committed by tasks."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

import semel
from semel.embedded.opensearch import OpenSearch
from tests.conftest import MakeTopic, Produce
from tests.engine.microbatch.conftest import Arm, MakeConfig
from tests.engine.microbatch.transforms import even, passing
from tests.searching import documents

pytestmark = pytest.mark.integration


def test_tasks_commit_to_a_store_without_transactions(
    topic: MakeTopic,
    produce: Produce,
    configure: MakeConfig,
    spark: SparkSession,
    opensearch: OpenSearch,
    arm: Arm,
) -> None:
    source = topic(partitions=2)
    produce(source, [json.dumps({"id": i}) for i in range(100)])
    config = configure(
        source,
        connector_class="opensearch",
        connection_url=opensearch.url,
        key_ignore="true",
        provenance="true",
        read_timeout_ms="30000",
        maxOffsetsPerTrigger="40",
    )
    arm("deliver.between", "kill-worker")
    for transform in (even, passing):
        config["name"] = f"{transform.__name__}-{source}"
        config["index.name.format"] = f"{transform.__name__}-${{topic}}"
        semel.run(config, transform, spark=spark, until_caught_up=True)
        found = documents(opensearch.url, f"{transform.__name__}-{source}")
        wanted = range(0, 100, 2 if transform is even else 1)
        assert sorted(d["id"] for d in found) == list(wanted)
