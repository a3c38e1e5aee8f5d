"""The store at one instant, as far as the next intervals need it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from semel.audit.offsets import offsets_of, times_of
from semel.errors import ConfigError
from semel.ledger import LedgerEntry, TopicPartition
from semel.sinks.base import Sink, Snapshot


@dataclass(frozen=True, slots=True)
class Look:
    """What the store held, and how many ``seconds`` it took to read.

    ``records`` has the coordinates of rows, of each topic, at least those that were asked for;
    ``counts`` how many rows there are of each topic or, without provenance, in each target, if
    they were counted.
    """

    snapshot: Snapshot
    entries: Mapping[TopicPartition, LedgerEntry]
    records: Mapping[str, pa.Table] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None
    seconds: float = 0.0

    def rows(
        self, tp: TopicPartition, from_offset: int, until_offset: int | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Offsets and times of a partition's rows in an interval, or from an offset on."""
        records = self.records.get(tp.topic)
        rows, times = offsets_of(records, tp.partition), times_of(records, tp.partition)
        mine = rows >= from_offset
        if until_offset is not None:
            mine &= rows < until_offset
        return rows[mine], None if times is None else times[mine]

    def surplus(self, *, by_target: bool) -> dict[str, int]:
        """How many more rows each topic, or each target, has than the ledger says were written."""
        targets = self.snapshot.targets
        found = {}
        for name, rows in (self.counts or {}).items():
            topics = [t for t in targets if targets[t] == name] if by_target else [name]
            if not self.snapshot.incomplete & set(topics):
                entries = self.entries.values()
                found[name] = rows - sum(e.rows_written for e in entries if e.topic in topics)
        return found


Spans = Mapping[TopicPartition, tuple[int, int | None]]
"""Offsets ``[from, until)`` of each topic-partition; None for all from there on."""


def look(sink: Sink, topics: Collection[str], *, exact: bool) -> Look:
    """Look at the store; ``exact`` if the rows have provenance.

    Raises:
        ConfigError: the records of a topic go to several targets with ledgers of their own.
    """
    began = time.monotonic()
    snapshots = sink.snapshots(topics)
    if len(snapshots) != 1:
        raise _several(len(snapshots))
    (snapshot,) = snapshots
    entries = {e.topic_partition: e for e in snapshot.entries if e.topic in topics}
    records = {t: snapshot.records[t] for t in snapshot.records if t in topics}
    counts = {t: r.num_rows for t, r in records.items()} if exact else snapshot.rows
    return Look(snapshot, entries, records, counts, time.monotonic() - began)


def _several(count: int) -> ConfigError:
    return ConfigError(
        f"--follow cannot judge records that go to {count} tables with ledgers of their own. Run "
        "semel audit without it, as often as you need"
    )


def ledger_only(entries: Mapping[TopicPartition, LedgerEntry]) -> Look:
    """A look at the ledger alone, where the rows would show nothing."""
    return Look(Snapshot(list(entries.values())), entries)
