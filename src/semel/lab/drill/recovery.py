"""Seeing a connector recover from a fault."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from semel.errors import SemelError
from semel.lab.drill.process import Process
from semel.lab.drill.stage import PATIENCE, DrillFailed, Stage
from semel.lab.drill.traffic import Traffic
from semel.ledger import TopicPartition

_FENCED_STATUS = 4
_UNDER_WAY = 0.5
_KICK_EVERY = 0.4
_STANDS_STILL = 2.0


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


class Recovery:
    """Watches the connector of a stage, and sends it records."""

    def __init__(self, stage: Stage, traffic: Traffic) -> None:
        self._stage = stage
        self._traffic = traffic
        self._kicked = 0.0

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
