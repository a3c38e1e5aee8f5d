"""Closing a consumer in bounded time.

Closing may never finish if the consumer has met damage in a log or lost its brokers.
"""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException

from semel.core.abandoned import Abandoned, within

log = logging.getLogger(__name__)

_END = 10.0
"""Seconds that a consumer gets to close."""


def close(consumer: Consumer) -> None:
    """Close a consumer, or leave it behind if it does not close in time."""
    try:
        within(_END, "closing a Kafka consumer", consumer.close)
    except (Abandoned, KafkaException) as error:
        log.info("%s", error)
