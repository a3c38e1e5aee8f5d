"""Starts Spark's JVM: with its class data archive, and without the launcher's own JVM.

``spark-submit`` runs a JVM only to find out which command starts Spark. semel runs it once,
when it makes the archive, and stores the answer with it. Where the environment could change the
answer, semel runs ``spark-submit`` as PySpark does. The command starts ``SparkSubmit``, which
prepares jars, files and logins, and then starts the server that PySpark talks to. If there is
nothing to prepare, semel starts the server alone.

PySpark is imported while the JVM starts: both take about as long.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from semel.core.context import LOG_STARTED, logs_json
from semel.core.errors import ServiceError
from semel.spark.archives import Archive, key
from semel.spark.jars import PYSPARK_VERSION

log = logging.getLogger(__name__)

OPTIONS = "spark.driver.extraJavaOptions"
MEMORY = "spark.driver.memory"
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_SERVER = "org.apache.spark.api.python.PythonGatewayServer"
_PREPARED = (
    *("spark.jars", "spark.files", "spark.archives", "spark.submit.", "spark.log."),
    *("spark.kerberos.", "spark.yarn.", "spark.hadoop.hadoop."),
)
"""Prefixes of the settings that ``SparkSubmit`` reads, or passes on for logins."""
_SCALA = "2.13"
_PLACE, _HEAP = "-Dsemel.options=here", "1m"
"""Placeholders for the options and the memory in the remembered command."""
_SHAPES_COMMAND = (
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.defaultJavaOptions",
    "spark.submit.deployMode",
    "spark.remote",
    "spark.api.mode",
)
_HARMLESS = (
    *("SPARK_HOME", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP", "SPARK_USER"),
    *("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"),  # PySpark sets them with each context
)
_STARTS_IN = 120.0
_ENDS_IN = 5.0
_LOG_STARTS_IN = 10.0
_CHATTER = (
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging level",
)
_OF_TASK = '{"time": "'
"""What a line of a task begins with if lines are JSON."""
_HEAP_FULL = 52
"""Spark's exit code when the heap was full."""


class Daemon(Protocol):
    """The process that Spark's Python workers are forked from, started beside the JVM."""

    path: str

    def end(self) -> None:
        """End it if Spark has not taken it."""


class Jvm:
    """Spark's JVM. It ends with this process, because its standard input closes then."""

    def __init__(self, standby: Callable[[], Daemon | None] = lambda: None) -> None:
        self.standby: Daemon | None = None
        self._stand_by = standby
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock = threading.Lock()
        self._connecting = threading.Lock()

    def connect(self, settings: Mapping[str, str], archive: Archive | None) -> None:
        """Start it with these Spark settings, unless PySpark already has a JVM, and let PySpark use
        it. A second caller waits for the first.

        Raises:
            ServiceError: it does not start, or :meth:`end` was called meanwhile.
        """
        with self._connecting:
            self._connect(settings, archive)
            if self.standby is None:
                self.standby = self._stand_by()

    def _connect(self, settings: Mapping[str, str], archive: Archive | None) -> None:
        if connected():
            return
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started this process
            from pyspark import SparkContext

            SparkContext._ensure_initialized()
            return
        facts = archive.facts() if archive is not None else None
        if archive is not None and facts is not None:
            try:
                options = shlex.join(archive.mapped(facts))
                changed = {**settings, OPTIONS: f"{settings[OPTIONS]} {options}"}
                self._start(changed, facts.get("command"))
            except ServiceError:
                if self._ended:
                    raise
            else:
                return
            # Whether that was the archive's fault shows only if Spark starts without it.
            self._start(settings, None)
            log.debug("Spark starts only without %s; removing it", archive.file)
            archive.spoilt()
            return
        self._start(settings, None)

    def end(self) -> None:
        """End it, even while it is starting. A JVM that was there before is left alone."""
        with self._lock:
            self._ended = True
            process = self._process
        if self.standby is not None:
            self.standby.end()
        if process is not None:
            _terminate(process)
            _forget_dead()

    def leave(self, patience: float) -> None:
        """Let the JVM end by itself, and wait up to ``patience`` seconds for that."""
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)

    def _start(self, settings: Mapping[str, str], remembered: Sequence[str] | None) -> None:
        folder = Path(tempfile.mkdtemp(prefix="semel-"))  # nobody else may enter it
        conn_info = folder / "gateway"
        try:
            command = _command(settings, remembered, folder / "spark.properties")
            with self._lock:
                if self._ended:
                    raise ServiceError("Spark was stopped while it was starting")
                self._process = process = _popen(command, conn_info)
            port, secret = _address(process, conn_info)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        with _environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            connect: Any = launch_gateway
            try:
                gateway = connect()
            except Exception as error:  # Py4J's own, if the JVM has ended meanwhile
                raise ServiceError(f"Spark's JVM ended while it was starting: {error}") from None
        gateway.proc = process
        with SparkContext._lock:
            SparkContext._gateway = gateway
            SparkContext._jvm = gateway.jvm


