"""Raw records of one topic, from a poll or from Spark, and the offset ranges they make."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from semel.core.ledger import Advance, OffsetRange, TopicPartition
from semel.core.records import HEADERS_TYPE, TIMESTAMP_TYPE, DeadLetter
from semel.kafka.consumer import OutOfOrder, headers_of, headers_of_all, size_of

_TIMESTAMP = operator.itemgetter(1)
_LARGE = 4096
"""Copying records once more matters if they average at least this many bytes."""


class RawRecords(Protocol):
    """One topic's raw records, in the order they came."""

    @property
    def topic(self) -> str: ...

    @property
    def partitions(self) -> np.ndarray: ...

    @property
    def offsets(self) -> np.ndarray: ...

    def raw(self, *, key: bool, timestamp: bool, headers: bool = False) -> pa.Table:
        """The raw batch (see :mod:`semel.core.records`) with the columns that are wanted."""
        ...

    def leader_epoch(self, index: int) -> int:
        """The leader epoch of one record; -1 if it is not known."""
        ...

    def only(self, keep: np.ndarray) -> Self:
        """The records where ``keep`` is true."""
        ...

    def letter(self, index: int, stage: str, exception: str, message: str) -> DeadLetter:
        """The dead letter of one record."""
        ...


@dataclass(frozen=True, slots=True)
class TopicPoll:
    """One topic's messages of a poll, in the order they came."""

    topic: str
    messages: Sequence[Message]
    partitions: np.ndarray
    offsets: np.ndarray

    def raw(self, *, key: bool, timestamp: bool, headers: bool = False) -> pa.Table:
        columns = {
            "value": _values(self.messages),
            "partition": pa.array(self.partitions),
            "offset": pa.array(self.offsets),
        }
        if key:
            columns["key"] = pa.array(list(map(Message.key, self.messages)), pa.binary())
        if timestamp:
            columns["timestamp"] = pa.array(self.timestamps()).cast(TIMESTAMP_TYPE)
        if headers:
            header_lists = headers_of_all(self.messages)
            columns["headers"] = (
                pa.array(header_lists, HEADERS_TYPE)
                if any(header_lists)
                else pa.nulls(len(header_lists), HEADERS_TYPE)
            )
        return pa.table(columns)

    def timestamps(self) -> np.ndarray:
        """Milliseconds of each record's timestamp."""
        stamps = map(_TIMESTAMP, map(Message.timestamp, self.messages))
        return np.fromiter(stamps, dtype=np.int64, count=len(self.messages))

    def only(self, keep: np.ndarray) -> TopicPoll:
        chosen = [self.messages[i] for i in np.flatnonzero(keep).tolist()]
        return TopicPoll(self.topic, chosen, self.partitions[keep], self.offsets[keep])

    def letter(self, index: int, stage: str, exception: str, message: str) -> DeadLetter:
        source = self.messages[index]
        return DeadLetter(
            topic=self.topic,
            partition=int(self.partitions[index]),
            offset=int(self.offsets[index]),
            key=source.key(),
            value=source.value(),
            headers=headers_of(source) or (),
            timestamp=source.timestamp()[1],
            stage=stage,
            exception=exception,
            message=message,
        )

    @property
    def is_large(self) -> bool:
        """Whether the records are so large that one more copy matters."""
        return size_of(self.messages) >= _LARGE * len(self.messages)

    def as_table(self) -> TopicTable:
        """The same with copies of all that the messages hold."""
        table = self.raw(key=True, timestamp=True, headers=True)
        epochs = map(self.leader_epoch, range(len(self.messages)))
        return TopicTable(self.topic, table, np.fromiter(epochs, np.int64, len(self.messages)))

    def leader_epoch(self, index: int) -> int:
        epoch = self.messages[index].leader_epoch()
        return -1 if epoch is None else epoch


