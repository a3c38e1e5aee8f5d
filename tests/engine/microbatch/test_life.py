"""The life of a micro-batch connector's run."""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from py4j.protocol import ERROR_RETURN_MESSAGE
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession

import semel
from semel.core import failpoints
from semel.core.errors import OffsetOutOfRange, ServiceError
from semel.driver.base import State
from semel.driver.microbatch import engine as microbatch
from semel.driver.runtime import Connector, Runtime
from semel.tasks.microbatch import task as microtask
from semel.tasks.microbatch.commit import SideOutput
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import some, wait_until
from tests.engine.microbatch.conftest import (
    Arm,
    Go,
    Launch,
    MakeConfig,
    Query,
    position,
    wait_for_no_clients,
)
from tests.engine.microbatch.transforms import even, passing, rows
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


def test_a_running_connector_takes_new_partitions_and_stops_when_told(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, kafka: Kafka,
    launch: Launch,
) -> None:  # fmt: skip
    t = topic(1, values=rows(10))
    running = launch(configure(t), even)
    running.reach(lambda p: p.records == 10)
    kafka.increase_partitions(t, 2)
    produce(t, rows(10, 10), partition=1)
    running.reach(lambda p: p.records == 20)
    running.stop.set()
    assert running.end() is None
    assert query("SELECT partition, position, start_position FROM semel_offsets ORDER BY 1") == [
        (0, 10, 0), (1, 10, 0)
    ]  # fmt: skip
    assert query("SELECT count(*) FROM t") == [(10,)]


@pytest.mark.long
def test_a_paused_connector_reads_nothing_until_it_resumes(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, spark: SparkSession
) -> None:
    first, second = topic(1), topic(1)
    with Runtime(spark) as runtime:
        paused = runtime.start(configure(first, **{"table.name.format": "first"}), even)
        other = runtime.start(configure(second, **{"table.name.format": "second"}), even)

        def reached(connector: Connector, offset: int) -> bool:
            assert connector.error is None
            progress = connector.progress
            return progress is not None and sum(progress.positions.values()) >= offset

        produce(first, rows(10))
        wait_until(lambda: reached(paused, 10))
        paused.pause()
        wait_until(lambda: State.PAUSED in [s.state for s in paused.status().tasks.values()])
        for name in (first, second):
            produce(name, rows(10, 10))
        wait_until(lambda: reached(other, 10))
        assert query("SELECT count(*) FROM first") == [(5,)]
        paused.resume()
        wait_until(lambda: reached(paused, 20))
        assert query("SELECT count(*) FROM first") == [(10,)]
        paused.restart_task(0)  # all of them begin again
        wait_until(lambda: paused.progress is not None and paused.progress.restarts == 1)
        produce(first, rows(10, 20))
        wait_until(lambda: reached(paused, 30))
        assert query("SELECT count(*) FROM first") == [(15,)]


@pytest.mark.long
def test_nobody_but_spark_may_call_the_driver_back(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, launch: Launch, spark: SparkSession
) -> None:
    t = topic(1, values=rows(10))
    running = launch(configure(t), even)
    running.reach(lambda p: p.records == 10)
    server: Any = spark.sparkContext._gateway
    address = LOOPBACK, server.get_callback_server().get_listening_port()
    for call in (b"c\np0\ncall\ne\n", b"A\nguessed\ne\n"):
        with socket.create_connection(address, PATIENCE) as line, suppress(ConnectionResetError):
            line.sendall(call)
            assert line.recv(100) in (b"", ERROR_RETURN_MESSAGE.encode())
            assert line.recv(100) == b""
    produce(t, rows(10, 10))
    running.reach(lambda p: p.records == 20)


