"""Reads Kafka's records of an interval, and finds those that the ledger knows to have no row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from semel.audit import holes
from semel.audit.follow.look import Look, ranges_of
from semel.audit.offsets import NONE, Seen, given_up, letters, offsets_of, wants_times, within
from semel.audit.referee import Interval
from semel.audit.values import Values
from semel.audit.workspace import Workspace
from semel.core.ledger import NOT_HERE, UNREAD, OffsetRange, TopicPartition
from semel.driver.planning import Plan
from semel.kafka.damage import Damage
from semel.kafka.reader import read_ranges
from semel.sinks.base import Sink
from semel.sinks.rereading import View
from semel.tasks.poll import TopicPoll, by_topic


def read(
    planned: Plan,
    seen: Look,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    taken: Callable[[TopicPoll], None] | None,
) -> tuple[dict[TopicPartition, Seen], list[Damage]]:
    """Kafka's records in ``[start, end)`` of each partition, and what cannot be read of them.
    ``taken`` gets the records that the sink has not refused.

    Raises:
        OffsetOutOfRange: retention has removed some of them meanwhile.
        TransientError: Kafka cannot be reached.
    """
    found = {tp: Seen() for tp in starts}
    damaged: list[Damage] = []
    dated = wants_times(seen.snapshot, seen.records)
    # Without provenance, records that have rows in another target count as read.
    reasons = NOT_HERE if seen.records else UNREAD
    messages = read_ranges(planned.connector, starts, ends, damaged=damaged.append)
    for polled in messages:
        for poll in by_topic(polled):
            keep = np.ones(len(poll.offsets), dtype=bool)
            stamps = poll.timestamps() if dated else None
            for partition in np.unique(poll.partitions).tolist():
                tp = TopicPartition(poll.topic, partition)
                mine = poll.partitions == partition
                rows = offsets_of(seen.records.get(tp.topic), tp.partition)
                absent = given_up(poll.offsets, rows, holes.of(seen.snapshot.holes, tp), reasons)
                keep &= ~(mine & absent)
                mine &= ~absent
                found[tp].offsets.append(poll.offsets[mine])
                times = NONE if stamps is None else stamps[mine]
                found[tp].times.append(times)
                if taken is not None:
                    refused, _ = letters(seen.snapshot, tp, poll.offsets[mine], times)
                    keep &= ~(mine & np.isin(poll.offsets, refused))
            if taken is not None:
                taken(poll.only(keep))
    return found, damaged


def dead_letters(seen: Look, tp: TopicPartition) -> np.ndarray:
    """The offsets of dead letters, except those in holes: these were never read, and are lost."""
    dead = np.unique(offsets_of(seen.snapshot.dead.get(tp.topic), tp.partition))
    unread = within(dead, holes.of(seen.snapshot.holes, tp, *UNREAD))
    found: np.ndarray = dead[~unread]
    return found


def interval(
    seen: Look,
    tp: TopicPartition,
    span: tuple[int, int],
    kafka: Seen,
    unreadable: Sequence[OffsetRange],
) -> Interval:
    """The offsets ``[from, until)`` in Kafka and in the store."""
    dead, _ = letters(seen.snapshot, tp, kafka.all(), kafka.all_times())
    rows, times = seen.rows(tp, *span)

    def inside(offsets: np.ndarray) -> np.ndarray:
        chosen: np.ndarray = offsets[(offsets >= span[0]) & (offsets < span[1])]
        return chosen

    return Interval(
        kafka.all(),
        rows,
        kafka.all_times(),
        times,
        inside(kafka.replaced),
        inside(kafka.unsure),
        inside(dead),
        holes.of(seen.snapshot.holes, tp),
        unreadable,
    )


def values_of(
    sink: Sink,
    seen: Look,
    view: View,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    workspace: Workspace,
) -> Values:
    """Compares the rows of these intervals with the records that it is given."""
    return Values(
        sink,
        view,
        replace(seen.snapshot, records=seen.records),
        workspace,
        exact=True,
        progress=lambda *_: None,
        ranges=ranges_of({tp: (starts[tp], ends[tp]) for tp in starts}),
    )
