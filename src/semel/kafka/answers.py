"""Waiting for the answers to an admin client's requests.

Its futures may never complete: they are lost once nothing refers to the client. So whoever waits
keeps a reference to it, and bounds the wait.

If a question to a group's *coordinator* times out within librdkafka (2.16), the process aborts once
the coordinator can be reached again: ``rd_kafka_coord_req_fsm`` fails a request whose state it has
just freed. Such questions get no timeout there: semel alone bounds the wait, and drops the client
if no answer comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

K = TypeVar("K")
T = TypeVar("T")

UNBOUNDED = 3600.0
"""Seconds to give as ``request_timeout`` of a question to a coordinator: the most that librdkafka
takes."""
LATE = 5.0
"""Seconds that an answer may take beyond the question's own timeout."""


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
