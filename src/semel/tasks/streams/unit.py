"""One partition of a sub-topology at work: what was read and waits for its turn, the steps that are
made of it, and what leaves them.

A step takes records of all topics in the order of time. A topic whose records may still be older
than those of others holds these up, see ``max.task.idle.ms``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from semel import converters
from semel.config import ConnectorConfig, under
from semel.converters.base import Converter, Decoded, Failure
from semel.converters.json.columns import JSON
from semel.converters.semantic import plain
from semel.core import records as core
from semel.core.errors import ConfigError, Unavailable
from semel.core.ledger import Advance, OffsetRange, TopicPartition
from semel.core.quoting import named
from semel.core.records import DeadLetter, one_array
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import partition_of
from semel.kafka.messages import ANY, Messages
from semel.kafka.transactions import Report
from semel.streams import codec
from semel.streams.changelog import POSITION, Marker, Topics, positions_of
from semel.streams.records import Records, concatenated, merged
from semel.streams.store import Changes, State, Store
from semel.streams.topology import Source, SubTopology
from semel.tasks.poll import RawRecords

_FIRST = 1
"""The first time that a record can be sent with: librdkafka takes 0 for now, which would move a
stream's time to the present."""
_PLACED = 100
"""How many keys of a partition tell whether all are where they are expected."""


class Decoder:
    """Makes records of what one topic holds."""

    def __init__(self, connector: ConnectorConfig, source: Source) -> None:
        raw = {**connector.originals, **source.config}
        self._schema: pa.Schema | None = None
        self._key = self._value = None
        if not source.is_repartition:
            self._key = converter_of(raw, "key.converter", connector.key_converter)
            self._value = converter_of(raw, "value.converter", connector.value_converter)

    def expect(self, schema: pa.Schema) -> None:
        """Take the schema that was inferred from a sample."""
        self._schema = schema

    def infer(self, values: pa.Array) -> pa.Schema | None:
        """The schema inferred from a sample; None if there is none."""
        return None if self._value is None else self._value.infer(values)

    def records(self, poll: RawRecords) -> tuple[Records, dict[int, DeadLetter]]:
        """The records, and those that are bad by their index; these are null."""
        raw = poll.raw(key=True, timestamp=True)
        packed_keys, packed = (one_array(raw.column(name)) for name in ("key", "value"))
        times = one_array(raw.column("timestamp")).cast(pa.int64())
        if self._key is None or self._value is None:
            return codec.from_wire(packed_keys, packed, times), {}
        keys, bad_keys = _decoded(self._key.decode, packed_keys)
        if self._schema is None and len(packed) > packed.null_count:
            self._schema = self._value.infer(packed)
        values, bad_values = _decoded(partial(self._value.decode, expected=self._schema), packed)
        bad = {
            f.index: poll.letter(f.index, stage, f.exception, f.message)
            for stage, failures in (("VALUE_CONVERTER", bad_values), ("KEY_CONVERTER", bad_keys))
            for f in failures
        }
        return Records(keys, values, times), bad


def _decoded(
    decode: Callable[[pa.Array], Decoded], packed: pa.Array
) -> tuple[pa.Array, Sequence[Failure]]:
    """Keys or values, and those that are bad. What a poll happens to hold beside a record does not
    make it bad: values whose types contradict each other are decoded apart, unless they are JSON
    together, which has each as it was written."""
    decoded = decode(packed)
    together = plain(decoded.values), decoded.failures
    is_complete = not decoded.failures or together[0].type == JSON
    if is_complete or decoded.apart is None or not np.ptp(decoded.apart):
        return together
    turn = np.argsort(decoded.apart, kind="stable")
    groups = np.split(turn, np.flatnonzero(np.diff(decoded.apart[turn])) + 1)
    parts = [_decoded(decode, packed.take(pa.array(rows))) for rows in groups]
    try:
        values = concatenated([part for part, _ in parts]).take(pa.array(np.argsort(turn)))
    except pa.ArrowException:  # no type holds all
        return together
    failures = [
        replace(f, index=int(rows[f.index]))
        for rows, (_, failed) in zip(groups, parts, strict=True)
        for f in failed
    ]
    return values, failures


