"""Where reading begins: the ledger's positions, and whether they still point at the same
records."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, OffsetOutOfRange, SemelError, TransientError, Unavailable
from semel.core.ledger import (
    RECREATED,
    TRUNCATED,
    Advance,
    Hole,
    LedgerEntry,
    LogId,
    OffsetRange,
    Rebase,
    TopicPartition,
    first,
)
from semel.core.quoting import named
from semel.kafka.answers import SEEK_AGAIN, UNREADABLE
from semel.kafka.cluster import Cluster
from semel.sinks.base import Sink
from semel.tasks import expendable

log = logging.getLogger(__name__)

_PATIENCE = 20.0
_LIMITS = expendable.Limits(memory=1024 * 1024 * 1024, patience=2 * _PATIENCE)
_SILENT = "Kafka at {} does not say whether the log of {} was truncated"
_END = re.compile(r"broker end offset is (-?\d+)")
"""What librdkafka says if the log is not the one that was read; only the text shows it."""
_ANSWERS = (*SEEK_AGAIN, *UNREADABLE, KafkaError._PARTITION_EOF)


def partitions(topics: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of topics, given the number that each has."""
    return [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]


def entering(
    sink: Sink, cluster: Cluster, new: Mapping[TopicPartition, int], known: Collection[str]
) -> list[LedgerEntry]:
    """First entries of partitions that have appeared, with those of the other partitions of a topic
    that is not ``known``, if the sink wants them at once."""
    topics = {tp.topic for tp in new} - set(known)
    positions = new
    if topics and sink.capabilities.enters_whole_topics:
        counts = cluster.topics()
        present = set(partitions({topic: counts.get(topic, 0) for topic in topics}))
        positions = {**cluster.earliest(present - new.keys()), **new}
    return first_entries(sink, positions, cluster.logs({tp.topic for tp in positions}))


def first_entries(
    sink: Sink, positions: Mapping[TopicPartition, int], logs: Mapping[str, LogId]
) -> list[LedgerEntry]:
    """First entries, with the ids of these logs and the current targets."""
    targets = sink.targets({tp.topic for tp in positions})
    return [
        first(tp, at, logs.get(tp.topic, LogId()), str(targets.get(tp.topic) or ""))
        for tp, at in positions.items()
    ]


