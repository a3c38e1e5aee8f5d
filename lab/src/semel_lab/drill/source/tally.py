"""Counts what a consumer sees of the records that were written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.ledger import TopicPartition


@dataclass(frozen=True, slots=True)
class Findings:
    """What a consumer has seen: ``changed`` are records that nobody wrote, ``disordered`` those
    that come after a later one."""

    records: int
    lost: int
    duplicated: int
    changed: int
    disordered: int
    kept: bool
    reason: str = ""
    """What breaks the guarantee besides lost and duplicated records; empty if nothing does."""


class Tally:
    """The records of one consumer. ``expected`` maps each record's value to its number; it may grow
    in the meantime. The records of one ``lane`` are in order in each partition."""

    def __init__(
        self, expected: Mapping[bytes | None, int], lane: Callable[[int], int] = lambda _number: 0
    ) -> None:
        self._expected = expected
        self._lane = lane
        self._times = bytearray()
        self._latest: dict[tuple[TopicPartition, int], int] = {}
        self._complete = 0
        self.newest = -1
        self.records = 0
        self.changed = 0
        self.disordered = 0

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.records += 1
            number = self._expected.get(message.value())
            if number is None:
                self.changed += 1
                continue
            if number >= len(self._times):
                self._times.extend(bytes(number + 1 - len(self._times)))
            tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
            if not self._times[number]:  # one that comes again counts as duplicated
                place = tp, self._lane(number)
                self.disordered += number < self._latest.get(place, -1)
                self._latest[place] = number
            self._times[number] = min(self._times[number] + 1, 255)
            self.newest = max(self.newest, number)

    def has(self, count: int) -> bool:
        """Whether the first ``count`` records have all come."""
        while self._complete < len(self._times) and self._times[self._complete]:
            self._complete += 1
        return self._complete >= count

    def findings(self, count: int, *, repeats: bool) -> Findings:
        """The verdict once the first ``count`` records must be there; with ``repeats`` they may
        come more than once, and so out of order."""
        times = bytes(self._times)
        lost = count - sum(map(bool, times[:count]))
        duplicated = sum(times) - sum(map(bool, times))
        bad = lost or self.changed or ((duplicated or self.disordered) and not repeats)
        reason = ""
        if self.changed:
            reason = f"records with values that nobody wrote: {self.changed:,}"
        elif self.disordered and not repeats:
            reason = f"records out of order: {self.disordered:,}"
        return Findings(
            *(self.records, lost, duplicated, self.changed, self.disordered, not bad), reason
        )


_SILENCE = 10.0
"""Seconds."""


class Observer:
    """A ``read_committed`` consumer in a thread of its own, which counts until it is closed."""

    def __init__(
        self, client: Mapping[str, Any], partitions: Sequence[TopicPartition], tally: Tally
    ) -> None:
        self._client = client
        self._next = dict.fromkeys(partitions, 0)
        self._tally = tally
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _read(self) -> None:
        while not self._stop.is_set():
            consumer = Consumer(
                {
                    **self._client,
                    "group.id": "semel-drill-observer",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "reconnect.backoff.max.ms": 500,
                    "log_level": 0,
                }
            )
            consumer.assign([KafkaPartition(*tp, at) for tp, at in self._next.items()])
            try:
                self._read_on(consumer)
            finally:
                consumer.close()

    def _read_on(self, consumer: Consumer) -> None:
        """Count what comes, until nothing has come for long: librdkafka may wait five minutes for
        metadata of a new topic that a new consumer gets at once."""
        heard = time.monotonic()
        while not self._stop.is_set() and time.monotonic() - heard < _SILENCE:
            polled = [m for m in consumer.consume(1000, 0.1) if m.error() is None]
            self._tally.add(polled)
            for message in polled:
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                self._next[tp] = int(message.offset() or 0) + 1
            heard = time.monotonic() if polled else heard
