"""Faults of processes and brokers, which hit sink and source connectors alike."""

from __future__ import annotations

import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import psutil

from semel.core import failpoints
from semel_lab.drill.plan import ANY_MOMENT, Fault
from semel_lab.drill.process import Process
from semel_lab.drill.processes import PATIENCE, DrillFailed, Processes
from semel_lab.drill.stores import SESSION, TRANSACTION
from semel_lab.embedded.kafka import Broker

_FENCED_STATUS = 4
_KICK_EVERY = 0.4


class MarkedTime(Protocol):
    """What a recovery must reach; ``at`` is when the fault struck."""

    @property
    def at(self) -> float: ...


class Kicker(Protocol):
    """Gives the connector something to do."""

    def kick(self) -> None: ...


M = TypeVar("M", bound=MarkedTime)


class Strikes(ABC, Generic[M]):
    """Hits a connector's processes and brokers, and watches it recover."""

    _stage: Processes
    _traffic: Kicker
    _dice: random.Random

    def __init__(self) -> None:
        self._kicked = 0.0

    def inject(self, fault: Fault) -> float:
        """Inject a fault, on the cluster that it needs, and wait until the connector has recovered.
        Returns the seconds taken.

        Raises:
            DrillFailed: the fault could not be injected, or the connector did not recover.
        """
        stage = self._stage
        if stage.process is None or fault.needs_executors != stage.on_executors:
            before = self.mark()
            stage.switch(fault.needs_executors)
            self.wait_past(before)
        try:
            return self._inject(fault)
        except psutil.NoSuchProcess as gone:
            raise DrillFailed(f"a process ended before the fault could hit it: {gone}") from gone

    @abstractmethod
    def _inject(self, fault: Fault) -> float:
        """See :meth:`inject`; the connector runs."""

    @abstractmethod
    def mark(self) -> M:
        """The mark that the connector must pass from now on."""

    @abstractmethod
    def wait_past(self, mark: M, patience: float = PATIENCE) -> float:
        """Wait until the connector has passed the mark. Returns the seconds since the mark."""

    def _tasks_live(self) -> bool:
        """Whether each task runs on an executor."""
        running, tasks = self._stage.running, self._stage.tasks
        return len(running.executors()) == tasks and len(running.workers()) == tasks

    @abstractmethod
    def _whole(self) -> None:
        """Wait until every task has its share again."""

    def _runs(self) -> None:
        if self._stage.running.status is not None:
            raise DrillFailed(f"the connector ended: {self._stage.running.end()}")

    def _kick(self) -> None:
        """Send some records, but not without limit."""
        now = time.monotonic()
        if now - self._kicked > _KICK_EVERY:
            self._kicked = now
            self._traffic.kick()

    def _at(self, fault: Fault, action: str, by_hand: Callable[[], int]) -> int:
        """Strike at the fault's place or moment. Returns the process that was hit."""
        self._stage.remember()
        if fault.place == ANY_MOMENT:
            self._traffic.kick()
            time.sleep(fault.delay)
            return by_hand()
        before = len(self._stage.fired())

        def fired() -> bool:
            ended = (
                self._stage.running.status is not None
            )  # perhaps by this fault, so ask before looking
            if len(self._stage.fired()) > before:
                return True
            if ended:
                self._runs()
            return False

        self._stage.arm(fault.place, action, fault.skip)
        try:
            self._stage.until(
                fired,
                PATIENCE,
                f"failpoint {fault.place} was not reached",
                meanwhile=self._kick,
            )
        finally:
            self._stage.disarm()
        return self._stage.fired()[-1]

    def _signal_worker(self, number: signal.Signals) -> int:
        def strike() -> bool:
            workers = sorted(self._stage.running.workers(), key=lambda p: p.pid)
            if not workers:
                return False
            chosen = self._dice.choice(workers)
            try:
                chosen.send_signal(number)
            except psutil.NoSuchProcess:
                return False
            hit.append(chosen.pid)
            return True

        hit: list[int] = []
        self._stage.until(strike, PATIENCE, "no Python worker is running")
        return hit[0]

    def _driver_kill(self, fault: Fault) -> float:
        process = self._stage.running

        def by_hand() -> int:
            os.kill(process.pid, signal.SIGKILL)
            return process.pid

        self._at(fault, "kill-driver", by_hand)
        return self._after_death(process.pid)

    def _after_death(self, pid: int) -> float:
        """Restart the driver if it died. Spark replaces everything else."""
        process = self._stage.running
        mark = self.mark()
        if pid == process.pid:
            self._stage.until(
                lambda: process.status is not None, PATIENCE, "the driver did not die"
            )
            self._stage.start()
        return self.wait_past(mark)

    def _worker_kill(self, fault: Fault) -> float:
        hit = self._at(fault, "kill-worker", lambda: self._signal_worker(signal.SIGKILL))
        return self._after_death(hit)

    def _error(self, fault: Fault) -> float:
        self._at(fault, "raise", lambda: 0)
        return self.wait_past(self.mark())

    def _executor_kill(self, fault: Fault) -> float:
        def by_hand() -> int:
            executors: list[psutil.Process] = []

            def run() -> bool:
                executors[:] = sorted(self._stage.running.executors(), key=lambda p: p.pid)
                return bool(executors)

            self._stage.until(run, PATIENCE, "no executor is running")
            chosen = self._dice.choice(executors)
            chosen.kill()
            return int(chosen.pid)

        return self._after_death(self._at(fault, "kill-executor", by_hand))

    def _freeze(self, fault: Fault) -> psutil.Process:
        pid = self._at(fault, "freeze", lambda: self._signal_worker(signal.SIGSTOP))
        try:
            frozen = psutil.Process(pid)
            self._stage.until(
                lambda: frozen.status() == psutil.STATUS_STOPPED,
                PATIENCE,
                f"process {pid} did not freeze",
            )
        except psutil.NoSuchProcess:
            raise DrillFailed(f"process {pid} ended before it could freeze") from None
        return frozen

    def _replaced_zombie(self, fault: Fault) -> float:
        frozen = self._freeze(fault)
        mark = self.mark()
        java = next((p for p in frozen.parents() if p.name().startswith("java")), None)
        if java is None:
            raise DrillFailed(f"process {frozen.pid} is not an executor's worker")
        java.kill()
        stage = self._stage
        stage.until(
            self._tasks_live,
            PATIENCE,
            "Spark did not replace the task whose executor died",
        )
        self.wait_past(mark)
        self._whole()
        seconds = time.monotonic() - mark.at
        mark = self.mark()
        self._thaw(frozen)
        self.wait_past(mark)
        stage.until(
            lambda: not frozen.is_running(),
            PATIENCE,
            f"the zombie, process {frozen.pid}, was not fenced",
            meanwhile=self._kick,
        )
        return seconds

    def _thaw(self, frozen: psutil.Process) -> None:
        try:
            failpoints.thaw(self._stage.points, frozen.pid)
        except psutil.NoSuchProcess:
            raise DrillFailed(f"process {frozen.pid} died while it was frozen") from None

    def _broker_restart(self, fault: Fault) -> float:
        return self._outage(fault, lambda broker: broker.stop())

    def _broker_kill(self, fault: Fault) -> float:
        return self._outage(fault, lambda broker: broker.kill())

    def _outage(self, fault: Fault, end: Callable[[Broker], None]) -> float:
        """End a broker and start it again. Every other outage outlasts the tasks' sessions. If the
        fault has a place, a task is frozen there until the broker has ended."""
        kafka = self._stage.kafka
        broker = self._dice.choice(kafka.others or (kafka,))
        frozen = None
        if fault.place == ANY_MOMENT:
            self._traffic.kick()
            time.sleep(fault.delay)
        else:
            frozen = self._freeze(fault)
        at = time.monotonic()
        end(broker)
        if frozen is not None:
            self._thaw(frozen)
        if fault.skip % 2:
            time.sleep(SESSION + 1)
        broker.start()
        self.wait_past(self.mark())
        return time.monotonic() - at

    def _second_driver(self, _fault: Fault) -> float:
        self._stage.remember()
        first, second = self._stage.running, self._stage.launch()
        at = time.monotonic()
        self.one_is_fenced(first, second)
        self.wait_past(self.mark())
        return time.monotonic() - at

    def _time_out(self, fault: Fault) -> float:
        """Freeze a task until the broker, which checks once a second, aborts its transaction."""
        frozen = self._freeze(fault)
        mark = self.mark()
        time.sleep(TRANSACTION + 2)
        self._thaw(frozen)
        seconds = self.wait_past(mark)
        self._whole()
        return seconds

    def one_is_fenced(self, first: Process, second: Process) -> None:
        """Wait until one of two processes has ended, and check that it says why."""
        both = (first, second)
        try:
            self._stage.until(
                lambda: any(p.status is not None for p in both),
                PATIENCE,
                "two drivers run, and neither was fenced",
                meanwhile=self._kick,
            )
        finally:
            loser = first if first.status is not None else second
            self._stage.process = second if loser is first else first
            self._stage.adopt(loser)
        # A group tells its members that they are fenced. Others learn it from the ledger.
        if loser.status != _FENCED_STATUS or not loser.says("another run"):
            raise DrillFailed(f"the fenced driver does not say so: {loser.end()}")
