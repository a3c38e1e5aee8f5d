"""Starting Spark's JVM: by the command that was remembered, or else by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext

from semel import gateway
from semel.archives import SWITCH, Archive
from semel.errors import ServiceError
from semel.gateway import Jvm
from tests.patience import PATIENCE

REMEMBERED = ["/bin/java", "-cp", "/jars/*", "-Xmx1m", "-Dsemel.options=here", "--add-opens=a=b"]
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC '-Dpath=/a b'",
}


@pytest.fixture(autouse=True)
def neutral(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a Spark yet, whatever tests ran here before."""
    for name in [n for n in os.environ if n.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(SWITCH, raising=False)
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)


def test_the_remembered_command_is_filled_with_this_runs_options_and_memory() -> None:
    command = gateway._command(SETTINGS, REMEMBERED)
    assert command[:4] == ["/bin/java", "-cp", "/jars/*", "-Xmx512m"]
    assert command[4:7] == ["-XX:+UseSerialGC", "-Dpath=/a b", "--add-opens=a=b"]
    assert command[7:] == ["org.apache.spark.api.python.PythonGatewayServer"]


@pytest.mark.parametrize("name", ["spark.jars.packages", "spark.files", "spark.kerberos.keytab"])
def test_what_must_be_prepared_is_submitted(name: str) -> None:
    command = gateway._command({**SETTINGS, name: "one"}, REMEMBERED)
    main, *submitted = command[7:]
    assert main == "org.apache.spark.deploy.SparkSubmit"
    assert submitted[:2] == ["--conf", "spark.master=local[2]"]
    assert submitted[-3:] == ["--conf", f"{name}=one", "pyspark-shell"]


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"])
def test_where_the_environment_shapes_the_command_the_launcher_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "--verbose pyspark-shell")
    assert gateway._command(SETTINGS, REMEMBERED)[0].endswith("bin/spark-submit")


def test_where_the_settings_shape_the_command_the_launcher_is_asked() -> None:
    settings = {**SETTINGS, "spark.driver.extraClassPath": "/mine.jar"}
    assert gateway._command(settings, REMEMBERED)[0].endswith("bin/spark-submit")
    assert gateway._command(SETTINGS, None)[0].endswith("bin/spark-submit")


def test_one_that_never_becomes_ready_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_command", lambda *_arguments: ["sleep", "100"])
    jvm, failed = Jvm(), []

    def connect() -> None:
        try:
            jvm.connect(SETTINGS, None)
        except ServiceError as error:
            failed.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while jvm._process is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert jvm._process is not None
    jvm.end()
    thread.join(PATIENCE)
    assert failed and not psutil.pid_exists(jvm._process.pid)
    with pytest.raises(ServiceError, match="stopped while it was starting"):
        jvm.connect(SETTINGS, None)


_STARTS = """
import sys
from pathlib import Path
from pyspark import SparkConf, SparkContext
from semel.archives import Archive
from semel.gateway import Jvm

options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
settings = {
    "spark.master": "local[1]", "spark.app.name": "test", "spark.driver.memory": "512m",
    "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.extraJavaOptions": options,
}
Jvm().connect(settings, Archive("spark", "k", Path(sys.argv[1])))
print(SparkContext(conf=SparkConf().setAll(list(settings.items()))).range(3).count())
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["false"], id="the JVM ends at once"),
        pytest.param(None, marks=pytest.mark.long, id="the JVM does not know what this is"),
    ],
)
def test_spark_starts_in_spite_of_a_damaged_archive(
    command: list[str] | None, tmp_path: Path
) -> None:
    archive = Archive("spark", "k", tmp_path)
    assert archive.make(lambda part: {"command": _garbage(part, command)})
    ended = subprocess.run(
        [sys.executable, "-c", _STARTS, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.stdout.strip() == "3", ended.stderr
    assert archive.file.exists() == (command is None), "one that a JVM died of is removed"


def test_an_archive_is_kept_where_spark_does_not_start_without_it_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive("spark", "k", tmp_path)
    assert archive.make(lambda part: {"command": _garbage(part, ["false"])})
    starts: list[list[str]] = []

    def fails(_jvm: Jvm, command: list[str], _settings: object) -> None:
        starts.append(command)
        raise ServiceError("Spark does not start")

    monkeypatch.setattr(Jvm, "_start", fails)
    with pytest.raises(ServiceError):
        Jvm().connect(SETTINGS, archive)
    assert len(starts) == 2
    assert archive.file.exists()


def _garbage(part: Path, command: list[str] | None) -> list[str] | None:
    part.write_bytes(json.dumps({"not": "classes"}).encode() * 10_000)
    return command and [*command, "-Xmx1m", "-Dsemel.options=here"]
