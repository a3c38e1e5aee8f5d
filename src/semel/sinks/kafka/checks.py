"""Checks that the Kafka sink can keep the declared delivery with these settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.config import ConnectorConfig
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, Problem
from semel.kafka.clients import IDEMPOTENCE, acks, confirms_all, is_true


def check(connector: ConnectorConfig, producer: Mapping[str, Any]) -> None:
    """Check the producer's settings, as far as that is possible without a cluster.

    Raises:
        ConfigError: all settings with which the declared delivery cannot be kept.
    """
    problems: list[Problem] = []
    if "transactional.id" in producer:
        problems.append(
            Problem(
                "producer.override.transactional.id",
                f"connector {connector.name}: producer.override.transactional.id is set by semel: "
                "the guarantee depends on it. Remove it",
            )
        )
    if connector.delivery is not Delivery.AT_MOST_ONCE and not confirms_all(producer):
        problems.append(
            Problem(
                "producer.override.acks",
                f"connector {connector.name}: producer.override.acks={acks(producer)} "
                "confirms records that a broker may still lose: no delivery but at-most-once can "
                "be kept. Set it to all, or remove it",
            )
        )
    if connector.delivery is not Delivery.AT_LEAST_ONCE and IDEMPOTENCE in producer:
        given = producer[IDEMPOTENCE]
        if not is_true(given):
            problems.append(
                Problem(
                    "producer.override",
                    f"connector {connector.name}: producer.override.{IDEMPOTENCE}={given}: records "
                    "are sent in transactions, which Kafka requires to be idempotent. Remove it, "
                    "or set delivery=at-least-once, which sends them outside of transactions",
                )
            )
    if connector.dead_letter_table:
        problems.append(
            Problem(
                "errors.deadletterqueue.table",
                f"connector {connector.name}: errors.deadletterqueue.table="
                f"{connector.dead_letter_table}: Kafka has no tables. Set "
                "errors.deadletterqueue.topic.name, which is in the transaction, too",
            )
        )
    if problems:
        raise ConfigError(*problems)
