"""Asking Kafka which log a topic's name currently stands for."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from semel.core.ledger import LogId
from semel.kafka.answers import LATE, answer_of

_NONE = "A" * 22
"""The id that brokers give to all topics if they know of none (before Kafka 2.8)."""


def known_cluster_id(admin: AdminClient) -> str:
    """The cluster's id as of the client's last answer about topics or brokers; empty if there was
    none, or if it had no id.

    DescribeCluster is not asked: a broker that has just started may know of no broker, itself
    included, and such an answer makes librdkafka abort the process.
    """
    try:
        return str(admin.cluster_id(timeout=0))
    except KafkaException:
        return ""


class Asked:
    """A pending request about several topics; without ``cluster``, the answer lacks the cluster's
    id."""

    def __init__(
        self, admin: AdminClient, topics: Collection[str], timeout: float, *, cluster: bool = True
    ) -> None:
        self._admin = admin
        self._until = time.monotonic() + timeout
        self._cluster = cluster
        names = sorted(topics)
        self._topics: Mapping[str, Future[Any]] = (
            admin.describe_topics(TopicCollection(names), request_timeout=timeout) if names else {}
        )

    def done(self, within: float = 0) -> bool:
        """Wait for at most ``within`` seconds. Returns whether the answer has come, or never
        will."""
        if time.monotonic() > self._until + LATE:
            return True
        return not wait(self._topics.values(), within).not_done

    def answer(self) -> dict[str, LogId]:
        """The logs by topic; topics that do not exist are left out.

        Raises:
            KafkaException: no broker answers, or one refuses.
        """
        found = {}
        for topic, future in self._topics.items():
            try:
                topic_id = str(self._of(future).topic_id or "")
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                found[topic] = "" if topic_id == _NONE else topic_id
        cluster = known_cluster_id(self._admin) if self._cluster else ""
        return {topic: LogId(cluster, topic_id) for topic, topic_id in found.items()}

    def _of(self, question: Future[Any]) -> Any:
        return answer_of(self._admin, question, self._until - time.monotonic())