def converter_of(raw: Mapping[str, str], where: str, default: str) -> Converter:
    """The converter of keys or values that a configuration names."""
    converter = converters.create(
        raw.get(where) or default,
        under(raw, f"{where}."),
        is_key=where.startswith("key"),
        where=where,
        evolve=True,
    )
    converter.keep_text()
    converter.expect_others()
    return converter


@dataclass(slots=True)
class _Part:
    """Records of one poll."""

    records: Records
    offsets: np.ndarray
    epoch: Callable[[int], int]

    def split(self, count: int) -> tuple[_Part, _Part]:
        rows = np.arange(len(self.offsets))
        return self._only(rows[:count]), self._only(rows[count:])

    def _only(self, rows: np.ndarray) -> _Part:
        epoch = self.epoch
        return _Part(self.records.take(rows), self.offsets[rows], lambda n: epoch(int(rows[n])))


class Queue:
    """What was read of one topic-partition and waits. ``position`` is the next offset to process,
    ``end`` the next one to be read."""

    def __init__(self, tp: TopicPartition, position: int) -> None:
        self.topic_partition = tp
        self.position = self.end = position
        self.letters: list[tuple[DeadLetter, int]] = []
        """What is said of bad records, and the leader epoch of each."""
        self.stop: DeadLetter | None = None
        """The bad record that ends the connector, once everything before it is committed."""
        self._parts: list[_Part] = []
        self._at_end = False
        self._empty_since = time.monotonic()

    def __len__(self) -> int:
        return sum(len(part.offsets) for part in self._parts)

    def holds(self, count: int, size: int) -> bool:
        """Whether so many records wait, or keys and values of so many bytes."""
        records = [part.records for part in self._parts]
        return len(self) >= count or sum(r.keys.nbytes + r.values.nbytes for r in records) >= size

    def add(self, records: Records, offsets: np.ndarray, epoch: Callable[[int], int]) -> None:
        """Add what has come; the letters of those that are bad have been added."""
        if self.stop is not None:
            before = offsets < self.stop.offset
            if not before.all():
                rows = np.flatnonzero(before)
                self.end = self.stop.offset
                if len(rows):
                    self._parts.append(_Part(records, offsets, epoch)._only(rows))
                return
        self._at_end = False
        self.end = int(offsets[-1]) + 1
        self._parts.append(_Part(records, offsets, epoch))

    def reached(self, end: int) -> None:
        """The log's end was seen there."""
        if self.stop is None and end >= self.end:
            self.end = end
            self._at_end = True

    @property
    def times(self) -> np.ndarray:
        parts = [np.asarray(part.records.times) for part in self._parts]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def may_hold_up(self, idle: float) -> bool:
        """Whether others must wait for what may still come, once it is empty. ``idle`` is how many
        seconds they wait for what has not been written; negative: for nothing."""
        if idle < 0 or self.stop is not None:
            return False
        if not self._at_end:
            return True
        return idle > 0 and (len(self) > 0 or time.monotonic() - self._empty_since < idle)

    def take(self, count: int) -> tuple[list[Records], int, int]:
        """The next records, and the leader epoch of the last one, with the offset after it."""
        taken, epoch, after = [], -1, -1
        while count > 0:
            part = self._parts.pop(0)
            if len(part.offsets) > count:
                part, rest = part.split(count)
                self._parts.insert(0, rest)
            count -= len(part.offsets)
            taken.append(part.records)
            epoch, after = part.epoch(len(part.offsets) - 1), int(part.offsets[-1]) + 1
        self.position = self.end if not self._parts else max(after, self.position)
        if not self._parts:
            self._empty_since = time.monotonic()
        return taken, epoch, after

    def take_letters(self) -> list[tuple[DeadLetter, int]]:
        """The letters of bad records before the position, and the leader epoch of each."""
        letters = [bad for bad in self.letters if bad[0].offset < self.position]
        self.letters = self.letters[len(letters) :]
        return letters


@dataclass(frozen=True, slots=True)
class Step:
    """What one step has made: what its stores have changed, where its partition's positions are
    then, and what leaves, by sink."""

    unit: Unit
    changes: Changes
    marker: Marker
    outputs: Mapping[str, Records]
    advances: Sequence[Advance]
    letters: Sequence[DeadLetter] = field(default=())


