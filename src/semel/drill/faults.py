"""Injecting one fault and seeing the connector recover from it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil

from semel import failpoints
from semel.drill.plan import ANY_MOMENT, Fault, Kind
from semel.drill.stage import DrillFailed, Process, Stage
from semel.drill.stores import SESSION, TRANSACTION
from semel.drill.traffic import Traffic
from semel.errors import SemelError
from semel.ledger import TopicPartition

PATIENCE = 90.0
_FENCED_STATUS = 4
_UNDER_WAY = 0.5
_KICK_EVERY = 0.4
_STANDS_STILL = 2.0
_SPARE = (0, 1, 4, 16)
"""Pages of a disk that are left when it is full: enough for nothing, or for a part."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What must be passed for a recovery to count: all that Kafka held when the fault struck, and
    on every partition something more than the ledger held."""

    at: float
    latest: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]

    def missing(self, positions: Mapping[TopicPartition, int]) -> list[str]:
        """The partitions that have not got there yet, and how far they are."""
        return [
            f"{tp} at {positions.get(tp)}, must reach {end} and pass {self.positions.get(tp, 0)}"
            for tp, end in self.latest.items()
            if positions.get(tp, 0) < end or positions.get(tp, 0) <= self.positions.get(tp, 0)
        ]


class Injector:
    """Strikes on a stage, one fault after another."""

    def __init__(self, stage: Stage, traffic: Traffic, seed: int) -> None:
        self._stage = stage
        self._traffic = traffic
        self._dice = random.Random(f"{seed} targets")
        self._kicked = 0.0

    def inject(self, fault: Fault) -> float:
        """Inject a fault and wait until the connector has gone on; returns how long that took.

        Raises:
            DrillFailed: it could not be injected, or the connector has not gone on.
        """
        try:
            return _INJECT[fault.kind](self, fault)
        except psutil.NoSuchProcess as gone:
            raise DrillFailed(
                f"a process has ended before the fault could strike: {gone}"
            ) from gone

    # Seeing it recover

    def mark(self) -> Mark:
        """From here on it must go on."""
        at = time.monotonic()
        return Mark(at, self._latest(), self._stage.positions())

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Nothing is under way, and nothing comes. Where results and positions are committed one
        after the other, an audit in between takes what is under way for lost or duplicated."""
        self._traffic.hold(True)
        try:
            time.sleep(_UNDER_WAY)
            standing = dict.fromkeys(self._stage.partitions, -1)  # nothing new is to come
            self.gone_on(Mark(time.monotonic(), self._latest(), standing))
            time.sleep(_UNDER_WAY)
            yield
        finally:
            self._traffic.hold(False)

    def _latest(self) -> dict[TopicPartition, int]:
        """Where Kafka's records end; a broker that has just started may not know yet."""
        found: dict[TopicPartition, int] = {}

        def known() -> bool:
            try:
                found.update(self._stage.latest())
            except SemelError:
                return False
            return True

        self._stage.until(known, PATIENCE, "Kafka does not say where its records end")
        return found

    def gone_on(self, mark: Mark, patience: float = PATIENCE) -> float:
        """Wait until the ledger has passed the mark; returns the seconds since the mark."""
        missing = ["nothing seen yet"]

        def passed() -> bool:
            self._runs()
            missing[:] = mark.missing(self._stage.positions())
            return not missing

        self._stage.until(
            passed,
            patience,
            lambda: (
                f"the connector has not gone on: {'; '.join(missing)}; see "
                f"{self._stage.running.log}"
            ),
            meanwhile=self._kick,
        )
        return time.monotonic() - mark.at

    def _runs(self) -> None:
        if self._stage.running.status is not None:
            raise DrillFailed(f"the connector has ended: {self._stage.running.end()}")

    def _kick(self) -> None:
        """Records on the way, but not without limit."""
        now = time.monotonic()
        if now - self._kicked > _KICK_EVERY:
            self._kicked = now
            self._traffic.kick()

    # Striking

    def _at(self, fault: Fault, action: str, by_hand: Callable[[], int]) -> int:
        """Strike at the fault's place or moment; returns the process that was hit."""
        self._stage.remember()
        if fault.place == ANY_MOMENT:
            self._traffic.kick()
            time.sleep(fault.delay)
            return by_hand()
        before = len(self._stage.fired())

        def fired() -> bool:
            if len(self._stage.fired()) > before:
                return True
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
            workers = sorted(self._stage.workers(), key=lambda p: p.pid)
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
        self._stage.until(strike, 30, "no Python worker runs")
        return hit[0]

    def _driver_kill(self, fault: Fault) -> float:
        process = self._stage.running

        def by_hand() -> int:
            os.kill(process.pid, signal.SIGKILL)
            return process.pid

        self._at(fault, "kill-driver", by_hand)
        return self._after_death(process.pid)

    def _after_death(self, pid: int) -> float:
        """Spark replaces what has died, but for the driver, where micro-batches commit."""
        process = self._stage.running
        mark = self.mark()
        if pid == process.pid:
            self._stage.until(lambda: process.status is not None, 10, "the driver has not died")
            self._stage.start()
        return self.gone_on(mark)

    def _worker_kill(self, fault: Fault) -> float:
        hit = self._at(fault, "kill-worker", lambda: self._signal_worker(signal.SIGKILL))
        return self._after_death(hit)

    def _error(self, fault: Fault) -> float:
        self._at(fault, "raise", lambda: 0)
        return self.gone_on(self.mark())

    def _executor_kill(self, fault: Fault) -> float:
        def by_hand() -> int:
            executors: list[psutil.Process] = []

            def run() -> bool:
                executors[:] = sorted(self._stage.executors(), key=lambda p: p.pid)
                return bool(executors)

            self._stage.until(run, PATIENCE, "no executor runs")
            chosen = self._dice.choice(executors)
            chosen.kill()
            return int(chosen.pid)

        return self._after_death(self._at(fault, "kill-executor", by_hand))

    def _freeze(self, fault: Fault) -> psutil.Process:
        pid = self._at(fault, "freeze", lambda: self._signal_worker(signal.SIGSTOP))
        try:
            frozen = psutil.Process(pid)
            self._stage.until(
                lambda: frozen.status() == psutil.STATUS_STOPPED, 5, f"process {pid} did not freeze"
            )
        except psutil.NoSuchProcess:
            raise DrillFailed(f"process {pid}, which was to freeze, has ended") from None
        return frozen

    def _zombie(self, fault: Fault) -> float:
        frozen = self._freeze(fault)
        mark = self.mark()
        seconds = self.gone_on(mark) if self._stage.takes_over else SESSION + 1
        # Its session must be over, also where it held no partition.
        time.sleep(max(0.0, SESSION + 1 - (time.monotonic() - mark.at)))
        mark = self.mark()
        self._thaw(frozen)
        self._whole()
        self.gone_on(mark)
        return seconds

    def _replaced_zombie(self, fault: Fault) -> float:
        frozen = self._freeze(fault)
        mark = self.mark()
        java = next((p for p in frozen.parents() if p.name().startswith("java")), None)
        if java is None:
            raise DrillFailed(f"process {frozen.pid} is no worker of an executor")
        java.kill()
        stage = self._stage
        stage.until(
            lambda: (
                len(stage.executors()) == stage.tasks
                and (not stage.direct or len(stage.workers()) == stage.tasks)
            ),
            PATIENCE,
            "Spark has not replaced the task whose executor died",
        )
        self.gone_on(mark)
        self._whole()
        seconds = time.monotonic() - mark.at
        mark = self.mark()
        self._thaw(frozen)
        self.gone_on(mark)
        stage.until(
            lambda: not frozen.is_running(),
            PATIENCE,
            f"the zombie, process {frozen.pid}, has not been fenced",
            meanwhile=self._kick,
        )
        return seconds

    def _thaw(self, frozen: psutil.Process) -> None:
        try:
            failpoints.thaw(self._stage.points, frozen.pid)
        except psutil.NoSuchProcess:
            raise DrillFailed(f"process {frozen.pid} has died while it was frozen") from None

    def _whole(self) -> None:
        """Every task is back in the consumer group: a zombie has found out what became of it."""
        if not self._stage.direct:
            return  # Spark's own consumers are in no group
        self._stage.until(
            self._stage.group_is_whole,
            PATIENCE,
            "not every task is in the consumer group again",
            meanwhile=self._kick,
        )

    def _service(self, fault: Fault, action: Callable[[], object]) -> float:
        self._traffic.kick()
        time.sleep(fault.delay)
        at = time.monotonic()
        action()
        mark = self.mark()
        self.gone_on(mark)
        return time.monotonic() - at

    def _store_restart(self, fault: Fault) -> float:
        return self._service(fault, self._stage.server.restart)

    def _store_kill(self, fault: Fault) -> float:
        def crash() -> None:
            self._stage.server.kill()
            self._stage.server.start()

        return self._service(fault, crash)

    def _table_optimize(self, fault: Fault) -> float:
        return self._service(fault, self._stage.lake.rewrite)

    def _concurrent_writer(self, fault: Fault) -> float:
        """The connector judges again after each; what the other one has written must stay."""
        lake = self._stage.lake
        for attempt in range(2 + fault.skip % 3):
            frozen = self._freeze(replace(fault, skip=0) if attempt else fault)
            lake.write()
            self._thaw(frozen)
        seconds = self.gone_on(self.mark())
        if lake.marks() != {str(lake.commits)}:
            raise DrillFailed(f"the other writer's commit {lake.commits} is gone: {lake.marks()}")
        return seconds

    def _disk_full(self, fault: Fault) -> float:
        frozen = self._freeze(fault)
        with self._stage.disk.full(self._dice.choice(_SPARE), self._stage.writers):
            self._thaw(frozen)
            self._stand_still()
        return self.gone_on(self.mark())

    def _stand_still(self) -> None:
        """Records come, and no commit goes through any more."""
        seen: dict[TopicPartition, int] = {}
        since = time.monotonic()

        def stands() -> bool:
            nonlocal seen, since
            self._runs()
            positions = self._stage.positions()
            if positions != seen:
                seen, since = positions, time.monotonic()
            return time.monotonic() - since > _STANDS_STILL

        self._stage.until(
            stands,
            PATIENCE,
            "commits go through although nothing can be written",
            meanwhile=self._kick,
        )

    def _broker_restart(self, fault: Fault) -> float:
        return self._service(fault, lambda: self._outage(fault, self._stage.kafka.stop))

    def _broker_kill(self, fault: Fault) -> float:
        return self._service(fault, lambda: self._outage(fault, self._stage.kafka.kill))

    def _outage(self, fault: Fault, end: Callable[[], None]) -> None:
        """Every other one outlasts the sessions of the tasks."""
        end()
        if fault.skip % 2:
            time.sleep(SESSION + 1)
        self._stage.kafka.start()

    def _time_out(self, fault: Fault) -> float:
        """The broker looks for transactions to abort once a second."""
        frozen = self._freeze(fault)
        mark = self.mark()
        time.sleep(TRANSACTION + 2)
        self._thaw(frozen)
        seconds = self.gone_on(mark)
        self._whole()
        return seconds

    def _second_driver(self, _fault: Fault) -> float:
        self._stage.remember()
        first, second = self._stage.running, self._stage.launch()
        at = time.monotonic()
        self.one_is_fenced(first, second)
        self.gone_on(self.mark())
        return time.monotonic() - at

    def one_is_fenced(self, first: Process, second: Process) -> None:
        """Wait until one of two processes has given way, and check that it says why."""
        both = (first, second)
        try:
            self._stage.until(
                lambda: any(p.status is not None for p in both),
                PATIENCE,
                "two drivers run and neither was fenced",
                meanwhile=self._kick,
            )
        finally:
            loser = first if first.status is not None else second
            self._stage.process = second if loser is first else first
            self._stage.adopt(loser)
        # A group tells its members that they are fenced; others learn it from the ledger.
        if loser.status != _FENCED_STATUS or not loser.says("another run"):
            raise DrillFailed(f"the loser does not say that it was fenced: {loser.end()}")


_INJECT: dict[Kind, Callable[[Injector, Fault], float]] = {
    Kind.DRIVER_KILL: Injector._driver_kill,
    Kind.WORKER_KILL: Injector._worker_kill,
    Kind.ZOMBIE: Injector._zombie,
    Kind.ERROR: Injector._error,
    Kind.STORE_RESTART: Injector._store_restart,
    Kind.STORE_KILL: Injector._store_kill,
    Kind.BROKER_RESTART: Injector._broker_restart,
    Kind.BROKER_KILL: Injector._broker_kill,
    Kind.TIME_OUT: Injector._time_out,
    Kind.SECOND_DRIVER: Injector._second_driver,
    Kind.EXECUTOR_KILL: Injector._executor_kill,
    Kind.REPLACED_ZOMBIE: Injector._replaced_zombie,
    Kind.TABLE_OPTIMIZE: Injector._table_optimize,
    Kind.CONCURRENT_WRITER: Injector._concurrent_writer,
    Kind.DISK_FULL: Injector._disk_full,
}
