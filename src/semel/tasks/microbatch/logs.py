"""The logs that the offsets of a micro-batch point at, checked before its records are committed.

Spark's Kafka source gives neither the id of a topic nor the leader epoch of a record. So a batch is
*pinned* before it is read: Kafka is asked for the id of each topic, for the end of each partition,
and for its leader epoch. All offsets below the end were written in that epoch or an earlier one,
which is what an entry needs to know (KIP-320). Whoever commits asks once more after reading. If the
ids and epochs are the same, the records are those of the pinned logs; if only an epoch is a later
one, the new leader tells whether it still has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from semel.core.errors import LogChanged
from semel.core.ledger import UNKNOWN_LOG, LedgerEntry, LogId, OffsetRange, TopicPartition, of_logs
from semel.core.quoting import named
from semel.kafka.cluster import Cluster
from semel.tasks.batch import Batch
from semel.tasks.ranges import divergences


@dataclass(frozen=True, slots=True)
class PinnedLogs:
    """The logs that a batch is read from. An epoch of -1 is not known."""

    logs: Mapping[str, LogId] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def confirm(self, cluster: Cluster, ranges: Collection[OffsetRange]) -> None:
        """Check that records of these ranges, all of them read by now, are of the pinned logs.

        Raises:
            LogChanged: they may be of others.
            TransientError: Kafka does not answer.
        """
        _compare(self.logs, cluster, {r.topic for r in ranges})
        read = [_reached(r.topic_partition, r.until_offset, self._epoch(r)) for r in ranges]
        _check_kept(cluster, read, cluster.ends([e.topic_partition for e in read]))

    def stamped(self, batch: Batch) -> Batch:
        """The batch with its logs, and with the epochs that the ledger keeps."""
        advances = [
            replace(a, leader_epoch=self._epoch(a.range), epoch_offset=a.range.until_offset)
            if self._epoch(a.range) >= 0 and not a.lost
            else a
            for a in of_logs(batch.advances, self.logs)
        ]
        return replace(batch, advances=advances)

    def _epoch(self, range_: OffsetRange) -> int:
        return self.epochs.get(range_.topic_partition, -1)


class KnownLogs:
    """The logs that a run's positions belong to; used by the driver."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: dict[str, LogId] = {}
        self._reached: dict[TopicPartition, LedgerEntry] = {}

    def expect(self, entries: Iterable[LedgerEntry]) -> None:
        """Take entries that have just been compared with Kafka or just been made."""
        for entry in entries:
            self._logs[entry.topic] = entry.log
            self._reached[entry.topic_partition] = entry

    def add(self, entries: Collection[LedgerEntry]) -> None:
        """Take the ledger's entries of partitions that have appeared.

        Raises:
            LogChanged: they are not of the logs that the topics' other entries are of.
        """
        logs = dict(self._logs)
        for entry in entries:
            known = logs.get(entry.topic, UNKNOWN_LOG)
            if known.contradicts(entry.log):
                raise LogChanged(f"topic {named(entry.topic)} was created again")
            logs[entry.topic] = known.completed(entry.log)
        self.expect(entries)
        self._logs = logs

    def pin(self, ranges: Sequence[OffsetRange]) -> PinnedLogs:
        """Ask Kafka for the logs of a batch that has not been read yet.

        Raises:
            LogChanged: they are not those of the positions that the batch begins at.
            TransientError: Kafka does not answer.
        """
        _compare(self._logs, self._cluster, {r.topic for r in ranges})
        ends = self._cluster.ends([r.topic_partition for r in ranges])
        for r in ranges:
            if ends[r.topic_partition][0] < r.until_offset:
                raise LogChanged(f"{r.topic_partition} ends before {r.until_offset}")
        _check_kept(self._cluster, [self._reached[tp] for tp in ends], ends)
        epochs = {tp: epoch for tp, (_, epoch) in ends.items()}
        for r in ranges:
            tp = r.topic_partition
            self._reached[tp] = _reached(tp, r.until_offset, epochs[tp])
        return PinnedLogs({r.topic: self._logs[r.topic] for r in ranges}, epochs)


def _reached(tp: TopicPartition, position: int, epoch: int) -> LedgerEntry:
    """The epoch facts of a position whose records were all written in this epoch or before."""
    return LedgerEntry(*tp, position, position, leader_epoch=epoch, epoch_offset=position)


def _compare(logs: Mapping[str, LogId], cluster: Cluster, topics: Collection[str]) -> None:
    current = cluster.logs(topics)
    for topic in sorted(topics):
        if topic not in current:
            raise LogChanged(f"topic {named(topic)} is gone")
        if logs[topic].contradicts(current[topic]):
            raise LogChanged(f"topic {named(topic)} was created again")


def _check_kept(
    cluster: Cluster,
    reached: Collection[LedgerEntry],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> None:
    """Check that the logs still have what was read."""
    if cut := divergences(cluster, reached, ends):
        raise LogChanged(f"the log of {', '.join(map(str, sorted(cut)))} was truncated")
