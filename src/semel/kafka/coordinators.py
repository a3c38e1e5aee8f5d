"""Questions to the coordinator of a group, by an admin client.

If such a question times out within librdkafka (2.16), the process aborts once the coordinator can
be reached again: ``rd_kafka_coord_req_fsm`` fails a request whose state it has just freed. So the
questions get no timeout there. semel waits for the answer itself, and drops the client if none
comes.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")

UNBOUNDED = 3600.0
"""Seconds to give as ``request_timeout``: the most that librdkafka takes."""


def answer_of(question: Future[T], timeout: float) -> T:
    """The answer to a question that was asked with an unbounded timeout.

    Raises:
        KafkaException: Kafka refuses; or no answer has come in so many seconds, and the client must
            not be used again.
    """
    try:
        return question.result(timeout)
    except TimeoutError:
        reason = f"no answer from the group's coordinator for {timeout:.0f} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None
