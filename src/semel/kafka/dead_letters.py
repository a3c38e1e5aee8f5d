"""Dead letters to a Kafka topic, as Kafka Connect writes them (KIP-298).

The topic lives in another system than the results, so its copies are at-least-once: they are
flushed before the batch commits, and a crash in between repeats them. A dead letter table
(``errors.deadletterqueue.table``) has no such gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from semel import converters
from semel.config import ConnectorConfig
from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.core.quoting import named
from semel.core.records import DeadLetter
from semel.kafka.answers import AWAY
from semel.kafka.clients import IDEMPOTENCE, QUIET

Header = tuple[str, bytes | None]
Headers = list[Header]

ERRORS = "__connect.errors."
"""The prefix of a dead letter's context headers."""
_TIMEOUT = 30.0


def error_headers(connector: ConnectorConfig, letter: DeadLetter, task: int) -> Headers:
    """The headers that Kafka Connect gives to a dead letter (KIP-298), if they are wanted."""
    if not connector.dead_letter_headers:
        return []
    context = {
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "connector.name": connector.name,
        "task.id": str(task),
        "stage": letter.stage,
        "class.name": _executing_class(connector, letter.stage),
        "exception.class.name": letter.exception,
        "exception.message": letter.message,
    }
    return [(f"{ERRORS}{k}", v.encode()) for k, v in context.items()]


def _executing_class(connector: ConnectorConfig, stage: str) -> str:
    """The class that failed, as Kafka Connect names it; for a sink's refusals that is the
    SinkTask's."""
    return {
        "KEY_CONVERTER": converters.full_name(connector.key_converter),
        "VALUE_CONVERTER": converters.full_name(connector.value_converter),
        "TRANSFORMATION": "transform",
    }.get(stage, "org.apache.kafka.connect.sink.SinkTask")


class DeadLetterProducer:
    """Sends dead letters and waits until Kafka has them."""

    def __init__(self, connector: ConnectorConfig, config: Mapping[str, Any], task: int) -> None:
        self._connector = connector
        self._task = task
        self._producer = Producer({IDEMPOTENCE: True, "log_level": 0, **config}, logger=QUIET)

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Send dead letters. Raises TransientError if Kafka has not confirmed all of them. Then use
        a new producer: this one may have failed for good."""
        failures: list[KafkaError] = []

        def confirmed(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        for letter in letters:
            self._produce(
                key=letter.key,
                value=letter.value,
                timestamp=max(0, letter.timestamp or 0),  # 0: now, where it had none
                headers=[*letter.headers, *error_headers(self._connector, letter, self._task)],
                on_delivery=confirmed,
            )
            if failures:
                break
        unsent = 0 if failures else self._producer.flush(_TIMEOUT)
        if failures:
            raise self._refused(failures[0])
        if unsent:
            raise self._failed("no answer in time", is_away=True)

    def _produce(self, **message: Any) -> None:
        """Queue a message; wait while the queue is full."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                self._producer.produce(self._connector.dead_letter_topic, **message)
                return
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise self._failed(str(error), is_away=True) from None
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._refused(error.args[0]) from None

    def _refused(self, error: KafkaError) -> ServiceError | TransientError:
        failed = self._failed(error.str(), is_away=error.code() in AWAY)
        if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return failed
        return ServiceError(
            f"{failed}. Set producer.override.max.request.size, and max.message.bytes of the "
            "topic, above its size"
        )

    def _failed(self, reason: str, *, is_away: bool = False) -> TransientError:
        kind = Unavailable if is_away else TransientError
        return kind(
            f"connector {self._connector.name}: dead letters could not be written to topic "
            f"{named(self._connector.dead_letter_topic)}: {reason}"
        )
