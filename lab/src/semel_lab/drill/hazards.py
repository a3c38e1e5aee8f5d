"""Faults in what a position points at: truncated logs, recreated topics, deleted offsets.

The connector must not continue as if nothing had happened. It must stop, say what is wrong, stop
again when it is restarted, and continue once its configuration says how.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from semel.core.errors import BadRecord, ConfigError, OffsetOutOfRange, SemelError
from semel.core.ledger import TopicPartition
from semel.kafka.answers import answer_of
from semel.kafka.groups import Groups
from semel_lab.drill.plan import Fault
from semel_lab.drill.process import Process
from semel_lab.drill.processes import PATIENCE, DrillFailed
from semel_lab.drill.recovery import Mark, Recovery
from semel_lab.drill.stage import Stage
from semel_lab.drill.traffic import Traffic
from semel_lab.embedded import logs
from semel_lab.embedded.logs import RecordBatch

_UNREAD = 10
"""The least number of unread records in a partition before a fault hits them."""
_MORE = 100
"""The number of records that a log gets beyond its earlier position."""
_DESCRIBED_IN = 30.0
_CUT = 400
"""The largest number of records that an election cuts off, if batches allow it."""


class Hazards(Recovery):
    """Injects faults into the Kafka logs and offsets of a stage."""

    def __init__(self, stage: Stage, traffic: Traffic, seed: int) -> None:
        super().__init__(stage, traffic)
        self._dice = random.Random(f"{seed} targets")

    # The faults

    def _offsets_deleted(self, _fault: Fault) -> float:
        self._down()
        groups, group = Groups(self._stage.client), self._stage.planned.connector.group_id
        self._stage.until(
            lambda: _quietly(groups.is_idle, group),
            PATIENCE,
            "the consumer group still has members",
        )
        groups.delete(group)
        return self._starts()

    def _partitions_added(self, _fault: Fault) -> float:
        topic = self._dice.choice(sorted(self._stage.topics))
        total = self._stage.topics[topic] + 1
        self._stage.kafka.increase_partitions(topic, total)
        self._stage.topics[topic] = total
        return self.wait_past(self.mark())

    def _retention(self, _fault: Fault) -> float:
        self._down()
        tp, _ = self._unread()
        self._stage.kafka.delete_records(tp.topic, {tp.partition: self._latest()[tp]})
        self._refuses("retention removed records", str(tp))
        self._starts({"offset.out.of.range": "earliest"})
        return self._as_before()

    def _topic_recreated(self, fault: Fault) -> float:
        """Recreate a topic, every other time while the connector runs."""
        stage, kafka = self._stage, self._stage.kafka
        topic = self._dice.choice(sorted(stage.topics))
        runs = bool(fault.skip % 2)
        if not runs:
            self._down()
        with self._held():
            before, old = stage.positions(), topic_id(stage.client, topic)
            kafka.delete_topic(topic)
            kafka.create_topic(topic, stage.topics[topic])
            new = self._new_id(topic, old)
            for tp in stage.partitions:
                if tp.topic == topic:
                    self._traffic.fill(tp, before.get(tp, 0) + _MORE)
        words = ("created again", topic)
        if runs:
            self._ends(stage.running, *words)
        self._refuses(*words)
        stage.start(keys={"topic.recreated": "earliest"})
        self._stage.until(
            lambda: self._points_at(topic, new),
            PATIENCE,
            f"the ledger does not point at the new topic {topic}; see {stage.running.log}",
            meanwhile=self._kick,
        )
        self.wait_past(self._anew())
        return self._as_before()

    def _log_truncated(self, _fault: Fault) -> float:
        stage = self._stage
        with self.settled():
            positions = stage.positions()
            tp = self._dice.choice([tp for tp in stage.partitions if positions.get(tp, 0) > 0])
            stage.kafka.stop()
            cut = self._cut(tp, positions[tp])
            stage.kafka.start()
            self._traffic.fill(tp, positions[tp] - cut + _MORE)
        self._ends(stage.running, "truncated", str(tp))
        self._refuses("truncated", str(tp))
        stage.start(keys={"log.truncated": "continue"})
        self.wait_past(self._anew())
        return self._as_before()

    def _batch_damaged(self, _fault: Fault) -> float:
        with self._traffic.sound():  # other records would stop it, too, without tolerance
            with self.settled():
                pass  # it has read everything that was sent before
            return self._damage_batches()

    def _damage_batches(self) -> float:
        stage = self._stage
        self._down()
        with self._held():
            tp, position = self._unread()
            stage.kafka.stop()
            damaged = [self._first_unread(where, position) for where in self._directories(tp)]
            for batch in damaged:
                logs.flip(batch)
            stage.kafka.start()
        none = {"errors.tolerance": "none"}  # otherwise it would record a hole
        self._refuses(f"{tp} is damaged", status=BadRecord.exit_code, keys=none)
        stage.kafka.stop()
        for batch in damaged:
            logs.flip(batch)
        stage.kafka.start()
        return self._starts()

    def _checkpoint_lost(self, _fault: Fault) -> float:
        self._down()
        place = self._stage.checkpoint
        away = place.with_name(f"{place.name}-away")
        place.rename(away)
        self._refuses("its state is lost", status=ConfigError.exit_code)
        shutil.rmtree(place, ignore_errors=True)
        away.rename(place)
        return self._starts()

    def _state_lost(self, _fault: Fault) -> float:
        self._down()
        shutil.rmtree(self._stage.state, ignore_errors=True)
        return self._starts()

    def _tasks_changed(self, _fault: Fault) -> float:
        self._down()
        tasks = self._stage.tasks
        self._stage.set_tasks(self._dice.choice([n for n in (1, 2, 3) if n != tasks]))
        return self._starts()

    # Steps of the faults

    def _down(self) -> None:
        """SIGKILL the driver and wait until its tasks end. For a few seconds they still commit what
        they hold."""
        self._stage.remember()
        process = self._stage.running
        crew = process.crew()
        os.kill(process.pid, signal.SIGKILL)
        self._stage.until(lambda: process.status is not None, PATIENCE, "the driver did not die")
        self._stage.until(
            lambda: not psutil.wait_procs(crew, timeout=0)[1],
            PATIENCE,
            "its tasks did not end",
        )

    def _unread(self) -> tuple[TopicPartition, int]:
        """A partition with unread records, and its position."""
        positions = self._stage.positions()
        tp = self._dice.choice(sorted(positions))
        self._traffic.fill(tp, _UNREAD)
        self._stage.until(
            lambda: self._latest()[tp] >= positions[tp] + _UNREAD,
            PATIENCE,
            f"records cannot be sent to {tp}",
        )
        return tp, positions[tp]

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the traffic back. Only this class sends records."""
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
        """Start the connector, and check that it stops with these words."""
        self._stage.start(keys=keys)
        self._ends(self._stage.running, *words, status=status)

    def _ends(
        self, process: Process, *words: str, status: int = OffsetOutOfRange.exit_code
    ) -> None:
        self._stage.until(
            lambda: process.status is not None,
            PATIENCE,
            lambda: f"the connector continues although it must stop; see {process.log}",
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
        """Start the connector and wait until it has passed a mark."""
        mark = self.mark()
        self._stage.start(keys=keys)
        return self.wait_past(mark)

    def _as_before(self) -> float:
        """Restart the connector without the keys that let it continue, and wait until it does."""
        self._down()
        return self._starts()

    def _anew(self) -> Mark:
        """A mark at the end of everything that Kafka holds now, wherever the ledger was before."""
        return Mark(time.monotonic(), self._latest(), dict.fromkeys(self._stage.partitions, -1))

    def _new_id(self, topic: str, old: str) -> str:
        """The id of a recreated topic. Whichever broker answers may not know the new topic yet."""
        ids: list[str] = []

        def known() -> bool:
            with suppress(KafkaException):
                ids.append(topic_id(self._stage.client, topic))
            return bool(ids) and ids[-1] != old

        self._stage.until(known, PATIENCE, f"Kafka does not know the new topic {topic}")
        return ids[-1]

    def _points_at(self, topic: str, topic_id: str) -> bool:
        self._runs()
        try:
            entries = self._stage.planned.sink.entries()
        except SemelError:
            self._stage.planned.sink.close()
            return False
        ids = {e.topic_id for e in entries if e.topic == topic}
        return ids == {topic_id}

    def _directories(self, tp: TopicPartition) -> list[Path]:
        kafka = self._stage.kafka
        brokers = (kafka, *kafka.others)
        return [logs.partition_directory(b.directory / "data", tp) for b in brokers]

    def _cut(self, tp: TopicPartition, position: int) -> int:
        """Truncate a log below a position on all brokers. Returns the offset of the cut."""
        directories = self._directories(tp)
        cuts = [c for c in logs.clean_cuts(directories[0]) if 0 < c < position]
        if not cuts:
            raise DrillFailed(f"the log of {tp} cannot be truncated anywhere below {position}")
        cut = self._dice.choice([c for c in cuts if position - c <= _CUT] or cuts[-1:])
        for directory in directories:
            logs.truncate(directory, cut)
        return cut

    @staticmethod
    def _first_unread(directory: Path, position: int) -> RecordBatch:
        unread = (b for b in logs.batches(directory) if b.first_offset >= position)
        return next(b for b in unread if not b.is_control)


def topic_id(client: Mapping[str, str], topic: str) -> str:
    """The id that tells a topic from another one of the same name (KIP-516)."""
    from confluent_kafka import TopicCollection

    admin = AdminClient({**client, "log_level": 0})
    answer = admin.describe_topics(TopicCollection([topic]), request_timeout=_DESCRIBED_IN)
    description = answer_of(admin, answer[topic], _DESCRIBED_IN)
    return str(description.topic_id)


def _quietly(question: Callable[[str], bool], about: str) -> bool:
    try:
        return question(about)
    except SemelError:
        return False
