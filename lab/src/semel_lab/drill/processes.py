"""The connector's processes in a drill: started, watched, armed with failpoints, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pyspark

from semel.core import failpoints
from semel.core.errors import ConfigError, SemelError
from semel.spark import archives
from semel_lab.drill.plan import Fault
from semel_lab.drill.process import Process, makes_archive
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import comes_true, ended

PATIENCE = 300.0
RECORDS_PER_FAULT = 2000
BROKERS = 2.0
"""Seconds after which a killed broker counts as dead and may come back."""
QUICK = {
    "admin.override.reconnect.backoff.ms": "50",
    "admin.override.reconnect.backoff.max.ms": "500",
    "retry.backoff.ms": "200",
}
"""Shorter timeouts than in production, so that a drill does not spend its time waiting."""
_POLL = 0.03
_LONGEST_PAUSE = 2.0

R = TypeVar("R")


class DrillFailed(SemelError):
    """A fault could not be injected, or the connector did not recover from it."""

    exit_code = 9


class Processes(ABC):
    """The processes of one connector, in a directory of the drill's own.

    Raises:
        ConfigError: the directory is not empty.
    """

    kafka: Kafka
    tasks: int

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.points = directory / "failpoints"
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise ConfigError(
                f"--dir {directory} is not empty, and the drill would remove it at the end. Name a "
                "new directory"
            )
        self.points.mkdir(parents=True)
        self._spark_home = _spark_home(directory / "spark")
        self._started = 0
        self._seen: set[psutil.Process] = set()
        self.on_executors = False
        self.process: Process | None = None

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The configuration of the connector's processes."""

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    def launch(
        self, *, on_executors: bool | None = None, keys: Mapping[str, str] | None = None
    ) -> Process:
        """Start one more process of the connector, with additional ``keys``."""
        if on_executors is not None:
            self.on_executors = on_executors
        settings = {**self.settings(), **(keys or {})}
        if self.on_executors:
            settings |= {
                "spark.master": f"local-cluster[{self.tasks},1,1024]",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            }
        file = self.directory / "connector.json"
        file.touch(mode=0o600)  # it holds the password of the user's store
        file.write_text(json.dumps(settings, indent=2) + "\n")
        self._started += 1
        log = self.directory / f"connector-{self._started:03}.log"
        return Process(file, log, self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the connector's processes."""
        home, archive = Path(pyspark.__file__).parent, {}
        if self.on_executors:  # their logs lie in Spark's home; an archive for it would serve once
            home, archive = self._spark_home, {archives.SWITCH: "off"}
        return {
            failpoints.DIRECTORY: str(self.points),
            "SPARK_HOME": str(home),
            **archive,
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def start(
        self, *, on_executors: bool | None = None, keys: Mapping[str, str] | None = None
    ) -> None:
        """Start the connector's process after the last one has ended."""
        self.process = self.launch(on_executors=on_executors, keys=keys)

    def switch(self, on_executors: bool) -> None:
        """Restart the connector on the other cluster, unless it runs there already."""
        if self.process is None or on_executors != self.on_executors:
            if self.process is not None:
                self.remember()
                os.kill(self.process.pid, signal.SIGTERM)
                process = self.process
                self.until(
                    lambda: process.status is not None, PATIENCE, "the connector did not stop"
                )
            self.start(on_executors=on_executors)

    def remember(self) -> None:
        """Note the connector's processes, so that none outlives the drill."""
        if self.process is not None:
            self._seen.update(self.process.family())

    def kill(self) -> None:
        """SIGKILL the connector's processes, and wait until they have ended."""
        self.remember()
        process = self.running
        if process.status is None:
            os.kill(process.pid, signal.SIGKILL)

        def all_ended() -> bool:
            remaining = [p for p in self._seen if not ended(p) and not makes_archive(p)]
            for member in remaining:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._seen.update(member.children())  # it may have forked since
                    member.kill()
            return process.status is not None and not remaining

        self.until(all_ended, PATIENCE, "the connector did not die")

    def adopt(self, process: Process) -> None:
        """Note a process that no longer belongs to the connector."""
        self._seen.update(process.family())
        if process.status is None:
            self._seen.add(psutil.Process(process.pid))

    def end(self) -> None:
        """End all processes."""
        self.remember()
        if self.process is not None and self.process.status is None:
            os.kill(self.process.pid, signal.SIGKILL)
        for process in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    # Failpoints

    def arm(self, place: str, action: str, skip: int) -> None:
        failpoints.arm(self.points, place, action, skip)

    def disarm(self) -> None:
        failpoints.disarm(self.points)

    def fired(self) -> list[int]:
        """The processes in which failpoints have fired so far."""
        return [f.pid for f in failpoints.fired(self.points)]

    def until(
        self,
        condition: Callable[[], bool],
        patience: float,
        otherwise: str | Callable[[], str],
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for a condition.

        Raises:
            DrillFailed: the condition did not come true in time.
        """

        def has_come() -> bool:
            began = time.monotonic()
            if condition():
                return True
            # The look may have kept a store's file locked: leave it to the connector for as long.
            time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE))
            meanwhile()
            return False

        if not comes_true(has_come, patience, _POLL):
            if self.process is not None:
                self.process.print_stacks()
            what = otherwise if isinstance(otherwise, str) else otherwise()
            raise DrillFailed(f"{what} (waited {patience:.0f} s)")


@contextmanager
def workplace(seed: int, directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """A drill's directory, a temporary one if none is given. It is removed afterwards, unless it is
    to be kept or shows why the drill has failed."""
    # a short path, because a Unix socket's has at most 107 bytes
    where = directory or Path(tempfile.mkdtemp(prefix=f"semel-drill-{seed}-"))
    try:
        yield where
    except ConfigError:  # nothing has started
        if directory is None:
            shutil.rmtree(where, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(where, ignore_errors=True)


@contextmanager
def located(directory: Path, when: str) -> Iterator[None]:
    """Add to a failure when it happened and where the logs are."""
    try:
        yield
    except DrillFailed as failure:
        why = str(failure).rstrip(".?")
        raise DrillFailed(f"{when}: {why}. All logs: {directory}") from None


def inject_all(
    faults: Sequence[Fault],
    seed: int,
    inject: Callable[[Fault], R],
    *,
    allow: Callable[[int], object],
    directory: Path,
    observe: Callable[[Fault | None, R | None], None],
) -> list[R]:
    """The loop of every drill: inject one fault after another, and look at the results after each.

    Args:
        faults: the faults.
        seed: their seed, for the message of a failure.
        inject: injects one, waits for the recovery, and returns what is found then.
        allow: lets so many records flow.
        directory: has the logs, for the message of a failure.
        observe: see :data:`semel_lab.drill.report.Observer`.

    Raises:
        DrillFailed: a fault could not be injected, or the connector did not recover.
    """
    results: list[R] = []
    for fault in faults:
        observe(fault, None)
        allow(RECORDS_PER_FAULT)
        what = f"{fault.kind.value}, {fault.place}; seed {seed}"
        with located(directory, f"fault {fault.number} of {len(faults)} ({what})"):
            results.append(inject(fault))
        observe(fault, results[-1])
    observe(None, None)
    return results


def without_place(raw: Mapping[str, str], *replaced: str) -> dict[str, str]:
    """A configuration without keys that name or secure services other than a drill's own."""
    elsewhere = ("bootstrap.servers", "spark.master", *replaced)
    secured = ("security.", "sasl.", "ssl.")
    return {
        k: v
        for k, v in raw.items()
        if not k.endswith(elsewhere) and not any(f".override.{s}" in k for s in secured)
    }


def _spark_home(directory: Path) -> Path:
    """PySpark's Spark, linked into a directory where its workers may write their logs."""
    directory.mkdir()
    package = Path(pyspark.__file__).parent
    for name in ("jars", "bin", "sbin", "python"):
        if (package / name).exists():
            (directory / name).symlink_to(package / name)
    return directory
