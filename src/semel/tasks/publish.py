"""Positions copied to the consumer group, for lag tools.

The metadata of a copy names its ledger, and the run that has committed it: so that a run whose
place another one takes can say which one that is. A copy is not used as a position unless
``target.changed=continue`` asks for it: a connector whose ledger is gone would skip records that
its target never got.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.abandoned import Abandoned, within
from semel.core.context import BY, RUN, is_over, this_run
from semel.core.errors import Fenced, LedgerConflict, SemelError
from semel.core.ledger import QUERY, TopicPartition
from semel.kafka.clients import QUIET, client_config
from semel.kafka.groups import Groups
from semel.sinks.base import Sink
from semel.sinks.ledger_json import loaded

log = logging.getLogger(__name__)

_MARK = "semel"
ENDED = ", and has ended"
_SAYS_IN, _LOOK = 5.0, 0.5
"""Seconds within which another run says who it is, and between two looks."""
_PATIENCE = 10.0
"""Seconds that the last copies may take."""
_LONGEST = 1000
"""Characters of the metadata; brokers refuse more than 4,096 bytes unless told otherwise."""


class Publisher:
    """Commits the positions of a run whose driver commits, as a consumer that reads nothing.
    ``moves`` says that the connector's tasks move between workers; ``stop`` ends the run.

    The copies name the run, and say whether it has ended in good order. The next run does not know
    whether one that has not is still alive, but says whose place it takes; and if it is, whichever
    of the two is fenced can say by whom.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        sink: Sink,
        topics: Mapping[str, int],
        stop: threading.Event,
        *,
        moves: bool,
    ) -> None:
        self._connector = connector
        self._sink = sink
        self._topics = topics
        self._stop = stop
        self._moves = moves
        self._consumer = Consumer(
            {
                **client_config(connector, "consumer"),
                "group.id": connector.group_id,
                "enable.auto.commit": False,
                "log_level": 0,
            },
            logger=QUIET,
        )
        self._name = this_run()
        self._published: dict[TopicPartition, int] = {}

    def log_start(self) -> None:
        """Say whose place this run takes, and name it in the copies of the ledger's positions."""
        with suppress(SemelError):  # it only informs
            who = "" if self._moves else other_run(self._connector, self._topics, self._name)
            if who and not who.endswith(ENDED) and not is_over(who):
                log.warning(
                    "connector %s: this run takes over from the one started by %s. If that one is "
                    "still alive, one of the two stops",
                    *(self._connector.name, who),
                )
        self.publish({e.topic_partition: e.position for e in self._sink.entries()})

    def publish(self, positions: dict[TopicPartition, int]) -> None:
        self._published |= positions
        self._commit(positions, self._name, asynchronous=True)

    def fenced(self, conflict: LedgerConflict) -> Fenced:
        """The error of a run whose place another one has taken. The copies are that one's now."""
        who = ""
        self._published.clear()
        with suppress(SemelError):
            if not self._moves:
                who = other_run(self._connector, self._topics, self._name, self._stop.wait)
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
        offsets = copies(mark(self._sink, by), positions)
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]
        except KafkaException as error:
            log.info("positions were not published: %s", error)


def mark(sink: Sink, run: str = "") -> str:
    """The metadata of a copy; in a task, the driver has said which run it belongs to."""
    facts = {_MARK: sink.describe().get("ledger", "")[:_LONGEST]}
    by = run or os.environ.get(RUN, "")
    return json.dumps({**facts, BY: by[:_LONGEST]} if by else facts)


def other_run(
    connector: ConnectorConfig,
    topics: Mapping[str, int],
    own: str,
    wait: Callable[[float], bool] = lambda _seconds: True,
    *,
    later: bool | None = None,
) -> str:
    """Who has started the last other run that committed copies. If ``later`` is given, only runs
    count that began after this one (True) or before it (False). Empty if nobody has said so within
    a few seconds. ``wait`` waits, and says whether to stop."""
    groups = Groups(client_config(connector, "admin"))
    places = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    until = time.monotonic() + _SAYS_IN
    while True:
        committed, _ = groups.offsets(connector.group_id, places)
        others = {str(loaded(text).get(BY, "")) for _, text in committed.values()} - {"", own}
        runs = [r for r in others if later in (None, _started(r) >= _started(own))]
        if runs or time.monotonic() > until:
            return max(runs, key=_started, default="")
        if wait(_LOOK):
            return ""


def _started(run: str) -> str:
    return run.rpartition(" at ")[2]


def copies(mark: str, positions: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    """Positions as a consumer commits them; a query's is not one of Kafka's."""
    return [KafkaPartition(*tp, at, mark) for tp, at in positions.items() if tp != QUERY]


def is_copy(metadata: str) -> bool:
    """Whether an offset is semel's: a copy, or an entry of a ledger that Kafka holds."""
    facts = loaded(metadata)
    return _MARK in facts or {"start", "at"} <= facts.keys()


def ledger_of(metadata: str) -> str:
    """The ledger that an offset is a copy of."""
    return str(loaded(metadata).get(_MARK) or "the offsets of a Kafka sink")
