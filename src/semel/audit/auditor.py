"""Opens Kafka and the store, compares each snapshot of it with Kafka's records, and closes both."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from semel.audit import holes
from semel.audit.logs import check_logs
from semel.audit.named import gathered, splitter, target_of
from semel.audit.referee import (
    Interval,
    RecordOffsets,
    given_up,
    judge,
    letters,
    offsets_of,
    overwritten,
    placed,
    times_of,
    unmade,
    unnamed_failures,
    wants_times,
    within,
)
from semel.audit.replacing import LiveKeys, Replacements, judge_number
from semel.audit.report import (
    AuditReport,
    ChangedRow,
    PartitionAudit,
    UnplacedField,
    breaks,
    together,
)
from semel.audit.values import OnProgress, Values, audited
from semel.audit.workspace import Workspace
from semel.core.errors import NothingToAudit
from semel.core.ledger import (
    QUERY,
    RESET,
    SET_BACK,
    SKIPPED,
    TRUNCATED,
    UNKNOWN,
    Hole,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
)
from semel.core.quoting import all_named
from semel.driver.planning import Plan, plan
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.damage import Damage
from semel.kafka.reader import read_ranges
from semel.sinks import protocols
from semel.sinks.base import Snapshot
from semel.sinks.rereading import NotShown, View, Viewable
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import TopicPoll, by_topic
from semel.tasks.unplaced import Counts


class Auditor:
    def __init__(
        self,
        planned: Plan,
        cluster: Cluster,
        snapshot: Snapshot,
        entries: Sequence[LedgerEntry],
        pipeline: Pipeline,
        topics: Mapping[str, int],
        workspace: Workspace,
        values: Values | None = None,
        progress: OnProgress = lambda *_: None,
    ) -> None:
        self._topics = topics
        self._planned = planned
        self._wants = planned.sink.capabilities
        self._snapshot = snapshot = placed(snapshot)
        self._entries = {e.topic_partition: e for e in entries}
        self._made = sum(e.rows_written for e in snapshot.entries if e.topic_partition == QUERY)
        """The rows that a query has made of the records of all topics."""
        self._compacted = cluster.compacted({e.topic for e in entries})
        self._untraced = dict(snapshot.untraced)
        self._earliest = cluster.earliest(self._entries)
        self._latest = cluster.latest(self._entries)
        self._unreadable: list[Damage] = []
        self._left_out: Counter[str] = Counter()
        """By topic: rows of records that converter or transform leave out now. They may have
        replaced others when they were written."""
        self._doubtful: dict[TopicPartition, int] = {}
        """How many rows may be missing because the ledger counts records twice."""
        self._pipeline = pipeline
        stored = {topic: keys.schema for topic, keys in snapshot.keys.items() if keys.num_rows}
        self._target = partial(target_of, snapshot)
        self._replacing = Replacements(planned.sink, workspace, stored)
        self._values = values
        self._progress = progress
        self._dated = wants_times(snapshot, snapshot.records)
        self.not_judged: list[str] = []
        """The tables that could not be judged, with the reasons."""
        self.gaps: list[str] = []
        """The offsets whose rows could not be judged, with the reasons."""
        self.changed_rows: list[ChangedRow] = []
        """The first rows whose values differ from their records'."""
        self.compared = 0
        """The number of rows that were compared with their records."""
        self.unplaced: Counts = {}
        """The values of records that reached no column."""

    def partitions(self, *, exact: bool, converts: bool) -> list[PartitionAudit]:
        """Judge each partition. ``converts`` tells whether the pipeline makes the same rows as a
        run, which it does not with a DataFrame transform."""
        offsets = self._kafka(converts=converts)
        if exact:
            for tp, (gone, unsure) in self._replacing.gone().items():
                offsets[tp].replaced, offsets[tp].unsure = gone, unsure
            for tp, seen in offsets.items():
                rows = offsets_of(self._snapshot.records.get(tp.topic), tp.partition)
                self._left_out[tp.topic] += int(np.isin(np.unique(rows), seen.left_out()).sum())
            audits = [self._exact(tp, offsets[tp]) for tp in sorted(self._entries)]
            audits += self._unvouched()
            self._note_untraced()
        else:
            audits = self._by_counts(offsets, converts=converts)
        self.gaps = self._gaps(audits, exact=exact)
        if self._values is None:
            return audits
        judged = self._values.judge(audits, self._entries.values())
        self.not_judged += judged.not_judged
        self.changed_rows += judged.rows
        self.compared += judged.compared
        self.unplaced = judged.unplaced
        return judged.partitions

    def _gaps(self, audits: Sequence[PartitionAudit], *, exact: bool) -> list[str]:
        """The holes that nothing can be compared with, in words."""
        former = {
            topic
            for topic in {e.topic for e in self._entries.values()}
            if self._wants.replaces or (exact and self._lacks_former(topic, audits))
        }
        recorded = self._snapshot.holes
        return holes.gaps(self._entries, recorded, self._topics, former, self._doubtful)

    def _lacks_former(self, topic: str, audits: Sequence[PartitionAudit]) -> bool:
        """Whether rows of logs that are gone may be missing: a topic has fewer rows than the ledger
        counts, or others, which hide that."""
        entries = [e for e in self._entries.values() if e.topic == topic]
        if any(p.duplicated for p in audits if p.topic == topic):
            return True
        rows = 0
        for e in entries:
            own = holes.of(self._snapshot.holes, e.topic_partition)
            if any(h.reason in (RESET, UNKNOWN) for h in own):
                return True
            offsets = offsets_of(self._snapshot.records.get(topic), e.partition)
            read = Hole(*e.topic_partition, e.start_position, e.position)
            former = [h for h in own if h.reason in holes.FORMER]
            rows += int(within(offsets, [read, *former]).sum())
        return rows < sum(e.rows_written for e in entries)

    def _unvouched(self) -> list[PartitionAudit]:
        """Judge the rows of partitions that the ledger does not know."""
        audits = []
        for topic, records in sorted(self._snapshot.records.items()):
            if topic not in self._topics or not records.num_rows:
                continue
            for partition in sorted(records.column("partition").unique().to_pylist()):
                tp = TopicPartition(topic, partition)
                if tp in self._entries:
                    continue
                n = len(offsets_of(records, partition))
                ghosts = n if partition >= self._topics[topic] else 0
                audits.append(PartitionAudit(*tp, 0, n, 0, n, ghosts=ghosts))
        return audits

    def _note_untraced(self) -> None:
        """Note rows without provenance that do not explain a missing row in :meth:`_exact`. A
        connector that only updates may leave any number of rows alone."""
        if self._wants.only_updates:
            return
        for topic, target in sorted(self._snapshot.targets.items()):
            count = self._untraced.pop(target, 0) if topic in self._topics else 0
            if count:
                self.not_judged.append(
                    f"{target}: {count} rows have no provenance, and no record accounts for them"
                )

    def _start(self, entry: LedgerEntry) -> int:
        """The first offset whose record can still be compared."""
        return max(entry.start_position, self._earliest[entry.topic_partition])

    def _expired(self, entry: LedgerEntry) -> int:
        """The number of offsets that retention has removed since the connector began there."""
        return max(0, self._earliest[entry.topic_partition] - entry.start_position)

    def _kafka(self, *, converts: bool) -> dict[TopicPartition, RecordOffsets]:
        """Read Kafka's records below each position."""
        connector = self._planned.connector
        seen = {tp: RecordOffsets() for tp in self._entries}
        replacing = self._replacing
        starts = {tp: self._start(e) for tp, e in self._entries.items()}
        ends = {tp: e.position for tp, e in self._entries.items()}
        done, total = 0, sum(max(0, ends[tp] - starts[tp]) for tp in starts)
        for messages in read_ranges(connector, starts, ends, damaged=self._unreadable.append):
            for poll in by_topic(messages):
                stamps = poll.timestamps() if self._dated else None
                for partition in np.unique(poll.partitions).tolist():
                    mask = poll.partitions == partition
                    of_partition = seen[TopicPartition(poll.topic, partition)]
                    of_partition.offsets.append(poll.offsets[mask])
                    if stamps is not None:
                        of_partition.times.append(stamps[mask])
                done += len(poll.offsets)
                if converts and (self._wants.replaces or self._values is not None):
                    taken = poll.only(self._taken(poll)).raw(
                        key=True, timestamp=True, headers=self._pipeline.wants_headers
                    )
                    converted = self._pipeline.convert(poll.topic, taken)
                    for part in converted.parts:
                        replacing.add(poll.topic, part, self._target(poll.topic, part.topic))
                    if self._wants.replaces and self._snapshot.records:
                        for partition in np.unique(poll.partitions).tolist():
                            left_out = unmade(taken, converted.parts, partition)
                            seen[TopicPartition(poll.topic, partition)].unmade.append(left_out)
                    if self._values is not None:
                        self._values.add(poll.topic, taken, converted)
                self._progress("records", done, total)
        return seen

    def _taken(self, poll: TopicPoll) -> np.ndarray:
        """Which records the sink got and has not refused. The others have replaced nothing."""
        keep = np.ones(len(poll.offsets), dtype=bool)
        stamps = poll.timestamps()
        for partition in np.unique(poll.partitions).tolist():
            tp, mask = TopicPartition(poll.topic, partition), poll.partitions == partition
            refused, _ = letters(self._snapshot, tp, poll.offsets[mask], stamps[mask])
            given_up = self._given_up(tp, poll.offsets)
            keep &= ~(mask & (np.isin(poll.offsets, refused) | given_up))
        return keep

    def _given_up(self, tp: TopicPartition, offsets: np.ndarray) -> np.ndarray:
        """Which offsets have no row, and need none by the ledger's holes."""
        rows = offsets_of(self._snapshot.records.get(tp.topic), tp.partition)
        return given_up(offsets, rows, self._holes_of(tp))

    def _exact(self, tp: TopicPartition, seen: RecordOffsets) -> PartitionAudit:
        entry, kafka = self._entries[tp], seen.all()
        both = letters(self._snapshot, tp, kafka, seen.all_times())
        dead, former = (d[d >= entry.start_position] for d in both)
        failed_or_filtered = self._without_row(entry, dead, former)
        findings = judge(self._interval(entry, seen, dead, failed_or_filtered))
        absent, unknown = findings.missing, findings.unknown
        unsure = holes.doubts(entry, self._snapshot.holes, failed_or_filtered)
        excused = min(len(absent), max(0, failed_or_filtered - unsure))
        missing = max(0, len(absent) - excused - unsure)
        unknown += self._doubtful.setdefault(tp, len(absent) - excused - missing)
        again = holes.ahead(entry, self._snapshot.holes)
        later = [*self._holes_of(tp, TRUNCATED), *again]
        if self._wants.replaces and (cut := overwritten(absent, later)):
            # No more were cut off, or are read again, than were read and are not before the
            # position in Kafka.
            most = entry.records_read - len(kafka) + int(self._given_up(tp, kafka).sum())
            cut = min(missing, cut, max(0, most))
            unknown, missing = unknown + cut, missing - cut
        left_out = min(missing, self._left_out[tp.topic])
        self._left_out[tp.topic] -= left_out
        unknown, missing = unknown + left_out, missing - left_out
        if self._expired(entry):
            unknown += excused  # the filtered records may be those that Kafka no longer has
        target = self._snapshot.targets[tp.topic]
        untraced = min(missing, self._untraced.get(target, 0))
        if untraced:
            self._untraced[target] -= untraced
        if self._wants.only_updates or tp.topic in self._snapshot.incomplete:
            untraced = missing
        unknown += untraced
        missing -= untraced
        return PartitionAudit(
            tp.topic,
            tp.partition,
            kafka=len(kafka),
            rows=findings.rows,
            lost=missing,
            duplicated=len(findings.surplus),
            replaced=len(seen.replaced),
            filtered=entry.records_filtered,
            failed=entry.records_failed,
            retention=entry.records_lost,
            behind=max(0, self._latest[tp] - entry.position),
            unknown=unknown,
            ghosts=findings.ghosts + findings.former,
            expired=self._expired(entry),
            skipped=self._skipped(tp, kafka),
        )

    def _without_row(self, entry: LedgerEntry, dead: np.ndarray, former: np.ndarray) -> int:
        """How many records without a row the ledger counts, besides those with dead letters.
        ``former`` holds the dead letters of logs that are gone."""
        # Failed and filtered records have no rows. The ledger counts them with its position;
        # letters may be committed before that, and are read after the ledger.
        failed_or_filtered = entry.records_filtered + entry.records_failed
        failed_or_filtered -= len(np.unique(dead[dead < entry.position]))
        # In a log that is gone, not all records with letters were counted.
        failed_or_filtered -= min(len(former), max(0, failed_or_filtered - entry.records_filtered))
        return failed_or_filtered + self._snapshot.elsewhere.get(entry.topic_partition, 0)

    def _skipped(self, tp: TopicPartition, kafka: np.ndarray) -> int:
        skipped = within(kafka, self._holes_of(tp, SKIPPED))
        return int((skipped & self._given_up(tp, kafka)).sum())

    def _interval(
        self, entry: LedgerEntry, seen: RecordOffsets, dead: np.ndarray, budget: int
    ) -> Interval:
        records, tp = self._snapshot.records.get(entry.topic), entry.topic_partition
        rows, times = offsets_of(records, tp.partition), times_of(records, tp.partition)
        mask = rows >= entry.start_position
        return Interval(
            seen.all(),
            rows[mask],
            seen.all_times(),
            None if times is None else times[mask],
            seen.replaced,
            seen.unsure,
            dead,
            self._holes_of(tp),
            self._damaged(tp),
            compacted=tp.topic in self._compacted,
            budget=budget,
            start=self._start(entry),
            position=entry.position,
            latest=self._latest[tp],
        )

    def _holes_of(self, tp: TopicPartition, *reasons: str) -> list[Hole]:
        return holes.of(self._snapshot.holes, tp, *reasons)

    def _damaged(self, tp: TopicPartition) -> list[OffsetRange]:
        return holes.damaged(self._unreadable, tp)

    def _by_counts(
        self, offsets: Mapping[TopicPartition, RecordOffsets], *, converts: bool
    ) -> list[PartitionAudit]:
        """Compare records in Kafka with records read, and rows in the table with rows written. The
        latter works only for a whole table, so its first partition gets the difference."""
        audits = []
        whole = self._table_differences(converts=converts)
        lost = {target: missing for target, (missing, _, _) in whole.items()}
        for tp in sorted(self._entries):
            entry, target = self._entries[tp], self._snapshot.targets.get(tp.topic, "")
            expired = self._expired(entry)
            offsets_here = offsets[tp].all()
            kafka = len(offsets_here)
            span = self._start(entry), entry.position
            unreadable = holes.extent(
                holes.unreadable(self._damaged(tp), self._holes_of(tp), *span)
            )
            back = int(self._given_up(tp, offsets_here).sum())
            kafka -= min(back, max(0, kafka - entry.records_read))
            unread, twice, unknown = holes.by_reading(
                entry,
                self._snapshot.holes,
                kafka,
                entry.records_read,
                expired=expired + unreadable,
                compacted=tp.topic in self._compacted,
                replaces=self._wants.replaces,
            )
            if self._holes_of(tp, SET_BACK):  # rows may have been removed to be written again
                both = min(twice, lost.get(target, 0))
                twice, unknown = twice - both, unknown + both
                lost[target] = lost.get(target, 0) - both
            _, duplicated, odd = whole.pop(target, (0, 0, 0))
            audits.append(
                PartitionAudit(
                    tp.topic,
                    tp.partition,
                    kafka=kafka,
                    rows=entry.rows_written,
                    lost=unread,
                    duplicated=duplicated + twice,
                    filtered=entry.records_filtered,
                    failed=entry.records_failed,
                    retention=entry.records_lost,
                    behind=max(0, self._latest[tp] - entry.position),
                    unknown=max(unknown, unreadable) + odd,
                    expired=expired,
                    skipped=self._skipped(tp, offsets_here),
                )
            )
        for n, p in enumerate(audits):  # a target's first partition gets what its table lacks
            missing = lost.pop(self._snapshot.targets.get(p.topic, ""), 0)
            audits[n] = replace(p, lost=p.lost + missing)
        return audits

    def _table_differences(self, *, converts: bool) -> dict[str, tuple[int, int, int]]:
        """The rows of each target that are lost, duplicated and not judged."""
        differences: dict[str, tuple[int, int, int]] = {}
        if self._planned.topology is not None:
            self.not_judged.append("results: a topology makes them of many records")
            return differences
        topics: dict[str, list[str]] = {}
        for topic in sorted({e.topic for e in self._entries.values()}):
            topics.setdefault(self._snapshot.targets.get(topic, ""), []).append(topic)
        for target, own in topics.items():
            entries = [e for e in self._entries.values() if e.topic in own]
            rows = self._snapshot.rows.get(target)
            if rows is None and not any(e.rows_written for e in entries):
                rows = 0  # nothing was written to the target, so it may be missing
            why = self._why_not(target, own, rows, converts=converts)
            if why or rows is None:
                self.not_judged.append(f"{target or own[0]}: {why}")
                continue
            if not self._wants.replaces:
                written = self._made + sum(e.rows_written for e in entries)
                differences[target] = holes.by_number(entries, self._snapshot.holes, rows - written)
                continue
            if own[0] in self._snapshot.keys:
                differences[target] = self._compared(target, own[0], entries)
                continue
            live = self._replacing.live(self._target(own[0])) or LiveKeys(0, 0)
            verdict = judge_number(rows, live, unnamed_failures(self._snapshot, own[0], entries))
            differences[target] = verdict.lost, 0, verdict.unknown
            if verdict.why:
                self.not_judged.append(f"{target}: {verdict.why}")
        return differences

    def _compared(
        self, target: str, topic: str, entries: Sequence[LedgerEntry]
    ) -> tuple[int, int, int]:
        """The keys that are lost, duplicated and not judged, by the records' and the rows' keys."""
        stored = self._snapshot.keys[topic]
        try:
            comparison = self._replacing.compare(self._target(topic), stored)
        except ValueError as why:
            self.not_judged.append(f"{target}: its keys cannot be compared: {why}")
            return 0, 0, 0
        filtered = sum(e.records_filtered for e in entries)
        excused = min(
            comparison.missing, filtered + unnamed_failures(self._snapshot, topic, entries)
        )
        if comparison.stray:  # not duplicated: they may have been there before
            self.not_judged.append(
                f"{target}: {comparison.stray} of its {stored.num_rows} rows have keys that no "
                "record in Kafka writes"
            )
        return comparison.missing - excused, 0, excused + comparison.stray + comparison.unsure

    def _why_not(
        self, target: str, topics: Sequence[str], rows: int | None, *, converts: bool
    ) -> str | None:
        """Why the number of a target's rows shows nothing; None if it shows something."""
        unjudged = next(filter(None, map(self._snapshot.unjudged.get, topics)), "")
        if rows is None:
            return unjudged or "the number of its rows is not known; does the target exist?"
        if self._snapshot.incomplete & set(topics):
            return "the target may have dropped rows by itself, or have changed while it was read"
        if not self._wants.replaces:
            return unjudged
        ask = "; provenance=true lets the audit judge it"
        if not converts:
            maker = "a query" if self._planned.query else "a DataFrame transform"
            return f"rows replace each other by key, and {maker} makes them"
        if self._wants.only_updates:
            return "updates add no rows, so the number of rows shows nothing" + ask
        if len(topics) > 1:
            return f"topics {all_named(topics)} may share keys" + ask
        return self._snapshot.unjudged.get(topics[0], "")


