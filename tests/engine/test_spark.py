"""The direct engine on a real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from semel.audit import audit
from semel.config import CommonConfig, read
from semel.core import failpoints
from semel.sinks import MODULE
from semel.spark import session as spark
from semel.spark.jars import resolve
from semel_lab.jars import DELTA_SPARK
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Lake
from tests.engine.harness import (
    assert_nothing_lost_nothing_twice,
    caught_up,
    ids,
    positions,
    records,
    some,
    wait_until,
)
from tests.patience import PATIENCE
from tests.processes import run_to_end

pytestmark = pytest.mark.integration

SMALL = {"consumer.override.max.poll.records": 20}
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(written: Callable[[Config], Path]) -> Iterator[Launch]:
    """Starts ``semel run`` in a process group of its own."""
    started = []

    def begin(
        config: Config, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "semel", "run", str(written(config)), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        )
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE)


def ended(process: subprocess.Popen[str], timeout: float = PATIENCE) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def moved(config: Config, count: int) -> bool:
    try:
        return sum(positions(config).values()) >= count
    except Exception:
        return False


@pytest.mark.parametrize("how", some(["SIGTERM", "Ctrl-C"], {"SIGTERM"}))
def test_it_finishes_what_is_in_hand_and_exits_with_0(
    how: str, topic: MakeTopic, produce: Produce, configure: Configure, launch: Launch
) -> None:
    source = topic(partitions=2, values=records(200))
    config = configure(source, {**SMALL, "tasks.max": 2})
    process = launch(config, "--json")
    wait_until(lambda: moved(config, 200) or process.poll() is not None)
    produce(source, records(200, start=200))
    if how == "SIGTERM":
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert code == 0, err
    summary = json.loads(out)
    done = ids(config["connection.url"], source)
    assert (summary["rows"], summary["restarts"]) == (len(done), 0)
    assert done == sorted(set(done))


@pytest.mark.long
def test_a_killed_python_worker_is_restarted_by_spark(
    topic: MakeTopic, configure: Configure, launch: Launch, points: Path
) -> None:
    source = topic(partitions=2, values=records(300))
    config = configure(source, {**SMALL, "tasks.max": 2})
    failpoints.arm(points, "sink.before_commit", "kill-worker", skip=3)
    process = launch(
        config, "--until-caught-up", "--json", environment={failpoints.DIRECTORY: str(points)}
    )
    code, out, err = ended(process)
    assert failpoints.fired(points)
    assert (code, json.loads(out)["restarts"]) == (0, 0), err
    assert_nothing_lost_nothing_twice(config, range(300))


@pytest.mark.long
def test_a_killed_executor_of_a_cluster_costs_nothing_but_time(
    topic: MakeTopic, configure: Configure, launch: Launch, points: Path
) -> None:
    source = topic(partitions=2, values=records(300))
    keys: dict[str, Any] = {
        **SMALL,
        "tasks.max": 2,
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    config = configure(source, keys)
    failpoints.arm(points, "sink.before_commit", "kill-executor", skip=3)
    process = launch(
        config, "--until-caught-up", "--json", environment={failpoints.DIRECTORY: str(points)}
    )
    code, out, err = ended(process)
    assert failpoints.fired(points)
    assert code == 0, err
    assert json.loads(out)["name"] == config["name"]
    assert_nothing_lost_nothing_twice(config, range(300))


@pytest.mark.long
def test_a_session_that_exists_is_used_and_left_alone(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    program = f"""
        import semel
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = spark.config("spark.driver.host", "127.0.0.1").getOrCreate()
        progress = semel.run({config!r}, until_caught_up=True)
        assert progress.rows == 20, progress
        assert spark.range(5).count() == 5
    """
    done = run_to_end(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert_nothing_lost_nothing_twice(config, range(20))


@pytest.mark.long
def test_two_thousand_partitions_on_four_tasks_start_and_commit(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2000, values=records(4000))
    config = configure(source, {"tasks.max": 4})
    caught_up(config)
    assert len(positions(config)) == 2000
    assert ids(config["connection.url"], source) == list(range(4000))


@pytest.mark.long
def test_the_worker_daemon_keeps_the_users_archives_on_the_path(tmp_path: Path) -> None:
    mine, jar, pyspark = (str(tmp_path / n) for n in ("mine.zip", "spark-core.jar", "pyspark.zip"))
    program = f"""
        import sys
        sys.path += [{mine!r}, {jar!r}, {pyspark!r}]
        import semel.spark.daemon
        print([p for p in sys.path if p.startswith({str(tmp_path)!r})])
    """
    done = run_to_end([sys.executable, "-c", textwrap.dedent(program)], check=True)
    assert done.stdout.strip() == str([mine])


@pytest.mark.long
def test_no_process_is_left_when_the_driver_is_killed(
    topic: MakeTopic, configure: Configure, launch: Launch
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    process = launch(config)
    wait_until(lambda: moved(config, 20) or process.poll() is not None)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 1
    process.kill()
    process.wait(PATIENCE)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive


_READ_DELTA = """
import json, sys
from pyspark.sql import SparkSession
path, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
table = spark.read.format("delta").load(path)
table.createOrReplaceTempView("t")
found = {
    "ids": [r.id for r in table.select("id").orderBy("id").collect()],
    "some": spark.sql("SELECT count(*) FROM t WHERE id >= 1900 AND kind = 'k1'").first()[0],
    "types": dict(table.dtypes),
}
spark.sql(f"OPTIMIZE delta.`{path}`")
print(json.dumps(found))
"""


@pytest.mark.long
def test_the_bounded_engine_survives_a_kill_and_spark_reads_and_optimizes_its_tables(
    topic: MakeTopic, produce: Produce, lake: Lake, launch: Launch, points: Path
) -> None:
    source = topic(partitions=2)
    produce(source, [json.dumps({"id": i, "kind": f"k{i % 3}"}).encode() for i in range(2000)])
    keys = {"partition.by": "kind", "maxOffsetsPerTrigger": 500, "spark.ui.enabled": "false"}
    config = lake(source, keys)
    failpoints.arm(points, "task.after_convert", "kill-worker", skip=1)
    environment = {failpoints.DIRECTORY: str(points)}
    status, _, err = ended(launch(config, "--until-caught-up", environment=environment))
    assert status == 0, err
    assert failpoints.fired(points)
    report = audit(config)
    assert (report.records, report.lost, report.duplicated, report.exact) == (2000, 0, 0, True)
    path = str(Path(config["delta.table.path"], source))
    jars = ",".join(map(str, resolve(DELTA_SPARK)))
    read = run_to_end([sys.executable, "-c", _READ_DELTA, path, jars])
    assert read.returncode == 0, read.stderr[-3000:]
    found = json.loads(read.stdout.splitlines()[-1])
    assert found["ids"] == list(range(2000))
    assert found["some"] == len([i for i in range(1900, 2000) if i % 3 == 1])
    assert found["types"]["__connect_timestamp"] == "timestamp"
    produce(source, [json.dumps({"id": i, "kind": "k0"}).encode() for i in range(2000, 2100)])
    caught_up(config)
    report = audit(config)  # after Spark's OPTIMIZE
    assert (report.records, report.lost, report.duplicated) == (2100, 0, 0)


@pytest.mark.parametrize(
    ("name", "module"),
    [("FileStreamSource", "semel.sources.filestream"), ("duckdb", "semel.sinks.sql.duckdb")],
)
def test_workers_import_the_module_of_a_source_or_a_sink(name: str, module: str) -> None:
    raw = {"name": "c", "connector.class": name, "bootstrap.servers": "localhost:1"}
    connector = read(CommonConfig, raw)
    settings = spark._settings(connector, {}, 1, works=False)
    assert settings[f"spark.executorEnv.{MODULE}"] == module


@pytest.mark.long
def test_a_local_spark_does_not_start_a_thread_for_each_slot() -> None:
    program = """
import psutil
from semel.spark import gateway, session
from semel.config import CommonConfig, read
raw = {"name": "c", "connector.class": "duckdb", "bootstrap.servers": "localhost:1"}
connector = read(CommonConfig, raw)
made = session.context(connector)
assert made.master.startswith(f"local[{session._SLOTS}")
print(psutil.Process(made._gateway.proc.pid).num_threads())
session.stop(made)
assert gateway.neutral(), "the archive that this run asks for has the launcher's answer, too"
"""
    ran = run_to_end([sys.executable, "-c", program])
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert int(ran.stdout.split()[-1]) < spark._SLOTS / 4
