"""Starts, finds, stops and kills the server process of a directory."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from semel.core.errors import ServiceError
from semel_lab.embedded import leash

LOOPBACK = "127.0.0.1"


class ServerProcess:
    """The process that serves a directory.

    Its id and start time are in ``process.json`` there, so another Python process finds it again,
    and one that got the same id later is not mistaken for it.
    """

    def __init__(self, service: str, directory: Path, log: Path) -> None:
        self.service = service
        self.log = log
        self._record = directory / "process.json"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        running = self._running()
        return running.pid if running else None

    def launch(
        self,
        command: Sequence[str],
        *,
        detached: bool,
        death_signal: signal.Signals = signal.SIGKILL,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Start the command. Unless detached, it gets ``death_signal`` when this process dies.

        A session of its own shields it from a Ctrl-C in the terminal: its owner stops it cleanly.
        """
        arguments = [sys.executable, "-I", "-S", leash.__file__]
        arguments += ["0" if detached else str(os.getpid()), str(int(death_signal)), user]
        with self.log.open("ab") as log:

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [*arguments, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=None if environment is None else dict(environment),
                    cwd=directory,
                )

            self._child = _in_launcher_thread(start)
        process = psutil.Process(self._child.pid)
        self._record.write_text(
            json.dumps({"pid": process.pid, "started": process.create_time()}) + "\n"
        )

    def await_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until ``ready``. Raises ServiceError with the end of the log on a timeout."""

        def is_ready() -> bool:
            if ready():
                return True
            if self.pid is None:
                raise ServiceError(f"{self.service} did not start. {self.log_end()}")
            return False

        if not comes_true(is_ready, timeout):
            raise ServiceError(
                f"{self.service} did not become ready in {timeout:.0f} s. {self.log_end()}"
            )

    def stop(self, stop_signal: signal.Signals, timeout: float) -> None:
        """Ask the process to end, and kill it if it does not end in time."""
        process = self._running()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(stop_signal)
            if not _end(process, timeout):
                self.kill()
        self._forget()

    def kill(self) -> None:
        """Send SIGKILL to the process and its children, and wait until all have ended."""
        process = self._running()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                # A stopped process cannot create more children while they are listed.
                process.suspend()
                family = [*process.children(recursive=True), process]
                for member in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()
                for member in family:
                    _end(member, timeout=60)
        self._forget()

    def log_end(self, lines: int = 15) -> str:
        """The last lines of the log, introduced by its path."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 16_384))
                end = file.read().decode(errors="replace").splitlines()[-lines:]
        except OSError:
            end = []
        return "\n".join([f"The end of {self.log}:", *end])

    def _running(self) -> psutil.Process | None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        try:
            record = json.loads(self._record.read_text())
            process = psutil.Process(record["pid"])
            same = abs(process.create_time() - record["started"]) < 0.1
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
            return None
        return process if same and not ended(process) else None

    def _forget(self) -> None:
        if self._child is not None:
            self._child.poll()  # takes the dead child off the process table
            self._child = None
        self._record.unlink(missing_ok=True)


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended. A zombie has, although its parent may take a while to reap it.

    It has not while it still has threads: those of a killed JVM can hold its port and files a
    little longer.
    """
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return not process.is_running()
        return len(list(Path(f"/proc/{process.pid}/task").iterdir())) <= 1
    except (OSError, psutil.NoSuchProcess):
        return True


def _end(process: psutil.Process, timeout: float) -> bool:
    """Wait for a process to end. Return False if it does not end in time."""
    return comes_true(lambda: ended(process), timeout, 0.005)


def comes_true(condition: Callable[[], bool], timeout: float, pause: float = 0.02) -> bool:
    """Whether a condition comes true in time. It is checked once more after the deadline, because
    this process may itself have stalled."""
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        if condition():
            return True
        if late:
            return False
        time.sleep(pause)


class PortFile:
    """The ports of a directory's server: chosen once, so that a restart has the same ones."""

    def __init__(self, service: str, path: Path) -> None:
        self.service = service
        self._path = path

    def ports(self, names: Sequence[str], wanted: int | None) -> dict[str, int]:
        """The stored ports, chosen where there are none; ``wanted`` overrules the first one."""
        stored: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            stored = json.loads(self._path.read_text())
        ports = dict(stored)
        if wanted is not None:
            ports = {name: port for name, port in stored.items() if port != wanted}
            ports[names[0]] = wanted
        for name in names:
            if name not in ports:
                ports[name] = free_port(besides=ports.values())
        if ports != stored:
            self._path.write_text(json.dumps(ports) + "\n")
        return ports


def check_port_free(service: str, port: int) -> None:
    """Raises ServiceError if another process listens on the port."""
    if not _is_free(port):
        raise ServiceError(
            f"{service} cannot listen on {LOOPBACK}:{port}: another process has the port. "
            f"Stop that process (`ss -ltnp 'sport = :{port}'` shows it) or choose another port."
        )


def free_port(besides: Any = ()) -> int:
    """A free port to listen on.

    Not from the range that the kernel gives to outgoing connections: while a server on such a
    port is down, a client that retries may be given that very port and connect to itself.
    """
    for port in random.sample(range(15_000, 32_000), 200):
        if port not in besides and _is_free(port):
            return port
    raise ServiceError(f"No free port between 15000 and 32000 on {LOOPBACK}.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def answers(port: int, path: str) -> bool:
    """Whether an HTTP server on this machine answers a request with 200."""
    if not listening(port):
        return False
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def listening(port: int) -> bool:
    """Whether a process accepts connections on the port."""
    with socket.socket() as client:
        client.settimeout(0.5)
        return client.connect_ex((LOOPBACK, port)) == 0


class _Launcher:
    """A thread that starts processes and lives as long as this process.

    PR_SET_PDEATHSIG refers to the death of the *thread* that forked. A server started from a thread
    that ends (a test's, a drill's) would die with it.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._serve, name="semel-launcher", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Any:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, answer))
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _serve(self) -> None:
        while True:
            function, answer = self._calls.get()
            try:
                answer.put(function())
            except BaseException as failure:
                answer.put(failure)


_launcher: _Launcher | None = None
_launcher_lock = threading.Lock()


def _in_launcher_thread(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    global _launcher  # noqa: PLW0603
    with _launcher_lock:
        if _launcher is None or _launcher.pid != os.getpid():  # threads do not survive a fork
            _launcher = _Launcher()
    child: subprocess.Popen[bytes] = _launcher.call(start)
    return child