@dataclass(frozen=True, slots=True)
class TopicTable:
    """One topic's records as a table. Spark's Kafka source does not give their leader ``epochs``.

    ``table`` has ``value``, ``partition``, ``offset`` and ``timestamp``, and ``key`` and
    ``headers`` where they are wanted.
    """

    topic: str
    table: pa.Table
    epochs: np.ndarray | None = None

    @property
    def partitions(self) -> np.ndarray:
        return np.asarray(self.table.column("partition"))

    @property
    def offsets(self) -> np.ndarray:
        return np.asarray(self.table.column("offset"))

    def raw(self, *, key: bool, timestamp: bool, headers: bool = False) -> pa.Table:
        names = ["value", "partition", "offset"]
        names += ["key"] * key + ["headers"] * headers
        columns = {n: self.table.column(n) for n in names}
        for name in {"key", "value"} & columns.keys():
            columns[name] = columns[name].cast(pa.binary())
        if timestamp:
            columns["timestamp"] = self.table.column("timestamp").cast(TIMESTAMP_TYPE, safe=False)
        return pa.table(columns)

    def leader_epoch(self, index: int) -> int:
        return -1 if self.epochs is None else int(self.epochs[index])

    def only(self, keep: np.ndarray) -> TopicTable:
        epochs = None if self.epochs is None else self.epochs[keep]
        return TopicTable(self.topic, self.table.filter(pa.array(keep, pa.bool_())), epochs)

    def letter(self, index: int, stage: str, exception: str, message: str) -> DeadLetter:
        row = self.table.slice(index, 1)
        names = row.column_names
        headers = row.column("headers")[0].as_py() if "headers" in names else None
        stamp = row.column("timestamp").cast(TIMESTAMP_TYPE, safe=False).cast(pa.int64())
        return DeadLetter(
            topic=self.topic,
            partition=row.column("partition")[0].as_py(),
            offset=row.column("offset")[0].as_py(),
            key=row.column("key")[0].as_py() if "key" in names else None,
            value=row.column("value")[0].as_py(),
            headers=[(h["key"], h["value"]) for h in headers or ()],
            timestamp=stamp[0].as_py(),
            stage=stage,
            exception=exception,
            message=message,
        )


def _values(messages: Sequence[Message]) -> pa.Array:
    """The values; large ones are never copied more than once at a time."""
    if size_of(messages) < _LARGE * max(1, len(messages)):
        return pa.array(list(map(Message.value, messages)), pa.binary())
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    offsets = np.zeros(len(messages) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    content = bytearray(int(offsets[-1]))
    valid = np.ones(len(messages), dtype=bool)
    for i, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        value = messages[i].value()
        valid[i] = value is not None
        content[start:end] = value or b""
    mask = pa.array(valid).buffers()[1]
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(messages), buffers)


def last_records(records: RawRecords, positions: Mapping[TopicPartition, int]) -> dict[int, int]:
    """The index of each partition's last record.

    Raises:
        TooEarly: a partition's first record lies before its position.
        OutOfOrder: offsets do not rise within a partition.
    """
    order = np.argsort(records.partitions, kind="stable")
    partitions, offsets = records.partitions[order], records.offsets[order]
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    ends = np.append(starts[1:], len(partitions))
    steps = np.diff(offsets)
    steps[starts[1:] - 1] = 1
    if (steps <= 0).any():
        raise OutOfOrder(records.topic)
    last = {}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        partition = int(partitions[start])
        tp = TopicPartition(records.topic, partition)
        if offsets[start] < positions.get(tp, 1 << 62):
            raise TooEarly(tp, int(offsets[start]), records.leader_epoch(int(order[start])))
        last[partition] = int(order[end - 1])
    return last


class TooEarly(OutOfOrder):
    """A record before the position, or of a partition that has none."""

    def __init__(self, tp: TopicPartition, offset: int, epoch: int) -> None:
        super().__init__(f"{tp} at offset {offset}", tp)
        self.offset, self.epoch = offset, epoch


def copied(polls: Sequence[TopicPoll]) -> list[RawRecords]:
    """The same records. Large messages are replaced with a table of their contents, which releases
    them and the fetch that each of them keeps alive."""
    return [poll.as_table() if poll.is_large else poll for poll in polls]


def by_topic(messages: Sequence[Message]) -> list[TopicPoll]:
    """Split a poll's messages by topic."""
    topics: set[str] = set(map(Message.topic, messages))  # type: ignore[arg-type]
    polls = []
    for topic in topics:
        part = messages if len(topics) == 1 else [m for m in messages if m.topic() == topic]
        count = len(part)
        polls.append(
            TopicPoll(
                topic,
                part,
                np.fromiter(map(Message.partition, part), np.int32, count),
                np.fromiter(map(Message.offset, part), np.int64, count),
            )
        )
    return polls


def advances(
    until: Mapping[TopicPartition, int],
    positions: Mapping[TopicPartition, int],
    read: Mapping[TopicPartition, int],
    written: Mapping[TopicPartition, int],
    failed: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({}),
) -> list[Advance]:
    """One advance per topic-partition, from its position to ``until``; empty ranges are left out.
    ``epochs`` holds the last record's leader epoch and the offset after it."""
    moved = []
    for tp, end in until.items():
        if end <= positions[tp]:
            continue
        epoch, after = epochs.get(tp, (-1, -1))
        lost_to_transform = read.get(tp, 0) - written.get(tp, 0) - failed.get(tp, 0)
        moved.append(
            Advance(
                OffsetRange(tp.topic, tp.partition, positions[tp], end),
                read=read.get(tp, 0),
                written=written.get(tp, 0),
                filtered=max(0, lost_to_transform),
                failed=failed.get(tp, 0),
                leader_epoch=epoch,
                epoch_offset=after if epoch >= 0 else -1,
            )
        )
    return moved
