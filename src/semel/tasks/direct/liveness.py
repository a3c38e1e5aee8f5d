"""Whether a task's consumer still hears from Kafka, judged by time and by what it has read."""

from __future__ import annotations

import time
from collections.abc import Mapping

from semel.core.ledger import TopicPartition

_OUT = 30.0
"""A consumer gets at least this many seconds to reconnect to Kafka by itself."""
_CHECK_INTERVAL = 5.0
"""If two polls are further apart than this many seconds and than a session, silence says nothing:
the task was busy, or frozen."""


class Liveness:
    """What is known of a consumer whose session lasts ``session`` seconds.

    It waits twice as long before each replacement of the consumer as before the last one, without a
    limit, until partitions have moved again: a fetch may simply take long.
    """

    def __init__(self, session: float) -> None:
        self._session = session
        self._patience = 1.0
        self._stands = ""
        self._since = self._asked = self._awake = time.monotonic()
        self._looks: dict[TopicPartition, tuple[int, int]] = {}

    def polls(self, stands: str) -> None:
        """Note that the task is about to poll, and how it stands in the group."""
        now = time.monotonic()
        gap, self._awake = now - self._awake, now
        if stands != self._stands or gap > max(_CHECK_INTERVAL, self._session):
            self._stands = stands
            self.restart()

    def restart(self) -> None:
        """Restart the count of silent seconds."""
        self._since = self._awake = time.monotonic()
        self._looks = {}

    @property
    def silence(self) -> float:
        """Seconds since the count was restarted."""
        return time.monotonic() - self._since

    @property
    def is_doubtful(self) -> bool:
        """Whether to ask other clients now, because nothing was heard for a long time."""
        most = self._patience * max(_OUT, 3 * self._session)
        return time.monotonic() - max(self._since, self._asked) >= most

    def asked(self) -> None:
        """Note an answer, or that there was none, which may have taken long."""
        self._asked = self._awake = time.monotonic()

    def standing_still(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """The partitions that have not moved since the last look although records were waiting,
        if all others have reached the end that they had then."""
        before = self._looks
        self._looks = {tp: (at, ends[tp]) for tp, at in positions.items()}
        behind = {tp: at for tp, (at, end) in before.items() if positions.get(tp, end) < end}
        still = sorted(tp for tp, at in behind.items() if positions[tp] == at)
        if before and not behind:
            self._patience = 1.0
        return still if len(still) == len(behind) else []

    def forget_positions(self) -> None:
        """Forget which partitions stood still."""
        self._looks = {}

    def replaced(self) -> None:
        """The consumer is replaced: its successor gets more time."""
        self._patience *= 2
