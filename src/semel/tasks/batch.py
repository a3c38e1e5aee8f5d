"""Raw records on their way to the sink: converted, without those that failed, and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType

import numpy as np

from semel.config import ConnectorConfig
from semel.core.errors import BadRecord
from semel.core.ledger import Advance, LogId, TopicPartition, of_logs
from semel.core.quoting import one_line
from semel.core.records import Commit, DeadLetter, Records, RejectedRecord
from semel.kafka.damage import Damage
from semel.tasks.pipeline import Pipeline, count_by_partition
from semel.tasks.poll import RawRecords, advances, last_records
from semel.tasks.unplaced import Counts, sum_of

Refusals = Mapping[tuple[str, int, int], RejectedRecord]
"""Records that the sink has refused, by topic, partition and offset."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit holds. ``stop`` is the bad record that ends the connector after it;
    ``remake`` makes the batch again without the records that the sink has refused."""

    advances: Sequence[Advance]
    commit: Commit
    stop: DeadLetter | None = None
    remake: Callable[[Sequence[RejectedRecord]], Batch] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of its rows."""
        return sum(records.rows.nbytes for records in self.commit.records)

    def of(self, logs: Mapping[str, LogId]) -> Batch:
        """The batch, with the logs of its topics' records."""
        return replace(self, advances=of_logs(self.advances, logs))

    @property
    def until(self) -> dict[TopicPartition, int]:
        return {a.range.topic_partition: a.range.until_offset for a in self.advances}


def passing_over(damage: Damage, position: int) -> list[Batch]:
    """The commits, in order, that move positions past offsets that cannot be read."""
    *before, hole = damage.advances(position)
    return [
        *(Batch([advance], Commit([])) for advance in before),
        Batch([hole], Commit([], [damage.letter(position)])),
    ]


class Batcher:
    """Makes batches from raw records for one task."""

    def __init__(self, connector: ConnectorConfig, pipeline: Pipeline) -> None:
        self._connector = connector
        self._pipeline = pipeline

    def batch(
        self,
        polls: Sequence[RawRecords],
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        rejected: Sequence[RejectedRecord] = (),
        logs: Mapping[str, LogId] = MappingProxyType({}),
    ) -> Batch:
        """Convert polls into a batch.

        Args:
            polls: the records, by topic.
            positions: the position of each topic-partition before the batch.
            ends: positions after trailing offsets that hold no record (transaction markers).
            rejected: records that the sink has refused; they are dealt with like bad ones.
            logs: the logs of the topics' records, where they are known.

        Raises:
            OutOfOrder: see :func:`semel.tasks.poll.last_records`.
        """
        batch = self._made(polls, positions, ends, rejected).of(logs)
        return replace(batch, remake=partial(self.batch, polls, positions, ends, logs=logs))

    def _made(
        self,
        polls: Sequence[RawRecords],
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        rejected: Sequence[RejectedRecord],
    ) -> Batch:
        epochs = _epochs(polls, positions)
        until = {**ends, **{tp: max(ends.get(tp, 0), after) for tp, (_, after) in epochs.items()}}
        refused = {(r.topic, r.partition, r.offset): r for r in rejected}
        converted = [self.convert(poll, refused) for poll in polls]
        letters = [letter for _, bad, _ in converted for letter in bad]
        letters.sort(key=lambda letter: (letter.topic, letter.partition, letter.offset))
        if letters and self._connector.errors_tolerance == "none":
            return self._cut(polls, positions, until, letters, left_out(refused))
        records = [parts for parts, _, _ in converted]
        read = _sum(polls)
        written = _written(polls, records)
        moved = advances(until, positions, read, written, count_failed(letters), epochs)
        moved = with_unplaced(moved, [counts for _, _, counts in converted])
        return Batch(moved, Commit([*chain.from_iterable(records)], letters))

    def convert(
        self, poll: RawRecords, refused: Refusals
    ) -> tuple[Sequence[Records], list[DeadLetter], Counts]:
        """Convert one topic's records, grouped by target; ``refused`` and bad ones become dead
        letters, except those that are left out by choice. The third is the number of values that
        reach no column."""
        letters = []
        tolerates = self._connector.errors_tolerance == "all"
        if refused:
            places = zip(poll.partitions.tolist(), poll.offsets.tolist(), strict=True)
            hits = [refused.get((poll.topic, p, o)) for p, o in places]
            letters = [
                poll.letter(i, "TASK_PUT", hit.exception, one_line(hit.message))
                for i, hit in enumerate(hits)
                if hit is not None and (tolerates or not hit.left_out)
            ]
            poll = poll.only(np.array([hit is None for hit in hits], dtype=bool))
        raw = poll.raw(
            key=self._pipeline.wants_key,
            timestamp=self._pipeline.wants_timestamp
            or (self._pipeline.replaces and _several(poll.partitions)),
            headers=self._pipeline.wants_headers,
        )
        converted = self._pipeline.convert(poll.topic, raw)
        letters += [
            poll.letter(f.index, f.stage, f.exception, one_line(f.message))
            for f in converted.failed
        ]
        return converted.parts, letters, converted.unplaced

    def _cut(
        self,
        polls: Sequence[RawRecords],
        positions: Mapping[TopicPartition, int],
        until: dict[TopicPartition, int],
        letters: Sequence[DeadLetter],
        chosen: Refusals,
    ) -> Batch:
        """Everything before the first bad record of each partition; the connector ends there."""
        first: dict[TopicPartition, int] = {}
        stop = letters[0]
        while True:
            for letter in letters:
                tp = TopicPartition(letter.topic, letter.partition)
                first[tp] = min(letter.offset, first.get(tp, letter.offset))
            kept = [_before(poll, first) for poll in polls]
            kept = [poll for poll in kept if len(poll.offsets)]
            converted = [self.convert(poll, chosen) for poll in kept]
            # A transform may raise for a record in one batch that it accepted in another.
            letters = [letter for _, bad, _ in converted for letter in bad]
            if not letters:
                break
        records = [r for r, _, _ in converted]
        until, epochs = {**until, **first}, _epochs(kept, positions)
        moved = advances(until, positions, _sum(kept), _written(kept, records), {}, epochs)
        moved = with_unplaced(moved, [counts for _, _, counts in converted])
        return Batch(moved, Commit([*chain.from_iterable(records)]), stop=stop)


