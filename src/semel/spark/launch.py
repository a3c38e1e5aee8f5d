"""Starts what a local Spark needs before a connector is planned: its JVM, and the daemon that
Spark's Python workers are forked from.

Nothing here imports PySpark or Arrow: ``semel run`` calls it first, and both processes start while
the rest of semel is imported.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from semel.config import load, under
from semel.config.definition import refers
from semel.core.context import LOG_FORMAT, search_path
from semel.core.errors import SemelError
from semel.spark.gateway import MEMORY, OPTIONS, Jvm, connected, neutral, spark_archive

HEAP = "512m"
"""The heap of a JVM that records do not pass through."""
_FIRST_HEAP = "-Xms64m"
"""By default the heap begins with a 64th of the machine's memory, and all of that gets used."""
_NO_COUNTERS = "-XX:-UsePerfData"
"""Counters for jstat wake up an idle JVM twenty times a second."""

LOG_LEVEL = "SEMEL_SPARK_LOG"
"""The environment variable with the level of Spark's own log."""
_NO_LOG = (
    "-Dslf4j.provider=org.slf4j.helpers.NOP_FallbackServiceProvider",
    "-Dslf4j.internal.verbosity=ERROR",
    "-Dlog4j.provider=org.apache.logging.log4j.simple.internal.SimpleProvider",
    "-Dorg.apache.logging.log4j.simplelog.level=OFF",
)
"""Setting up Log4j takes a third of the time until Spark's JVM answers. Netty uses it even if
SLF4J logs nothing. Spark cannot change its log level then, so this is for the JVM of a command."""
_OF_LOGS = ("spark.log.", "spark.driver.log.")
_LOG4J = """
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p spark %c{{1}}: %m%n%ex{{5}}
"""
AT_ONCE = 64
"""Calls that may wait for a process."""
_SUFFIXES = (".json", ".properties")
_SHAPE_WORKERS = ("spark.pyspark.", "spark.python.")
_OF_DAEMONS = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}
"""Environment variables, as Spark sets them. They take effect only when the process starts."""


class _EarlyStart:
    """What ``semel run`` has started before it parses its arguments."""

    raw: dict[str, str] | None = None
    jvm: Jvm | None = None


def begin_early(arguments: Sequence[str]) -> None:
    """Start Spark if the arguments of ``semel run`` name a single configuration. Mistakes in them
    are reported later, when they are parsed."""
    for form in ("text", "json"):
        if f"--log-format={form}" in arguments or ("--log-format", form) in pairwise(arguments):
            os.environ[LOG_FORMAT] = form
    files = [a for a in arguments if a.endswith(_SUFFIXES) and not a.startswith("-")]
    if len(files) != 1 or "--help" in arguments or "--env" in arguments:
        return
    with suppress(SemelError):
        _EarlyStart.raw = load(files[0])
        _EarlyStart.jvm = _begin(_EarlyStart.raw, for_any=False)


def end_early() -> None:
    """End what was started early and then not used."""
    jvm, _EarlyStart.jvm = _EarlyStart.jvm, None
    if jvm is not None:
        jvm.end()


def begin(raw: Mapping[str, str], *, for_any: bool = False) -> Jvm | None:
    """Start the JVM of a local Spark before the connector is planned, because planning takes time
    as well. None if its context needs a JVM of its own kind; with ``for_any`` it suits
    all engines."""
    early, _EarlyStart.jvm = _EarlyStart.jvm, None
    if early is not None:
        if not for_any and _shape(raw) == _shape(_EarlyStart.raw or {}):
            return early
        early.end()
    return _begin(raw, for_any=for_any)


