"""One process of a drill's connector, and its child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from semel_lab.embedded import leash

_WARM_UP = "semel.spark.warmup"
"""The module that makes an archive."""


class Process:
    """One process of the connector or, with another ``verb``, of a worker; it dies with the
    drill."""

    def __init__(
        self, file: Path, log: Path, environment: Mapping[str, str], verb: str = "run"
    ) -> None:
        self.log = log
        command = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid())]
        command += [str(int(signal.SIGKILL)), ""]
        command += [sys.executable, "-P", "-m", "semel", verb, str(file)]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def family(self) -> list[psutil.Process]:
        """Its child processes: JVM, executors and Python workers."""
        try:
            return list(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def crew(self) -> list[psutil.Process]:
        """Its child processes except those that make an archive of classes in the background: they
        outlive the driver, at the lowest priority, and touch no store."""
        return [process for process in self.family() if not makes_archive(process)]

    def workers(self) -> list[psutil.Process]:
        """The Python workers that run tasks: children of Spark's daemon, which Java forks."""
        workers = []
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if _is_daemon(process) and parent is not None and _is_daemon(parent):
                    workers.append(process)
        return workers

    def writers(self) -> list[psutil.Process]:
        """The processes that may write to the store: all Python processes."""
        writers = []
        with contextlib.suppress(psutil.NoSuchProcess):
            writers.append(psutil.Process(self.pid))
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if not process.name().startswith("java"):
                    writers.append(process)
        return writers

    def print_stacks(self) -> None:
        """Make its Python processes write the stacks of their threads to their logs."""
        for process in self.writers():
            with contextlib.suppress(psutil.NoSuchProcess):
                if handles(process.pid, signal.SIGUSR2):
                    process.send_signal(signal.SIGUSR2)

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        executors = []
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("CoarseGrainedExecutorBackend" in part for part in process.cmdline()):
                    executors.append(process)
        return executors

    def end(self, log_lines: int = 12) -> str:
        """Its exit status and the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-log_lines:]
        return "\n".join([f"exit status {self.status}; the end of {self.log}:", *lines])

    def says(self, words: str) -> bool:
        """Whether its log contains these words, even across lines."""
        return words in " ".join(self.log.read_text(errors="replace").split())


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles a signal, which would end it otherwise."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def makes_archive(process: psutil.Process) -> bool:
    """Whether a process makes an archive of classes in the background."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(_WARM_UP in p.cmdline() for p in (process, *process.parents()))
    return False


def _is_daemon(process: psutil.Process) -> bool:
    modules = ("semel.spark.daemon", "semel.spark.standby")
    return any(m in part for part in process.cmdline() for m in modules) and not (
        process.name().startswith("java")
    )
