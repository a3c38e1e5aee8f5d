"""Injecting one fault."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import psutil

from semel import failpoints
from semel.lab.drill.hazards import Hazards
from semel.lab.drill.plan import ANY_MOMENT, Fault, Kind
from semel.lab.drill.stage import PATIENCE, DrillFailed
from semel.lab.drill.stores import SESSION, TRANSACTION
from semel.lab.embedded.kafka import Broker

_SPARE = (0, 1, 4, 16)
"""Pages of a disk that are left when it is full: enough for nothing, or for a part."""
_AWAY = 90.0
"""Seconds."""


class Injector(Hazards):
    """Strikes on a stage, one fault after another."""

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

    def _at(self, fault: Fault, action: str, by_hand: Callable[[], int]) -> int:
        """Strike at the fault's place or moment; returns the process that was hit."""
        self._stage.remember()
        if fault.place == ANY_MOMENT:
            self._traffic.kick()
            time.sleep(fault.delay)
            return by_hand()
        before = len(self._stage.fired())

        def fired() -> bool:
            ended = self._stage.running.status is not None  # by this fault, perhaps: look first
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
        self._stage.until(strike, PATIENCE, "no Python worker runs")
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
            self._stage.until(
                lambda: process.status is not None, PATIENCE, "the driver has not died"
            )
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
                executors[:] = sorted(self._stage.running.executors(), key=lambda p: p.pid)
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
                lambda: frozen.status() == psutil.STATUS_STOPPED,
                PATIENCE,
                f"process {pid} did not freeze",
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
                len(stage.running.executors()) == stage.tasks
                and (not stage.direct or len(stage.running.workers()) == stage.tasks)
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

    def _store_away(self, fault: Fault) -> float:
        def leave() -> None:
            self._stage.server.kill()
            time.sleep(_AWAY)
            self._stage.server.start()

        return self._service(fault, leave)

    def _store_silent(self, fault: Fault) -> float:
        proxy = self._stage.proxy
        assert proxy is not None
        self._stage.until(
            lambda: proxy.silence() > 0, PATIENCE, "nothing is connected to the store"
        )
        mark = self.mark()
        return self.gone_on(mark)

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
        with self._stage.disk.full(self._dice.choice(_SPARE), self._stage.running.writers):
            self._thaw(frozen)
            self._stand_still()
        return self.gone_on(self.mark())

    def _broker_restart(self, fault: Fault) -> float:
        return self._outage(fault, lambda broker: broker.stop())

    def _broker_kill(self, fault: Fault) -> float:
        return self._outage(fault, lambda broker: broker.kill())

    def _outage(self, fault: Fault, end: Callable[[Broker], None]) -> float:
        """Every other one outlasts the sessions of the tasks. At a place, a task is frozen there
        until its broker has gone."""
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
        self.gone_on(self.mark())
        return time.monotonic() - at

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
    Kind.STORE_SILENT: Injector._store_silent,
    Kind.STORE_AWAY: Injector._store_away,
    Kind.OFFSETS_DELETED: Injector._offsets_deleted,
    Kind.PARTITIONS_ADDED: Injector._partitions_added,
    Kind.RETENTION: Injector._retention,
    Kind.TOPIC_RECREATED: Injector._topic_recreated,
    Kind.LOG_TRUNCATED: Injector._log_truncated,
    Kind.BATCH_DAMAGED: Injector._batch_damaged,
}