def connected() -> bool:
    """Whether PySpark has a JVM in this process, and it is alive."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    _forget_dead()
    return SparkContext._gateway is not None


def require_token_of_jvm() -> None:
    """Let PySpark's callback server, which a streaming query calls, demand a token.

    Py4J can, but its Java side loses the token when PySpark tells it the server's port, so it is
    set again. A server that the user's own Spark has opened before stays as it is.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    with SparkContext._lock:
        gateway: Any = SparkContext._gateway
        if gateway.__dict__.get("_callback_server") is not None:
            return
        gateway.callback_server_parameters.auth_token = secrets.token_hex()
        started: Any = ensure_callback_server_started
        started(gateway)
        tell_token(gateway)


def tell_token(gateway: Any) -> None:
    """Tell the JVM the token that calls of this process's callback server need."""
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    client = gateway.java_gateway_server.getCallbackClient()
    field.set(client, gateway.callback_server_parameters.auth_token)


def out_of_memory() -> bool:
    """Whether Spark's JVM has ended because its heap was full."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):  # its connections end before it does
        process.wait(_ENDS_IN)
    return bool(process.returncode == _HEAP_FULL)


def spark_archive() -> Archive | None:
    """The archive for the Java and the Spark found here; None if one is missing."""
    try:
        java, jars = _java(), sorted((spark_home() / "jars").iterdir())
        facts = [PYSPARK_VERSION, str(spark_home())]
        return Archive("spark", key(java, jars, facts)) if java and jars else None
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        log.debug("no class data archive: %s", error)
        return None


def spark_home() -> Path:
    """Where Spark is installed."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        if (Path(place) / "jars").is_dir():
            return Path(place)
    from pyspark.find_spark_home import _find_spark_home

    find: Any = _find_spark_home
    return Path(find())


