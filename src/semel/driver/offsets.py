"""A connector's stored offsets: shown, and changed by hand while it does not run.

Those of a sink connector are its ledger's positions, those of a source connector its source
offsets. Both are read and written as Kafka Connect's REST API has them (KIP-875): a partition with
its offset.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from semel.config import CommonConfig, ConnectorConfig, SourceConnectorConfig, Type, whole
from semel.config.definition import LARGEST
from semel.core.errors import ConfigError, SemelError
from semel.core.ledger import QUERY, UNKNOWN_LOG, Hole, LedgerEntry, TopicPartition, first, firsts
from semel.core.quoting import named
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.sinks.protocols import FencesByGroup
from semel.sources.base import Measurable
from semel.sources.offsets import SourceOffsets, StoredOffsets, alter, stored_offset
from semel.tasks.publish import copies, mark
from semel.tasks.ranges import partitions

if TYPE_CHECKING:
    from semel.sinks.base import Sink
    from semel.sources.base import Source

log = logging.getLogger(__name__)

Facts = Mapping[str, Any]
OffsetChange = tuple[Facts, Facts | None]
"""A partition and the offset that it is to have; None resets it."""

_TOPIC, _PARTITION, _OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"
_SESSIONS = 30.0
"""Seconds after which a consumer group no longer lists members that are gone."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How much is left to read: of each partition, with ``lag`` None where that is not known, and
    counted in ``unit``; records if it is empty."""

    partitions: Sequence[Facts]
    unit: str = ""

    @property
    def total(self) -> int | None:
        """The sum; None if a part of it is not known."""
        known = [part["lag"] for part in self.partitions if part["lag"] is not None]
        return sum(known) if len(known) == len(self.partitions) else None


class Offsets(ABC):
    """What the plans of sink and source connectors know of their stored offsets."""

    is_source: ClassVar[bool]
    name: ClassVar[str]
    """what they are called"""
    reread: ClassVar[str]
    """what becomes of records once the offsets are forgotten"""
    noted: ClassVar[str] = ""
    """what else happens where offsets are left out"""
    none_yet: ClassVar[str]

    def __init__(self, connector: CommonConfig) -> None:
        self._connector = connector
        self.client = client_config(connector, "admin")
        """librdkafka's settings to reach the connector's brokers."""

    @property
    @abstractmethod
    def in_kafka(self) -> bool:
        """Whether Kafka holds them."""

    @abstractmethod
    def read(self) -> Sequence[tuple[Facts, Facts]]:
        """Each partition with its offset."""

    @abstractmethod
    def checked(self, given: Any) -> Sequence[OffsetChange]:
        """The offsets of a request.

        Raises:
            ConfigError: says what is wrong with them, in Kafka Connect's words.
        """

    @abstractmethod
    def set(
        self, wanted: Sequence[OffsetChange], by: str, *, force: bool = False, hint: str = ""
    ) -> Sequence[OffsetChange]:
        """Let the connector continue at these offsets; returns them with what a reset means. ``by``
        names who wants that; ``force`` accepts them whatever Kafka or the source holds. Otherwise
        an error about that ends with ``hint``, which says how to set ``force``.

        Raises:
            ConfigError: the connector runs, or does not read such a partition, or there is no such
                offset.
        """

    @abstractmethod
    def reset(self, by: str) -> None:
        """Forget all of them. ``by`` names who wants that.

        Raises:
            ConfigError: the connector runs.
        """

    @abstractmethod
    def lag(self) -> Lag | None:
        """What is left to read now; None if the source cannot tell.

        Raises:
            SemelError: the offsets, or what they point at, cannot be read.
        """

    @abstractmethod
    def begins(self) -> str:
        """Where the connector would begin, for people."""

    # As commands and answers have them

    @abstractmethod
    def stored(self) -> Mapping[str, Any]:
        """All that is stored, and where."""

    @abstractmethod
    def listed(self) -> list[dict[str, Any]]:
        """All that is stored, as a command writes it for programs."""

    @abstractmethod
    def rows(self) -> Sequence[Mapping[str, str | int]]:
        """All that is stored, for people: the rows of a table, by its titles."""

    def holes(self) -> Sequence[Hole]:
        """The offsets that positions set by hand have left out, or that are gone from Kafka."""
        return ()

    @abstractmethod
    def parsed(self, text: str) -> OffsetChange:
        """A partition and its offset, as people write them.

        Raises:
            ConfigError: the text is not of this form.
        """

    @abstractmethod
    def fact(self, wanted: OffsetChange) -> dict[str, Any]:
        """A partition and its offset, for programs."""

    @abstractmethod
    def text(self, wanted: OffsetChange) -> tuple[str, str]:
        """A partition and its offset, for people."""


class LedgerPositions(Offsets):
    """The positions in a sink connector's ledger."""

    is_source = False
    name = "positions"
    reread = "Its rows stay, so records that are read again are written again"
    noted = ", and the ledger notes the hole"
    none_yet = "the ledger holds nothing yet"

    _connector: ConnectorConfig

    def __init__(self, connector: ConnectorConfig, sink: Sink) -> None:
        super().__init__(connector)
        self._sink = sink

    @property
    def in_kafka(self) -> bool:
        return isinstance(self._sink, FencesByGroup)

    def read(self) -> Sequence[tuple[Facts, Facts]]:
        return [(_partition(tp), {_OFFSET: at}) for tp, at in sorted(self._positions().items())]

    def checked(self, given: Any) -> Sequence[OffsetChange]:
        positions = dict(_checked(entry) for entry in _entries(given))
        return [
            (_partition(tp), at if at is None else {_OFFSET: at}) for tp, at in positions.items()
        ]

    def set(
        self, wanted: Sequence[OffsetChange], by: str, *, force: bool = False, hint: str = ""
    ) -> Sequence[OffsetChange]:
        self._check_movable()
        positions = {_of(p): o[_OFFSET] for p, o in wanted if o is not None}
        positions |= self._first([_of(p) for p, o in wanted if o is None])
        for tp in positions:
            self._check_topic(tp.topic)
        current = firsts(positions) if force else self._entries_at(positions, hint)
        entries = [replace(e, start_position=0) for e in current] if force else current
        self._sink.set_positions(entries, by)
        if not self._sink.capabilities.ledger_in_group:
            self._copy(positions)
        return [(_partition(tp), {_OFFSET: at}) for tp, at in positions.items()]

    def _check_movable(self) -> None:
        """Raises ConfigError: the ledger has a query, whose state holds what was read."""
        for e in self._sink.entries():
            if e.topic_partition == QUERY:
                raise ConfigError(
                    f"connector {self._connector.name}: its query has run {e.position} batches, "
                    "and its state holds what they have read: no position can be set without it. "
                    "To begin anew, empty the target, reset all offsets (semel offsets reset), and "
                    "set checkpoint.location to a new directory"
                )

    def reset(self, by: str) -> None:
        """Forget all positions, and their copies in the consumer group.

        Raises:
            ConfigError: the connector runs, or the group has members.
        """
        self._sink.set_positions(None, by)
        if self._sink.capabilities.ledger_in_group:
            return
        # The group's offsets would be the next run's first positions.
        groups, group = Groups(self.client), self._connector.group_id
        if not _is_idle(groups, group):
            raise ConfigError(
                f"connector {self._connector.name}: its ledger is empty now, but consumer group "
                f"{group} has members, so its offsets stay. Stop the connector, and run this again"
            )
        groups.delete(group)

    def lag(self) -> Lag | None:
        positions = self._positions()
        ends = Cluster(self.client).latest(positions)
        return Lag(
            [
                {**tp._asdict(), "position": at, "end": ends[tp], "lag": max(0, ends[tp] - at)}
                for tp, at in sorted(positions.items())
            ]
        )

    def begins(self) -> str:
        entries = self._sink.entries()
        if entries:
            parts = (
                f"{e.topic_partition} at {e.position}"
                if e.topic_partition != QUERY
                else f"batch {e.position} of query {e.cluster_id}"
                for e in entries
            )
            return _said("its ledger", parts)
        connector = self._connector
        reset = f"auto.offset.reset={connector.offset_reset}"
        topics = Cluster(self.client).matching(connector)
        if not topics:
            return f"{reset}, once its topics exist"
        committed, _ = Groups(self.client).offsets(connector.group_id, partitions(topics))
        if connector.first_position == "reset":
            return reset
        positions = (f"{tp} at {at}" for tp, (at, _) in sorted(committed.items()))
        return _said(f"consumer group {connector.group_id}", positions) or reset

    def stored(self) -> Mapping[str, Any]:
        return {"entries": self.listed()}

    def listed(self) -> list[dict[str, Any]]:
        """Each entry with its holes. A partition whose position was reset has only holes."""
        entries = self._sink.entries()
        spans = [(h.topic_partition, asdict(h)) for h in self._sink.holes()]
        facts: dict[TopicPartition, dict[str, Any]] = {
            tp: {**tp._asdict(), "position": None} for tp, _ in spans
        }
        facts |= {e.topic_partition: asdict(e) for e in entries}
        own = ("from_offset", "until_offset", "reason", "by", "at")
        return [
            {**facts[tp], "holes": [{n: h[n] for n in own} for at, h in spans if at == tp]}
            for tp in sorted(facts)
        ]

    def rows(self) -> Sequence[Mapping[str, str | int]]:
        return [
            {
                "topic": e.topic,
                "partition": e.partition,
                "position": e.position,
                "read": e.records_read,
                "rows": e.rows_written,
                "filtered": e.records_filtered,
                "failed": e.records_failed,
                "lost": e.records_lost,
                "updated": e.updated_at,
            }
            for e in self._sink.entries()
        ]

    def holes(self) -> Sequence[Hole]:
        return self._sink.holes()

    def parsed(self, text: str) -> OffsetChange:
        name, _, offset = text.rpartition("=")
        topic, _, partition = name.rpartition("-")
        try:
            wanted = {_TOPIC: topic, _PARTITION: whole(partition, 0)}, {_OFFSET: whole(offset, 0)}
        except ValueError:
            topic = ""
        if not topic:
            raise ConfigError(f"{text!r} is not TOPIC-PARTITION=OFFSET, such as flights-0=1200")
        self._check_topic(topic)
        return wanted

    def fact(self, wanted: OffsetChange) -> dict[str, Any]:
        partition, offset = wanted
        return {**_of(partition)._asdict(), "position": (offset or {}).get(_OFFSET)}

    def text(self, wanted: OffsetChange) -> tuple[str, str]:
        partition, offset = wanted
        return str(_of(partition)), str((offset or {}).get(_OFFSET))

    def _positions(self) -> dict[TopicPartition, int]:
        """Those of Kafka's partitions."""
        entries = {e.topic_partition: e for e in self._sink.entries()}
        return {tp: e.position for tp, e in entries.items() if tp != QUERY}

    def _first(self, wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where ``auto.offset.reset`` would start these partitions now.

        Raises:
            ConfigError: the connector does not read such a topic, or Kafka has no such partition.
        """
        if not wanted:
            return {}
        for tp in wanted:
            self._check_topic(tp.topic)
        cluster = Cluster(self.client)
        self._check_partitions(cluster, wanted)
        is_last = self._connector.offset_reset == "latest"
        return cluster.latest(wanted) if is_last else cluster.earliest(wanted)

    def _entries_at(self, wanted: Mapping[TopicPartition, int], hint: str) -> list[LedgerEntry]:
        """Entries at these positions, of the logs that Kafka has now, from their first offsets on.

        Raises:
            ConfigError: it has no such partition or offset.
        """
        cluster = Cluster(self.client)
        self._check_partitions(cluster, wanted, hint)
        logs = cluster.logs({tp.topic for tp in wanted})
        earliest, ends = cluster.earliest(wanted), cluster.ends(wanted)
        for tp, at in wanted.items():
            if not earliest[tp] <= at <= ends[tp][0]:
                raise ConfigError(
                    f"connector {self._connector.name}: {tp}={at} is outside the log, which begins "
                    f"at {earliest[tp]} and ends at {ends[tp][0]}. Correct it{hint}"
                )
        entries = [first(tp, at, logs.get(tp.topic, UNKNOWN_LOG)) for tp, at in wanted.items()]
        return [replace(e, start_position=earliest[e.topic_partition]) for e in entries]

    def _check_topic(self, topic: str) -> None:
        """Raises ConfigError: the connector does not read this topic."""
        connector = self._connector
        if not connector.reads(topic):
            reads = ", ".join(connector.topics) or f"topics matching {connector.topics_regex}"
            raise ConfigError(
                f"connector {connector.name} does not read topic {named(topic)}; it reads {reads}"
            )

    def _check_partitions(
        self, cluster: Cluster, wanted: Collection[TopicPartition], hint: str = ""
    ) -> None:
        """Raises ConfigError: Kafka has no such partition."""
        there = cluster.topics()
        for tp in wanted:
            count = there.get(tp.topic, 0)
            if not 0 <= tp.partition < count:
                raise ConfigError(
                    f"connector {self._connector.name}: {tp} does not exist: topic "
                    f"{named(tp.topic)} has {count} partitions. Correct it{hint}"
                )

    def _copy(self, positions: Mapping[TopicPartition, int]) -> None:
        """Copy positions for lag tools. The ledger has them, so a failure is only logged."""
        groups, group = Groups(self.client), self._connector.group_id
        try:
            if _is_idle(groups, group):
                groups.set_offsets(group, copies(mark(self._sink), positions))
                return
            why = "it has members"
        except SemelError as error:
            why = str(error)
        log.warning(
            "the positions are set, but consumer group %s has no copies of them, so lag tools will "
            "show its former offsets until the connector commits: %s",
            group,
            why,
        )


class StoredSourceOffsets(Offsets):
    """The offsets of a source connector: in a topic, a file or a table."""

    is_source = True
    name = "source offsets"
    reread = "Its records stay in Kafka, and what is read again is written again"
    none_yet = "no source offsets are stored yet"
    in_kafka = True

    _connector: SourceConnectorConfig

    def __init__(self, connector: SourceConnectorConfig, source: Source) -> None:
        super().__init__(connector)
        self._source = source

    def read(self) -> Sequence[tuple[Facts, Facts]]:
        """Each source partition with its offset; empty if there is no offsets topic yet."""
        with closing(self._store()) as store:
            return store.read(expected=False).offsets

    def checked(self, given: Any) -> Sequence[OffsetChange]:
        entries = _entries(given)
        for entry in entries:
            if not isinstance(entry.get("partition"), Mapping):
                raise ConfigError("Partition objects cannot be null")
            _check_numbers(entry)
        return [(entry["partition"], entry.get("offset")) for entry in entries]

    def set(
        self, wanted: Sequence[OffsetChange], by: str, *, force: bool = False, hint: str = ""
    ) -> Sequence[OffsetChange]:
        """Let the connector continue at these offsets; None forgets a partition. A running
        connector is fenced."""
        for partition, offset in wanted:
            if offset is not None and not force:
                self._source.check_offset(partition, offset)
        self._alter(wanted)
        return wanted

    def reset(self, by: str) -> None:
        """Forget all offsets, including those that a running connector stores before it is
        fenced."""
        if self.read():
            self._alter(None)

    def lag(self) -> Lag | None:
        source = self._source
        if not isinstance(source, Measurable) or source.unit is None:
            return None
        lookup = StoredOffsets(self._connector.name, self.read()).lookup()

        def stored(partition: Facts) -> Facts | None:
            return stored_offset(self._source, partition, lookup)

        lags = source.lag(stored)
        parts = [{"partition": p, "offset": stored(p), "lag": lag} for p, lag in lags]
        return Lag(parts, source.unit)

    def begins(self) -> str:
        offsets = (f"{_listed(p)} at {_listed(o)}" for p, o in self.read())
        return _said("source offsets", offsets) or "at the beginning of the source"

    def stored(self) -> Mapping[str, Any]:
        connector = self._connector
        holds = {"topic": connector.offsets_topic}
        if connector.offsets_file:
            holds = {"file": connector.offsets_file}
        elif connector.offsets_url:
            holds = {"table": connector.offsets_table}
        return holds | {"offsets": self.listed()}

    def listed(self) -> list[dict[str, Any]]:
        return [self.fact(entry) for entry in self.read()]

    def rows(self) -> Sequence[Mapping[str, str | int]]:
        titles = ("source partition", "source offset")
        return [dict(zip(titles, self.text(entry), strict=True)) for entry in self.read()]

    def parsed(self, text: str) -> OffsetChange:
        decoder = json.JSONDecoder()
        try:
            partition, end = decoder.raw_decode(text)
            equals, rest = text[end:].lstrip()[:1], text[end:].lstrip()[1:]
            offset = json.loads(rest)
        except ValueError:
            partition, offset, equals = None, None, ""
        if equals != "=" or not isinstance(partition, dict) or not isinstance(offset, dict | None):
            raise ConfigError(
                f"{text!r} is not a source partition and its offset in JSON, such as "
                '\'{"filename":"test.txt"}={"position":8}\', or =null to forget it'
            )
        return partition, offset

    def fact(self, wanted: OffsetChange) -> dict[str, Any]:
        partition, offset = wanted
        return {"partition": dict(partition), "offset": offset}

    def text(self, wanted: OffsetChange) -> tuple[str, str]:
        partition, offset = (
            json.dumps(facts, separators=(",", ":"), ensure_ascii=False) for facts in wanted
        )
        return partition, offset

    def _alter(self, wanted: Sequence[OffsetChange] | None) -> None:
        with closing(self._store()) as store:
            store.prepare()
            alter(self._connector, store, wanted)

    def _store(self) -> SourceOffsets:
        return SourceOffsets(self._connector, Cluster(self.client))


def _is_idle(groups: Groups, group: str) -> bool:
    """Whether a group has no members, once it no longer lists those that have stopped."""
    deadline = time.monotonic() + _SESSIONS
    while not groups.is_idle(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _partition(tp: TopicPartition) -> Facts:
    return {_TOPIC: tp.topic, _PARTITION: tp.partition}


def _of(partition: Facts) -> TopicPartition:
    return TopicPartition(partition[_TOPIC], partition[_PARTITION])


def _said(where: str, offsets: Iterable[str]) -> str:
    text = ", ".join(offsets)
    return f"{where}: {text}" if text else ""


def _listed(facts: Facts) -> str:
    return ", ".join(f"{name}={value}" for name, value in facts.items())


def _entries(offsets: Any) -> Sequence[Facts]:
    if not isinstance(offsets, list) or not all(isinstance(e, Mapping) for e in offsets):
        raise ConfigError("offsets must be a list of objects with partition and offset")
    for entry in offsets:
        if not isinstance(entry.get("offset"), Mapping | None):
            raise ConfigError(f"offset={entry['offset']!r} must be an object, or null")
    return offsets


def _check_numbers(facts: Any) -> None:
    """Raises ConfigError: a number is no ``long``, which offsets are."""
    if isinstance(facts, int) and not -(2**63) <= facts < 2**63:
        raise ConfigError(f"{facts} is out of range: offsets are numbers of 64 bits")
    for value in facts.values() if isinstance(facts, Mapping) else ():
        _check_numbers(value)
    for value in facts if isinstance(facts, list) else ():
        _check_numbers(value)


def _checked(entry: Facts) -> tuple[TopicPartition, int | None]:
    """A position of a request; None resets it."""
    partition = entry.get("partition")
    if not isinstance(partition, Mapping):
        raise ConfigError("The partition for a sink connector offset cannot be null or missing")
    if _TOPIC not in partition or _PARTITION not in partition:
        raise ConfigError(
            "The partition for a sink connector offset must contain the keys "
            f"'{_TOPIC}' and '{_PARTITION}'"
        )
    if partition[_TOPIC] is None:
        raise ConfigError("Kafka topic names must be valid strings and may not be null")
    if partition[_PARTITION] is None:
        raise ConfigError("Kafka partitions must be valid numbers and may not be null")
    number = _whole(
        partition[_PARTITION],
        "Failed to parse the following Kafka partition value in the provided offsets: '{}'. "
        "Partition values for sink connectors need to be integers.",
        most=LARGEST[Type.INT],
    )
    tp = TopicPartition(_java_text(partition[_TOPIC]), number)
    if number < 0:
        raise ConfigError(f"Kafka partitions may not be negative: {number}")
    offset = entry.get("offset")
    if offset is None:
        return tp, None
    if _OFFSET not in offset:
        raise ConfigError(
            f"The offset for a sink connector should either be null or contain the key '{_OFFSET}'"
        )
    position = _whole(
        offset[_OFFSET],
        "Failed to parse the following Kafka offset value in the provided offsets: '{}'. "
        "Offset values for sink connectors need to be integers.",
    )
    if position < 0:
        raise ConfigError(f"Kafka offsets may not be negative: {position}")
    return tp, position


def _whole(value: Any, otherwise: str, most: int = LARGEST[Type.LONG]) -> int:
    try:
        return whole(_java_text(value), -most - 1, most)
    except ValueError:
        raise ConfigError(otherwise.format(_java_text(value))) from None


def _java_text(value: Any) -> str:
    """A JSON value as Java shows it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