@pytest.mark.parametrize("transform", some([None, even], ()))
def test_a_batch_that_does_not_end_is_cancelled_when_the_run_is_stopped(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    launch: Launch, monkeypatch: pytest.MonkeyPatch, failpoint_directory: Path,
    transform: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(microbatch, "_SETTLE", 2.0)
    monkeypatch.setattr(microbatch, "_CANCELLED", PATIENCE)
    query("CREATE TABLE t (id int8, name text, amount float8, twice int8)")
    t = topic(1, values=rows(10))
    arm("sink.before_commit", "freeze")
    running = launch(configure(t), transform)
    wait_until(lambda: bool(failpoints.fired(failpoint_directory)))
    running.stop.set()
    assert running.end() is None
    wait_for_no_clients(query)
    assert (position(query), query("SELECT count(*) FROM t")) == (0, [(0,)])
    go(configure(t), transform)
    assert position(query) == 10


def test_a_side_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "side"
    microtask._pass_on(path, SideOutput(read=3))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        microtask._pass_on(path, SideOutput())
    side = microtask._passed_on(path)
    assert side is not None
    assert side.read == 3
    assert microtask._passed_on(path) is None
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        microtask._passed_on(path)


def test_a_side_file_of_somebody_else_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "side"
    path.write_bytes(b"what is this")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ServiceError, match="belongs to another user"):
        microtask._passed_on(path)


@pytest.mark.long
def test_nothing_is_left_in_temporary_directories(
    spark: SparkSession, topic: MakeTopic, configure: MakeConfig, go: Go,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the driver's; others use /tmp, too
    t = topic(1, values=rows(10))
    of_workers = Path(SparkFiles.getRootDirectory())  # tests of killed ones have left some
    before = set(of_workers.glob("semel-*"))
    go(configure(t), even)
    assert set(of_workers.glob("semel-*")) <= before
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_records_that_retention_removes_under_a_running_connector_stop_it_with_the_facts(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, kafka: Kafka, launch: Launch
) -> None:
    hold, held, release = threading.Event(), threading.Event(), threading.Event()

    def slow(df: DataFrame) -> DataFrame:
        if hold.is_set():
            hold.clear()
            held.set()
            assert release.wait(PATIENCE)
            release.clear()
        return df

    t = topic(1, values=rows(10))
    running = launch(configure(t), slow)
    running.reach(lambda p: p.records == 10)
    for known in itertools.count(10, 10):
        held.clear()
        hold.set()
        produce(t, rows(10, known))
        assert held.wait(PATIENCE)
        kafka.delete_records(t, {0: known + 5})
        release.set()
        wait_until(
            lambda end=known + 10: (  # type: ignore[misc]
                running.over or running.progress.records == end
            )
        )
        if running.over:  # otherwise a fetch was still under way: it brought them
            break
    error = running.end()
    assert isinstance(error, OffsetOutOfRange), error
    lost = f"stored position {known}, earliest available {known + 5}, 5 records lost"
    assert lost in str(error)


@pytest.mark.long
def test_a_session_that_was_there_is_used_and_left_alone(
    spark: SparkSession, topic: MakeTopic, configure: MakeConfig, query: Query
) -> None:
    t = topic(1, values=rows(4))
    semel.run(configure(t), passing, until_caught_up=True)
    assert query("SELECT count(*) FROM t") == [(4,)]
    assert spark.range(3).count() == 3


@pytest.mark.long
def test_topics_by_pattern(topic: MakeTopic, configure: MakeConfig, query: Query, go: Go) -> None:
    t = topic(1, prefix="pattern", values=rows(4))
    config = configure(t, topics_regex=f"pattern-{t.rpartition('-')[2]}")
    del config["topics"]
    go(config, passing)
    assert query("SELECT count(*) FROM t") == [(4,)]


@pytest.mark.long
def test_a_batch_holds_at_most_so_many_records(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=rows(25))
    assert go(configure(t, maxOffsetsPerTrigger="10")).commits == 3
    assert query("SELECT count(*) FROM t") == [(25,)]


@pytest.mark.long
def test_aborted_transactions_are_passed_over(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, kafka: Kafka
) -> None:
    t = topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": t})
    producer.init_transactions(PATIENCE)
    for values, end in ((rows(5), "commit"), (rows(3, 5), "abort"), (rows(2, 8), "commit")):
        producer.begin_transaction()
        for value in values:
            producer.produce(t, value)
        producer.flush(PATIENCE)
        getattr(producer, f"{end}_transaction")(PATIENCE)
    assert go(configure(t), even).records == 7
    assert query("SELECT id FROM t ORDER BY id") == [(0,), (2,), (4,), (8,)]
    assert position(query) == 13  # ten records and three markers
