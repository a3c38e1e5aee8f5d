"""Starting Spark's JVM: by the command that was remembered, or else by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import javaproperties
import psutil
import pytest
from pyspark import SparkContext

from semel.core.errors import ServiceError
from semel.spark import gateway
from semel.spark import session as spark
from semel.spark.archives import SWITCH, Archive
from semel.spark.gateway import Jvm
from tests.patience import PATIENCE
from tests.processes import run_to_end

NOWHERE = Path("/nowhere")
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
    command = gateway._command(SETTINGS, REMEMBERED, NOWHERE)
    assert command[:4] == ["/bin/java", "-cp", "/jars/*", "-Xmx512m"]
    assert command[4:7] == ["-XX:+UseSerialGC", "-Dpath=/a b", "--add-opens=a=b"]
    assert command[7:] == ["org.apache.spark.api.python.PythonGatewayServer"]


@pytest.mark.parametrize("name", ["spark.jars.packages", "spark.files", "spark.kerberos.keytab"])
def test_what_must_be_prepared_is_submitted_in_a_private_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    command = gateway._command({**SETTINGS, name: "one"}, REMEMBERED, file)
    main, *submitted = command[7:]
    assert main == "org.apache.spark.deploy.SparkSubmit"
    assert submitted == ["--properties-file", str(file), "pyspark-shell"]
    given = javaproperties.loads(file.read_text())
    assert (given["spark.master"], given[name]) == ("local[2]", "one")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"])
def test_where_the_environment_shapes_the_command_the_launcher_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, "--verbose pyspark-shell")
    command = gateway._command(SETTINGS, REMEMBERED, tmp_path / "settings")
    assert command[0].endswith("bin/spark-submit")


def test_settings_of_the_user_are_read_where_a_connector_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def given() -> dict[str, str]:
        command = gateway._command(
            {**SETTINGS, "spark.x": "c:\\d é\n"}, None, tmp_path / "settings"
        )
        assert command[1:3] == ["--properties-file", str(tmp_path / "settings")]
        assert "--properties-file" not in command[3:]
        return javaproperties.loads((tmp_path / "settings").read_text())

    (tmp_path / "spark-defaults.conf").write_text("spark.x  no\nspark.y  mine")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert given() == {**SETTINGS, "spark.x": "c:\\d é\n", "spark.y": "mine"}
    (tmp_path / "mine.conf").write_text("spark.z=mine")
    for form in (" ", "="):
        argument = f"--properties-file{form}{tmp_path}/mine.conf pyspark-shell"
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", argument)
        assert given() == {**SETTINGS, "spark.x": "c:\\d é\n", "spark.z": "mine"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--properties-file /none pyspark-shell")
    with pytest.raises(ServiceError, match="/none cannot be read"):
        given()


def test_where_the_settings_shape_the_command_the_launcher_is_asked(tmp_path: Path) -> None:
    settings = {**SETTINGS, "spark.driver.extraClassPath": "/mine.jar"}
    file = tmp_path / "settings"
    assert gateway._command(settings, REMEMBERED, file)[0].endswith("bin/spark-submit")
    assert gateway._command(SETTINGS, None, file)[0].endswith("bin/spark-submit")


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
from semel.spark.archives import Archive
from semel.spark.gateway import Jvm

options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
settings = {
    "spark.master": "local[1]", "spark.app.name": "test", "spark.driver.memory": "512m",
    "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.extraJavaOptions": options,
}
Jvm().connect(settings, Archive("spark", "k", Path(sys.argv[1])))
print(SparkContext(conf=SparkConf().setAll(list(settings.items()))).range(3).count())
"""


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["false"], id="the JVM ends at once"),
        pytest.param(None, id="the JVM does not know what this is"),
    ],
)
def test_spark_starts_in_spite_of_a_damaged_archive(
    command: list[str] | None, tmp_path: Path
) -> None:
    archive = Archive("spark", "k", tmp_path)
    assert archive.make(lambda part: {"command": _garbage(part, command)})
    ended = run_to_end(
        [sys.executable, "-c", _STARTS, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        timeout=300,
    )
    assert ended.stdout.strip() == "3", ended.stderr
    assert archive.file.exists() == (command is None), "one that a JVM died of is removed"


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize(
    "unusual",
    [pytest.param({"SPARK_UNUSUAL": "1"}, id="a variable"), pytest.param({}, id="jars to prepare")],
)
def test_no_process_shows_a_setting_in_its_arguments(
    unusual: dict[str, str], tmp_path: Path
) -> None:
    jar = tmp_path / "empty.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("nothing", "")
    more = {"spark.hadoop.fs.secret": "top\\secret"} | ({} if unusual else {"spark.jars": str(jar)})
    starts = (
        f"{_STARTS.partition('Jvm()')[0]}settings |= {more!r}\nJvm(){_STARTS.partition('Jvm()')[2]}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", starts, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, SWITCH: "off", **unusual},
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: set[str] = set()
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                seen.update(child.cmdline())
        time.sleep(0.01)
    assert process.communicate(timeout=PATIENCE)[0].strip() == "3"
    assert any("SparkSubmit" in argument for argument in seen) and "--properties-file" in seen
    assert not [argument for argument in seen if "secret" in argument]


_STRANGER = """
from semel.spark import session as spark
from semel.config import ConnectorConfig, read

raw = {"name": "c", "connector.class": "sqlite", "topics": "t", "bootstrap.servers": "nowhere:1"}
made = spark.context(read(ConnectorConfig, raw | {"connection.url": "jdbc:sqlite:/none"}))
jvm, port = made._jvm, int(made.getConf().get("spark.driver.port"))
conf = jvm.org.apache.spark.SparkConf(False)
secret = getattr(jvm.org.apache.spark.internal.config, "package$")
secret = getattr(secret, "MODULE$").AUTH_SECRET_FILE()
nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
login = jvm.org.apache.spark.SecurityManager(conf, nothing, secret)
stranger = jvm.org.apache.spark.rpc.RpcEnv.create("x", "127.0.0.1", 0, conf, login, True)
driver = jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", port)
try:
    print(stranger.setupEndpointRef(driver, "HeartbeatReceiver").toString())
except Exception:
    print("refused")
print(made.parallelize([1, 2], 2).map(lambda number: number + 1).collect())
"""


@pytest.mark.integration
def test_a_local_spark_takes_no_orders_from_strangers() -> None:
    ended = run_to_end(
        [sys.executable, "-c", _STRANGER],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        timeout=300,
    )
    assert ended.stdout.split("\n")[:2] == ["refused", "[2, 3]"], ended.stderr


@pytest.mark.parametrize(
    ("master", "authenticate", "warns"),
    [
        ("spark://host:7077", None, True),
        ("yarn", "false", True),
        ("spark://host:7077", "true", False),
        ("local[4,4]", "false", False),
    ],
)
def test_a_cluster_that_takes_orders_from_strangers_is_warned_about(
    master: str, authenticate: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made: Any = SimpleNamespace(master=master, getConf=lambda: {spark.AUTHENTICATE: authenticate})
    spark._warn_if_open(made)
    assert ("Set spark.authenticate=true" in caplog.text) is warns


def test_an_archive_is_kept_where_spark_does_not_start_without_it_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive("spark", "k", tmp_path)
    assert archive.make(lambda part: {"command": _garbage(part, ["false"])})
    starts: list[list[str] | None] = []

    def fails(_jvm: Jvm, _settings: object, remembered: list[str] | None) -> None:
        starts.append(remembered)
        raise ServiceError("Spark does not start")

    monkeypatch.setattr(Jvm, "_start", fails)
    with pytest.raises(ServiceError):
        Jvm().connect(SETTINGS, archive)
    assert len(starts) == 2
    assert archive.file.exists()


def _garbage(part: Path, command: list[str] | None) -> list[str] | None:
    part.write_bytes(json.dumps({"not": "classes"}).encode() * 10_000)
    return command and [*command, "-Xmx1m", "-Dsemel.options=here"]
