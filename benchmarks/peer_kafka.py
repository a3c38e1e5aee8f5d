"""Kafka to Kafka without semel: a structured stream, a loop written by hand, a producer alone."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import tempfile
from collections import deque
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from pyspark.sql import SparkSession

from benchmarks.records import FIRST_TS, template
from semel.kafka.transactions import DEFAULTS
from semel.spark.jars import SPARK_KAFKA, resolve

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


def loop(facts: dict[str, Any]) -> None:
    """Consume, produce, send offsets, commit: one process per task, each on its own partitions."""
    tasks = multiprocessing.get_context("spawn")
    copies = [tasks.Process(target=_copy, args=(facts, t)) for t in range(facts["tasks"])]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join()
    sys.exit(max(abs(copy.exitcode or 0) for copy in copies))


def _copy(facts: dict[str, Any], task: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": facts["servers"],
            "group.id": facts["target"],
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    own = range(task, facts["partitions"], facts["tasks"])
    consumer.assign([KafkaPartition(facts["source"], p, 0) for p in own])
    output = _transactional(facts, f"{facts['target']}-{task}")
    ended: set[int] = set()
    while len(ended) < len(own):
        output.begin_transaction()
        taken = 0
        while taken < _TRANSACTION and len(ended) < len(own):
            for message in consumer.consume(10_000, 0.1):
                if message.error():
                    ended.add(message.partition())
                    continue
                output.produce(
                    facts["target"],
                    message.value(),
                    message.key(),
                    timestamp=message.timestamp()[1],
                    headers=message.headers(),
                )
                taken += 1
            output.poll(0)
        positions = consumer.position(consumer.assignment())
        output.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
        output.commit_transaction(60)


def _transactional(facts: dict[str, Any], name: str) -> Producer:
    client = Producer(
        {
            **DEFAULTS,
            "bootstrap.servers": facts["servers"],
            "transactional.id": name,
            **facts["producer"],
        }
    )
    client.init_transactions(30)
    return client


def producer(facts: dict[str, Any]) -> None:
    """One transactional producer; the records are in memory before it begins."""
    form, count = template(envelope=False), facts["records"]
    values = [
        (form % (i, i % 1000, i, i % 100, FIRST_TS + i)).encode() for i in range(_TRANSACTION)
    ]
    stamps = list(range(FIRST_TS, FIRST_TS + _TRANSACTION))
    output = _transactional(facts, facts["target"])
    for begun in range(0, count, _TRANSACTION):
        some = values[: count - begun]
        output.begin_transaction()
        calls = map(
            output.produce,
            itertools.repeat(facts["target"]),
            some,
            itertools.repeat(None),
            itertools.repeat(-1),
            itertools.repeat(None),
            itertools.repeat(None),
            stamps,
        )
        deque(calls, maxlen=0)
        output.commit_transaction(60)


if __name__ == "__main__":
    {"spark": spark, "loop": loop, "producer": producer}[sys.argv[1]](json.loads(sys.argv[2]))
