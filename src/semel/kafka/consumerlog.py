"""What a consumer's log says earlier than its messages do, or what only the log says.

Log lines overtake the records that a consumer has fetched but not delivered. So they tell at once
that it was fenced; the error message comes after those records.

They also tell which topic it fetches, by the topic's id. Brokers since Kafka 3.1 are asked for
records by topic id (KIP-516, librdkafka 2.5 and later), and serve no other topic under it. After a
topic is created again, librdkafka continues with the new id at the same offset, and reports that in
a debug line alone. The line comes before the first record of the new topic. No broker has to be
asked, so none can answer from stale metadata.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer

from semel.core.ledger import LogId

_CHANGED = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)$")
_FATAL, _THREAD = "FATAL", "[thrd:main]: "
"""librdkafka's name for log lines on fatal errors, and what their text begins with."""
_DEBUG = "metadata"
"""The debug context that has the line; about one line per partition at each refresh of metadata."""
_LEVELS = (logging.CRITICAL,) * 3 + (
    logging.ERROR,
    logging.WARNING,
    logging.INFO,
    logging.INFO,
    logging.DEBUG,
)
"""Python's names of the levels of ``log_level``, as confluent-kafka translates them."""


class ConsumerLog:
    """The logger of one consumer. It passes on what the consumer's configuration asks for."""

    def __init__(self, logger: logging.Logger, config: Mapping[str, Any]) -> None:
        self._logger = logger
        level = int(config.get("log_level", 6))
        self._least = logging.DEBUG if config.get("debug") else _LEVELS[min(level, 7)]
        self._ids: dict[str, str] = {}
        self.fatal = ""
        """Why the consumer can no longer be used; empty while it can."""

    def log(self, level: int, template: str, *parts: str) -> None:
        """Called by confluent-kafka while the consumer is polled."""
        if level == logging.DEBUG and (found := _CHANGED.search(parts[-1])):
            self._ids[found[1]] = found[2]
        if parts[0] == _FATAL:  # whoever polls reports it in words
            self.fatal = self.fatal or parts[-1].removeprefix(_THREAD)
            level = logging.DEBUG
        if level >= self._least:
            self._logger.log(level, template, *parts)

    def fetched(self, topic: str) -> LogId:
        """The log that records of this topic, polled last, may come from."""
        return LogId("", self._ids.get(topic, ""))


def logged_consumer(
    config: Mapping[str, Any], logger: logging.Logger
) -> tuple[Consumer, ConsumerLog]:
    """A consumer, and what it says in its log."""
    consumer_log = ConsumerLog(logger, config)
    debug = ",".join(filter(None, [str(config.get("debug", "")), _DEBUG]))
    return Consumer({**config, "debug": debug}, logger=consumer_log), consumer_log
