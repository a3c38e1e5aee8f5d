"""How a task notices that a topic is deleted and created again while it is read.

The consumer reports no error: it continues at the same offset of the new topic, if there is one. So
two checks precede each commit. The consumer's log says which topic id it fetches
(:mod:`semel.kafka.consumer`). And a broker is asked, after the records have come, which topic
the name stands for now: this also covers brokers that are not asked for records by id. The answer
comes while the batch is converted and the one before it is committed. A broker is also asked from
time to time, without waiting, because a consumer may simply fall silent.

If the topic does not exist when Kafka is asked, no other topic has taken its place, and its last
records are committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from confluent_kafka import KafkaException

from semel.core.errors import ServiceError, Unavailable
from semel.core.ledger import LedgerEntry, LogId
from semel.core.quoting import all_named, named
from semel.kafka.answers import PendingRequest, failure
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import OutOfOrder

log = logging.getLogger(__name__)

_NOW_AND_THEN, _SELDOM = 5.0, 60.0
_PATIENCE = 5.0
"""Seconds that records wait for the answer."""


class Recreated(OutOfOrder):
    """Records may belong to another topic than the ledger's: drop them, and compare the two
    again."""


class Check:
    """Checks whether the topics of some records are still those of the ledger.

    One thread asks, another waits for the answer. Nobody is asked about topics whose ids are not
    known, as of brokers before Kafka 2.8.
    """

    def __init__(self, cluster: Cluster, logs: Mapping[str, LogId]) -> None:
        self._cluster = cluster
        self.logs = logs
        """Those that the ledger's positions belong to, by topic."""
        self._expected = {topic: log_id for topic, log_id in logs.items() if log_id.topic_id}
        self._asked: PendingRequest | None = self._ask() if self._expected else None
        self._confirmed = not self._expected

    def confirm(self) -> None:
        """Wait for the answer; after a failure, ask again.

        Raises:
            Recreated: one of them is another topic now.
            Unavailable: there is no answer. It may be asked for again.
            ServiceError: Kafka refuses to answer.
        """
        if self._confirmed:
            return
        asked, self._asked = self._asked or self._ask(), None
        names = all_named(sorted(self._expected))
        if not asked.done(_PATIENCE):
            self._cluster.reconnect()
            raise Unavailable(
                f"Kafka has not confirmed for {_PATIENCE:.0f} s that records of {names} are still "
                "of the same topic"
            )
        try:
            logs = asked.answer()
        except KafkaException as error:
            self._cluster.reconnect()
            servers = str(self._cluster.config["bootstrap.servers"])
            if isinstance(refusal := failure(servers, error), ServiceError):
                raise refusal from None
            raise Unavailable(
                f"Kafka does not confirm that records of {names} are still of the same topic: "
                f"{error.args[0].str()}"
            ) from None
        for topic, expected in self._expected.items():
            if topic in logs and expected.contradicts(logs[topic]):
                raise Recreated(f"topic {named(topic)} was created again")
        self._confirmed = True

    def _ask(self) -> PendingRequest:
        return self._cluster.ask_topics(self._expected)


class LogWatch:
    """Compares the logs of one task's topics with those of the ledger entries that it started
    from."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: dict[str, LogId] = {}
        self._asked: PendingRequest | None = None
        self._asked_at = 0.0

    def expect(self, entries: Iterable[LedgerEntry]) -> None:
        """Note entries that have just been compared with Kafka."""
        self._logs = {e.topic: e.log for e in entries if any(e.log)}
        self._asked, self._asked_at = None, time.monotonic()

    def check(self, topics: Collection[str], fetched: Callable[[str], LogId]) -> Check:
        """Begin to ask about topics whose records have just come.

        Raises:
            Recreated: the consumer has ``fetched`` another topic.
        """
        logs = {t: self._logs[t] for t in topics if t in self._logs}
        for topic, expected in logs.items():
            if expected.contradicts(fetched(topic)):
                raise Recreated(
                    f"the topic {named(topic)} in Kafka is not the one that the ledger knows"
                )
        return Check(self._cluster, logs)

    def changed(self, *, seldom: bool = False) -> bool:
        """Whether one of the topics has been replaced, as far as an answer is available. With
        ``seldom``, ask once a minute and disconnect in between."""
        now = time.monotonic()
        if self._asked is None:
            if self._logs and now - self._asked_at > (_SELDOM if seldom else _NOW_AND_THEN):
                self._asked, self._asked_at = self._cluster.ask_logs(self._logs), now
            elif seldom:
                self._cluster.disconnect()
            return False
        if not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        try:
            logs = asked.answer()
        except KafkaException as error:
            self._cluster.reconnect()
            log.info("%s", error)
            return False
        return any(self._logs[t].contradicts(logs[t]) for t in self._logs if t in logs)
