"""Noticing that a topic is deleted and created again while its records are read.

A consumer does not tell: it goes on at the same offset of the new topic, if there is one. It
cannot get there at once, though. The broker answers the fetch that meets the new topic with an
error, after which librdkafka waits for half a second (``fetch.error.backoff.ms``). So before
records of a topic that was silent for a moment are committed, Kafka is asked which log they are of;
a topic under steady load costs nothing. Now and then it is asked in any case, and without waiting:
a consumer may also just fall silent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable

from confluent_kafka import KafkaException

from semel.errors import Unavailable
from semel.kafka import Cluster
from semel.ledger import LedgerEntry, LogId
from semel.logids import Asked

log = logging.getLogger(__name__)

_MOMENT = 0.25
_NOW_AND_THEN = 5.0
_PATIENCE = 5.0
"""Seconds that records wait for the answer."""


class LogWatch:
    """Compares the logs of one task's topics with those of the entries that it reads on from."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: dict[str, LogId] = {}
        self._heard: dict[str, float] = {}
        self._asked: Asked | None = None
        self._asked_at = 0.0
        self._urgent = False

    def expect(self, entries: Iterable[LedgerEntry]) -> None:
        """These entries have been compared with Kafka just now."""
        self._logs = {e.topic: e.log for e in entries if any(e.log)}
        self._heard = dict.fromkeys(self._logs, time.monotonic())
        self._asked, self._urgent = None, False
        self._asked_at = time.monotonic()

    def hear(self, topics: Collection[str]) -> None:
        """Records of these topics have come, and are to be committed."""
        now = time.monotonic()
        silent = [t for t in topics if now - self._heard.get(t, now) > _MOMENT]
        self._heard |= {t: now for t in topics if t in self._logs}
        if silent:
            self._ask(now)
            self._urgent = True

    def changed(self) -> bool:
        """Whether one of the topics is another one now.

        Raises:
            Unavailable: records wait for the answer, and there is none. They are read again.
        """
        now = time.monotonic()
        if self._asked is None:
            if self._logs and now - self._asked_at > _NOW_AND_THEN:
                self._ask(now)
            return False
        urgent = self._urgent
        if not self._asked.done(_PATIENCE if urgent else 0):
            if not urgent:
                return False
            self._asked, self._urgent = None, False
            raise Unavailable(
                f"Kafka has not said for {_PATIENCE:.0f} s which topics the records are of that "
                f"came after a pause ({', '.join(sorted(self._logs))})"
            )
        asked, self._asked, self._urgent = self._asked, None, False
        try:
            found = asked.answer()
        except KafkaException as error:
            if urgent:
                raise Unavailable(
                    f"Kafka does not say which topics records are of: {error}"
                ) from None
            log.info("%s", error)
            return False
        return any(self._logs[t].contradicts(found[t]) for t in self._logs if t in found)

    def _ask(self, now: float) -> None:
        self._asked, self._asked_at = self._cluster.ask_logs(self._logs), now
