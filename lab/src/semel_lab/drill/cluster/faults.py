"""Injects a fault into a cluster of workers."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semel_lab.drill.cluster.member import Member
from semel_lab.drill.cluster.stage import ClusterStage
from semel_lab.drill.plan import Fault, Kind
from semel_lab.drill.processes import PATIENCE
from semel_lab.drill.recovery import Mark
from semel_lab.drill.traffic import Traffic

_UNDER_WAY = 0.5


class ClusterInjector:
    """Injects faults into a stage, one after another."""

    def __init__(self, stage: ClusterStage, traffic: Traffic, seed: int) -> None:
        self._stage = stage
        self._traffic = traffic
        self._dice = random.Random(f"{seed} workers")

    def inject(self, fault: Fault) -> float:
        """Inject a fault, and wait until all connectors have recovered. Returns the seconds until
        all tasks ran again.

        Raises:
            DrillFailed: they have not.
        """
        time.sleep(fault.delay)
        seconds = _INJECT[fault.kind](self, fault)
        self._even()
        self.wait_for_progress()
        return seconds

    def wait_for_progress(self) -> None:
        """Wait until both connectors have committed more."""
        stage = self._stage
        before = stage.records_generated()
        mark = Mark(time.monotonic(), stage.latest(), stage.positions())

        def passed() -> bool:
            return not mark.missing(stage.positions())

        stage.until(
            passed,
            PATIENCE,
            lambda: f"the sink has not continued: {'; '.join(mark.missing(stage.positions()))}",
            meanwhile=self._traffic.kick,
        )
        stage.until(
            lambda: stage.records_generated() > before, PATIENCE, "the source has not continued"
        )

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Stop the traffic, and wait until the sink has everything."""
        stage = self._stage
        self._traffic.hold(True)
        try:
            time.sleep(_UNDER_WAY)
            mark = Mark(time.monotonic(), stage.latest(), dict.fromkeys(stage.partitions, -1))
            stage.until(
                lambda: not mark.missing(stage.positions()),
                PATIENCE,
                lambda: f"the sink has not continued: {'; '.join(mark.missing(stage.positions()))}",
            )
            time.sleep(_UNDER_WAY)
            yield
        finally:
            self._traffic.hold(False)

    def _even(self) -> None:
        self._stage.until(self._stage.is_even, PATIENCE, self._stage.state_report)

    def _taken_over(self, victim: Member, began: float) -> float:
        """Wait until all tasks run without a worker."""
        stage = self._stage
        stage.until(lambda: stage.runs(victim) is not None, PATIENCE, stage.state_report)
        return time.monotonic() - began

    def _any(self) -> Member:
        """Any worker; the leader is as likely as any other."""
        return self._dice.choice(self._stage.members)

    # Faults

    def _member_kill(self, _fault: Fault) -> float:
        leader = self._stage.leader
        return self._kill(self._dice.choice([m for m in self._stage.members if m is not leader]))

    def _leader_kill(self, _fault: Fault) -> float:
        stage = self._stage
        stage.until(lambda: stage.leader is not None, PATIENCE, "nobody leads the cluster")
        return self._kill(stage.leader or stage.members[0])

    def _kill(self, victim: Member) -> float:
        began = time.monotonic()
        victim.send(signal.SIGKILL)
        seconds = self._taken_over(victim, began)
        self._stage.remove(victim)
        self._stage.add()
        return seconds

    def _member_freeze(self, _fault: Fault) -> float:
        victim, began = self._any(), time.monotonic()
        victim.send(signal.SIGSTOP)
        seconds = self._taken_over(victim, began)
        self.wait_for_progress()
        victim.send(signal.SIGCONT)
        return seconds

    def _member_cut_off(self, fault: Fault) -> float:
        victim, began = self._any(), time.monotonic()
        victim.way.refuse() if fault.skip % 2 else victim.way.silence(new=True)
        seconds = self._taken_over(victim, began)
        self.wait_for_progress()
        victim.way.cut()
        victim.way.accept()
        return seconds

    def _member_add(self, _fault: Fault) -> float:
        stage, began = self._stage, time.monotonic()
        leaver = self._any()
        added = stage.add()
        self._up(added)
        self._even()
        seconds = time.monotonic() - began
        leaver.stop()
        self._ended(leaver)
        self._taken_over(leaver, began)
        stage.remove(leaver)
        return seconds

    def _rolling_restart(self, _fault: Fault) -> float:
        began = time.monotonic()
        for member in list(self._stage.members):
            member.stop()
            self._ended(member)
            member.again()
            self._up(member)
            self._stage.until(
                lambda: self._stage.runs() is not None, PATIENCE, self._stage.state_report
            )
        return time.monotonic() - began

    def _up(self, member: Member) -> None:
        self._stage.until(lambda: member.is_up, PATIENCE, f"worker {member.number} does not start")

    def _ended(self, member: Member) -> None:
        self._stage.until(
            lambda: member.process.status is not None,
            PATIENCE,
            f"worker {member.number} does not stop",
        )


_INJECT: dict[Kind, Callable[[ClusterInjector, Fault], float]] = {
    Kind.MEMBER_KILL: ClusterInjector._member_kill,
    Kind.LEADER_KILL: ClusterInjector._leader_kill,
    Kind.MEMBER_FREEZE: ClusterInjector._member_freeze,
    Kind.MEMBER_CUT_OFF: ClusterInjector._member_cut_off,
    Kind.MEMBER_ADD: ClusterInjector._member_add,
    Kind.ROLLING_RESTART: ClusterInjector._rolling_restart,
}
