"""A worker whose tasks run on the executors of a Spark cluster: a standalone master with two
workers, from PySpark's own jars."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyspark
import pytest

from semel_lab.embedded import Kafka
from semel_lab.embedded.java import find_java
from semel_lab.embedded.process import LOOPBACK, ServerProcess, free_port, listening
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import assert_nothing_lost_nothing_twice, records, wait_until
from tests.patience import PATIENCE
from tests.rest.test_app import offset

pytestmark = [pytest.mark.integration, pytest.mark.long]

_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Spark:
    """A master and two workers with one core each, in processes that end with the test."""

    def __init__(self, directory: Path, ends: ExitStack) -> None:
        self._directory, self._ends = directory, ends
        port, web = free_port(), free_port()
        self.url = f"spark://{LOOPBACK}:{port}"
        where = ("--host", LOOPBACK, "--port", str(port), "--webui-port", str(web))
        self._start("master", *where)
        wait_until(lambda: listening(port))
        for number in (1, 2):
            web = free_port()
            size = ("--cores", "1", "--memory", "600m", "--webui-port", str(web))
            place = ("--host", LOOPBACK, "--work-dir", str(directory / f"work-{number}"))
            self._start("worker", *size, *place, self.url, name=f"worker-{number}")
            wait_until(lambda web=web: listening(web))

    def _start(self, kind: str, *arguments: str, name: str = "") -> None:
        folder = self._directory / (name or kind)
        folder.mkdir()
        process = ServerProcess(f"Spark {kind}", folder, folder / "log")
        jars = Path(pyspark.__file__).parent / "jars"
        main = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        command = [str(find_java()), "-Xmx192m", *_SMALL.split(), "-cp", f"{jars}/*", main]
        environment = {**os.environ, "SPARK_HOME": str(jars.parent), "SPARK_LOCAL_IP": LOOPBACK}
        environment["SPARK_SCALA_VERSION"] = "2.13"  # as Spark's own scripts do
        process.launch(
            [*command, *arguments], detached=False, environment=environment, directory=folder
        )
        self._ends.callback(process.stop, signal.SIGTERM, PATIENCE)


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Spark]:
    with ExitStack() as ends:
        yield Spark(tmp_path, ends)


@pytest.fixture
def api(spark: Spark, kafka: Kafka, tmp_path: Path, database: str) -> Iterator[httpx.Client]:
    """That of a worker which has the Spark cluster for a master."""
    port = free_port()
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "listeners": f"http://{LOOPBACK}:{port}",
        "semel.rest.authentication": "none",
        "spark.master": spark.url,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": _SMALL,
    }
    file = tmp_path / "worker.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = subprocess.Popen(
        [sys.executable, "-c", "from semel.cli import main; main()", "worker", str(file)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
    )
    try:
        wait_until(lambda: listening(port) or process.poll() is not None)
        with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=PATIENCE) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def places(api: httpx.Client, name: str) -> list[Any]:
    """The executors of the tasks that run."""
    tasks = api.get(f"/connectors/{name}/status").json()["tasks"]
    return [task.get("executor") for task in tasks if task["state"] == "RUNNING"]


def executor(task: str) -> psutil.Process:
    """The JVM that a task's process belongs to."""
    process = psutil.Process(int(task.rpartition(":")[2]))
    return next(p for p in process.parents() if "CoarseGrained" in " ".join(p.cmdline()))


def test_tasks_run_on_executors_and_again_elsewhere_when_one_dies(
    api: httpx.Client, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(300))
    config = configure(source, {"tasks.max": "2"})
    name = config["name"]
    made = api.post("/connectors", json={"name": name, "config": config})
    assert made.status_code == 201, made.text
    wait_until(lambda: len(places(api, name)) == 2)
    wait_until(lambda: offset(api, name) == 300)
    first, second = places(api, name)
    killed, other = executor(first), executor(second)
    assert killed.pid != other.pid
    assert Path(killed.cwd()).parts[-3] != Path(other.cwd()).parts[-3]  # of two workers

    killed.kill()
    produce(source, records(300, start=300))
    wait_until(lambda: offset(api, name) == 600)
    wait_until(lambda: len(places(api, name)) == 2 and first not in places(api, name))
    assert other.is_running()  # its task may have started again: a slow one loses its session
    assert_nothing_lost_nothing_twice(config, range(600))