def audit(
    config: Any,
    transform: Callable[..., Any] | None = None,
    *,
    values: bool = False,
    planned: Plan | None = None,
    progress: OnProgress = lambda *_: None,
) -> AuditReport:
    """Audit a connector.

    Args:
        config: as for :func:`semel.run`.
        transform: the run's transform. It is needed if rows replace each other by key, if it does
            not make one row per record, and with ``values``.
        values: also compare the values of all rows with their records.
        progress: is called with the audit's progress.

    Raises:
        semel.core.errors.NothingToAudit: the ledger does not know the connector.
        semel.core.errors.SemelError: configuration, Kafka or the store.
    """
    planned = planned or plan(config, transform)
    connector, sink = planned.connector, planned.sink
    stage = splitter(planned)
    cluster = Cluster(client_config(connector, "admin"))
    with ExitStack() as stack:
        stack.callback(sink.close)
        topics = planned.of_others(cluster.matching(connector))
        maker = planned.merged_by(transform)
        exact = connector.provenance and not maker
        not_judged: list[str] = []
        hidden = {
            f"{maker} makes rows of many records": bool(maker),
            "records name their targets themselves": stage is not None,
        }
        if values and any(hidden.values()):
            not_judged += [f"values: {why}" for why, holds in hidden.items() if holds]
            values = False
        views: Sequence[View] = ()
        if values:
            try:
                views = stack.enter_context(_opened(planned, topics))
            except NotShown as why:
                not_judged.append(f"values: {why}")
        pipeline = Pipeline(
            audited(connector),
            sink,
            target=sink.schema,
            transform=None if maker else transform,
        )
        if views:
            snapshots: Sequence[Snapshot] = [view.snapshot(topics) for view in views]
        elif stage is not None:
            snapshots = [gathered(planned, cluster, pipeline, topics, stage)]
        else:
            shown = topics if planned.query is None else {*topics, QUERY.topic}
            snapshots = protocols.snapshots(sink, shown)
        parts: list[list[PartitionAudit]] = []
        auditors: list[Auditor] = []
        unplaced: Counts = {}
        if not any(e.topic in topics for s in snapshots for e in s.entries):
            raise NothingToAudit(
                f"the ledger holds nothing of connector {connector.name} and its topics, so there "
                "is nothing to compare. Has it run under this name and into this target?"
            )
        for snapshot, view in itertools.zip_longest(snapshots, views):
            entries = [e for e in snapshot.entries if e.topic in topics]
            check_logs(connector.name, entries, topics, cluster)
            workspace = stack.enter_context(closing(Workspace()))
            judged = None
            if view is not None:
                judged = Values(
                    sink, view, placed(snapshot), workspace, exact=exact, progress=progress
                )
            auditor = Auditor(
                planned, cluster, snapshot, entries, pipeline, topics, workspace, judged, progress
            )
            parts.append(auditor.partitions(exact=exact, converts=not maker))
            not_judged += auditor.not_judged
            auditors.append(auditor)
            unplaced = auditor.unplaced or unplaced  # each target gets the same records
        audits = together(parts)
    gaps = tuple(dict.fromkeys(line for a in auditors for line in a.gaps))
    holes = dict.fromkeys(h for s in snapshots for h in s.holes if h.topic in topics)
    promised = planned.guarantee.delivery
    return AuditReport(
        connector.name,
        str(planned.guarantee),
        exact,
        audits,
        bool(unplaced) or any(breaks(promised, p.lost, p.duplicated, p.changed) for p in audits),
        (*not_judged, *gaps),
        tuple(row for a in auditors for row in a.changed_rows),
        sum(a.compared for a in auditors) if views else None,
        gaps,
        tuple(holes),
        tuple(UnplacedField(*field, count) for field, count in sorted(unplaced.items())),
    )


def _opened(planned: Plan, topics: Mapping[str, int]) -> AbstractContextManager[Sequence[View]]:
    """Views of the sink's targets.

    Raises:
        NotShown: it does not show its rows.
    """
    if not isinstance(planned.sink, Viewable):
        kind = planned.connector.connector_class
        raise NotShown(f"the {kind} sink does not show its rows")
    return planned.sink.viewing(topics)
