"""Positions copied to the consumer group, for lag tools.

The metadata of a copy names its ledger. A copy is not used as a position unless
``target.changed=continue`` asks for it: a connector whose ledger is gone would skip records that
its target never got.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from semel.abandoned import Abandoned, within
from semel.engine.base import Run
from semel.kafka.clients import client_config
from semel.ledger import TopicPartition
from semel.sinks.base import Sink

log = logging.getLogger(__name__)

_MARK = "semel"
_PATIENCE = 10.0
"""Seconds that the last copies may take."""
_LONGEST = 1000
"""Characters of the metadata; brokers refuse more than 4,096 bytes unless told otherwise."""


def mark(sink: Sink) -> str:
    """The metadata of a copy."""
    return json.dumps({_MARK: sink.describe().get("ledger", "")[:_LONGEST]})


def copies(mark: str, positions: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    """Positions as a consumer commits them."""
    return [KafkaPartition(*tp, at, mark) for tp, at in positions.items()]


def is_copy(metadata: str) -> bool:
    """Whether an offset is semel's: a copy, or an entry of a ledger that Kafka holds."""
    facts = _facts(metadata)
    return _MARK in facts or {"start", "at"} <= facts.keys()


def ledger_of(metadata: str) -> str:
    """The ledger that an offset is a copy of."""
    return str(_facts(metadata).get(_MARK) or "the offsets of a Kafka sink")


def _facts(metadata: str) -> Mapping[str, object]:
    try:
        found = json.loads(metadata)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Publisher:
    """Commits positions as a consumer that reads nothing."""

    def __init__(self, run: Run) -> None:
        self._consumer = Consumer(
            {
                **client_config(run.connector, "consumer"),
                "group.id": run.connector.group_id,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._mark = mark(run.sink)
        self._published: dict[TopicPartition, int] = {}

    def publish(self, positions: dict[TopicPartition, int]) -> None:
        self._published |= positions
        self._commit(positions, asynchronous=True)

    def close(self) -> None:
        """Commit all positions once more, in bounded time: if Kafka is down, librdkafka waits for
        the group's coordinator, which must not keep the run from ending."""

        def end() -> None:
            self._commit(self._published, asynchronous=False)
            self._consumer.close()

        try:
            within(_PATIENCE, "publishing the last positions", end)
        except Abandoned as error:
            log.info("%s", error)

    def _commit(self, positions: Mapping[TopicPartition, int], *, asynchronous: bool) -> None:
        offsets = copies(self._mark, positions)
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]
        except KafkaException as error:
            log.info("positions were not published: %s", error)