def positions(
    connector: ConnectorConfig, sink: Sink, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The position of each partition, see :func:`stored_entries`."""
    entries = stored_entries(connector, sink, cluster, partitions)
    return {tp: entry.position for tp, entry in entries.items()}


def topics_now(connector: ConnectorConfig, cluster: Cluster) -> dict[str, int]:
    """The topics of a running connector, with their numbers of partitions.

    Raises:
        Unavailable: one was deleted. It may be created again, but is a different topic then.
    """
    try:
        return cluster.matching(connector)
    except ConfigError as missing:
        raise Unavailable(str(missing)) from None


def stored_entries(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    diverged: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, LedgerEntry]:
    """The entry of each partition, compared with the log that Kafka has.

    A partition that appeared while the connector runs is entered at its earliest offset. With
    ``offset.out.of.range=earliest`` a hole left by retention is recorded and skipped; with
    ``topic.recreated=earliest`` and ``log.truncated=continue`` an entry of another log is moved.
    Entries whose log was not known learn it.

    ``diverged`` holds offsets below the position at which a consumer has met records that were not
    there when they were read.

    Raises:
        OffsetOutOfRange: the position points at records that Kafka does not have, or at others.
        LedgerConflict: another task has moved an entry meanwhile.
    """
    logs = cluster.logs({tp.topic for tp in partitions})  # first, as the offsets may be newer
    stored = {e.topic_partition: e for e in sink.entries()}
    earliest = cluster.earliest(partitions)
    new = {tp: earliest[tp] for tp in partitions if tp not in stored}
    if new:
        entered = entering(sink, cluster, new, {tp.topic for tp in stored})
        current = sink.start(entered)
        stored |= {e.topic_partition: _at(e, current[e.topic_partition]) for e in entered}
    entries = {tp: stored[tp] for tp in partitions}
    entries |= _of_other_logs(connector, sink, cluster, entries, logs, earliest)
    behind = {tp: e for tp, e in entries.items() if e.position < earliest[tp]}
    if behind:
        entries |= _skip(connector, sink, behind, earliest)
    entries |= _truncated(connector, sink, cluster, entries, earliest, diverged or {})
    return entries | _adopt(sink, entries, logs)


def _at(entry: LedgerEntry, position: int) -> LedgerEntry:
    """The entry at the position that is stored: another task may have entered it first."""
    return replace(entry, position=position, start_position=position)


def _adopt(
    sink: Sink, entries: Mapping[TopicPartition, LedgerEntry], logs: Mapping[str, LogId]
) -> dict[TopicPartition, LedgerEntry]:
    """Add the ids that entries lack."""
    adopted = {}
    for tp, entry in entries.items():
        completed = entry.log.completed(logs.get(tp.topic, LogId()))
        if completed != entry.log:
            adopted[tp] = replace(entry, **completed._asdict())
    if adopted:
        sink.rebase([Rebase(entries[tp], entry) for tp, entry in adopted.items()])
    return adopted


def _skip(
    connector: ConnectorConfig,
    sink: Sink,
    behind: Mapping[TopicPartition, LedgerEntry],
    earliest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, LedgerEntry]:
    if connector.offset_out_of_range == "stop":
        facts = "; ".join(
            f"{tp}: stored position {e.position}, earliest available {earliest[tp]}, "
            f"{earliest[tp] - e.position} records lost"
            for tp, e in sorted(behind.items())
        )
        raise OffsetOutOfRange(
            f"connector {connector.name}: retention removed records before they were read. "
            f"{facts}. To continue and record the hole, set offset.out.of.range=earliest"
        )
    entries = {}
    for tp, entry in behind.items():
        hole = OffsetRange(*tp, entry.position, earliest[tp])
        skipped = Advance(hole, lost=earliest[tp] - entry.position, log=entry.log)
        sink.advance([skipped])
        entries[tp] = entry.after(skipped, entry.updated_at)
    return entries


# Another log of the same name


def _of_other_logs(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    entries: Mapping[TopicPartition, LedgerEntry],
    logs: Mapping[str, LogId],
    earliest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, LedgerEntry]:
    """The entries of recreated topics, moved to the beginnings of the new topics."""
    others = {
        tp: e for tp, e in entries.items() if tp.topic in logs and e.log.contradicts(logs[tp.topic])
    }
    if not others:
        return {}
    if connector.topic_recreated == "stop":
        ends = cluster.ends(others)
        raise OffsetOutOfRange(
            f"connector {connector.name}: "
            + " ".join(
                _other_log(topic, others, logs[topic], earliest, ends)
                for topic in sorted({tp.topic for tp in others})
            )
            + " To read the new log from its beginning, set topic.recreated=earliest; rows of the "
            "former records stay. If it holds the same records under the same offsets, confirm the "
            "positions with semel offsets set"
        )
    rebases = []
    for tp, e in others.items():
        # The former log's records and rows still count, so that the totals stay right.
        new = replace(
            e,
            position=earliest[tp],
            start_position=earliest[tp],
            leader_epoch=-1,
            epoch_offset=-1,
            **logs[tp.topic]._asdict(),
        )
        rebases.append(Rebase(e, new, _hole(tp, e.start_position, e.position, RECREATED)))
        log.warning(
            "%s: the topic was created again, or is another cluster's; it is read from its "
            "beginning, offset %d. Rows of offsets %d to %d of the former one stay in the target",
            tp,
            earliest[tp],
            e.start_position,
            e.position - 1,
        )
    sink.rebase(rebases)
    return {r.new.topic_partition: r.new for r in rebases}


def _other_log(
    topic: str,
    others: Mapping[TopicPartition, LedgerEntry],
    now: LogId,
    earliest: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> str:
    entries = {tp: e for tp, e in sorted(others.items()) if tp.topic == topic}
    before = next(iter(entries.values())).log
    if before.cluster_id and now.cluster_id and before.cluster_id != now.cluster_id:
        what = (
            f"topic {named(topic)} is in another cluster: its positions belong to cluster "
            f"{before.cluster_id}, and this is {now.cluster_id}."
        )
    else:
        what = (
            f"topic {named(topic)} was deleted and created again: its positions belong to topic id "
            f"{before.topic_id}, and it has id {now.topic_id} now."
        )
    facts = "; ".join(
        f"{tp}: stored position {e.position}, the new log holds offsets "
        f"{_span(earliest[tp], ends[tp][0])}, none of which were committed"
        for tp, e in entries.items()
    )
    return f"{what} {facts}."


# The same log, cut


def _truncated(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    stored: Mapping[TopicPartition, LedgerEntry],
    earliest: Mapping[TopicPartition, int],
    diverged: Mapping[TopicPartition, int],
) -> dict[TopicPartition, LedgerEntry]:
    """The entries whose last records are no longer in the log, moved back to where the logs
    diverge.

    A known epoch is of no use once retention has removed its record.

    Raises:
        Unavailable: a topic was replaced between the requests for its id and for its offsets.
    """
    ends = cluster.ends(stored)
    forgotten = {
        tp: replace(e, leader_epoch=-1, epoch_offset=-1)
        for tp, e in stored.items()
        if 0 <= e.epoch_offset < earliest[tp]
    }
    entries = {**stored, **forgotten}
    cut = divergences(cluster, entries.values(), ends)
    for tp, at in diverged.items():
        if tp in entries and at < entries[tp].position:  # it may be another task's by now
            cut[tp] = min(at, cut.get(tp, at))
    for tp, e in entries.items():
        if e.position > ends[tp][0]:
            cut.setdefault(tp, ends[tp][0])
    if not cut:
        return forgotten
    _check_same(connector, cluster, [entries[tp] for tp in cut])
    unknown = sorted(tp for tp in cut if not entries[tp].topic_id)
    if unknown:
        tp = unknown[0]
        raise OffsetOutOfRange(
            f"connector {connector.name}: the ledger is at {entries[tp].position} for {tp}, "
            f"but the partition ends at {ends[tp][0]}. Was the topic deleted and created again, or "
            "its log truncated? The ledger does not know which topic it was: run semel offsets "
            "reset with the connector's file, or semel offsets set"
        )
    lost = sorted(tp for tp, at in cut.items() if at < 0)
    if connector.log_truncated == "stop" or lost:
        raise OffsetOutOfRange(
            f"connector {connector.name}: "
            + "; ".join(_cut(entries[tp], at, ends[tp][0]) for tp, at in sorted(cut.items()))
            + (
                ". Where the logs diverge is not known: find the next offset to read, and set it "
                "with semel offsets set"
                if lost
                else ". To continue where the logs diverge, set log.truncated=continue: the "
                "rows of lost records stay, and the ledger says which they are"
            )
        )
    rebases = []
    for tp, at in cut.items():
        e, back = entries[tp], max(at, earliest[tp])
        new = replace(
            e,
            position=back,
            start_position=min(back, e.start_position),
            leader_epoch=-1,
            epoch_offset=-1,
        )
        rebases.append(Rebase(e, new, _hole(tp, back, e.position, TRUNCATED)))
        log.warning("%s; reading continues from there", _cut(e, at, ends[tp][0]))
    sink.rebase(rebases)
    return forgotten | {r.new.topic_partition: r.new for r in rebases}


def _check_same(
    connector: ConnectorConfig, cluster: Cluster, entries: Collection[LedgerEntry]
) -> None:
    """Check that no topic was created again between two requests: that looks like a truncated log,
    and only ids that are fetched after the offsets tell the two apart."""
    logs = cluster.logs({e.topic for e in entries})
    for e in entries:
        if e.topic not in logs or e.log.contradicts(logs[e.topic]):
            raise Unavailable(
                f"connector {connector.name}: topic {named(e.topic)} was deleted or created again "
                "while its offsets were compared with the ledger's positions"
            )


def _cut(entry: LedgerEntry, fork: int, end: int) -> str:
    tp, at = entry.topic_partition, entry.position
    if fork < 0:
        return (
            f"{tp}: the ledger is at {at}, read in leader epoch {entry.leader_epoch}, of which "
            "Kafka knows nothing. Was it restored from an older state?"
        )
    return (
        f"{tp}: the log was truncated, as after an unclean leader election: the stored position is "
        f"{at}, but from offset {fork} on the log is a different one. {at - fork} records that "
        f"were read are gone from Kafka (offsets {_span(fork, at)}), {max(0, end - fork)} were not "
        f"read (offsets {_span(fork, end)})"
    )


def _span(start: int, end: int) -> str:
    return f"{start} to {end - 1}" if end > start else "none"


def _hole(tp: TopicPartition, start: int, until: int, reason: str) -> Hole | None:
    return Hole(*tp, start, until, reason) if start < until else None


# Where a log diverges from the log that was read, by leader epochs (KIP-320)


def assignment(entry: LedgerEntry) -> KafkaPartition:
    """The assignment with which a consumer continues from an entry and notices a truncated log.

    It begins after the last record, whose epoch is known. The offsets between there and the
    position held no records. If one arrives, the log has diverged between the two.
    """
    if entry.leader_epoch < 0 or not 0 <= entry.epoch_offset <= entry.position:
        return KafkaPartition(*entry.topic_partition, entry.position)
    return KafkaPartition(
        *entry.topic_partition, entry.epoch_offset, leader_epoch=entry.leader_epoch
    )


def divergences(
    cluster: Cluster,
    entries: Collection[LedgerEntry],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, int]:
    """The :func:`forks` of these entries. Only a change of leaders truncates a log, and it raises
    the epoch; otherwise no broker is asked. The answer comes with a batch of records, so a process
    of its own takes it.

    Raises:
        TransientError: Kafka does not answer for all of them.
        SemelError: a batch holds too much.
    """
    asked = {
        e.topic_partition: e
        for e in entries
        if e.leader_epoch >= 0 and ends[e.topic_partition][1] not in (-1, e.leader_epoch)
    }
    if not asked:
        return {}
    where = ", ".join(map(str, sorted(asked)))
    try:
        return expendable.call(_LIMITS, forks, cluster.config, asked)
    except TimeoutError:
        raise TransientError(_SILENT.format(cluster.config["bootstrap.servers"], where)) from None
    except expendable.Died:
        raise SemelError(
            f"the process that asked whether the log of {where} was truncated has died: a batch "
            f"of records there holds more than {_LIMITS.memory:,} bytes once it is unpacked"
        ) from None


def forks(
    config: Mapping[str, Any], entries: Mapping[TopicPartition, LedgerEntry]
) -> dict[TopicPartition, int]:
    """The offsets from which the logs differ from those that were read, for partitions that have
    lost records; -1 if Kafka knows no epoch that is old enough.

    Raises:
        TransientError: Kafka does not answer for all of them.
    """
    consumer = Consumer(
        {
            **config,
            "group.id": "semel-epochs",  # it never joins
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 1024,
            "allow.auto.create.topics": False,
            "log_level": 0,
        },
        logger=log,
    )
    offsets: dict[TopicPartition, int] = {}
    pending = set(entries)
    deadline = time.monotonic() + _PATIENCE
    try:
        consumer.assign([assignment(entries[tp]) for tp in sorted(pending)])
        while pending:
            message = consumer.poll(0.1)
            if message is None:
                if time.monotonic() > deadline:
                    where = ", ".join(map(str, sorted(pending)))
                    raise TransientError(_SILENT.format(config["bootstrap.servers"], where))
                continue
            tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if tp not in pending or (error is not None and error.code() not in _ANSWERS):
                continue  # damage before the position is an answer: the log has not diverged there
            pending.remove(tp)
            consumer.incremental_unassign([KafkaPartition(*tp)])
            end = _END.search(error.str()) if error is not None else None
            if end is not None:
                offsets[tp] = int(end[1])
            elif error is None and int(message.offset() or 0) < entries[tp].position:
                offsets[tp] = int(message.offset() or 0)
    finally:
        consumer.close()
    return offsets
