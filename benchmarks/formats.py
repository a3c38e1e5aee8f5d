"""Avro and Protobuf with a schema registry to PostgreSQL, compared with Kafka Connect with
Apicurio's converter."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.measure import WARM, Sample, median, run
from benchmarks.records import FIRST_TS, Workload
from benchmarks.report import Column, Figures, count, megabytes, ratio, seconds, span
from benchmarks.rig import Rig
from benchmarks.systems import Peer, Semel, System
from semel import converters
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.jars import APICURIO_SERDES_VERSION, DEBEZIUM_JDBC_APICURIO

PARTITIONS = 4
CHUNK = 20_000
AVRO = "io.apicurio.registry.utils.converter.AvroConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"

ROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("account", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("amount", pa.float64(), nullable=False),
        pa.field("active", pa.bool_(), nullable=False),
        pa.field("note", pa.string(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Contest:
    """A system with the format of its records."""

    system: str
    format: str


CONTESTS = (Contest("peer", "Avro"), Contest("semel", "Avro"), Contest("semel", "Protobuf"))
"""Apicurio's Protobuf converter for Kafka Connect is not on Maven Central, nor is Confluent's."""


def settings(format_: str, registry: SchemaRegistry) -> dict[str, str]:
    """The configuration of the converter, the same for both systems."""
    if format_ == "Protobuf":
        return {
            "value.converter": PROTOBUF,
            "value.converter.schema.registry.url": registry.url,
        }
    return {
        "value.converter": AVRO,
        "value.converter.apicurio.registry.url": registry.url.replace(
            "/apis/ccompat/v7", "/apis/registry/v2"
        ),
        "value.converter.apicurio.registry.as-confluent": "true",
        "value.converter.apicurio.registry.use-id": "contentId",
        "value.converter.apicurio.registry.auto-register": "true",
    }


def formats(rig: Rig, records: int, repeats: int, tasks: int) -> Figures:
    """All contests, ``repeats`` times each, in turn."""
    workload = Workload.of(records, PARTITIONS, updates=False, envelope=False)
    samples: dict[Contest, list[Sample]] = {}
    with (
        SchemaRegistry(rig.directory / "registry") as registry,
        ConnectWorker(
            rig.directory / "connect",
            rig.kafka.bootstrap_servers,
            plugin=DEBEZIUM_JDBC_APICURIO,
            settings={"plugin.discovery": "hybrid_warn"},
        ) as worker,
    ):
        systems: dict[str, System] = {"peer": Peer(worker), "semel": Semel(rig)}
        topics = {}
        for format_ in ("Avro", "Protobuf"):
            rig.say(f"producing {workload.records:,} records in {format_}")
            topics[format_] = produce(rig, workload, settings(format_, registry))

        def once(contest: Contest) -> Sample:
            return run(
                rig,
                systems[contest.system],
                topics[contest.format],
                workload,
                upsert=False,
                converter={},
                tasks=tasks,
                extra=settings(contest.format, registry),
            )

        for contest in CONTESTS:  # warm the worker's JVM and PostgreSQL's files: not counted
            rig.say(f"{_name(contest, systems)}: warm-up, {once(contest).rate:,.0f}/s")
        for repeat in range(repeats):
            for contest in random.Random(repeat).sample(CONTESTS, len(CONTESTS)):
                sample = once(contest)
                samples.setdefault(contest, []).append(sample)
                rig.say(
                    f"{_name(contest, systems)}: {repeat + 1}/{repeats}, {sample.rate:,.0f}/s "
                    f"({sample.cpu:.1f} CPU s per million)"
                )
    return _figures(samples, systems, records, repeats, tasks)


def produce(rig: Rig, workload: Workload, converter: Mapping[str, str]) -> str:
    """Write a topic with semel's converter and return its name."""
    topic = rig.unique("formats")
    rig.kafka.create_topic(topic, workload.partitions)
    config = {k.removeprefix("value.converter."): v for k, v in converter.items()}
    encoder = converters.create(
        config.pop("value.converter"), config, is_key=False, where="value.converter"
    ).for_topic(topic)
    producer = Producer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "log_level": 0,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for first in range(0, workload.records, CHUNK):
        numbers = np.arange(first, min(first + CHUNK, workload.records))
        for i, value in zip(
            numbers.tolist(), encoder.encode(rows(numbers)).to_pylist(), strict=True
        ):
            while True:
                try:
                    producer.produce(topic, value, partition=i % workload.partitions)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    if undelivered := producer.flush(120):
        raise RuntimeError(f"{undelivered} records of {topic} were not delivered")
    return topic


def rows(numbers: Any) -> pa.Array:
    """The records of these numbers, as :mod:`benchmarks.records` has them in JSON."""
    columns = [
        numbers,
        numbers % 1000,
        [f"user-{n}" for n in numbers.tolist()],
        numbers % 100 + 0.25,
        np.ones(len(numbers), np.bool_),
        ["abcdefghijkl"] * len(numbers),
        numbers + FIRST_TS,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(ROW))


def _name(contest: Contest, systems: Mapping[str, System]) -> str:
    return f"{systems[contest.system].name}, {contest.format}"


def _figures(
    samples: Mapping[Contest, list[Sample]],
    systems: Mapping[str, System],
    records: int,
    repeats: int,
    tasks: int,
) -> Figures:
    base = median(samples[CONTESTS[0]])
    table: list[dict[str, Any]] = []
    for contest in CONTESTS:
        taken = samples[contest]
        middle = median(taken)
        table.append(
            {
                "system": systems[contest.system].name,
                "format": contest.format,
                **middle,
                "rates": [s.rate for s in taken],
                "ratio": middle["rate"] / base["rate"],
                "cpu_ratio": base["cpu"] / (middle["cpu"] or float("nan")),
            }
        )
    return Figures(
        name="formats",
        title=f"Kafka to PostgreSQL, {records:,} records with a schema registry, {PARTITIONS} "
        f"partitions, {tasks} tasks, insert, warm: medians of {repeats}",
        columns=[
            Column("system", "system"),
            Column("format", "records"),
            Column("rate", "records/s", count),
            Column("rates", "range", span),
            Column("ratio", "ratio", ratio),
            Column("cpu_ratio", "CPU ratio", ratio),
            Column("cpu", "CPU s per million", seconds),
            Column("peak_pss", "peak memory, MiB", megabytes),
        ],
        rows=table,
        notes=[
            "Ratios: to Kafka Connect with Apicurio's Avro converter "
            f"{APICURIO_SERDES_VERSION}. Its Protobuf converter is not on Maven Central, so "
            "Protobuf is measured with semel alone. Warm: between "
            f"{WARM[0]:.0%} and {WARM[1]:.0%} of the records committed.",
        ],
        facts={"tasks": tasks, "repeats": repeats},
    )
