"""What Kafka's error codes mean: whether they pass, what they refuse, and for whom."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from semel.core.errors import (
    LedgerConflict,
    NotAssigned,
    SemelError,
    ServiceError,
    TransientError,
    Unavailable,
)

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
        return ServiceError(
            f"Kafka at {servers}: {cause.str()}. Was a topic deleted, or created again with fewer "
            "partitions?"
        )
    if cause.code() == KafkaError.LEADER_NOT_AVAILABLE:
        return TransientError(f"Kafka at {servers}: {cause.str()}")
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
            f"{text}. The transaction was aborted. Does another run of {owner} write too?"
        )
    if code in OTHER_GENERATION:
        return NotAssigned(f"{text}. The transaction was aborted")
    if code in PRODUCER_REFUSED:
        return ServiceError(text)
    return TransientError(text)
