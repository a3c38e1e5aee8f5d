"""Faults of what a position points at: logs that are cut, topics made again, offsets that are gone.

The connector must not go on as if nothing had happened. It stops, says what is wrong, stops again
when it is started again, and goes on once its configuration says how.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from semel.drill.plan import Fault
from semel.drill.process import Process
from semel.drill.recovery import Recovery
from semel.drill.stage import PATIENCE, DrillFailed, Stage
from semel.drill.traffic import Traffic
from semel.embedded import logs
from semel.embedded.logs import RecordBatch
from semel.errors import BadRecord, OffsetOutOfRange, SemelError
from semel.groups import Groups
from semel.ledger import TopicPartition

_UNREAD = 10
"""Records, at least, that wait in a partition before something happens to them."""


class Hazards(Recovery):
    """Strikes at Kafka's logs and offsets, on a stage."""

    def __init__(self, stage: Stage, traffic: Traffic, seed: int) -> None:
        super().__init__(stage, traffic)
        self._dice = random.Random(f"{seed} targets")

    # The faults

    def _offsets_deleted(self, _fault: Fault) -> float:
        self._down()
        groups, group = Groups(self._stage.client), self._stage.planned.connector.group_id
        self._stage.until(
            lambda: _quietly(groups.is_idle, group), PATIENCE, "the group has members"
        )
        groups.delete(group)
        return self._starts()

    def _partitions_added(self, _fault: Fault) -> float:
        topic = self._dice.choice(sorted(self._stage.topics))
        total = self._stage.topics[topic] + 1
        self._stage.kafka.increase_partitions(topic, total)
        self._stage.topics[topic] = total
        return self.gone_on(self.mark())

    def _retention(self, _fault: Fault) -> float:
        self._down()
        tp, _ = self._unread()
        self._stage.kafka.delete_records(tp.topic, {tp.partition: self._latest()[tp]})
        self._refuses("retention removed records", str(tp))
        return self._starts({"offset.out.of.range": "earliest"})

    def _batch_damaged(self, _fault: Fault) -> float:
        stage = self._stage
        self._down()
        with self._held():
            tp, position = self._unread()
            stage.kafka.stop()
            damaged = [self._first_unread(where, position) for where in self._directories(tp)]
            for batch in damaged:
                logs.flip(batch)
            stage.kafka.start()
        none = {"errors.tolerance": "none"}  # or a hole would be recorded
        self._refuses(f"{tp} is damaged", status=BadRecord.exit_code, keys=none)
        stage.kafka.stop()
        for batch in damaged:
            logs.flip(batch)
        stage.kafka.start()
        return self._starts()

    # Their parts

    def _down(self) -> None:
        """SIGKILL the driver."""
        self._stage.remember()
        process = self._stage.running
        os.kill(process.pid, signal.SIGKILL)
        self._stage.until(lambda: process.status is not None, PATIENCE, "the driver has not died")

    def _unread(self) -> tuple[TopicPartition, int]:
        """A partition in which records wait, and its position."""
        positions = self._stage.positions()
        tp = self._dice.choice(sorted(positions))
        self._traffic.fill(tp, _UNREAD)
        self._stage.until(
            lambda: self._latest()[tp] >= positions[tp] + _UNREAD,
            PATIENCE,
            f"no records can be sent to {tp}",
        )
        return tp, positions[tp]

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Nothing is sent but by hand."""
        self._traffic.hold(True)
        try:
            yield
        finally:
            self._traffic.hold(False)

    def _refuses(
        self,
        *words: str,
        status: int = OffsetOutOfRange.exit_code,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        """Start the connector, and see it end with these words."""
        self._stage.start(keys=keys)
        self._ends(self._stage.running, *words, status=status)

    def _ends(
        self, process: Process, *words: str, status: int = OffsetOutOfRange.exit_code
    ) -> None:
        self._stage.until(
            lambda: process.status is not None,
            PATIENCE,
            lambda: f"the connector goes on, though it must stop; see {process.log}",
            meanwhile=self._kick,
        )
        self._stage.adopt(process)
        missing = [w for w in words if not process.says(w)]
        if process.status != status or missing:
            raise DrillFailed(
                f"the connector must stop with exit status {status} and say {', '.join(words)}: "
                f"{process.end()}"
            )

    def _starts(self, keys: Mapping[str, str] | None = None) -> float:
        """Start the connector, and see it go on."""
        mark = self.mark()
        self._stage.start(keys=keys)
        return self.gone_on(mark)

    def _directories(self, tp: TopicPartition) -> list[Path]:
        kafka = self._stage.kafka
        brokers = (kafka, *kafka.others)
        return [logs.partition_directory(b.directory / "data", tp) for b in brokers]

    @staticmethod
    def _first_unread(directory: Path, position: int) -> RecordBatch:
        unread = (b for b in logs.batches(directory) if b.first_offset >= position)
        return next(b for b in unread if not b.is_control)


def _quietly(question: Callable[[str], bool], about: str) -> bool:
    try:
        return question(about)
    except SemelError:
        return False
