"""The global tables of a task: what all partitions of their topics hold, in a store of its own.

It is filled when the task starts, and follows the topics from then on: a step sees what has come
until it begins. The tables do not take part in commits, so they cannot go back either. What a step
makes of them is not the same when it is computed again; planning sees to it that no state depends
on that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.errors import BadRecord, OffsetOutOfRange, ServiceError
from semel.core.ledger import TopicPartition
from semel.kafka.answers import GONE, NOT_AUTHORIZED, SEEK_AGAIN, UNREADABLE
from semel.kafka.clients import QUIET, client_config
from semel.kafka.cluster import Cluster
from semel.kafka.consumer import close
from semel.kafka.reader import read_ranges
from semel.streams.changelog import Topics
from semel.streams.store import State, Store
from semel.tasks.poll import by_topic
from semel.tasks.streams.unit import Decoder

_MOST = 10_000
"""The most records that are taken up before a step."""
_LASTING = {*GONE, *NOT_AUTHORIZED, *UNREADABLE}
"""Errors that a consumer does not overcome by itself: the table would stay as it is, silently."""


class Globals:
    """The global tables of a topology, below a ``folder``. ``tell`` writes a line to the log."""

    def __init__(
        self,
        connector: ConnectorConfig,
        topics: Topics,
        cluster: Cluster,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._connector = connector
        self._sources = topics.globals
        self._cluster = cluster
        self._folder = folder
        self._tell = tell
        self._decoders = {t: Decoder(connector, source) for t, (_, source) in self._sources.items()}
        self._state: State | None = None
        self._consumer: Consumer | None = None

    @property
    def stores(self) -> Mapping[str, Store]:
        """The stores, by name."""
        return {} if self._state is None else self._state.stores

    def start(self, alive: Callable[[], None]) -> None:
        """Fill the stores, unless they are filled. ``alive`` is called now and then.

        Raises:
            SemelError: a topic cannot be read.
        """
        if self._consumer is not None or not self._sources:
            return
        self.close()  # an attempt that failed has left a part of the tables
        subs = {sub.number: sub for sub, _ in self._sources.values()}
        state = State(self._folder, [s.name for sub in subs.values() for s in sub.stores])
        state.clear()
        self._processors = {n: sub.processor(state.stores) for n, sub in subs.items()}
        self._state = state
        counts = self._cluster.topics()
        places = [TopicPartition(t, p) for t in self._sources for p in range(counts.get(t, 1))]
        starts, ends = self._cluster.earliest(places), self._cluster.latest(places)
        for messages in read_ranges(self._connector, starts, ends):
            self._apply(messages)
            alive()
        config = {
            **client_config(self._connector, "consumer"),
            "group.id": f"{self._connector.group_id}-globals",  # which is never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 16 * 1024,
        }
        self._consumer = Consumer(config, logger=QUIET)
        self._consumer.assign([KafkaPartition(*place, ends[place]) for place in places])

    def follow(self) -> None:
        """Take up what has come since, without waiting for more."""
        if self._consumer is None:
            return
        messages = []
        for message in self._consumer.consume(_MOST, 0.0):
            if (error := message.error()) is None:
                messages.append(message)
            elif error.code() in SEEK_AGAIN:
                raise OffsetOutOfRange(
                    f"connector {self._connector.name}: global table: {message.topic()} "
                    f"[{message.partition()}] no longer has the records that come next: retention "
                    "has removed them. Start the connector again"
                )
            elif error.code() in _LASTING:
                raise ServiceError(
                    f"connector {self._connector.name}: global table: {message.topic()} "
                    f"[{message.partition()}] cannot be followed: {error.str()}. Start the "
                    "connector again once the topic can be read"
                )
        if messages:
            self._apply(messages)

    def _apply(self, messages: Sequence[Message]) -> None:
        assert self._state is not None
        for poll in by_topic(messages):
            sub, source = self._sources[poll.topic]
            records, bad = self._decoders[poll.topic].records(poll)
            if bad:
                letter = next(iter(bad.values()))
                where = f"{letter.topic} [{letter.partition}] at {letter.offset}"
                message = (
                    f"connector {self._connector.name}: global table: {where}: {letter.message}"
                )
                if self._connector.errors_tolerance == "none":
                    raise BadRecord(message)
                self._tell(f"{message}. It is left out")
                records = records.only(~_marked(len(records), bad))
            processor = self._processors[sub.number]
            processor.process({source.topic: records})
            processor.finish()
        self._state.keep(self._state.cut(), b"")

    def close(self) -> None:
        """Close the store, and the consumer."""
        if self._consumer is not None:
            close(self._consumer)
            self._consumer = None
        if self._state is not None:
            self._state.close()
            self._state = None


def _marked(count: int, rows: Mapping[int, Any]) -> np.ndarray:
    marked = np.zeros(count, np.bool_)
    marked[list(rows)] = True
    return marked
