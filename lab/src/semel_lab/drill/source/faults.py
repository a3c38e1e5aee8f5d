"""Injects a fault into a source connector."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from semel_lab.drill.plan import Fault, Kind
from semel_lab.drill.processes import PATIENCE
from semel_lab.drill.source.folder import Folder
from semel_lab.drill.source.lines import File
from semel_lab.drill.source.rows import Rows
from semel_lab.drill.source.stage import SourceStage
from semel_lab.drill.strikes import Strikes
from semel_lab.embedded.server import Server

_LATE = 20.0
"""How many seconds after later records a record may come before it counts as lost: it may be in
another partition, or a transaction may still be open there."""
_SIZE = 10_000
"""Bytes of a file that is cut or replaced while the connector is stopped."""


@dataclass(frozen=True, slots=True)
class SourceMark:
    """What a recovery must reach: all that was written when the fault struck, and more."""

    at: float
    written: int


class SourceInjector(Strikes[SourceMark]):
    """Injects faults into a stage, one after another."""

    _stage: SourceStage

    def __init__(self, stage: SourceStage, seed: int) -> None:
        super().__init__()
        self._stage = stage
        self._traffic = stage.writer
        self._dice = random.Random(f"{seed} targets")

    def _inject(self, fault: Fault) -> float:
        return _INJECT[fault.kind](self, fault)

    def mark(self) -> SourceMark:
        return SourceMark(time.monotonic(), self._stage.writer.sent)

    def wait_past(self, mark: SourceMark, patience: float = PATIENCE) -> float:
        """Wait until a consumer sees a record that was written after the mark, and then for those
        before it. Records that are still missing are lost; the findings report them."""
        tally = self._stage.tally

        def passed() -> bool:
            self._runs()
            return tally.newest >= mark.written

        self._stage.until(
            passed,
            patience,
            lambda: (
                f"the connector has not recovered: a consumer sees record {tally.newest}, must see "
                f"{mark.written}; see {self._stage.running.log}"
            ),
            meanwhile=self._kick,
        )
        seconds = time.monotonic() - mark.at
        self._wait_for(mark.written, _LATE)
        return seconds

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Stop writing until a consumer has seen everything."""
        writer = self._stage.writer
        writer.hold(True)
        try:
            with writer.no_burst():
                written = writer.sent
            self._wait_for(written, PATIENCE)
            yield
        finally:
            writer.hold(False)

    def _wait_for(self, written: int, seconds: float) -> None:
        """Wait until all of these records are there, or it takes too long."""
        deadline = time.monotonic() + seconds
        while not self._stage.tally.has(written) and time.monotonic() < deadline:
            self._runs()
            time.sleep(0.02)

    def _whole(self) -> None:
        """A source's task keeps its partitions until it is replaced."""

    # The faults that only sources have

    def _zombie(self, fault: Fault) -> float:
        """Freeze a task until a second run has its place."""
        frozen = self._freeze(fault)
        first, second = self._stage.running, self._stage.launch()
        self._stage.process = second
        seconds = self.wait_past(self.mark())
        self._thaw(frozen)
        self.one_is_fenced(first, second)
        self.wait_past(self.mark())
        return seconds

    def _file_rotated(self, fault: Fault) -> float:
        """Let another file take the name, every other time while the connector is stopped and has
        not read all of the old one."""
        file, writer = self._file(), self._stage.writer
        if not fault.skip % 2:
            with writer.no_burst():
                file.rotate(writer.unwritten(1))
            return self.wait_past(self.mark())

        def change() -> None:
            writer.by_hand(50)
            file.rotate(writer.unwritten(1))
            writer.by_hand(50)

        return self._while_stopped(change)

    def _file_cut(self, fault: Fault) -> float:
        """Cut the file, every other time while the connector is stopped."""
        file = self._file()
        if fault.skip % 2:
            return self._while_stopped(file.cut)
        with self.settled():
            self._fill(file)
            file.cut()
            return self._read_anew()

    def _file_replaced(self, fault: Fault) -> float:
        """Put a new file in place of a finished one, every other time while the connector is
        stopped and, if possible, before it has moved the finished one."""
        system, writer = self._folder(), self._stage.writer
        if not fault.skip % 2:
            with self.settled():
                name = system.last
                system.again(name, writer.unwritten(5))
                return self._all_read()
        with self.settled():
            name = f"{fault.number:08}.{system.ending}"
            self._arm_commit()
            system.again(name, writer.unwritten(20))
            self._die_at_commit()
            system.again(name, writer.unwritten(5))
            self._stage.start()
            return self._all_read()

    def _arm_commit(self) -> None:
        self._stage.arm("sink.after_commit", "kill-driver", 0)

    def _die_at_commit(self) -> None:
        """Let the driver die once everything is committed, if possible before it knows. A consumer
        may see a commit before the driver passes the armed failpoint, so it may die at an earlier
        one: then it is started again."""
        stage, written = self._stage, self._stage.writer.sent

        def committed() -> bool:
            stage.remember()  # it may die at any moment, and leave a task behind
            return stage.running.status is not None or stage.tally.has(written)

        while True:
            stage.until(
                committed, PATIENCE, lambda: f"the new file is not read; see {stage.running.log}"
            )
            stage.disarm()
            if stage.running.status not in (None, -signal.SIGKILL):
                self._runs()
            stage.kill()
            if not stage.read_again().lost:
                return
            self._arm_commit()
            stage.start()

    def _server_restarted(self, fault: Fault) -> float:
        return self._server_goes(fault, lambda server: server.stop())

    def _server_killed(self, fault: Fault) -> float:
        return self._server_goes(fault, lambda server: server.kill())

    def _server_goes(self, fault: Fault, end: Callable[[Server], None]) -> float:
        """End the database's server while rows are written and read, and start it again."""
        system = self._stage.system
        assert isinstance(system, Rows)
        server = system.server
        assert server is not None
        self._traffic.kick()
        time.sleep(fault.delay)
        at = time.monotonic()
        end(server)
        server.start()
        self.wait_past(self.mark())
        return time.monotonic() - at

    def _all_read(self, otherwise: str = "the new file is not read") -> float:
        """Wait until a consumer has seen all that is written."""
        mark = self.mark()

        def read() -> bool:
            self._runs()
            return self._stage.tally.has(mark.written)

        self._stage.until(read, PATIENCE, lambda: f"{otherwise}; see {self._stage.running.log}")
        return time.monotonic() - mark.at

    def _folder(self) -> Folder:
        assert isinstance(self._stage.system, Folder)
        return self._stage.system

    def _while_stopped(self, change: Callable[[], None]) -> float:
        with self.settled():
            self._fill(self._file())
            self._stage.kill()
            change()
            self._stage.start()
            return self._read_anew()

    def _fill(self, file: File) -> None:
        """Make a file long enough, and let it be read, so that a file that starts over is shorter
        for a while: nothing else shows that it is another file."""
        writer = self._stage.writer
        while file.size < _SIZE:
            writer.by_hand(50)
        self._wait_for(writer.sent, PATIENCE)

    def _read_anew(self) -> float:
        """Write a little, and wait until it is read."""
        self._stage.writer.by_hand(1)
        return self._all_read("the file is not read from its beginning")

    def _file(self) -> File:
        assert isinstance(self._stage.system, File)
        return self._stage.system


_INJECT: dict[Kind, Callable[[SourceInjector, Fault], float]] = {
    Kind.DRIVER_KILL: SourceInjector._driver_kill,
    Kind.WORKER_KILL: SourceInjector._worker_kill,
    Kind.ERROR: SourceInjector._error,
    Kind.ZOMBIE: SourceInjector._zombie,
    Kind.TIME_OUT: SourceInjector._time_out,
    Kind.SECOND_DRIVER: SourceInjector._second_driver,
    Kind.EXECUTOR_KILL: SourceInjector._executor_kill,
    Kind.REPLACED_ZOMBIE: SourceInjector._replaced_zombie,
    Kind.BROKER_RESTART: SourceInjector._broker_restart,
    Kind.BROKER_KILL: SourceInjector._broker_kill,
    Kind.FILE_ROTATED: SourceInjector._file_rotated,
    Kind.FILE_CUT: SourceInjector._file_cut,
    Kind.FILE_REPLACED: SourceInjector._file_replaced,
    Kind.STORE_RESTART: SourceInjector._server_restarted,
    Kind.STORE_KILL: SourceInjector._server_killed,
}