def add_refused(
    connector: str, refused: list[RejectedRecord], rejected: Sequence[RejectedRecord]
) -> None:
    """Add records that the sink has just refused; the batch is made again without them.

    Raises:
        BadRecord: all of them were left out already, so that would not end.
    """
    known = {(r.topic, r.partition, r.offset) for r in refused}
    if all((r.topic, r.partition, r.offset) in known for r in rejected):
        again = rejected[0]
        raise BadRecord(
            f"connector {connector}: the sink refuses the record at {again.topic}-"
            f"{again.partition} offset {again.offset}, even after it was left out: {again.message}"
        )
    refused.extend(rejected)


def left_out(refused: Refusals) -> Refusals:
    """Those that the sink's configuration chooses to leave out: they do not stop the connector."""
    return {where: hit for where, hit in refused.items() if hit.left_out}


def with_unplaced(moved: Sequence[Advance], counts: Iterable[Counts]) -> list[Advance]:
    """The same advances; the first one carries the values that reach no column."""
    unplaced = sum_of(counts)
    return (
        [replace(a, unplaced={} if n else unplaced) for n, a in enumerate(moved)]
        if unplaced
        else [*moved]
    )


def _several(partitions: np.ndarray) -> bool:
    """Whether a key may be in several partitions: then timestamps decide which record is later."""
    return bool(len(partitions)) and bool((partitions != partitions[0]).any())


def _before(poll: RawRecords, first: Mapping[TopicPartition, int]) -> RawRecords:
    """The records before the given offset of their partition."""
    limit = np.full(len(poll.offsets), np.iinfo(np.int64).max)
    for tp, offset in first.items():
        if tp.topic == poll.topic:
            limit[poll.partitions == tp.partition] = offset
    return poll.only(poll.offsets < limit)


def bad_record(connector: str, letter: DeadLetter) -> BadRecord:
    """The error for a bad record."""
    why, tp = letter.message.rstrip("."), TopicPartition(letter.topic, letter.partition)
    return BadRecord(
        f"connector {connector}: record at {tp} offset {letter.offset} failed in {letter.stage}: "
        f"{why}. Everything before it is committed. {ways_out(tp, letter.offset)}"
    )


def ways_out(tp: TopicPartition, offset: int) -> str:
    """What can be done about a record that is bad: Kafka's records cannot be corrected."""
    return (
        "The record cannot be corrected in Kafka. Set bad records aside: errors.tolerance=all with "
        "errors.deadletterqueue.table or errors.deadletterqueue.topic.name. Or skip this one: "
        f"semel offsets set FILE {tp}={offset + 1}. Or make it fit: change the converter, a "
        "transform or the target"
    )


def count_failed(letters: Sequence[DeadLetter]) -> dict[TopicPartition, int]:
    """How many records of each partition are dead letters."""
    failed: dict[TopicPartition, int] = {}
    for letter in letters:
        tp = TopicPartition(letter.topic, letter.partition)
        failed[tp] = failed.get(tp, 0) + 1
    return failed


def _epochs(
    polls: Sequence[RawRecords], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """The leader epoch of each partition's last record, and the offset after it."""
    return {
        TopicPartition(poll.topic, partition): (
            poll.leader_epoch(index),
            int(poll.offsets[index]) + 1,
        )
        for poll in polls
        for partition, index in last_records(poll, positions).items()
    }


def _sum(polls: Sequence[RawRecords]) -> dict[TopicPartition, int]:
    read: dict[TopicPartition, int] = {}
    for poll in polls:
        partitions, counts = np.unique(poll.partitions, return_counts=True)
        for partition, count in zip(partitions.tolist(), counts.tolist(), strict=True):
            tp = TopicPartition(poll.topic, partition)
            read[tp] = read.get(tp, 0) + count
    return read


def _written(
    polls: Sequence[RawRecords], records: Sequence[Sequence[Records]]
) -> dict[TopicPartition, int]:
    """The number of rows and tombstones from each partition."""
    written: dict[TopicPartition, int] = {}
    for poll, parts in zip(polls, records, strict=True):
        for table in (t for part in parts for t in (part.rows, part.tombstones)):
            for partition, count in count_by_partition(table).items():
                tp = TopicPartition(poll.topic, partition)
                written[tp] = written.get(tp, 0) + count
    return written
