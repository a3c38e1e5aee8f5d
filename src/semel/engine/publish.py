"""Positions copied to the consumer group, for lag tools; never read back."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from semel.engine.base import Run
from semel.kafka import client_config
from semel.ledger import TopicPartition

log = logging.getLogger(__name__)


class Publisher:
    """Commits positions as a consumer that reads nothing."""

    def __init__(self, run: Run) -> None:
        self._consumer = Consumer(
            {
                **client_config(run.connector, run.raw, "consumer"),
                "group.id": run.connector.group_id,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._published: dict[TopicPartition, int] = {}

    def publish(self, positions: dict[TopicPartition, int]) -> None:
        self._published |= positions
        self._commit(positions, asynchronous=True)

    def close(self) -> None:
        self._commit(self._published, asynchronous=False)
        self._consumer.close()

    def _commit(self, positions: Mapping[TopicPartition, int], *, asynchronous: bool) -> None:
        offsets = [KafkaPartition(tp.topic, tp.partition, at) for tp, at in positions.items()]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]
        except KafkaException as error:
            log.info("positions were not published: %s", error)
