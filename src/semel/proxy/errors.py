"""Refusals of requests, with the codes of Confluent's REST Proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from semel.core.errors import SemelError
from semel.core.quoting import named
from semel.kafka.answers import (
    COORDINATOR_MOVED,
    GONE,
    MAY_PASS,
    NO_LOGIN,
    NOT_AUTHORIZED,
    OTHER_GENERATION,
    RECORD_REFUSED,
)

RETRIABLE = (
    *MAY_PASS,
    *COORDINATOR_MOVED,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._QUEUE_FULL,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""Another attempt may succeed."""
_ADMIN_REFUSED = (
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REQUEST,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.SECURITY_DISABLED,
    KafkaError._INVALID_ARG,
)
"""What brokers, or the client, say of a request that can never succeed."""
_V3 = {40401: (404, 40403), 40402: (404, 40403), 40801: (422, 42207), 42203: (400, 400)}
"""Codes that are others in version 3, with their status."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)


class Refusal(SemelError):
    """A request that is answered with an error: its status, and the code in its body."""

    def __init__(
        self, status: int, message: str, code: int = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or status
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error_code": self.code, "message": str(self)}

    @property
    def in_v3(self) -> Refusal:
        """The same in version 3."""
        status, code = _V3.get(self.code, (self.status, self.code))
        return Refusal(status, str(self), code, self.headers)


def topic_not_found(topic: str) -> Refusal:
    return Refusal(404, f"Topic {named(topic)} not found.", 40401)


def partition_not_found(topic: str, partition: int) -> Refusal:
    return Refusal(404, f"Partition {partition} of topic {named(topic)} not found.", 40402)


def instance_not_found(group: str, instance: str) -> Refusal:
    what = f"Consumer instance {named(instance)} of group {named(group)} not found."
    return Refusal(404, f"{what} It was deleted, or idle for too long: create it again", 40403)


def not_acceptable(accept: str) -> Refusal:
    return Refusal(406, f"HTTP 406 Not Acceptable: {named(accept)}")


def unsupported(content_type: str) -> Refusal:
    return Refusal(415, f"HTTP 415 Unsupported Media Type: {named(content_type)}")


def format_mismatch(asked: str, own: str) -> Refusal:
    return Refusal(
        406, f"The consumer reads {own}, but the Accept header asks for {asked} records", 40601
    )


def already_exists(group: str, instance: str) -> Refusal:
    return Refusal(
        409, f"Consumer {named(instance)} already exists in group {named(group)}.", 40902
    )


def already_subscribed(topics: Sequence[str]) -> Refusal:
    return Refusal(409, f"This consumer reads {', '.join(map(named, topics))} already", 40901)


def illegal_state(why: str) -> Refusal:
    return Refusal(409, f"Illegal state: {why}", 40903)


def schema_missing(*, is_key: bool) -> Refusal:
    part = "key" if is_key else "value"
    return Refusal(
        422,
        f"Request includes {part}s but does not include {part}_schema or {part}_schema_id",
        42201 if is_key else 42202,
    )


def not_convertible(why: str) -> Refusal:
    return Refusal(422, f"Conversion of JSON to Object failed: {why}", 42203)


def wrong_consumer(why: str) -> Refusal:
    return Refusal(422, f"Invalid consumer configuration: {why}", 42204)


def wrong_schema(why: str) -> Refusal:
    return Refusal(422, f"Invalid schema: {why}", 42205)


def wrong_payload(why: str) -> Refusal:
    return Refusal(422, f"Payload error. {why}", 42206)


def wrong_batch(why: str) -> Refusal:
    return Refusal(422, why, 42208)


def not_registered(why: str) -> Refusal:
    return Refusal(408, f"Schema registration or lookup failed: {why}", 40801)


def too_long() -> Refusal:
    return Refusal(503, "The records take too long to check against their schemas. Send fewer")


def too_many(what: str) -> Refusal:
    return Refusal(429, f"{what}. Try again later", 429, {"Retry-After": "1"})


def key_conflict() -> Refusal:
    return Refusal(
        409,
        "This Idempotency-Key was used for another request: its path, its Content-Type or its body "
        "differs. Use a new key for a new request",
        40904,
    )


def of_kafka(error: KafkaException | KafkaError, topic: str = "") -> Refusal:
    """What an error of Kafka's client means for a request."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code, text = cause.code(), cause.str()
    if code in GONE:
        if topic:
            return topic_not_found(topic)
        return Refusal(404, f"This server does not host this topic-partition: {text}", 40403)
    if code in NO_LOGIN:
        return Refusal(401, f"Kafka refuses the login of the request: {text}", 40101)
    if code in NOT_AUTHORIZED or code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return Refusal(
            403, f"Kafka denies this to the user that the request logs in as: {text}", 40301
        )
    if code in _TOO_LARGE:
        return Refusal(413, f"A record is larger than the topic accepts: {text}")
    if code in RECORD_REFUSED:
        return Refusal(422, f"Kafka refuses a record: {text}", 42207)
    if code == KafkaError.GROUP_ID_NOT_FOUND:
        return Refusal(404, text)
    if code in OTHER_GENERATION:
        return illegal_state(f"the group has rebalanced meanwhile: {text}")
    if code in _ADMIN_REFUSED:
        return Refusal(400, text, 40002)
    if code in RETRIABLE:
        return Refusal(503, f"Kafka does not answer now: {text}", 50003, {"Retry-After": "1"})
    return Refusal(500, f"Kafka error: {text}", 50002)
