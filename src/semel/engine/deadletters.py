"""Dead letters to a Kafka topic, as Kafka Connect writes them (KIP-298).

The topic lives in another system than the results, so its copies are at-least-once: they are
flushed before the batch commits, and a crash in between repeats them. A dead letter table
(``errors.deadletterqueue.table``) has no such gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, Producer

from semel.config import ConnectorConfig
from semel.errors import ServiceError, TransientError
from semel.kafka import IDEMPOTENCE, Cluster, error_headers
from semel.records import DeadLetter

_TIMEOUT = 30.0


def create_topic(connector: ConnectorConfig, cluster: Cluster) -> None:
    """Create the dead letter topic if it is missing, with one partition, as Connect does.

    Raises:
        ServiceError: it cannot be created.
    """
    try:
        cluster.create_topic(connector.dead_letter_topic, 1, connector.dead_letter_replication)
    except ServiceError as error:
        raise ServiceError(
            f"connector {connector.name}: {error}. Create it for the dead letters, or set "
            "errors.deadletterqueue.topic.replication.factor to at most the number of brokers"
        ) from None


class DeadLetterProducer:
    """Sends dead letters and waits until Kafka has them."""

    def __init__(self, connector: ConnectorConfig, config: Mapping[str, Any], task: int) -> None:
        self._connector = connector
        self._task = task
        self._producer = Producer({IDEMPOTENCE: True, **config})

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Raises TransientError when Kafka has not confirmed all of them."""
        failures: list[str] = []

        def confirmed(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error.str())

        for letter in letters:
            self._producer.produce(
                self._connector.dead_letter_topic,
                key=letter.key,
                value=letter.value,
                timestamp=max(0, letter.timestamp or 0),  # 0: now, where it had none
                headers=[*letter.headers, *error_headers(self._connector, letter, self._task)],
                on_delivery=confirmed,
            )
        if self._producer.flush(_TIMEOUT) or failures:
            reason = failures[0] if failures else "no answer in time"
            raise TransientError(
                f"connector {self._connector.name}: dead letters could not be written to topic "
                f"{self._connector.dead_letter_topic}: {reason}"
            )
