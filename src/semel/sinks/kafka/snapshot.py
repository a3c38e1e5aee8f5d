"""Reads the target for an audit: committed records, and where each came from.

Kafka cannot be read at one instant. The ledger is read first, then all that the targets hold by
then, once open transactions have ended. Records that were committed in between lie beyond the
ledger's positions, which their provenance shows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from semel.config import ConnectorConfig
from semel.core.errors import TransientError
from semel.core.ledger import Hole, LedgerEntry, TopicPartition
from semel.kafka.cluster import Cluster
from semel.kafka.dead_letters import ERRORS
from semel.kafka.reader import read_ranges
from semel.sinks.base import Snapshot
from semel.sinks.kafka.config import KafkaConfig

_POLL = 0.05
_PLACE = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64())])


def take(
    connector: ConnectorConfig,
    config: KafkaConfig,
    recorded: Callable[[], list[LedgerEntry]],
    holes: Callable[[], Sequence[Hole]],
    cluster: Cluster,
    targets: Mapping[str, str],
    consumer: Mapping[str, Any],
    timeout: float,
) -> Snapshot:
    """Ledger and results. ``recorded`` reads the ledger, and ``holes`` then gives its holes;
    ``timeout`` is how long to wait for open transactions, in seconds."""
    entries = recorded()
    unread = holes()
    coordinates = _Coordinates(entries)
    names = (config.topic_header, config.partition_header, config.offset_header)
    letters = connector.dead_letter_topic if connector.dead_letter_headers else ""
    counted = {*targets.values(), *([letters] if letters else [])}
    partitions = [
        TopicPartition(t, p) for t, n in cluster.topics().items() if t in counted for p in range(n)
    ]
    earliest = cluster.earliest(partitions)
    ends = cluster.latest(partitions, committed=False)
    _await_committed(cluster, ends, timeout)
    rows = dict.fromkeys(targets.values(), 0)
    for messages in read_ranges(connector, earliest, ends, client=consumer):
        for message in messages:
            topic = str(message.topic())
            if topic == letters:
                coordinates.letter(connector.name, message)
            if topic in rows:
                rows[topic] += 1
                if connector.provenance:
                    coordinates.record(message, names)
    dropped = {tp.topic for tp, at in earliest.items() if at} | cluster.compacted(rows)
    return Snapshot(
        entries=entries,
        holes=unread,
        records=_tables(coordinates.records),
        rows=_settled(rows, targets, entries, recorded()),
        untraced=coordinates.untraced,
        targets=targets,
        dead=_tables(coordinates.dead),
        incomplete=frozenset(t for t, target in targets.items() if target in dropped),
        restamps=True,
    )


class _Coordinates:
    """Coordinates below the ledger's positions, by topic."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self._positions = {e.topic_partition: e.position for e in entries}
        self.records: dict[str, list[tuple[int, ...]]] = {}
        self.dead: dict[str, list[tuple[int, ...]]] = {}
        self.untraced: Counter[str] = Counter()

    def record(self, message: Message, names: tuple[str, str, str]) -> None:
        if not self._add(self.records, _header(message), names):
            self.untraced[str(message.topic())] += 1

    def letter(self, connector: str, message: Message) -> None:
        headers = _header(message)
        if headers.get(f"{ERRORS}connector.name") == connector.encode():
            names = (f"{ERRORS}topic", f"{ERRORS}partition", f"{ERRORS}offset")
            kind, millis = message.timestamp()
            dated = kind == TIMESTAMP_CREATE_TIME and millis > 0
            self._add(self.dead, headers, names, millis if dated else -1)

    def _add(
        self,
        to: dict[str, list[tuple[int, ...]]],
        headers: Mapping[str, bytes],
        names: tuple[str, str, str],
        *more: int,
    ) -> bool:
        """Add a record; returns whether its headers say where it came from."""
        try:
            topic, partition, offset = (headers[n].decode() for n in names)
            place, at = TopicPartition(topic, int(partition)), int(offset)
        except (KeyError, ValueError, AttributeError):
            return False
        if at < self._positions.get(place, 0):
            to.setdefault(topic, []).append((place.partition, at, *more))
        return True


def _header(message: Message) -> Mapping[str, bytes]:
    """Headers by name; of several, the last one: those before it came with the record."""
    headers: list[tuple[str, bytes]] = message.headers() or []  # type: ignore[assignment]
    return dict(headers)


def _tables(places_by_topic: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[str, pa.Table]:
    tables = {}
    for topic, places in places_by_topic.items():
        columns = zip(_PLACE, zip(*places, strict=True), strict=False)
        tables[topic] = pa.table({f.name: pa.array(column, f.type) for f, column in columns})
    return tables


def _await_committed(cluster: Cluster, ends: Mapping[TopicPartition, int], timeout: float) -> None:
    """Wait until no transaction is open below these ends."""
    asked = time.monotonic()
    while True:
        stable = cluster.latest(ends)
        if all(stable[tp] >= end for tp, end in ends.items()):
            return
        if time.monotonic() - asked > timeout:
            raise TransientError("a transaction in a target topic does not end")
        time.sleep(_POLL)


def _settled(
    rows: Mapping[str, int],
    targets: Mapping[str, str],
    before: Sequence[LedgerEntry],
    after: Sequence[LedgerEntry],
) -> dict[str, int]:
    """The number of records of each target when the ledger was read first: those that the ledger
    has counted since then are no excess."""

    def written(entries: Sequence[LedgerEntry], target: str) -> int:
        return sum(e.rows_written for e in entries if targets.get(e.topic) == target)

    settled = {}
    for target, count in rows.items():
        least, most = written(before, target), written(after, target)
        settled[target] = count if count < least else least + max(0, count - most)
    return settled