class Unit:
    """A partition of a sub-topology. ``decoders`` and ``real``, the names in Kafka, are by topic
    of the topology; so are the positions of ``marker``. ``shared`` are the stores of global
    tables, ``results`` the sinks whose records count as written."""

    def __init__(
        self,
        sub: SubTopology,
        partition: int,
        state: State,
        decoders: Mapping[str, Decoder],
        real: Mapping[str, str],
        shared: Mapping[str, Store],
        results: Collection[str],
    ) -> None:
        self.sub = sub
        self._shared = shared
        self._results = results
        self.partition = partition
        self.state = state
        self._decoders = decoders
        self._real = real
        self.marker = Marker({}, {}, "")
        self.checkpointed = time.monotonic()
        self.begin(self.marker)

    def begin(self, marker: Marker) -> None:
        """Continue from a position that the state has reached; nothing waits."""
        self.marker = self._next = marker
        self.state.drop()
        self.processor = self.sub.processor({**self._shared, **self.state.stores})
        self.queues = {
            topic: Queue(TopicPartition(self._real[topic], self.partition), at)
            for topic, at in marker.positions.items()
        }

    def add(self, topic: str, poll: RawRecords, stops: bool) -> None:
        """Queue records of a topic of the topology. With ``stops``, the first bad one ends the
        connector."""
        queue = self.queues[topic]
        records, bad = self._decoders[topic].records(poll)
        if bad and stops:
            queue.stop = queue.stop or bad[min(bad)]
        else:
            queue.letters += [(bad[at], poll.leader_epoch(at)) for at in sorted(bad)]
        kept = np.delete(np.arange(len(poll.offsets)), list(bad))
        offsets, epoch = poll.offsets, poll.leader_epoch
        if len(kept) == len(offsets):
            queue.add(records, offsets, epoch)
        elif len(kept):
            queue.add(records.take(kept), offsets[kept], lambda n: epoch(int(kept[n])))
        if queue.stop is None:
            queue.end = max(queue.end, int(offsets[-1]) + 1)

    def step(self, idle: float, *, everything: bool = False) -> Step | None:
        """Process what may be processed now; None if nothing moves."""
        before = {topic: queue.position for topic, queue in self.queues.items()}
        ready = {topic: len(queue) for topic, queue in self.queues.items()}
        if not everything:
            ready = self._first(self._ready(idle), self.sub.records_per_step)
        inputs: dict[str, Records] = {}
        epochs, read = {}, {}
        for topic, queue in self.queues.items():
            if ready[topic] or not len(queue):
                parts, *epochs[topic] = queue.take(ready[topic])
                read[topic] = ready[topic]
                if parts:
                    inputs[topic] = merged(_in_row(parts))
        moved = {t: q.position for t, q in self.queues.items() if q.position > before[t]}
        if not moved:
            return None
        if inputs:
            self.processor.process(inputs)
        outputs = {name: merged(parts) for name, parts in self.processor.finish().items()}
        self._next = replace(self._next, positions={**self._next.positions, **moved})
        letters = {topic: self.queues[topic].take_letters() for topic in moved}
        rows = sum(len(records) for name, records in outputs.items() if name in self._results)
        advances: list[Advance] = []
        for topic, until in moved.items():
            epoch, after = epochs.get(topic, (-1, -1))
            failed = len(letters[topic])
            if failed:
                letter, in_epoch = letters[topic][-1]
                if in_epoch >= 0 and letter.offset >= after:
                    epoch, after = in_epoch, letter.offset + 1
            advances.append(
                Advance(
                    OffsetRange(self._real[topic], self.partition, before[topic], until),
                    read=read.get(topic, 0) + failed,
                    written=0 if advances else rows,
                    failed=failed,
                    leader_epoch=epoch,
                    epoch_offset=after if epoch >= 0 else -1,
                )
            )
        every = [letter for part in letters.values() for letter, _ in part]
        return Step(self, self.state.cut(), self._next, outputs, advances, every)

    def _ready(self, idle: float) -> dict[str, int]:
        """How many records of each topic may be processed: those before which no other can come.
        The next one is always of the topic whose head is the oldest, so records count by the
        latest time up to them."""
        if len(self.queues) == 1:
            return {topic: len(queue) for topic, queue in self.queues.items()}
        latest = {t: np.maximum.accumulate(queue.times) for t, queue in self.queues.items()}
        holding = [t for t, queue in self.queues.items() if queue.may_hold_up(idle)]
        counts = {}
        for topic, queue in self.queues.items():
            count = len(queue)
            for other in holding:
                if other == topic:
                    continue
                if not len(latest[other]):
                    count = 0
                    break
                side = "right" if topic < other else "left"
                bound = latest[other][-1]
                count = min(count, int(np.searchsorted(latest[topic], bound, side)))  # type: ignore[call-overload]
            counts[topic] = count
        return counts

    def _first(self, ready: dict[str, int], most: int | None) -> dict[str, int]:
        """How many records of each topic are among the first ``most``, in the order of time."""
        if most is None or sum(ready.values()) <= most:
            return ready
        names = sorted(ready)
        latest = [np.maximum.accumulate(self.queues[t].times)[: ready[t]] for t in names]
        topics = np.repeat(np.arange(len(names)), [len(times) for times in latest])
        first = np.lexsort((topics, np.concatenate(latest)))[:most]
        counts = np.bincount(topics[first], minlength=len(names))
        return dict(zip(names, counts.tolist(), strict=True))

    @property
    def stop(self) -> DeadLetter | None:
        """The bad record before which everything is processed."""
        stops = [q.stop for q in self.queues.values() if q.stop is not None and not len(q)]
        return stops[0] if stops else None