def launcher_answer() -> list[str]:
    """The command of Spark's JVM, as the launcher prints it for neutral settings.

    Raises:
        OSError, subprocess.SubprocessError, ValueError: it does not answer.
    """
    java = _java()
    if java is None:
        raise ValueError("Java is not installed")
    jars = f"{spark_home() / 'jars'}/*"
    neutral = [f"{MEMORY}={_HEAP}", f"{OPTIONS}={_PLACE}"]
    launcher = [str(java), "-Xmx128m", "-cp", jars, "org.apache.spark.launcher.Main", _MAIN]
    asked = subprocess.run(
        [*launcher, *(part for n in neutral for part in ("--conf", n)), "pyspark-shell"],
        env={**os.environ, **_surroundings()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    answer = [part for part in asked.stdout.decode().replace("\0\n", "\0").split("\0") if part]
    answer[0] = answer[0].strip()
    command = answer[: answer.index(_MAIN)]
    if command.count(_PLACE) != 1 or command.count(f"-Xmx{_HEAP}") != 1:
        raise ValueError(f"the launcher's answer is not understood: {answer}")
    return command


def neutral() -> bool:
    """Whether nothing in the environment changes the launcher's answer."""
    changing = [n for n in os.environ if n.startswith("SPARK_") and n not in _HARMLESS]
    changing += [n for n in _SUBMITS if os.environ.get(n)]
    conf = spark_home() / "conf"
    return not changing and not conf.exists()


_SUBMITS = ("PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


def _command(
    settings: Mapping[str, str], remembered: Sequence[str] | None, file: Path
) -> list[str]:
    """The command for Spark's own JVM, if the launcher's answer is known, else the launcher. If it
    reads settings, they are in ``file``: all users of a machine see the arguments of a process."""
    if not remembered or not neutral() or any(name in settings for name in _SHAPES_COMMAND):
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        defaults = os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf"
        base, arguments = _properties_file(arguments, Path(defaults) / "spark-defaults.conf")
        submit = str(spark_home() / "bin" / "spark-submit")
        return [submit, *_submitted(settings, file, base), *arguments]
    command = []
    for part in remembered:
        if part == _PLACE:
            command += shlex.split(settings[OPTIONS])
        else:
            command.append(f"-Xmx{settings[MEMORY]}" if part == f"-Xmx{_HEAP}" else part)
    if any(name.startswith(_PREPARED) for name in settings):
        return [*command, _MAIN, *_submitted(settings, file), "pyspark-shell"]
    return [*command, _SERVER]  # the settings come with the context


def _properties_file(arguments: Sequence[str], default: Path) -> tuple[str, list[str]]:
    """The text of the file that the arguments, or else Spark, take settings from, and the other
    arguments."""
    properties_file, others, rest = default, [], iter(arguments)
    for argument in rest:
        name, _, value = argument.partition("=")
        if name == "--properties-file":
            properties_file = Path(value or next(rest, ""))
        else:
            others.append(argument)
    try:
        return properties_file.read_text(encoding="utf-8"), others
    except FileNotFoundError:
        if properties_file == default:
            return "", others
    except (OSError, UnicodeDecodeError):
        pass
    raise ServiceError(f"Spark's properties file {properties_file} cannot be read")


def _submitted(settings: Mapping[str, str], file: Path, base: str = "") -> list[str]:
    """The arguments that let ``spark-submit`` read the settings, and ``base`` where they say
    nothing, from a file that only this user can read."""
    import javaproperties  # slow to import

    file.touch(0o600)
    file.write_text(f"{base}\n{javaproperties.dumps(dict(settings), timestamp=False)}")
    return ["--properties-file", str(file)]


def _popen(command: Sequence[str], conn_info: Path) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own: Ctrl-C in a terminal goes to the whole process
    group, and would end Spark before the batch in hand is finished."""
    surroundings = {} if command[0].endswith("spark-submit") else _surroundings()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                **surroundings,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(conn_info),
            },
        )
    except OSError as error:
        raise ServiceError(f"Spark cannot be started: {error}") from None
    relay = threading.Thread(target=_relay, args=(process.stderr,), name="semel-spark-log")
    relay.daemon = True
    relay.start()
    return process


_DIES, _TRACE = 'Exception in thread "main" ', ("\tat ", "\t... ")
"""How a JVM says why it dies, and where."""


def _relay(lines: IO[bytes]) -> None:
    """Pass on what Spark's processes write to standard error, without the chatter: as lines of the
    log where these are JSON."""
    spark = logging.getLogger("spark")
    traced = bool(os.environ.get("SEMEL_DEBUG") or os.environ.get("SEMEL_SPARK_LOG"))
    if logs_json():
        LOG_STARTED.wait(_LOG_STARTS_IN)
    for line in lines:
        text = line.decode(errors="replace").rstrip()
        if not text or text.startswith(_CHATTER) or (text.startswith(_TRACE) and not traced):
            continue
        if text.startswith(_DIES) and not traced:
            text = text.removeprefix(_DIES)
        if logs_json() and not text.startswith(_OF_TASK):
            spark.warning("%s", text)
        else:
            with suppress(OSError):  # Python's own buffer may be locked when the process ends
                os.write(2, f"{text}\n".encode())


def _surroundings() -> dict[str, str]:
    """The environment that spark-submit sets before it starts Java."""
    return {
        "SPARK_HOME": str(spark_home()),
        "SPARK_ENV_LOADED": "1",
        "SPARK_SCALA_VERSION": _SCALA,
        "PYTHONHASHSEED": "0",
    }


def _address(process: subprocess.Popen[bytes], conn_info: Path) -> tuple[int, str]:
    """The port and the secret, which the JVM writes to a file once it is ready."""
    deadline = time.monotonic() + _STARTS_IN
    while not conn_info.exists():
        if process.poll() is not None:
            raise ServiceError(
                f"the Java gateway process exited before sending its port number (exit status "
                f"{process.returncode})"
            )
        if time.monotonic() > deadline:
            _terminate(process)
            raise ServiceError(f"the Java gateway process has not answered for {_STARTS_IN:.0f} s")
        time.sleep(0.005)
    content = conn_info.read_bytes()  # moved there when it is complete
    (port,), (size,) = struct.unpack_from("!i", content), struct.unpack_from("!i", content, 4)
    return port, content[8 : 8 + size].decode()


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End it cleanly, so that it removes its files, or else by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_IN)
            return


def _forget_dead() -> None:
    """Let PySpark start a new JVM after the old process has ended."""
    from pyspark import SparkContext

    with SparkContext._lock:
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            with suppress(Exception):
                SparkContext._gateway.shutdown()  # type: ignore[union-attr]
            SparkContext._gateway = None
            SparkContext._jvm = None
            SparkContext._active_spark_context = None


def _java() -> Path | None:
    """The Java that spark-submit uses."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home) / "bin" / "java"
    java = shutil.which("java")
    return Path(java) if java else None


class _environment:
    """Sets environment variables within a ``with`` block."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __enter__(self) -> None:
        os.environ.update(self._variables)

    def __exit__(self, *_exc: object) -> None:
        for name in self._variables:
            os.environ.pop(name, None)
