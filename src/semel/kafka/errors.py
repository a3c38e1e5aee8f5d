"""What Kafka's error codes mean: it may pass, it is refused, the position is to be looked up."""

from __future__ import annotations

from confluent_kafka import (
    KafkaError,
    KafkaException,
)

from semel.errors import SemelError, ServiceError, TransientError, Unavailable

GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
MAY_PASS = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
)
REFUSED = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

SEEK_AGAIN = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""Errors after which the position must be looked up, and judged, again."""


def failure(servers: str, error: KafkaException) -> SemelError:
    """What the error of a question to a cluster means."""
    cause = error.args[0]
    if cause.code() in REFUSED:
        return ServiceError(f"Kafka at {servers} refuses: {cause.str()}")
    if cause.code() in GONE:
        return ServiceError(
            f"Kafka at {servers}: {cause.str()}. Was a topic deleted, or created again with fewer "
            "partitions?"
        )
    if cause.code() == KafkaError.LEADER_NOT_AVAILABLE:
        return TransientError(f"Kafka at {servers}: {cause.str()}")
    return Unavailable(
        f"no Kafka broker answers at {servers}: {cause.str()}. Check bootstrap.servers and that "
        "the broker runs"
    )
