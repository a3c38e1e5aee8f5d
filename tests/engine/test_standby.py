"""The daemon on standby: Spark's workers are forked from it, or by Spark's own daemon if there is
none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from semel.core.context import STANDBY
from semel.spark.launch import Standby, _standby
from tests.conftest import wait_gone
from tests.patience import PATIENCE
from tests.processes import run_to_end

RAW = {"connector.class": "postgresql", "connection.url": "jdbc:postgresql://127.0.0.1:1/db"}


@pytest.fixture
def standby() -> Iterator[Standby]:
    made = Standby(RAW)
    yield made
    made.end()
    made._process.wait(PATIENCE)


def spark_daemon(path: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Spark's daemon, as the JVM starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "semel.spark.daemon", *(arguments or ["pyspark.worker"])],
        env={**os.environ, STANDBY: path, "MARK": "spark's"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def tells_its_port(daemon: subprocess.Popen[bytes]) -> bool:
    assert daemon.stdout is not None
    return 0 < int.from_bytes(daemon.stdout.read(4), "big") < 65536


def test_it_serves_spark_with_the_pipes_and_the_environment_of_sparks_daemon(
    standby: Standby,
) -> None:
    daemon = spark_daemon(standby.path)
    assert daemon.stdin is not None
    assert tells_its_port(daemon)
    served = psutil.Process(standby._process.pid)
    listening = [c for c in served.net_connections("tcp") if c.status == "LISTEN"]
    assert listening, "the port is its own"
    assert not psutil.Process(daemon.pid).net_connections("tcp")
    daemon.stdin.close()  # Spark ends its daemon so
    assert daemon.wait(PATIENCE) == 0
    standby._process.wait(PATIENCE)


def test_executors_that_are_processes_fork_their_own_workers() -> None:
    """A worker forked elsewhere would outlive its executor."""
    assert _standby({}, {"spark.master": "local-cluster[2,1,1024]"}) is None


def test_sparks_daemon_serves_itself_where_nobody_is_on_standby(tmp_path: Path) -> None:
    daemon = spark_daemon(str(tmp_path / "nobody"))
    assert daemon.stdin is not None
    assert tells_its_port(daemon)
    daemon.stdin.close()
    daemon.wait(PATIENCE)


def test_sparks_daemon_serves_itself_where_the_standby_has_died(standby: Standby) -> None:
    standby._process.kill()
    standby._process.wait(PATIENCE)
    daemon = spark_daemon(standby.path)
    assert daemon.stdin is not None
    assert tells_its_port(daemon)
    daemon.stdin.close()
    daemon.wait(PATIENCE)


def test_it_ends_with_the_process_that_has_started_it() -> None:
    program = f"""
import os
from semel.spark.launch import Standby
print(Standby({RAW!r})._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = run_to_end([sys.executable, "-c", program])
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    assert wait_gone(pid)


@pytest.mark.long
def test_it_imports_for_a_worker_what_its_tasks_would_import_one_by_one() -> None:
    code = (
        "import sys; from semel.spark.standby import _import_connector; _import_connector({}); "
        "sys.exit('adbc_driver_postgresql.dbapi' not in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=False).returncode == 0
    )
