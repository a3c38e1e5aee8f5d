"""What every engine does before it reads: a connector's first positions, and whether its results
still go to the same targets."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from semel.config import ConnectorConfig, under
from semel.config.connector import STRING
from semel.converters import create
from semel.core.errors import (
    BadRecord,
    ConfigError,
    LedgerConflict,
    OffsetOutOfRange,
    Problem,
    ServiceError,
    TransientError,
)
from semel.core.ledger import (
    MOVED,
    QUERY,
    TAKEN_OVER,
    Hole,
    LedgerEntry,
    LogId,
    Rebase,
    Target,
    TopicPartition,
)
from semel.core.quoting import named
from semel.core.records import one_array
from semel.driver import sampler
from semel.driver.base import Run
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.kafka.topics import create_dead_letter_topic
from semel.sinks import protocols
from semel.sinks.base import Sink
from semel.tasks import ranges
from semel.tasks.publish import is_copy, ledger_of

log = logging.getLogger(__name__)

_NEAR = 20
"""Offsets of each partition that are looked at, before and after the position."""
_BYTES = 16 * 1024 * 1024
"""Reading stops after this many bytes, over all topics."""


def enter(run: Run) -> None:
    """Claim the connector's ledger, and enter every partition into it.

    Raises:
        SemelError: another run holds the ledger, or the connector must not begin here; see
            :func:`semel.driver.startup.first_positions`.
    """
    run.sink.claim()
    if run.connector.dead_letter_topic and not run.sink.capabilities.takes_dead_letters:
        create_dead_letter_topic(run.connector, run.cluster)
    groups = run.groups or Groups(run.cluster.config)
    if run.assignment.has_first:
        lenient = not run.assignment.is_whole
        first_positions(
            run.connector, run.sink, run.cluster, run.topics, groups, run.results, lenient=lenient
        )
        if run.connector.assumes_keys:
            check_keys(run.connector, run.cluster, _entries(run))
    groups.disconnect()  # a client takes memory, and is not needed any more


def _entries(run: Run) -> list[LedgerEntry]:
    """The entries of partitions that exist now."""
    present = set(ranges.partitions(run.topics))
    return [e for e in run.sink.entries() if e.topic_partition in present]


def targets(run: Run) -> dict[TopicPartition, int]:
    """The positions at which the run is caught up; none if it continues until it is stopped."""
    if not run.until_caught_up:
        return {}
    return run.cluster.latest(ranges.partitions(run.topics))


def check_keys(
    connector: ConnectorConfig, cluster: Cluster, entries: Collection[LedgerEntry]
) -> None:
    """Look at keys near the positions: if no key converter is set, they are assumed to be JSON.

    Raises:
        ConfigError: in some topic no key can be read. All its records would be bad ones.
    """
    at = {e.topic_partition: e.position for e in entries}
    earliest, latest = cluster.earliest(at), cluster.latest(at)
    starts = {tp: max(earliest[tp], min(p, latest[tp]) - _NEAR) for tp, p in at.items()}
    ends = {tp: min(latest[tp], starts[tp] + 2 * _NEAR) for tp in at}
    converter = create(
        connector.key_converter,
        under(connector.originals, "key.converter."),
        is_key=True,
        where="key.converter",
    )
    if not any(starts[tp] < end for tp, end in ends.items()):
        return
    try:
        read = sampler.read(connector, starts, ends, _BYTES)
    except (BadRecord, OffsetOutOfRange, TransientError) as error:
        log.info("connector %s: keys were not checked: %s", connector.name, error)
        return
    enough = _NEAR if read.cut else 1
    for topic, table in sorted(read.tables.items()):
        keys = one_array(table.column("key"))
        texts = [
            f"{keys[f.index].as_py()[:40].decode('utf-8', 'replace')!r} ({f.message})"
            for f in converter.decode(keys).failures
        ]
        if len(texts) >= enough and len(texts) == len(keys) - keys.null_count:
            raise ConfigError(
                Problem(
                    "key.converter",
                    f"connector {connector.name}: key.converter is not set, so keys are read as "
                    f"JSON, and none of {len(texts)} keys in topic {named(topic)} can be, such as "
                    f"{texts[0]}. Set it to what Kafka Connect's worker has, such as {STRING}",
                )
            )


def first_positions(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    topics: Mapping[str, int],
    groups: Groups,
    results: Collection[str] | None = None,
    *,
    lenient: bool = False,
) -> None:
    """Enter every partition that exists at start into the ledger.

    A topic that the ledger has never seen starts as ``auto.offset.reset`` says, or at the consumer
    group's offsets (``first.position``). A partition that was added to a known topic starts at its
    earliest offset, whatever the setting: its records came after the connector did. ``results``
    and ``lenient`` are those of :func:`check_targets`.

    Raises:
        ConfigError: results went elsewhere so far, or the group's offsets may be copies of a ledger
            that is gone, or another program has continued the connector.
        OffsetOutOfRange: Kafka has no records at the group's offsets.
    """
    entries = sink.entries()
    known = {e.topic_partition for e in entries}
    read_entries = [e for e in entries if e.topic in topics]
    if not sink.capabilities.ledger_in_group and _follow_the_group(
        connector, sink, cluster, groups, read_entries
    ):
        entries = sink.entries()
    asked = [QUERY.topic] if QUERY in known else []
    check_targets(connector, sink, entries, {*topics, *asked}, results, lenient=lenient)
    present = set(ranges.partitions(topics))
    missing = present - known
    if not missing:
        return
    logs = cluster.logs({tp.topic for tp in missing})  # first, as the offsets may be newer
    known_topics = protocols.known_topics(sink)
    fresh = {tp for tp in missing if tp.topic not in known_topics}
    earliest = cluster.earliest(missing)
    positions = dict(earliest)
    if connector.offset_reset == "latest":
        positions |= cluster.latest(fresh)
    group_offsets: dict[TopicPartition, int] = {}
    if connector.first_position != "reset" and fresh and not sink.capabilities.ledger_in_group:
        group_offsets = _group_offsets(connector, sink, cluster, groups, fresh, earliest)
    before: Collection[TopicPartition] = [tp for tp, at in group_offsets.items() if at]
    if connector.first_position == "reset" and connector.offset_reset == "latest" and fresh:
        before, _ = groups.offsets(connector.group_id, fresh)
    entries = ranges.first_entries(sink, positions | group_offsets, logs)
    if not protocols.moves_entries(sink):
        sink.start(entries)
        return
    # Only a change of an entry can leave a hole, so these get the ids of their logs afterwards.
    taken = [e for e in entries if e.topic_partition in before and e.position]
    bare = {e: replace(e, cluster_id="", topic_id="") for e in taken}
    sink.start([bare.get(e, e) for e in entries])
    if taken:
        holes = {e: Hole(*e.topic_partition, 0, e.position, TAKEN_OVER) for e in taken}
        sink.rebase([Rebase(bare[e], e, holes[e]) for e in taken])


def _group_offsets(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    groups: Groups,
    partitions: Collection[TopicPartition],
    earliest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The group's offsets, if it has any; they are checked as positions are."""
    group = connector.group_id
    committed, _ = groups.offsets(group, partitions)
    if not committed:
        return {}
    copies = {tp: text for tp, (_, text) in committed.items() if is_copy(text)}
    if copies and connector.target_changed == "stop":
        tp = min(copies)
        raise ConfigError(
            f"connector {connector.name}: its ledger ({sink.describe().get('ledger', 'here')}) "
            f"has no entry for topic {named(tp.topic)}, but consumer group {group} holds a copy of "
            f"a ledger that was at {committed[tp][0]} for {tp} ({ledger_of(copies[tp])}). Was the "
            "ledger dropped, or the connector pointed at another store or folder? To read the "
            "topic again, run semel offsets reset with the connector's file, or set "
            "first.position=reset; for a connector of its own, choose another name; to continue "
            "from the copy, without the records before it, set target.changed=continue"
        )
    ends = cluster.ends(committed)
    for tp, (at, _) in sorted(committed.items()):
        if at > ends[tp][0] or (at < earliest[tp] and connector.offset_out_of_range == "stop"):
            raise OffsetOutOfRange(
                f"connector {connector.name}: consumer group {group} is at {at} for {tp}, but "
                f"Kafka holds offsets {earliest[tp]} to {ends[tp][0] - 1} of it. To begin by "
                "auto.offset.reset instead, set first.position=reset"
                + (
                    f"; to begin at {earliest[tp]} and record the hole, set "
                    "offset.out.of.range=earliest"
                    if at < earliest[tp]
                    else ""
                )
            )
    unsigned = [
        tp for tp, (at, text) in sorted(committed.items()) if at > earliest[tp] and not text.strip()
    ]
    if unsigned and not copies and connector.first_position == "stop":
        tp = unsigned[0]
        raise ConfigError(
            f"connector {connector.name}: its ledger ({sink.describe().get('ledger', 'here')}) has "
            f"no entry for topic {named(tp.topic)}, but consumer group {group} is at "
            f"{committed[tp][0]} for {tp}, without metadata that says who committed it. If a "
            "connector of Kafka Connect did, continue from there with first.position=group. That "
            "leaves out what the target lacks: to read the topic again, run semel offsets reset "
            "with the connector's file, or set first.position=reset"
        )
    log.warning(
        "the ledger has no entry for these partitions yet; they begin at the offsets of "
        "consumer group %s (%s): %s. The records before these offsets are not written",
        group,
        "semel's copies of another ledger" if copies else "taken for another program's offsets",
        ", ".join(f"{tp} at {at}" for tp, (at, _) in sorted(committed.items())),
    )
    return {tp: at for tp, (at, _) in committed.items()}