def _in_row(parts: Sequence[Records]) -> list[Records]:
    """Records of one topic, one after another."""
    start, ordered = 0, []
    for part in parts:
        ordered.append(part.holding(order=np.arange(start, start + len(part))))
        start += len(part)
    return ordered


class Outputs:
    """What steps send to Kafka: records for topics, what stores have changed, and the positions
    that this leads to."""

    def __init__(self, connector: ConnectorConfig, topics: Topics, cluster: Cluster) -> None:
        self._connector = connector
        self._topics = topics
        self._cluster = cluster
        self._counts: Mapping[str, int] = {}
        self._converters: dict[tuple[str, str], Converter] = {}

    def send(self, producer: Producer, report: Report, step: Step) -> None:
        """Send what a step has made, within the producer's transaction."""
        unit = step.unit
        partition = unit.partition
        for store, topic in self._topics.changelogs(unit.sub).items():
            changed = step.changes.get(store)
            if changed:
                Messages(
                    topic,
                    "",
                    pa.chunked_array([pa.array(list(changed), pa.binary())]),
                    pa.chunked_array([pa.array(list(changed.values()), pa.binary())]),
                    targets=[partition] * len(changed),
                ).send_in_transaction(producer, report)
        for name, records in step.outputs.items():
            messages = self.messages(unit.sub, name, records)
            if messages is not None:
                messages.send_in_transaction(producer, report)
        self.mark(producer, report, unit.sub, partition, step.marker)

    def mark(
        self,
        producer: Producer,
        report: Any,
        sub: SubTopology,
        partition: int,
        marker: Marker,
    ) -> None:
        """Send how far the state of a partition has come."""
        topic = positions_of(self._connector.name, sub.number)
        producer.produce(topic, marker.dumped(local=False), POSITION, partition, report)

    def messages(self, sub: SubTopology, name: str, records: Records) -> Messages | None:
        """The messages of a sink's records; None if they go to the target."""
        sink = sub.sinks[name]
        if sink.topic is None or not len(records):
            return None
        topic, targets, times = self._topics.real(sink.topic), None, records.times
        if sink.is_repartition:
            times = pc.max_element_wise(times, _FIRST)
            keys, values = codec.to_wire(records)
            if (beside := self._topics.beside(sink.topic)) is not None:
                as_there = self._encoded(beside.topic, "key", beside.config, records.keys)
                targets = self._places(topic, as_there)
        else:
            keys = self._encoded(sink.topic, "key", sink.config, records.keys)
            values = self._encoded(sink.topic, "value", sink.config, records.values)
        return Messages(
            topic,
            "",
            pa.chunked_array([keys]),
            pa.chunked_array([values]),
            targets,
            times.to_pylist(),
        )

    def check_places(self, poll: RawRecords, place: TopicPartition) -> None:
        """Check that a topic's first keys are where records that are distributed anew look for
        them. These go by the bytes that the topic's converter makes of a key.

        Raises:
            ConfigError: its producers distribute keys in another way.
            Unavailable: the topic was deleted.
        """
        count = _count(self._cluster.topics(), place.topic)
        _, source = self._topics.read[place.topic]
        keys = one_array(poll.raw(key=True, timestamp=False).column("key")).drop_null()
        for key in keys[:_PLACED].unique().to_pylist():
            written = self._rewritten(source, key)
            if (expected := partition_of(written, count)) != place.partition:
                text, as_written = (k.decode(errors="backslashreplace") for k in (key, written))
                other = "" if written == key else f", which semel writes as {named(as_written)},"
                raise ConfigError(
                    f"connector {self._connector.name}: key {named(text)}{other} of topic "
                    f"{named(place.topic)} is in partition {place.partition}, but Kafka's default "
                    f"partitioner puts it in partition {expected}. The topic is joined with "
                    "records whose keys the topology sets, and equal keys would not meet. Produce "
                    "the topic with partitioner=murmur2_random (clients on librdkafka have "
                    "another default), or call repartition() on its stream"
                )

    def _rewritten(self, source: Source, key: bytes) -> bytes:
        """The bytes of a key as the topology makes them; the same bytes if it cannot be read."""
        one = pa.array([key], pa.binary())
        decoded = self._converter(source.topic, "key", source.config).decode(one)
        if decoded.failures or decoded.values.null_count:
            return key
        values = plain(decoded.values)
        written = self._encoded(source.topic, "key", source.config, values)
        return bytes(written[0].as_py())

    def _places(self, topic: str, keys: pa.Array) -> list[int]:
        """The partition of each key of a topic."""
        if topic not in self._counts:
            self._counts = self._cluster.topics()
        count = _count(self._counts, topic)
        encoded = keys.dictionary_encode()
        places = pa.array([partition_of(key, count) for key in encoded.dictionary.to_pylist()])
        partitions: list[int] = places.take(encoded.indices).fill_null(ANY).to_pylist()
        return partitions

    def _encoded(
        self, topic: str, what: str, config: Mapping[str, Any], values: pa.Array
    ) -> pa.Array:
        """Keys or values as a topic has them. Without a schema, keys have no fields that are null:
        whether they have others depends on what was stored or read together."""
        converter = self._converter(topic, what, config)
        write = partial(_bytes, converter)
        varies = what == "key" and pa.types.is_struct(values.type) and values.type.num_fields
        if varies and not converter.has_schemas:
            return codec.without_nulls(values, write)
        return write(values)

    def _converter(self, topic: str, what: str, config: Mapping[str, Any]) -> Converter:
        if (topic, what) not in self._converters:
            connector = self._connector
            default = connector.key_converter if what == "key" else connector.value_converter
            raw = {**connector.originals, **config}
            converter = converter_of(raw, f"{what}.converter", default)
            self._converters[topic, what] = converter.for_topic(topic)
        return self._converters[topic, what]


def _count(counts: Mapping[str, int], topic: str) -> int:
    """The number of partitions of a topic, which may have been deleted meanwhile."""
    if topic not in counts:
        raise Unavailable(f"topic {named(topic)} does not exist. Was it deleted?")
    return counts[topic]


def _bytes(converter: Converter, values: pa.Array) -> pa.Array:
    if pa.types.is_binary(values.type) or pa.types.is_null(values.type):
        return values.cast(pa.binary())
    return converter.encode(values)


def leaving(name: str, records: Records, partition: int) -> core.ConnectRecords:
    """Records on their way to the target. Their order counts, not where they come from."""
    count = len(records)
    origin = {
        core.TOPIC: pa.repeat(pa.scalar(name), count),
        core.PARTITION: pa.repeat(pa.scalar(partition, pa.int32()), count),
        core.OFFSET: pa.array(np.arange(count)),
        core.TIMESTAMP: records.times.cast(core.TIMESTAMP_TYPE),
    }
    return core.ConnectRecords(name, pa.table(origin), records.keys, records.values)
