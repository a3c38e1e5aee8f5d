"""What a small batch holds once it is unpacked ends the process that reads it, and no other."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from semel.core.errors import SemelError
from semel.core.ledger import TopicPartition
from semel.driver import sampler
from semel.driver.planning import plan
from semel.spark.job_errors import first_error
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure, Start
from tests.engine.harness import LocalSpark, ids, records, sql, wait_until
from tests.patience import PATIENCE
from tests.processes import run_to_end

LARGE = 400_000_000
SMALL_MEMORY = {"task.max.memory.bytes": str(64 * 1024 * 1024)}
GROWS = f"""
import time
from semel.tasks import memory
held = []
def exceeded(why):
    print(why, flush=True)
    time.sleep({PATIENCE} if FAST else 0)
    import os; os._exit(7)
with memory.guarded(64 << 20, exceeded):
    while True:
        held.append(bytearray(FAST or 1 << 20))
        time.sleep(0 if FAST else 0.001)
"""


@pytest.fixture
def bomb(kafka: Kafka, topic: MakeTopic) -> str:
    """A topic with one record of 400 MB of zeros, which takes some 400 KB there."""
    name = topic(1)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": "gzip",
            "message.max.bytes": 1_000_000_000,
            "message.timeout.ms": int(PATIENCE * 1000),
            "batch.size": 1_000_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    producer.produce(name, bytes(LARGE))
    assert producer.flush(PATIENCE) == 0
    return name


def grows(by: int) -> subprocess.CompletedProcess[str]:
    return ended(GROWS.replace("FAST", str(by)))


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-c", program])


def test_a_task_that_needs_too_much_memory_says_so_and_ends() -> None:
    grown = grows(0)
    assert grown.returncode == 7, grown.stderr
    assert "bytes of memory, more than task.max.memory.bytes allows" in grown.stdout


def test_a_task_whose_memory_grows_too_fast_for_words_gets_no_more() -> None:
    assert "MemoryError" in grows(1 << 30).stderr


def test_addresses_that_arrow_reserves_count_as_nobodys_memory() -> None:
    """Its allocator does so once, with the first array: a gigabyte."""
    program = """
import pyarrow as pa
from semel.tasks import memory
memory.limit(600 << 20)
pa.array([1])
bytearray(400 << 20)
"""
    done = ended(program)
    assert done.returncode == 0, done.stderr


def test_what_to_set_is_said_of_a_task_that_has_died_without_a_word() -> None:
    """As Spark 4.1 reports a Python worker that its allocator or the system has ended."""
    report = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job "
        "aborted: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."
    )
    assert "increase it" in first_error(report)
    assert "task.max.memory.bytes" in first_error(report)


@pytest.mark.long
@pytest.mark.integration
def test_a_sample_that_is_too_large_ends_the_process_that_reads_it(
    bomb: str, topic: MakeTopic, configure: Configure
) -> None:
    config = configure(bomb, SMALL_MEMORY)
    planned = plan(config)
    planned.close()
    connector: object = planned.connector
    tp = TopicPartition(bomb, 0)
    with pytest.raises(SemelError, match=rf"{bomb}-0 from offset 0 has died.*task\.max\.memory"):
        sampler.read(connector, {tp: 0}, {tp: 1}, 1000)  # type: ignore[arg-type]
    other = topic(1, values=records(3))
    tp = TopicPartition(other, 0)
    found = sampler.read(connector, {tp: 0}, {tp: 3}, 1000)  # type: ignore[arg-type]
    assert found.tables[other].num_rows == 3


@pytest.mark.long
@pytest.mark.integration
def test_a_record_that_is_too_large_for_a_sample_is_left_to_the_task(
    bomb: str, configure: Configure
) -> None:
    planned = plan(configure(bomb, {"task.max.memory.bytes": str(4 << 30)}))
    planned.close()
    tp = TopicPartition(bomb, 0)
    found = sampler.read(planned.connector, {tp: 0}, {tp: 1}, 1000)  # type: ignore[arg-type]
    assert (dict(found.tables), found.cut) == ({}, True)


@pytest.mark.long
@pytest.mark.integration
def test_a_task_that_unpacks_too_much_is_named_with_its_partition_and_others_continue(
    bomb: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    database: str,
) -> None:
    caplog.set_level(logging.WARNING)
    good = topic(1)
    sql(database, f'CREATE TABLE "{bomb}" (id bigint)')  # a topic with a table is not sampled
    config = configure(bomb, SMALL_MEMORY | {"provenance": "false"})
    dying = start(config, spark=LocalSpark())
    working = start(configure(good), spark=LocalSpark())
    words = f"while it reads {bomb}-0 from offset 0; its process ends"
    wait_until(lambda: any(words in r.getMessage() for r in caplog.records) or not dying.alive)
    assert dying.alive, dying.error
    produce(good, records(3))
    wait_until(lambda: working.progress.records == 3)
    assert ids(database, good) == [0, 1, 2]
    working.stop()
    dying.stop()