def _follow_the_group(
    connector: ConnectorConfig,
    sink: Sink,
    cluster: Cluster,
    groups: Groups,
    entries: Collection[LedgerEntry],
) -> bool:
    """Notice that another program has continued this connector since the ledger was written: its
    group is then beyond the ledger, at offsets that semel has not marked. Returns whether entries
    have moved there."""
    group, ledger = connector.group_id, {e.topic_partition: e.position for e in entries}
    if connector.first_position == "reset" or not ledger:
        return False
    try:
        committed, _ = groups.offsets(group, ledger)
    except ServiceError as error:
        log.info("cannot look at consumer group %s: %s", group, error)
        return False
    ahead = {
        tp: at
        for tp, (at, text) in sorted(committed.items())
        if at > ledger[tp] and not is_copy(text)
    }
    if not ahead:
        return False
    if connector.first_position == "stop":
        tp = next(iter(ahead))
        raise ConfigError(
            f"connector {connector.name}: consumer group {group} is at {ahead[tp]} for {tp}, "
            f"and the ledger ({sink.describe().get('ledger', 'here')}) at {ledger[tp]}: another "
            "program, perhaps Kafka Connect, has continued this connector, and continuing from the "
            "ledger would repeat what it has written. To continue at the group's offsets, set "
            "first.position=group; to continue from the ledger anyway, set first.position=reset"
        )
    log.warning(
        "another program has continued this connector; semel starts at the offsets of "
        "consumer group %s: %s. The audit does not judge what that program has written",
        group,
        ", ".join(f"{tp} at {at}, not {ledger[tp]}" for tp, at in ahead.items()),
    )
    former = {e.topic_partition: e for e in entries}
    logs = cluster.logs({tp.topic for tp in ahead})
    protocols.adopt(
        sink, [_taken_over(former[tp], at, logs.get(tp.topic, LogId())) for tp, at in ahead.items()]
    )
    return True


