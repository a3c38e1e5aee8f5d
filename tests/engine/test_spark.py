"""The direct engine on a real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from semel import failpoints
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure
from tests.engine.harness import (
    assert_nothing_lost_nothing_twice,
    ids,
    positions,
    records,
    wait_until,
)

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
            process.wait()


def ended(process: subprocess.Popen[str], timeout: float = 150) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def moved(config: Config, count: int) -> bool:
    try:
        return sum(positions(config).values()) >= count
    except Exception:
        return False


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_it_finishes_what_is_in_hand_and_exits_with_0(
    how: str, topic: MakeTopic, produce: Produce, configure: Configure, launch: Launch
) -> None:
    source = topic(partitions=2)
    produce(source, records(200))
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


def test_a_killed_python_worker_is_restarted_by_spark(
    topic: MakeTopic, produce: Produce, configure: Configure, launch: Launch, points: Path
) -> None:
    source = topic(partitions=2)
    produce(source, records(300))
    config = configure(source, {**SMALL, "tasks.max": 2})
    failpoints.arm(points, "sink.before_commit", "kill-worker", skip=3)
    process = launch(
        config, "--until-caught-up", "--json", environment={failpoints.DIRECTORY: str(points)}
    )
    code, out, err = ended(process)
    assert (points / "fired.log").exists()
    assert (code, json.loads(out)["restarts"]) == (0, 0), err
    assert_nothing_lost_nothing_twice(config, range(300))


def test_a_killed_executor_of_a_cluster_costs_nothing_but_time(
    topic: MakeTopic, produce: Produce, configure: Configure, launch: Launch, points: Path
) -> None:
    source = topic(partitions=2)
    produce(source, records(300))
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
    assert (points / "fired.log").exists()
    assert code == 0, err
    assert json.loads(out)["name"] == config["name"]
    assert_nothing_lost_nothing_twice(config, range(300))


def test_a_session_that_exists_is_used_and_left_alone(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    produce(source, records(20))
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        check=False,
        timeout=150,
        text=True,
        capture_output=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert_nothing_lost_nothing_twice(config, range(20))


def test_two_thousand_partitions_on_four_tasks_start_and_commit(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    from tests.engine.harness import caught_up

    source = topic(partitions=2000)
    produce(source, records(4000))
    config = configure(source, {"tasks.max": 4})
    begun = time.monotonic()
    caught_up(config, timeout=90)
    assert time.monotonic() - begun < 90
    assert len(positions(config)) == 2000
    assert ids(config["connection.url"], source) == list(range(4000))


def test_the_worker_daemon_keeps_the_users_archives_on_the_path(tmp_path: Path) -> None:
    mine, jar, pyspark = (str(tmp_path / n) for n in ("mine.zip", "spark-core.jar", "pyspark.zip"))
    program = f"""
        import sys
        sys.path += [{mine!r}, {jar!r}, {pyspark!r}]
        import semel.engine.daemon
        print([p for p in sys.path if p.startswith({str(tmp_path)!r})])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, text=True, capture_output=True
    )
    assert done.stdout.strip() == str([mine])


def test_no_process_is_left_when_the_driver_is_killed(
    topic: MakeTopic, produce: Produce, configure: Configure, launch: Launch
) -> None:
    source = topic()
    produce(source, records(20))
    config = configure(source)
    process = launch(config)
    wait_until(lambda: moved(config, 20) or process.poll() is not None)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 1
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive
