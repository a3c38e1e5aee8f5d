"""Judges a connector in rounds, each by what was committed since the last one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from semel.audit import holes
from semel.audit.follow.look import (
    Spans,
    StoreContents,
    dead_letters,
    interval,
    ledger_only,
    look,
    read,
    values_of,
)
from semel.audit.follow.progress import (
    FollowState,
    MissingRecords,
    PartitionProgress,
    begun,
    broken_off,
    rowless,
    too_early,
)
from semel.audit.follow.settling import SHARE, Settlement
from semel.audit.holes import by_number
from semel.audit.logs import check_not_truncated, check_positions, check_topics
from semel.audit.named import target_of
from semel.audit.referee import NONE, Findings, RecordOffsets, judge
from semel.audit.replacing import Replacements
from semel.audit.report import IntervalReport, PartitionAudit
from semel.audit.values import ValueFindings
from semel.audit.workspace import Workspace
from semel.core.delivery import Mechanism
from semel.core.errors import NothingToAudit, OffsetOutOfRange, TransientError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.core.quoting import named
from semel.driver.planning import Plan
from semel.kafka.cluster import Cluster
from semel.kafka.damage import Damage
from semel.sinks.rereading import Viewable
from semel.tasks.pipeline import Pipeline
from semel.tasks.poll import TopicPoll

STEP = 1_000_000
"""The number of offsets, in all partitions together, that one round compares."""
AGAIN = 3600.0
"""The least number of seconds after which all rows that replace each other are judged again."""
QUIET = 60.0
"""Seconds after which all rows are counted again, even if nothing was committed."""


class Follower:
    """Compares what was committed since the last round. ``tell`` gets lines for the user."""

    def __init__(
        self,
        planned: Plan,
        cluster: Cluster,
        pipeline: Pipeline,
        state: FollowState,
        tell: Callable[[str], None],
        workspace: Workspace,
        *,
        converts: bool = True,
        values: bool = False,
    ) -> None:
        self._planned = planned
        self._cluster = cluster
        self._pipeline = pipeline
        self._state = state
        self._tell = tell
        self._sink = planned.sink
        self._replaces = planned.sink.capabilities.replaces
        self.exact = planned.connector.provenance and converts
        self._looks = self.exact or not (self._replaces or not converts)
        self._values = values
        self._atomic = planned.guarantee.mechanism is Mechanism.TRANSACTIONAL
        """Whether rows and positions become visible together."""
        self._replacing = Replacements(planned.sink, workspace)
        self._progress = {tp: PartitionProgress.after(mark) for tp, mark in state.marks.items()}
        self._row_counts = RowCounts(state.surplus, tell)
        self._counted_to = dict(state.counted)
        self._settlement = Settlement(planned, cluster, pipeline, tell)
        self._has_checked_logs = False
        self._count_at = 0.0
        """When to count all rows again."""
        self._again_at: float | None = None
        """When to judge all rows again; None while that is under way."""
        self._spent = 0.0
        self.seconds = 0.0
        """How long the store took to answer in the last round."""
        self.behind = False
        """Whether there is more to judge without a pause."""
        self.unplaced: dict[str, None] = {}
        """The fields whose values reached no column, in words."""
        self._not_judged: dict[str, None] = {}
        self._gaps: list[str] = []
        self._short: set[str] = set()
        """The topics that have fewer rows than the ledger counts."""
        if not self._looks:
            why = "rows replace each other by key and have no provenance"
            if not converts:
                maker = "a query" if planned.query else "a DataFrame transform"
                why = f"{maker} makes the rows"
            self._not_judged[
                f"{why}, so only the number of records read is judged; semel audit without "
                "--follow can tell more"
            ] = None

    @property
    def not_judged(self) -> list[str]:
        """What could not be judged, with the reasons."""
        return [*self._not_judged, *self._gaps]

    @property
    def state(self) -> FollowState:
        """The state that a restart needs."""
        marks = {tp: p.mark for tp, p in self._progress.items()}
        surplus, counted = dict(self._row_counts.surplus), dict(self._counted_to)
        return replace(self._state, marks=marks, surplus=surplus, counted=counted)

    def breaks(self, finding: IntervalReport) -> bool:
        """Whether a finding violates the declared guarantee."""
        return self._settlement.breaks(finding)

    def round(self) -> list[IntervalReport]:
        """Compare what was committed since the last round, at most :data:`STEP` offsets of it.

        Raises:
            NothingToAudit: the ledger does not know the connector.
            OffsetOutOfRange: a log is no longer the one that the ledger knows.
            TransientError: Kafka or the store cannot be reached.
        """
        self.seconds, self.behind = 0.0, False
        began = time.monotonic()
        topics = self._cluster.matching(self._planned.connector)
        entries = {e.topic_partition: e for e in self._sink.entries() if e.topic in topics}
        self._check_logs(entries, topics)
        self._go_on(entries, topics)
        if self.exact and (self._replaces or self._values):
            self._pass(entries)
        count = time.monotonic() >= self._count_at
        if not (count or self._is_behind(entries)):
            return []
        with ExitStack() as views:
            findings = self._looked(entries, topics, views, count=count)
        self._spent += time.monotonic() - began
        return findings

    def _check_logs(
        self, entries: Mapping[TopicPartition, LedgerEntry], topics: Mapping[str, int]
    ) -> None:
        """Check that the ledger has entries, and that Kafka has the logs that they point into.

        Whether a log was truncated is checked once. Later on the connector notices it.
        """
        connector, stored = self._planned.connector, list(entries.values())
        if not stored:
            raise NothingToAudit(
                f"the ledger holds nothing of connector {connector.name} and its topics, so there "
                "is nothing to compare. Has it run under this name and into this target?"
            )
        try:
            check_topics(connector.name, stored, self._cluster)
        except OffsetOutOfRange as error:
            if connector.topic_recreated != "earliest":
                raise
            wait = "until the connector continues with the new one"
            raise TransientError(f"{error} {wait}") from None
        check_positions(connector.name, stored, topics, self._cluster)
        if not self._has_checked_logs:
            check_not_truncated(connector.name, stored, topics, self._cluster)
        self._has_checked_logs = True

    def _looked(
        self,
        entries: Mapping[TopicPartition, LedgerEntry],
        topics: Mapping[str, int],
        views: ExitStack,
        *,
        count: bool,
    ) -> list[IntervalReport]:
        spans = self._spans(entries)
        contents = ledger_only(entries, self._sink.holes())
        if self._looks:
            contents = look(self._sink, topics, spans, views, exact=self.exact, count=count)
        if not self._values:
            views.close()
        self.seconds = contents.seconds
        if count:
            self._count_at = time.monotonic() + max(QUIET, contents.seconds * (1 - SHARE) / SHARE)
            if isinstance(self._sink, Viewable):  # the next look need not count
                self.seconds = 0.0
        if self._go_on(contents.entries, topics):
            self.behind = True
            return []
        self._note_gaps(contents)
        findings = self._judged(contents, spans)
        findings += self._counted(contents)
        self.behind = self._is_behind(contents.entries)
        return findings

    def _pass(self, entries: Mapping[TopicPartition, LedgerEntry]) -> None:
        """Judge all rows that replace each other again from time to time: their number does not
        show whether one was deleted meanwhile."""
        now = time.monotonic()
        if self._is_behind(entries):
            return
        if self._again_at is None:
            self._again_at = now + max(AGAIN, self._spent * (1 - SHARE) / SHARE)
        elif now >= self._again_at:
            self._again_at, self._spent = None, 0.0
            self._progress = {tp: PartitionProgress.after(begun(e)) for tp, e in entries.items()}
            self._replacing.keep({})

    def _is_behind(self, entries: Mapping[TopicPartition, LedgerEntry]) -> bool:
        return any(e.position > self._progress[tp].at for tp, e in entries.items())

    def _go_on(
        self, entries: Mapping[TopicPartition, LedgerEntry], topics: Collection[str]
    ) -> bool:
        """Begin to follow new partitions. If an entry does not continue what was judged, start
        again from the beginning and return True."""
        restarts = False
        for tp, entry in entries.items():
            progress = self._progress.get(tp)
            why = broken_off(entry, progress.mark, progress.at) if progress else None
            if why:
                restarts = True
                self._tell(
                    f"{tp}: judging starts again, because the ledger's entry does not continue "
                    f"from what was judged: {why}"
                )
            if progress is None:
                self._progress[tp] = PartitionProgress.after(begun(entry))
        if restarts:  # a restore, or a change by hand, may concern more than this entry
            self._progress = {tp: PartitionProgress.after(begun(e)) for tp, e in entries.items()}
            self._row_counts.clear()
            self._counted_to.clear()
            self._replacing.keep({})
        for tp in [tp for tp in self._progress if tp.topic in topics and tp not in entries]:
            self._tell(f"{tp}: the ledger no longer has an entry for it. Was it reset or restored?")
            del self._progress[tp]
        return restarts

    def _spans(self, entries: Mapping[TopicPartition, LedgerEntry]) -> Spans:
        """The offsets to compare in this round."""
        step = max(1, STEP // len(entries))
        spans: dict[TopicPartition, tuple[int, int | None]] = {}
        for tp, entry in entries.items():
            at = self._progress[tp].at
            spans[tp] = (at, at + step if at + step < entry.position else None)
        return spans

    # Judging

    def _judged(self, contents: StoreContents, spans: Spans) -> list[IntervalReport]:
        spans = {tp: span for tp, span in spans.items() if tp in contents.entries}
        ends = {
            tp: contents.entries[tp].position if until is None else until
            for tp, (_, until) in spans.items()
        }
        earliest = self._cluster.earliest(spans)
        starts = {tp: min(max(at, earliest[tp]), ends[tp]) for tp, (at, _) in spans.items()}
        latest = self._cluster.latest(spans)
        compacted = self._cluster.compacted({tp.topic for tp in spans})
        kafka, damaged, changed = self._read(contents, starts, ends)
        gone = self._replacing.gone()
        results = []
        for tp in sorted(spans):
            judged = IntervalReport(
                *tp, spans[tp][0], ends[tp], contents.entries[tp].position, 0, 0
            )
            progress = self._progress[tp]
            expired = starts[tp] - progress.at
            judged = replace(judged, records=len(kafka[tp].all()), expired=expired)
            progress.records += judged.records
            span = (starts[tp], ends[tp])
            own = holes.of(contents.snapshot.holes, tp)
            unreadable = holes.damaged(damaged, tp)
            progress.gaps += expired + (tp.topic in compacted)
            progress.gaps += holes.extent(holes.unreadable(unreadable, own, *span))
            if self.exact:
                unknown = progress.drop_replaced(*gone.get(tp, (NONE, NONE)))
                kafka[tp].replaced, kafka[tp].unsure = gone.get(tp, (NONE, NONE))
                letters, elsewhere = (
                    dead_letters(contents, tp),
                    contents.snapshot.elsewhere.get(tp, 0),
                )
                both = interval(contents, tp, span, kafka[tp], unreadable)
                findings = judge(
                    replace(
                        both,
                        compacted=tp.topic in compacted,
                        budget=progress.budget(contents.entries[tp], letters, elsewhere),
                    )
                )
                judged = self._noted(contents, judged, findings, latest)
                judged = replace(judged, unknown=judged.unknown + unknown)
            progress.at = ends[tp]
            rows = tuple(r for r in changed.rows if (r.topic, r.partition) == tp)
            count = sum(p.changed for p in changed.partitions if (p.topic, p.partition) == tp)
            results.append(replace(judged, changed=count, changed_rows=rows))
        at = {tp: p.at for tp, p in self._progress.items()}
        for tp in spans:
            self._progress[tp].ripen(at)
        settle = self._settlement.by_offsets if self.exact else self._settlement.by_counts
        first = [
            judged.until_offset > self._counted_to.get(_place(judged), 0) for judged in results
        ]
        self._count(results, kafka)
        results = settle(contents, results, self._progress)
        unknown = sum(judged.unknown for judged, new in zip(results, first, strict=True) if new)
        self._state = replace(self._state, unknown=self._state.unknown + unknown)
        self._replacing.keep({tp: p.owed() for tp, p in self._progress.items()})
        return results

    def _read(
        self,
        contents: StoreContents,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> tuple[dict[TopicPartition, RecordOffsets], list[Damage], ValueFindings]:
        """Kafka's records, what cannot be read of them, and the rows whose values differ from
        their records'."""
        with ExitStack() as open_:
            values = None
            if self._values and contents.view is not None:
                workspace = open_.enter_context(closing(Workspace()))
                values = values_of(self._sink, contents, contents.view, starts, ends, workspace)

            def taken(poll: TopicPoll) -> None:
                raw = poll.raw(key=True, timestamp=True, headers=self._pipeline.wants_headers)
                converted = self._pipeline.convert(poll.topic, raw)
                target = target_of(contents.snapshot, poll.topic)
                for part in converted.parts:
                    self._replacing.add(poll.topic, part, target)
                if values is not None:
                    values.add(poll.topic, raw, converted)

            converts = values is not None or (self.exact and self._replaces)
            try:
                kafka, damaged = read(
                    self._planned, contents, starts, ends, taken if converts else None
                )
                changed = ValueFindings([])
                if values is not None:
                    parts = [PartitionAudit(*tp, 0, 0, 0, 0) for tp in sorted(starts)]
                    changed = values.judge(parts, ())
            except BaseException as error:
                # The next round reads it again: keep only what earlier rounds have left open.
                self._replacing.keep({tp: p.owed() for tp, p in self._progress.items()})
                if isinstance(error, OffsetOutOfRange):
                    raise TransientError(str(error)) from None
                raise
        self._not_judged |= dict.fromkeys(changed.not_judged)
        for topic, name in changed.unplaced:
            self.unplaced[
                f"values of field {named(name)} of topic {named(topic)}: they reached no column"
            ] = None
        return kafka, damaged, changed

    def _noted(
        self,
        contents: StoreContents,
        judged: IntervalReport,
        findings: Findings,
        latest: Mapping[TopicPartition, int],
    ) -> IntervalReport:
        """The findings of an interval. Missing rows stay open until nothing can explain them."""
        tp = TopicPartition(judged.topic, judged.partition)
        missing, unknown = findings.missing, findings.unknown
        if self._sink.capabilities.only_updates or tp.topic in contents.snapshot.incomplete:
            missing, unknown = NONE, unknown + len(missing)
        if len(missing):
            until = {}
            if self._replaces:
                ends = latest if not self._atomic else self._positions(contents)
                until = {o: end for o, end in ends.items() if o.topic == tp.topic}
            self._progress[tp].open.append(MissingRecords(missing, until))
        surplus, ghosts = findings.surplus, findings.ghosts
        if self._atomic and judged.until_offset == judged.position:
            partition_holes = holes.of(contents.snapshot.holes, tp)
            ahead = too_early(contents.rows(tp, judged.position)[0], partition_holes)
            if self._replaces:  # after the ledger was moved back, the connector writes rows again
                ahead = ahead[ahead >= latest[tp]]
            surplus = np.concatenate([surplus, ahead])
            ghosts += int((ahead >= latest[tp]).sum())
        rows, _ = contents.rows(tp, judged.from_offset, judged.until_offset)
        return replace(
            judged,
            rows=len(rows),
            duplicated=len(surplus),
            ghosts=ghosts,
            unknown=unknown,
            duplicated_offsets=tuple(surplus.tolist()),
        )

    def _positions(self, contents: StoreContents) -> dict[TopicPartition, int]:
        return {tp: e.position for tp, e in contents.entries.items()}

    def _count(
        self, findings: Sequence[IntervalReport], kafka: Mapping[TopicPartition, RecordOffsets]
    ) -> None:
        """Count what was read for the first time."""
        for judged in findings:
            tp = _place(judged)
            before = self._counted_to.get(tp, 0)
            if judged.until_offset <= before:
                continue
            self._counted_to[tp] = judged.until_offset
            self._state = replace(
                self._state,
                records=self._state.records + int((kafka[tp].all() >= before).sum()),
                expired=self._state.expired + judged.expired,
            )

    # Rows that come and go later

    def _note_gaps(self, contents: StoreContents) -> None:
        """Note the holes that nothing can be compared with."""
        if contents.counts is not None:
            by_topic = contents.surplus(by_target=False) if self.exact else {}
            self._short = {topic for topic, more in by_topic.items() if more < 0}
        topics, recorded = {tp.topic for tp in contents.entries}, contents.snapshot.holes
        doubtful = {
            tp: holes.doubts(entry, recorded, rowless(entry))
            for tp, entry in contents.entries.items()
            if self.exact
        }
        former = topics if self._replaces else self._short
        self._gaps = holes.gaps(contents.entries, recorded, topics, former, doubtful)

    def _counted(self, contents: StoreContents) -> list[IntervalReport]:
        """Compare the number of rows with the number that the ledger says were written."""
        self._not_judged |= dict.fromkeys(self._row_counts.unexplained(contents, self._is_behind))
        if self._replaces or not self._atomic:
            return []
        if not self.exact:
            return self._row_counts.odd(contents)
        for topic in self._row_counts.changed(contents):
            for tp, entry in of_topic(topic, contents.entries).items():
                self._progress[tp] = PartitionProgress.after(begun(entry))
        return []


def _place(judged: IntervalReport) -> TopicPartition:
    return TopicPartition(judged.topic, judged.partition)


class RowCounts:
    """Remembers the ``surplus`` of each topic: how many more rows it has than the ledger counts, as
    far as it is known why. ``tell`` gets lines for the user."""

    def __init__(self, surplus: Mapping[str, int], tell: Callable[[str], None]) -> None:
        self.surplus = dict(surplus)
        self._tell = tell
        self._again: dict[str, int] = {}
        """Topics that are judged again because their number of rows changed, with the surplus that
        they had then."""

    def clear(self) -> None:
        """Forget everything: the ledger was restored, or set by hand."""
        self.surplus.clear()
        self._again.clear()

    def changed(self, contents: StoreContents) -> list[str]:
        """The topics whose number of rows changed by itself. They must be judged again."""
        topics = []
        for topic, by in contents.surplus(by_target=False).items():
            before = self.surplus.setdefault(topic, by)
            if by != before and topic not in self._again and of_topic(topic, contents.entries):
                self._tell(f"{topic}: {_described(by - before)}: judging all of it again")
                self._again[topic] = by
                topics.append(topic)
        return topics

    def unexplained(
        self,
        contents: StoreContents,
        is_behind: Callable[[Mapping[TopicPartition, LedgerEntry]], bool],
    ) -> list[str]:
        """What judging topics again has left unexplained."""
        lines = []
        topics = {tp.topic for tp in contents.entries}
        for topic in [t for t in self._again if t in topics]:
            if not is_behind(of_topic(topic, contents.entries)):
                now = self._again.pop(topic)
                change = _described(now - self.surplus.get(topic, now))
                self.surplus[topic] = now
                lines.append(
                    f"{topic}: {change}, and none of them belong to records that Kafka has below "
                    "the position; semel audit without --follow can tell more"
                )
        return lines

    def odd(self, contents: StoreContents) -> list[IntervalReport]:
        """The targets whose number of rows is not the ledger's, each with its first partition."""
        findings = []
        for target, by in sorted(contents.surplus(by_target=True).items()):
            topics = {t for t, name in contents.snapshot.targets.items() if name == target}
            partitions = sorted(tp for tp in contents.entries if tp.topic in topics)
            if by and partitions:
                at = contents.entries[partitions[0]].position
                entries = [contents.entries[tp] for tp in partitions]
                lost, duplicated, _ = by_number(entries, contents.snapshot.holes, by)
                findings.append(
                    IntervalReport(
                        *partitions[0], at, at, at, 0, 0, lost=lost, duplicated=duplicated
                    )
                )
        return findings


def of_topic(
    topic: str, entries: Mapping[TopicPartition, LedgerEntry]
) -> dict[TopicPartition, LedgerEntry]:
    """The ledger's entries of one topic."""
    return {tp: e for tp, e in entries.items() if tp.topic == topic}


def _described(by: int) -> str:
    rows = f"{abs(by):,} row{'s' if abs(by) > 1 else ''}"
    return f"{rows} more than the ledger accounts for" if by > 0 else f"{rows} fewer than before"
