"""Injects a fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from semel_lab.drill.hazards import Hazards
from semel_lab.drill.plan import Fault, Kind
from semel_lab.drill.processes import PATIENCE, DrillFailed
from semel_lab.drill.stores import SESSION

_SPARE = (0, 1, 4, 16)
"""Pages that a full disk has left: enough for nothing or for part of a write."""
_AWAY = 90.0
"""Seconds."""


class Injector(Hazards):
    """Injects faults into a stage, one after another."""

    def _inject(self, fault: Fault) -> float:
        return _INJECT[fault.kind](self, fault)

    def _zombie(self, fault: Fault) -> float:
        frozen = self._freeze(fault)
        mark = self.mark()
        seconds = self.wait_past(mark) if self._stage.takes_over else SESSION + 1
        # Its session must expire, even if it held no partition.
        time.sleep(max(0.0, SESSION + 1 - (time.monotonic() - mark.at)))
        mark = self.mark()
        self._thaw(frozen)
        self._whole()
        self.wait_past(mark)
        return seconds

    def _service(self, fault: Fault, action: Callable[[], object]) -> float:
        self._traffic.kick()
        time.sleep(fault.delay)
        at = time.monotonic()
        action()
        mark = self.mark()
        self.wait_past(mark)
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
        self._stage.until(lambda: proxy.silence() > 0, PATIENCE, "the store has no connections")
        mark = self.mark()
        return self.wait_past(mark)

    def _table_optimize(self, fault: Fault) -> float:
        return self._service(fault, self._stage.lake.rewrite)

    def _concurrent_writer(self, fault: Fault) -> float:
        """After each foreign commit the connector tries again. All foreign commits must stay."""
        lake = self._stage.lake
        for attempt in range(2 + fault.skip % 3):
            frozen = self._freeze(replace(fault, skip=0) if attempt else fault)
            lake.write()
            self._thaw(frozen)
        seconds = self.wait_past(self.mark())
        if lake.marks() != {str(lake.commits)}:
            raise DrillFailed(
                f"the other writer's commit {lake.commits} is missing: {lake.marks()}"
            )
        return seconds

    def _disk_full(self, fault: Fault) -> float:
        frozen = self._freeze(fault)
        with self._stage.disk.full(self._dice.choice(_SPARE), self._stage.running.writers):
            self._thaw(frozen)
            self._stand_still()
        return self.wait_past(self.mark())


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
    Kind.CHECKPOINT_LOST: Injector._checkpoint_lost,
    Kind.STATE_LOST: Injector._state_lost,
    Kind.TASKS_CHANGED: Injector._tasks_changed,
}
