"""Publishes a run's positions to the consumer group, for engines whose driver commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException

from semel.core.abandoned import Abandoned, within
from semel.core.context import is_over, this_run
from semel.core.errors import Fenced, LedgerConflict, SemelError
from semel.core.ledger import TopicPartition
from semel.driver.base import Run
from semel.kafka.clients import QUIET, client_config
from semel.tasks.publish import ENDED, copies, mark, other_run

log = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds that the last copies may take."""


class Publisher:
    """Commits positions as a consumer that reads nothing.

    The copies name the run, and say whether it has ended in good order. The next run does not know
    whether one that has not is still alive, but says whose place it takes; and if it is, whichever
    of the two is fenced can say by whom.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._consumer = Consumer(
            {
                **client_config(run.connector, "consumer"),
                "group.id": run.connector.group_id,
                "enable.auto.commit": False,
                "log_level": 0,
            },
            logger=QUIET,
        )
        self._name = this_run()
        self._published: dict[TopicPartition, int] = {}

    def log_start(self) -> None:
        """Say whose place this run takes, and name it in the copies of the ledger's positions."""
        run = self._run
        with suppress(SemelError):  # it only informs
            who = (
                ""
                if run.run_control.assignment.moves
                else other_run(run.connector, run.topics, self._name)
            )
            if who and not who.endswith(ENDED) and not is_over(who):
                log.warning(
                    "connector %s: this run takes over from the one started by %s. If that one is "
                    "still alive, one of the two stops",
                    *(run.connector.name, who),
                )
        self.publish({e.topic_partition: e.position for e in run.sink.entries()})

    def publish(self, positions: dict[TopicPartition, int]) -> None:
        self._published |= positions
        self._commit(positions, self._name, asynchronous=True)

    def fenced(self, conflict: LedgerConflict) -> Fenced:
        """The error of a run whose place another one has taken. The copies are that one's now."""
        run, who = self._run, ""
        self._published.clear()
        with suppress(SemelError):
            if not run.run_control.assignment.moves:
                who = other_run(run.connector, run.topics, self._name, run.stop.wait)
        by = f". The other one was started by {who}" if who else ""
        end = "" if str(conflict).endswith((".", "?")) else "."
        return Fenced(f"{conflict}{end} This run has stopped{by}")

    def close(self) -> None:
        """Commit all positions once more, as those of a run that has ended. In bounded time: if
        Kafka is down, librdkafka waits for the group's coordinator, which must not keep the run
        from ending."""

        def end() -> None:
            self._commit(self._published, self._name + ENDED, asynchronous=False)
            self._consumer.close()

        try:
            within(_PATIENCE, "publishing the last positions", end)
        except Abandoned as error:
            log.info("%s", error)

    def _commit(
        self, positions: Mapping[TopicPartition, int], by: str, *, asynchronous: bool
    ) -> None:
        offsets = copies(mark(self._run.sink, by), positions)
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]
        except KafkaException as error:
            log.info("positions were not published: %s", error)
