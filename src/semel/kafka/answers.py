"""What Kafka answers: the wait for the answers to an admin client's requests, and what error codes
mean.

An admin client's futures may never complete: they are lost once nothing refers to the client. So
whoever waits keeps a reference to it, and bounds the wait.

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

from semel.core.errors import (
    LedgerConflict,
    NotAssigned,
    SemelError,
    ServiceError,
    TopicGone,
    TransientError,
    Unavailable,
)
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


MAY_PASS = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,  # the client has learned of a broker under another address
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
)
COORDINATOR_MOVED = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Another broker is taking a group over."""
AWAY = (
    *MAY_PASS,
    *COORDINATOR_MOVED,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""Brokers are down, or out of reach: whoever commits waits for them."""
GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
"""The topic, or one of its partitions, does not exist."""
SEEK_AGAIN = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""The position must be looked up, and judged, again."""

UNREADABLE = (
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError.INVALID_MSG,
    KafkaError.MSG_SIZE_TOO_LARGE,
)
"""The errors of a consumer that meets a batch it cannot read."""
UNREADABLE_BATCH = (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION)
"""Those whose offset is the first one of the batch."""

NOT_AUTHENTICATED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
NO_LOGIN = (*NOT_AUTHENTICATED, KafkaError._SSL)
"""A broker refuses the login, or no TLS session can be set up."""
MAY_NOT_DESCRIBE = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
NOT_AUTHORIZED = (
    *NOT_AUTHENTICATED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
"""This user may not do that, or is not logged in."""
PRODUCER_REFUSED = (
    *NOT_AUTHORIZED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
)
"""The producer's settings or rights must change."""
RECORD_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
)
"""The broker will never take this record."""

CONSUMER_FENCED = (KafkaError._FATAL, KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID)
"""Another consumer has taken this one's place in the group."""
PRODUCER_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
"""Another producer has taken this one's ``transactional.id``."""
OTHER_GENERATION = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)
"""The group has reassigned its partitions since."""
UNSTABLE = (KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT)
"""A transaction may hold a group's offset open. librdkafka asks again until it times out, and does
not say on which partition."""
FAILED_BEFORE = (KafkaError._STATE, KafkaError._FATAL, KafkaError._INCONSISTENT)
"""A call reports that the transaction had already failed. The last one comes from a commit, after a
failed delivery."""
FAILED_WITH_OTHERS = (KafkaError._PURGE_QUEUE, KafkaError._INVALID_DIFFERENT_RECORD)
"""A record was not sent, or not taken, because of others."""


def all_silent(error: KafkaError) -> bool:
    """Whether no broker may lead a partition because all were silent for too long ("fenced"). Their
    next heartbeat ends that."""
    return error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str()


def failure(servers: str, error: KafkaException) -> SemelError:
    """What the error of a request to a cluster means."""
    cause = error.args[0]
    if cause.code() in NOT_AUTHORIZED:
        return ServiceError(f"Kafka at {servers} refused the request: {cause.str()}")
    if cause.code() in GONE:
        return TopicGone(
            f"Kafka at {servers}: {cause.str()}. Was a topic deleted, or created again with fewer "
            "partitions?"
        )
    if cause.code() == KafkaError.LEADER_NOT_AVAILABLE:
        return Unavailable(f"Kafka at {servers}: {cause.str()}")
    return Unavailable(
        f"no Kafka broker answers at {servers}: {_reason(cause)}. Check bootstrap.servers and that "
        "the broker runs"
    )


def _reason(error: KafkaError) -> str:
    """librdkafka's text about a group's coordinator may stop short of the reason."""
    text = str(error.str())
    return f"{text}{error.name()}" if not text or text.endswith(": ") else text.removesuffix(".")


def producer_failure(owner: str, error: KafkaException) -> SemelError:
    """What a producer's error means for its owner, such as ``connector orders``."""
    cause = error.args[0]
    code, text = cause.code(), f"{owner}: the target Kafka: {cause.str()}"
    if code in PRODUCER_FENCED:
        return LedgerConflict(
            f"{text}. The transaction was aborted. Does another run of {owner} write too? If not, "
            "the transaction lasted too long: raise producer.override.transaction.timeout.ms"
        )
    if code in OTHER_GENERATION:
        return NotAssigned(f"{text}. The transaction was aborted")
    if code in PRODUCER_REFUSED:
        return ServiceError(text)
    return Unavailable(text) if code in AWAY else TransientError(text)
