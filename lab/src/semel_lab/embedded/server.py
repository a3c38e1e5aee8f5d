"""What the embedded servers share: one process in a directory, on ports that stay the same."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from signal import SIGTERM, Signals
from types import TracebackType
from typing import ClassVar, Self

from semel.core.errors import ServiceError
from semel.spark.archives import Archive, in_background, key
from semel_lab.embedded.process import PortFile, ServerProcess, check_port_free

log = logging.getLogger(__name__)


class Server(ABC):
    """One server with its data, log and settings in ``directory``; used again if data is there.

    Its ports are chosen once and kept. As a context manager it lives no longer than this process,
    even if that is killed; ``detached=True`` lets it live on until ``stop``. Nothing outside this
    machine can connect.
    """

    name: ClassVar[str]
    log_name: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    """The names of its ports. Clients connect to the first."""
    stop_signal: ClassVar[Signals] = SIGTERM
    start_timeout: ClassVar[float]
    stop_timeout: ClassVar[float]
    flags: Sequence[str] = ()
    """The JVM's, in place of those that let it use a class data sharing archive."""

    def __init__(self, directory: Path, port: int | None = None, *, detached: bool = False) -> None:
        self.directory = Path(directory).absolute()
        self.detached = detached
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / self.log_name
        self._ports = PortFile(self.name, self.directory / "ports.json").ports(
            self.port_names, wanted=port
        )
        self._process = ServerProcess(self.name, self.directory, self.log)
        self._archive: Archive | None = None
        self._maps, self._died = True, False

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._ports[self.port_names[0]]

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if it is not running."""
        return self._process.pid

    def start(self) -> Self:
        """Start the server and wait until it is ready."""
        if self.pid is not None:
            raise ServiceError(
                f"{self.name} is running in {self.directory} already: process {self.pid}, "
                f"port {self.port}."
            )
        self._archive, self._maps, self._died = None, True, False
        try:
            self._run()
        except ServiceError:
            spoilt: Archive | None = self._archive
            if spoilt is None or not self._died:
                raise
            self._maps = False
            self._run()  # whether that was the archive's fault shows only if it starts without
            spoilt.spoilt()
        return self

    def _run(self) -> None:
        try:
            self._launch()
            self._process.await_ready(self._answers, self.start_timeout)
            self._complete()
        except BaseException:  # an interrupted start leaves nothing behind
            self._died = self.pid is None
            self.kill()
            raise

    def _mapped(self, name: str, java: Path, jars: Sequence[Path]) -> list[str]:
        """The JVM's options to start from the archive of this name."""
        self._archive = _usable(name, java, jars) if self._maps else None
        return self._archive.options() if self._archive is not None else []

    def stop(self) -> None:
        """Stop the server cleanly, if it is running."""
        self._process.stop(self.stop_signal, self.stop_timeout)

    def kill(self) -> None:
        """Kill the server and its children (SIGKILL), as a crash would."""
        self._process.kill()

    def restart(self) -> Self:
        """Stop the server if it runs and start it on the same data and ports."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _check_ports(self) -> None:
        for port in self._ports.values():
            check_port_free(self.name, port)

    @abstractmethod
    def _launch(self) -> None:
        """Prepare the directory and start the process."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether clients can use it."""

    def _complete(self) -> None:  # noqa: B027
        """The steps that remain once it answers."""


class JavaServer(Server):
    """A server in a JVM with a heap of its own."""

    default_heap: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        heap: str | None = None,
        *,
        detached: bool = False,
    ) -> None:
        super().__init__(directory, port, detached=detached)
        self.heap = heap or self.default_heap


def _usable(name: str, java: Path, jars: Sequence[Path]) -> Archive | None:
    """A server's class data archive, with which it takes less CPU to start. If there is none yet,
    it is created in the background for later starts."""
    shared_archive = archive(name, java, jars)
    if shared_archive is not None and shared_archive.wanted():
        in_background("semel_lab.embedded.training", name)
    return shared_archive if shared_archive is not None and shared_archive.options() else None


def archive(name: str, java: Path, jars: Sequence[Path]) -> Archive | None:
    """A server's archive, whether it exists or not; None if there is no place for it."""
    try:
        return Archive(name, key(java, jars, map(str, jars)))
    except (OSError, RuntimeError) as error:  # no home directory, either
        log.debug("no class data archive: %s", error)
        return None
