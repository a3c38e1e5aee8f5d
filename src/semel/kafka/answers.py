"""Waiting for the answers to an admin client's requests, such as which log a topic's name currently
stands for.

Its futures may never complete: they are lost once nothing refers to the client. So whoever waits
keeps a reference to it, and bounds the wait.

If a question to a group's *coordinator* times out within librdkafka (2.16), the process aborts once
the coordinator can be reached again: ``rd_kafka_coord_req_fsm`` fails a request whose state it has
just freed. Such questions get no timeout there: semel alone bounds the wait, and drops the client
if no answer comes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from semel.core.ledger import LogId

K = TypeVar("K")
T = TypeVar("T")

UNBOUNDED = 3600.0
"""Seconds to give as ``request_timeout`` of a question to a coordinator: the most that librdkafka
takes."""
LATE = 5.0
"""Seconds that an answer may take beyond the question's own timeout."""
_NONE = "A" * 22
"""The id that brokers give to all topics if they know of none (before Kafka 2.8)."""


def coordinators_answer(admin: AdminClient, question: Future[T], timeout: float) -> T:
    """A coordinator's answer to a question that was asked with an unbounded timeout.

    Raises:
        KafkaException: Kafka refuses; or no answer came within ``timeout`` seconds, and the client
            must not be used again.
    """
    return _waited_for(admin, question, timeout, "the group's coordinator")


def answer_of(admin: AdminClient, question: Future[T], timeout: float) -> T:
    """The answer to a question that was asked with this timeout, in seconds.

    Raises:
        KafkaException: Kafka refuses, or does not answer.
    """
    return _waited_for(admin, question, timeout + LATE, "the brokers")


def answers_of(admin: AdminClient, questions: Mapping[K, Future[T]], timeout: float) -> dict[K, T]:
    """The answers to questions that were asked together; raises as :func:`answer_of` does."""
    return {about: answer_of(admin, question, timeout) for about, question in questions.items()}


def _waited_for(_keeps_alive: AdminClient, question: Future[T], seconds: float, whom: str) -> T:
    try:
        error = question.exception(seconds)
    except TimeoutError:
        reason = f"no answer from {whom} in time"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None
    if isinstance(error, KafkaException):
        # The question's own exception would refer to this frame, and so to the client: only the
        # garbage collector would free it, which tasks do not run while they are idle.
        raise KafkaException(*error.args)
    return question.result(0)


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


class PendingRequest:
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
        ids = {}
        for topic, future in self._topics.items():
            try:
                topic_id = str(self._of(future).topic_id or "")
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                ids[topic] = "" if topic_id == _NONE else topic_id
        cluster = known_cluster_id(self._admin) if self._cluster else ""
        return {topic: LogId(cluster, topic_id) for topic, topic_id in ids.items()}

    def _of(self, question: Future[Any]) -> Any:
        return answer_of(self._admin, question, self._until - time.monotonic())
