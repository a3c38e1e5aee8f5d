"""Kafka to Kafka without semel: a structured stream, and a producer that reads nothing."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import deque
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.records import FIRST_TS, template
from semel.jars import SPARK_KAFKA, resolve
from semel.sinks.kafka.producer import DEFAULTS

_TRANSACTION = 50_000


def spark(facts: dict[str, Any]) -> None:
    """Spark's own Kafka sink, which is at-least-once."""
    session = (
        SparkSession.builder.master(f"local[{facts['tasks']}]")
        .config("spark.jars", ",".join(map(str, resolve(SPARK_KAFKA))))
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    source = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", facts["servers"])
        .option("subscribe", facts["source"])
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", facts["most"])
        .load()
    )
    writer = (
        source.select("key", "value", "headers")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", facts["servers"])
        .option("topic", facts["target"])
        .option("checkpointLocation", tempfile.mkdtemp())
        .trigger(availableNow=True)
    )
    for name, value in facts["producer"].items():
        writer = writer.option(f"kafka.{name}", value)
    writer.start().awaitTermination()
    session.stop()


def producer(facts: dict[str, Any]) -> None:
    """One transactional producer; the records are in memory before it begins."""
    client = {
        **DEFAULTS,
        "bootstrap.servers": facts["servers"],
        "transactional.id": facts["target"],
        **facts["producer"],
    }
    form, count = template(envelope=False), facts["records"]
    values = [
        (form % (i, i % 1000, i, i % 100, FIRST_TS + i)).encode() for i in range(_TRANSACTION)
    ]
    stamps = list(range(FIRST_TS, FIRST_TS + _TRANSACTION))
    made = Producer(client)
    made.init_transactions(30)
    for begun in range(0, count, _TRANSACTION):
        some = values[: count - begun]
        made.begin_transaction()
        calls = map(
            made.produce,
            itertools.repeat(facts["target"]),
            some,
            itertools.repeat(None),
            itertools.repeat(-1),
            itertools.repeat(None),
            itertools.repeat(None),
            stamps,
        )
        deque(calls, maxlen=0)
        made.commit_transaction(60)


if __name__ == "__main__":
    {"spark": spark, "producer": producer}[sys.argv[1]](json.loads(sys.argv[2]))