def _taken_over(former: LedgerEntry, at: int, log: LogId) -> Rebase:
    """The entry at the position that another program has reached. What the ledger counts was read
    before, unless it was read from another log."""
    same = not former.log.contradicts(log)
    new = replace(
        former,
        position=at,
        start_position=former.start_position if same else at,
        leader_epoch=-1,
        epoch_offset=-1,
        **former.log.completed(log)._asdict() if same else log._asdict(),
    )
    first = former.position if same else min(former.start_position, at)
    return Rebase(former, new, Hole(*former.topic_partition, first, at, TAKEN_OVER))


def check_targets(
    connector: ConnectorConfig,
    sink: Sink,
    entries: Collection[LedgerEntry],
    topics: Collection[str],
    results: Collection[str] | None = None,
    *,
    lenient: bool = False,
) -> None:
    """Compare where results went with where they would go now. New facts are entered into the
    ledger; with ``lenient``, this is left to the next start if other tasks move positions now.

    Args:
        connector: the connector.
        sink: its sink.
        entries: those of the ledger.
        topics: what it reads.
        results: what the results of all topics together are called in the target; None if those of
            each topic are called as the topic. Several targets cannot be compared with one entry.
        lenient: see above.

    Raises:
        ConfigError: they are not the same.
    """
    if results is None:
        targets = sink.targets(topics)
    elif len(distinct := set(sink.targets(results).values())) == 1:
        targets = dict.fromkeys(topics, *distinct)
    else:
        return
    learned, moved = [], []
    for e in entries:
        if e.topic not in targets:
            continue
        target = targets[e.topic]
        text = str(target or "")
        changed = _change(e, target)
        if changed and connector.target_changed == "stop":
            raise ConfigError(
                f"connector {connector.name}: topic {named(e.topic)}: {changed}. The results of "
                f"{e.topic_partition} up to offset {e.position - 1} would be missing there. To "
                "write them there, too, choose another connector name, or run semel offsets reset "
                "with the connector's file; to continue without them, set target.changed=continue"
            )
        if changed:
            log.warning("%s: %s; it continues at %d", e.topic_partition, changed, e.position)
            hole = Hole(*e.topic_partition, e.start_position, e.position, MOVED)
            moved.append(Rebase(e, replace(e, target=text), hole))
        elif target is not None and text != e.target:
            learned.append(Rebase(e, replace(e, target=text)))
    if learned or moved:
        try:
            sink.rebase([*learned, *moved])
        except LedgerConflict as conflict:
            if moved or not lenient:
                raise
            log.info(
                "could not record the targets in the ledger; trying again at the next start: %s",
                conflict,
            )


def _change(entry: LedgerEntry, target: Target | None) -> str | None:
    if target is None:
        if not entry.rows_written:
            return None
        name = Target.parse(entry.target).name
        return f"{name or 'the target'}, which held {entry.rows_written} rows, is gone"
    return Target.parse(entry.target).replaced_by(target) if entry.target else None
