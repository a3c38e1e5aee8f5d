"""Micro-batches whose workers and drivers die: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import semel
from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import LedgerConflict
from semel.tasks import publish
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import some
from tests.engine.microbatch.conftest import (
    QUICK_JVM,
    Arm,
    Config,
    Go,
    Launch,
    MakeConfig,
    Query,
    position,
    wait_for_no_clients,
)
from tests.engine.microbatch.transforms import TRANSFORMS, even, grouped, passing, rows, shuffled
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("transform", some([None, even], {even}))
@pytest.mark.parametrize(
    "place", some(["sink.before_commit", "sink.after_commit"], {"sink.after_commit"})
)
def test_a_killed_worker_is_replaced_and_its_replay_is_recognised(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    failpoint_directory: Path, place: str, transform: Any,
) -> None:  # fmt: skip
    t = topic(1, values=rows(40))
    arm(place, "kill-worker")
    go(configure(t), transform)
    assert (place, "kill-worker") in {f[:2] for f in failpoints.fired(failpoint_directory)}
    expected = [(40, 40)] if transform is None else [(20, 20)]
    assert query("SELECT count(*), count(DISTINCT id) AS ids FROM t") == expected
    assert query("SELECT position, records_read FROM semel_offsets") == [(40, 40)]


@pytest.mark.long
@pytest.mark.parametrize("transform", [None, grouped])
@pytest.mark.parametrize("place", ["sink.before_commit", "sink.after_commit"])
def test_a_transient_failure_is_tried_again(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    failpoint_directory: Path, transform: Any, place: str,
) -> None:  # fmt: skip
    t = topic(1, values=rows(20))
    arm(place, "raise")
    progress = go(configure(t), transform)
    assert [f[:2] for f in failpoints.fired(failpoint_directory)] == [(place, "raise")]
    assert progress.restarts == 0
    expected = [(20,)] if transform is None else [(10,)]
    assert query("SELECT count(*) FROM t") == expected
    assert position(query) == 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("delivery", "transform", "expected"),
    [
        ("at-least-once", None, 40),
        ("at-least-once", shuffled, 40),
        ("at-most-once", even, 0),
        ("at-most-once", shuffled, 0),
    ],
)
def test_weaker_guarantees_err_only_on_their_own_side(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go, arm: Arm,
    delivery: str, transform: Any, expected: int,
) -> None:  # fmt: skip
    query("CREATE TABLE t (id int8, name text, amount float8, twice int8)")
    t = topic(1, values=rows(20))
    config = configure(t, delivery=delivery)
    arm("deliver.between", "raise")
    go(config, transform)
    assert query("SELECT count(*) FROM t") == [(expected,)]
    assert position(query) == 20


RUN = """
import json, sys, semel
from tests.engine.microbatch.transforms import TRANSFORMS
semel.run(json.loads(sys.argv[1]), TRANSFORMS[sys.argv[2]])
"""


@pytest.fixture
def crash(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, tmp_path: Path, query: Query
) -> MakeConfig:
    """Run a connector over 100 records in a process that is killed before it commits, and its JVM
    with it."""

    def run(transform: str) -> Config:
        t = topic(2, values=rows(100))
        config = QUICK_JVM | configure(t)
        failpoints.arm(tmp_path, "sink.before_commit", "kill-driver")
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, json.dumps(config), transform],
            env={**os.environ, failpoints.DIRECTORY: str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.wait(PATIENCE) == -9
        wait_for_no_clients(query)
        return config

    return run


@pytest.mark.long  # a driver dies in its commit in test_deliveries.py, too
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_driver_that_dies_with_its_jvm_leaves_what_the_restart_completes_exactly_once(
    crash: MakeConfig, produce: Produce, query: Query, go: Go, transform: str
) -> None:
    config = crash(transform)
    produce(config["topics"], rows(20, 100))
    go(config, TRANSFORMS[transform])
    assert query("SELECT count(*), sum(id)::bigint FROM t") == [(120, 7140)]
    assert query(
        "SELECT sum(position)::bigint AS a, sum(records_read)::bigint AS b FROM semel_offsets"
    ) == [(120, 120)]


@pytest.mark.parametrize("transform", some([passing, shuffled], {shuffled}))
def test_of_two_drivers_the_loser_stops_and_has_written_nothing(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go,
    launch: Launch, transform: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    names = iter([f"{who}@{who}.example, process 7, at noon" for who in ("ann", "bob")])
    monkeypatch.setattr(publish, "this_run", lambda: next(names))
    held, release = threading.Event(), threading.Event()
    batches: list[int] = []

    def slow(df: DataFrame) -> DataFrame:
        batches.append(1)
        if len(batches) == 2:
            held.set()
            assert release.wait(PATIENCE)
        return transform(df)

    t = topic(1, values=rows(10))
    config = configure(t)
    first = launch(config, slow)
    first.reach(lambda p: p.records == 10)
    produce(t, rows(10, 10))
    assert held.wait(PATIENCE)
    produce(t, rows(10, 20))
    go(config, transform)
    release.set()
    error = first.end()
    assert isinstance(error, LedgerConflict), error
    assert "the ledger is at 30" in str(error)
    assert "started by bob@bob.example, process 7, at noon, and has ended" in str(error)
    assert "takes over from the one started by ann@ann.example, process 7" in caplog.text
    assert query("SELECT count(*), count(DISTINCT id) AS ids FROM t") == [(30, 30)]


@pytest.mark.long
def test_a_store_that_commits_per_table_is_committed_to_by_the_driver(
    topic: MakeTopic, configure: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    source = topic(partitions=2, values=[json.dumps({"id": i}) for i in range(100)])

    def doubled(rows: DataFrame) -> DataFrame:
        return rows.withColumn("twice", F.col("id") * 2)

    config = configure(
        source,
        connector_class="delta",
        delta_table_path=str(tmp_path),
        provenance="true",
        maxOffsetsPerTrigger="40",
    )
    progress = semel.run(config, doubled, spark=spark, until_caught_up=True)
    assert progress.rows == 100
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert sorted(table.column("twice").to_pylist()) == [2 * i for i in range(100)]
    report = audit(config)
    assert (report.records, report.lost, report.duplicated) == (100, 0, 0)
