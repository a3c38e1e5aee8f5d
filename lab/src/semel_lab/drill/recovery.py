"""Watches a sink connector recover from a fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from semel.core.errors import SemelError
from semel.core.ledger import TopicPartition
from semel_lab.drill.processes import PATIENCE
from semel_lab.drill.stage import Stage
from semel_lab.drill.strikes import Strikes
from semel_lab.drill.traffic import Traffic

_UNDER_WAY = 0.5
_STANDS_STILL = 2.0


@dataclass(frozen=True, slots=True)
class Mark:
    """What a recovery must reach: everything that Kafka held when the fault struck and, in every
    partition, more than the ledger held."""

    at: float
    latest: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]

    def missing(self, positions: Mapping[TopicPartition, int]) -> list[str]:
        """The partitions that have not reached it yet, with their positions."""
        return [
            f"{tp} is at {positions.get(tp)}, must reach {end} and pass {self.positions.get(tp, 0)}"
            for tp, end in self.latest.items()
            if positions.get(tp, 0) < end or positions.get(tp, 0) <= self.positions.get(tp, 0)
        ]


class Recovery(Strikes[Mark]):
    """Watches a stage's connector and sends it records."""

    _stage: Stage
    _traffic: Traffic

    def __init__(self, stage: Stage, traffic: Traffic) -> None:
        super().__init__()
        self._stage = stage
        self._traffic = traffic

    def mark(self) -> Mark:
        at = time.monotonic()
        return Mark(at, self._latest(), self._stage.positions())

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Stop the traffic and wait until nothing is in flight. If results and positions are
        committed one after the other, an audit would count records in flight as lost or
        duplicated."""
        self._traffic.hold(True)
        try:
            time.sleep(_UNDER_WAY)
            ends: dict[TopicPartition, int] = {}
            # A topology makes new records.
            while ends != (current := self._known(self._stage.ends)):
                ends = current
                self.wait_past(Mark(time.monotonic(), ends, dict.fromkeys(ends, -1)))
            time.sleep(_UNDER_WAY)
            yield
        finally:
            self._traffic.hold(False)

    def _latest(self) -> dict[TopicPartition, int]:
        """The end offsets in Kafka."""
        return self._known(self._stage.latest)

    def _known(self, ask: Callable[[], dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
        """End offsets, as soon as a broker that has just started knows them."""
        ends: dict[TopicPartition, int] = {}

        def known() -> bool:
            try:
                ends.update(ask())
            except SemelError:
                return False
            return True

        self._stage.until(known, PATIENCE, "Kafka does not return its end offsets")
        return ends

    def wait_past(self, mark: Mark, patience: float = PATIENCE) -> float:
        missing = ["nothing seen yet"]

        def passed() -> bool:
            self._runs()
            missing[:] = mark.missing(self._stage.positions())
            return not missing

        self._stage.until(
            passed,
            patience,
            lambda: (
                f"the connector has not recovered: {'; '.join(missing)}; see "
                f"{self._stage.running.log}"
            ),
            meanwhile=self._kick,
        )
        return time.monotonic() - mark.at

    def _tasks_live(self) -> bool:
        if self._stage.direct:
            return super()._tasks_live()
        return len(self._stage.running.executors()) == self._stage.tasks

    def _whole(self) -> None:
        """Wait until every task is back in the consumer group, zombies included."""
        if not self._stage.direct:
            return  # Spark's own consumers are not in the group
        self._stage.until(
            self._stage.group_is_whole,
            PATIENCE,
            "some tasks have not returned to the consumer group",
            meanwhile=self._kick,
        )

    def _stand_still(self) -> None:
        """Wait until no commit goes through, although records come."""
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
            "commits still go through, although nothing can be written",
            meanwhile=self._kick,
        )
