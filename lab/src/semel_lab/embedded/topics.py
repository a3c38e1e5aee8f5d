"""Administration of topics, with retries until the outcome of a request is certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from semel.core.errors import ServiceError
from semel.kafka.answers import all_silent, answers_of
from semel_lab.embedded.process import comes_true

ADMIN_TIMEOUT = 120.0
_REQUEST_TIMEOUT = 30.0
_UNCLEAR = (
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_LEADER_FOR_PARTITION,  # a client keeps the leaders it knows until it asks again
    KafkaError._NOENT,  # deleting records, while a new topic has no leaders
)
"""Errors after which the request may have been carried out nevertheless."""

Admin = Callable[[], AdminClient]
"""Returns the client; raises ServiceError while the broker is not running."""


def create(
    admin: Admin, name: str, partitions: int, replication: int, config: Mapping[str, str]
) -> None:
    """Create a topic and wait until clients can use it."""
    topic = NewTopic(name, partitions, replication, config=dict(config))
    _carry_out(
        admin,
        lambda client, **timeouts: client.create_topics([topic], **timeouts),
        f"create topic {name}",
        KafkaError.TOPIC_ALREADY_EXISTS,
    )
    _await_partitions(admin, name, partitions)


def delete(admin: Admin, name: str) -> None:
    """Delete a topic and wait until clients do not see it any more."""
    _carry_out(
        admin,
        lambda client, **timeouts: client.delete_topics([name], **timeouts),
        f"delete topic {name}",
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )

    def gone() -> bool:
        try:
            return name not in admin().list_topics(timeout=_REQUEST_TIMEOUT).topics
        except KafkaException:
            return False

    if not comes_true(gone, ADMIN_TIMEOUT, 0.01):
        raise ServiceError(f"Kafka still shows topic {name} after {ADMIN_TIMEOUT:.0f} s.")


def increase_partitions(admin: Admin, topic: str, total: int) -> None:
    """Give a topic ``total`` partitions and wait until clients can use them."""
    _carry_out(
        admin,
        lambda client, **timeouts: client.create_partitions(
            [NewPartitions(topic, total)], **timeouts
        ),
        f"give topic {topic} {total} partitions",
        KafkaError.INVALID_PARTITIONS,
    )
    _await_partitions(admin, topic, total)


def delete_records(admin: Admin, topic: str, before_offsets: Mapping[int, int]) -> None:
    """Delete each partition's records before an offset, as retention would."""
    ends = [TopicPartition(topic, part, offset) for part, offset in before_offsets.items()]
    _carry_out(
        admin,
        lambda client, **timeouts: client.delete_records(ends, **timeouts),
        f"delete records of {topic}",
    )


def _carry_out(
    admin: Admin,
    ask: Callable[..., Mapping[Any, Any]],
    what: str,
    already_done: int | None = None,
) -> None:
    """Repeat a request until it is carried out. After an unclear answer, ``already_done`` is the
    error that says that an earlier attempt succeeded.

    Raises:
        ServiceError: Kafka refuses, or does not answer.
    """
    timeouts = {"request_timeout": _REQUEST_TIMEOUT, "operation_timeout": _REQUEST_TIMEOUT}
    deadline, unclear = monotonic() + ADMIN_TIMEOUT, False
    while True:
        late = monotonic() > deadline
        try:
            asked = admin()
            answers_of(asked, ask(asked, **timeouts), _REQUEST_TIMEOUT)
            return
        except KafkaException as failure:
            error = failure.args[0]
            if unclear and error.code() == already_done:
                return
            unclear = unclear or error.code() in _UNCLEAR
            if late or not (error.code() in _UNCLEAR or all_silent(error)):
                raise ServiceError(f"Kafka refuses to {what}: {failure}") from failure
            if error.code() == KafkaError.NOT_LEADER_FOR_PARTITION:
                with suppress(KafkaException):
                    admin().list_topics(timeout=_REQUEST_TIMEOUT)
        sleep(0.1)


def _await_partitions(admin: Admin, topic: str, partitions: int) -> None:
    """Wait for the brokers: KRaft answers before they have applied a change."""

    def usable() -> bool:
        try:
            metadata = admin().list_topics(topic, timeout=_REQUEST_TIMEOUT)
        except KafkaException:
            return False
        described = metadata.topics[topic].partitions
        return len(described) == partitions and all(p.leader != -1 for p in described.values())

    if not comes_true(usable, ADMIN_TIMEOUT, 0.01):
        raise ServiceError(
            f"Kafka does not show topic {topic} with {partitions} partitions after "
            f"{ADMIN_TIMEOUT:.0f} s."
        )