def _begin(raw: Mapping[str, str], *, for_any: bool) -> Jvm | None:
    conf = _given(raw)
    if any(refers(value) for value in conf.values()):  # they are resolved by the plan
        return None
    kind = raw.get("engine", "").strip().lower()
    reads = kind == "micro-batch" or "checkpoint.location" in raw  # as queries have
    if reads or not conf.get("spark.master", "local").startswith("local"):
        return None
    settings = {
        MEMORY: heap(2) if for_any else HEAP,
        "spark.ui.showConsoleProgress": "false",
        OPTIONS: java_options(works=for_any, logs=for_any or _logs(conf)),
        **conf,
    }
    jvm = Jvm(lambda: _standby(raw, conf))

    def connect() -> None:
        with suppress(Exception):  # it is tried again with the context, and reported then
            jvm.connect(settings, spark_archive())

    if not connected():
        threading.Thread(target=connect, daemon=True, name="semel-jvm").start()
    return jvm


class Standby:
    """The process that Spark's Python workers will be forked from (see
    :mod:`semel.spark.standby`). It ends with this process, or with Spark once that has taken it.

    Raises:
        OSError: it cannot be started.
    """

    forks = ""
    """Where the latest one forks processes; see :mod:`semel.tasks.expendable`."""

    def __init__(self, raw: Mapping[str, str]) -> None:
        folder = tempfile.mkdtemp(prefix="semel-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.path = f"{folder}/standby"
        Standby.forks = f"{folder}/forks"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as forks,
        ):
            listener.bind(self.path)
            listener.listen(1)
            forks.bind(Standby.forks)
            forks.listen(AT_ONCE)
            passed = [listener.fileno(), forks.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "semel.spark.standby", *map(str, passed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # until it has those of Spark's daemon
                process_group=0,  # Ctrl-C in a terminal is for this process
                pass_fds=passed,
                env={**os.environ, **search_path(), **_OF_DAEMONS},
                text=True,
            )
        assert self._process.stdin is not None
        print(json.dumps(dict(raw)), file=self._process.stdin, flush=True)

    def end(self) -> None:
        """End it if Spark has not taken it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def _standby(raw: Mapping[str, str], conf: Mapping[str, str]) -> Standby | None:
    """A standby, if Spark would start its workers like this process: with the same Python, and
    no daemon that the user configured. Executors that are separate processes fork their own
    workers: a worker must not outlive its executor."""
    if conf.get("spark.master", "").startswith("local-cluster"):
        return None
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if python != sys.executable or any(k.startswith(_SHAPE_WORKERS) for k in conf):
        return None
    try:
        return Standby(raw)
    except OSError:  # it only saves time
        return None


def _given(raw: Mapping[str, str]) -> dict[str, str]:
    return {f"spark.{k}": v for k, v in under(raw, "spark.").items()}


def _shape(raw: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The settings that decide which JVM is needed."""
    return raw.get("engine", "").strip().lower(), _given(raw)


def heap(tasks: int) -> str:
    """A heap for records that pass through the JVM: each task holds up to some 16 copies of its
    largest record, on top of what Spark needs. The JVM takes what it uses."""
    return f"{256 * (tasks + 2)}m"


def java_options(*, works: bool, logs: bool = True) -> str:
    """The JVM's options; ``works`` says whether records pass through it. One that only places
    tasks starts with a third less CPU time if it compiles little, and a tenth less if it cannot
    log."""
    options = ["-XX:+UseSerialGC", _FIRST_HEAP, _NO_COUNTERS]
    if not works:
        options.append("-XX:TieredStopAtLevel=1")
    return shlex.join([*options, *(_log_to_stderr() if logs else _NO_LOG)])


def _logs(names: Iterable[str]) -> bool:
    """Whether Spark could log something, or some setting may need Log4j."""
    configured = any(name.startswith(_OF_LOGS) for name in names)
    return configured or LOG_LEVEL in os.environ or not neutral()


def _log_to_stderr() -> list[str]:
    level = os.environ.get(LOG_LEVEL, "fatal")
    directory = tempfile.mkdtemp(prefix="semel-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "log4j2.properties"
    path.write_text(_LOG4J.format(level=level))
    return [f"-Dlog4j2.configurationFile={path}"]
