"""Asking Kafka which log a topic's name currently stands for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from semel.ledger import LogId

_NONE = "A" * 22
"""The id that brokers give to all topics if they know of none (before Kafka 2.8)."""


class Asked:
    """A request for all of the topics that is under way; without ``cluster``, the answer lacks the
    cluster's id."""

    def __init__(
        self, admin: AdminClient, topics: Collection[str], timeout: float, *, cluster: bool = True
    ) -> None:
        self._cluster: Future[Any] | None = (
            admin.describe_cluster(request_timeout=timeout) if cluster else None
        )
        names = sorted(topics)
        self._topics: Mapping[str, Future[Any]] = (
            admin.describe_topics(TopicCollection(names), request_timeout=timeout) if names else {}
        )

    def done(self, within: float = 0) -> bool:
        """Wait for at most so many seconds; whether there is an answer or an error."""
        cluster = [self._cluster] if self._cluster is not None else []
        return not wait([*cluster, *self._topics.values()], within).not_done

    def answer(self) -> dict[str, LogId]:
        """By topic; those that do not exist are left out.

        Raises:
            KafkaException: no broker answers, or one refuses.
        """
        cluster = str(self._cluster.result().cluster_id or "") if self._cluster else ""
        found = {}
        for topic, future in self._topics.items():
            try:
                topic_id = str(future.result().topic_id or "")
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                found[topic] = LogId(cluster, "" if topic_id == _NONE else topic_id)
        return found
