"""Closing a consumer in bounded time.

One that has come upon damage in a log, or whose brokers have gone, may never finish closing.
"""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException

from semel.leftbehind import Left, within

log = logging.getLogger(__name__)

_END = 10.0
"""Seconds that a consumer has to close."""


def close(consumer: Consumer) -> None:
    """Close a consumer. It is left behind if that does not end in time."""
    try:
        within(_END, "closing a Kafka consumer", consumer.close)
    except (Left, KafkaException) as error:
        log.info("%s", error)
