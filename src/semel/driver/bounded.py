"""The bounded direct engine's driver: one Spark job and one commit per trigger.

The driver decides the offset ranges of each trigger from the ledger and from what Kafka has; tasks
read them with librdkafka and stage files; the driver commits files and ranges once. It is for
stores that commit per table. Killing any part of it loses nothing: no reader sees files that were
staged but not committed.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from pyspark import SparkContext

from semel.config.connector import seconds
from semel.core import failpoints
from semel.core.errors import (
    GaveUp,
    LedgerConflict,
    RolledBack,
    SemelError,
    ServiceError,
    TargetChanged,
    TransientError,
)
from semel.core.ledger import (
    Advance,
    LedgerEntry,
    LogId,
    OffsetRange,
    Target,
    TopicPartition,
    of_logs,
)
from semel.core.records import DeadLetter
from semel.driver import sample, startup
from semel.driver.base import Progress, Run, State, Stopped
from semel.kafka.damage import Damage
from semel.sinks import protocols
from semel.sinks.staging import StagedCommit, StagingSink
from semel.spark.job_errors import SparkGone, first_error, not_shipped, spark_gone
from semel.tasks import ranges
from semel.tasks.batch import bad_record, passing_over
from semel.tasks.bounded import BoundedSpec, TaskResult, run_task
from semel.tasks.commit import Committer
from semel.tasks.control import FROZEN, Lines, Report
from semel.tasks.publish import Publisher
from semel.tasks.retry import OverdueWarning, Retries
from semel.tasks.transform import Transform
from semel.tasks.unplaced import UnplacedLog, sum_of
from semel.tasks.workers import new_run

log = logging.getLogger(__name__)

_INTERVAL = "10 seconds"
"""Unless processingTime or the sink sets another one: every commit makes files."""
_LOOK = 0.2
"""Seconds between two checks whether a paused run may continue, or a job has ended."""
_KEPT = Target("")
_SHARE = 50_000
"""Up to this many records go to a single task, so that small triggers make few files."""
SETTLE = 20.0
"""Seconds for a job to end once the run was asked to stop."""


class BoundedEngine:
    """One run of a connector."""

    def __init__(
        self, run: Run, spark: Callable[[], SparkContext], transform: Transform | None
    ) -> None:
        assert isinstance(run.sink, StagingSink)
        self._run = run
        self._connector = run.connector
        self._sink = run.sink
        self._progress = Progress()
        self._unplaced_log = UnplacedLog(run.connector, run.sink)
        self._interval = interval(run)
        self._committer = Committer(
            run.connector,
            run.guarantee,
            run.sink,
            0,
            log.warning,
            waits=self._waits,
            ends=run.stop.wait,
            logs_bad_records=True,
        )
        self._overdue = OverdueWarning(log.warning, lambda: self._doing)
        self._doing = ""
        self._jobs = Jobs(run.connector.name, spark, self._look)
        self._prepared: set[str] = set()
        self._sampled: set[str] = set()
        self._publisher: Publisher | None = None
        self._entries: dict[TopicPartition, LedgerEntry] = {}
        self._spec = BoundedSpec(
            run=new_run(),
            connector=run.connector,
            environment=failpoints.environment(),
            transform=transform,
        )

    def run(self) -> Progress:
        """Run a Spark job per trigger until stopped, caught up, or an error ends the connector.

        Raises:
            SemelError: what ended it.
        """
        try:
            self._loop(self._prepare())
        except LedgerConflict as conflict:
            assert self._publisher is not None
            raise self._publisher.fenced(conflict) from None
        except Stopped:
            pass
        finally:
            self._overdue.end()
            self._jobs.close()
            if self._publisher is not None:
                self._publisher.close()
        self._run.observe(self._progress)
        return self._progress

    def _prepare(self) -> dict[TopicPartition, int]:
        run = self._run
        self._prepared |= run.topics.keys()
        self._publisher = Publisher(
            run.connector, run.sink, run.topics, run.stop, moves=run.assignment.moves
        )
        startup.enter(run)
        self._publisher.log_start()
        return startup.targets(run)

    def _loop(self, targets: Mapping[TopicPartition, int]) -> None:
        """Run triggers; retry one that fails for a reason that may pass."""
        retries, answered = Retries(self._connector, log.warning, self._waits), False
        while not self._run.stop.is_set():
            begun = time.monotonic()
            paused = self._run.paused.is_set()
            self._progress.all_tasks(
                self._connector.tasks_max, State.PAUSED if paused else State.RUNNING
            )
            if paused:
                self._overdue.end()
                self._rest(_LOOK)
                continue
            if self._run.run_control.drop_restarts():
                # Processes keep their workers by the run's name.
                self._spec = replace(self._spec, run=new_run())
                self._progress.restarts += 1
            try:
                full = self._trigger()
            except SparkGone:
                if self._run.stop.is_set():  # Spark may have been stopped first
                    return
                raise
            except (GaveUp, RolledBack):
                raise
            except (TransientError, ServiceError) as error:
                if isinstance(error, ServiceError) and not answered:
                    raise  # at the start, tell the user; later the service may be restarting
                self._doing = str(error)
                pause = retries.failed(error)
                self._progress.restarts += 1
                self._rest(pause)
                continue
            retries.succeeded()
            answered = True
            if self._run.over(self._progress, targets):
                return
            if not full and not self._run.until_caught_up:
                self._rest(begun + self._interval - time.monotonic())

    def _waits(self, why: str) -> None:
        self._run.waits(self._progress, why)

    def _look(self) -> bool:
        """Report the progress to the observer; returns whether the run was asked to stop."""
        self._run.observe(self._progress)
        return self._run.stop.is_set()

    def _rest(self, pause: float) -> None:
        until = time.monotonic() + pause
        self._run.observe(self._progress)
        while not self._run.stop.is_set() and (remaining := until - time.monotonic()) > 0:
            self._run.stop.wait(min(remaining, 0.2))
            self._run.observe(self._progress)

    # One trigger

    def _trigger(self) -> bool:
        """Commit what Kafka holds, up to ``maxOffsetsPerTrigger``; returns whether it held more."""
        most = self._connector.max_offsets_per_trigger
        wanted, more = self._plan(most)
        if wanted:
            self._overdue.begin()
        stop: DeadLetter | None = None
        damaged: dict[TopicPartition, Damage] = {}
        while wanted:
            results = self._staged(wanted)
            stops = [r.stop for r in results if r.stop is not None]
            damages = [r.damage for r in results if r.damage is not None]
            if not stops and not damages:
                try:
                    changed = self._others(wanted)
                except SemelError:
                    self._discard(results)
                    raise
                if changed:
                    self._discard(results)
                    return True  # the next trigger finds out what has happened
                self._commit(wanted, results)
                break
            stop = next(iter(stops), stop)
            for letter in stops:
                wanted = _before(
                    wanted, TopicPartition(letter.topic, letter.partition), letter.offset
                )
            for damage in damages:
                earlier = damaged.get(damage.topic_partition, damage)
                damaged[damage.topic_partition] = min(earlier, damage, key=_start)
                wanted = _before(wanted, damage.topic_partition, damage.range.from_offset)
        if stop is not None:
            raise bad_record(self._connector.name, stop)
        for damage in damaged.values():
            self._pass_over(damage)
        return more or bool(damaged)

    def _others(self, wanted: Sequence[OffsetRange]) -> bool:
        """Whether the records may come from different logs than the positions, because topics were
        created again meanwhile or logs were truncated before the positions."""
        cluster = self._run.cluster
        logs = cluster.logs({r.topic for r in wanted})
        there = [self._entries[r.topic_partition] for r in wanted if r.topic in logs]
        if any(e.log.contradicts(logs[e.topic]) for e in there):
            return True
        return bool(
            ranges.divergences(cluster, there, cluster.ends([e.topic_partition for e in there]))
        )

    def _pass_over(self, damage: Damage) -> None:
        """Record unreadable offsets as a hole and continue after them, or stop.

        Raises:
            BadRecord: ``errors.tolerance`` is ``none``.
        """
        run, tp = self._run, damage.topic_partition
        entry = ranges.stored_entries(run.connector, run.sink, run.cluster, [tp])[tp]
        position = entry.position
        if not damage.range.from_offset <= position < damage.range.until_offset:
            return  # it has been moved meanwhile; the next trigger reads from there
        damage.check_tolerated(self._connector, position)
        log.warning("%s: %s; continuing after them", tp, damage.described(position))
        for batch in passing_over(damage, position):
            advances = batch.of({tp.topic: entry.log}).advances
            self._commit_staged(advances, StagedCommit(dead_letters=batch.commit.dead_letters))
        self._progress.positions |= {tp: damage.range.until_offset}

    def _plan(self, most: int) -> tuple[list[OffsetRange], bool]:
        run = self._run
        topics = ranges.topics_now(run.connector, run.cluster)
        new = topics.keys() - self._prepared
        if new:
            run.sink.prepare(new)
            self._prepared |= new
        partitions = ranges.partitions(topics)
        entries = ranges.stored_entries(run.connector, run.sink, run.cluster, partitions)
        self._entries = entries
        positions = {tp: e.position for tp, e in entries.items()}
        self._progress.positions |= positions
        ends = run.cluster.latest(partitions)
        reach = protocols.uneven(self._sink, partitions) or ends
        at = {tp: positions[tp] for tp in reach if tp in positions}
        to_read = limited(at, {tp: min(ends[tp], reach[tp]) for tp in at}, most)
        self._sample({r.topic_partition: r.from_offset for r in to_read})
        until = {**positions, **{r.topic_partition: r.until_offset for r in to_read}}
        return to_read, bool(to_read) and any(until[tp] < ends[tp] for tp in until)

    def _sample(self, positions: Mapping[TopicPartition, int]) -> None:
        """Sample topics that are read for the first time, so that all tasks agree on types."""
        run = self._run
        unseen = {tp: at for tp, at in positions.items() if tp.topic not in self._sampled}
        if not unseen:
            return
        inferred = sample.schemas(
            run.connector, run.sink, run.cluster, self._spec.transform, unseen
        )
        self._sampled |= {tp.topic for tp in unseen}
        if inferred:
            schemas = {**self._spec.schemas, **inferred}
            self._spec = replace(self._spec, schemas=schemas, version=self._spec.version + 1)

    def _staged(self, wanted: Sequence[OffsetRange]) -> list[TaskResult]:
        """Run the job of a trigger.

        Raises:
            SemelError: a task's error; the files of all other tasks are deleted.
        """
        parts = shared(wanted, self._connector.tasks_max)
        self._doing = f"{len(parts)} tasks read and stage them"
        logs = [{r.topic: self._entries[r.topic_partition].log for r in part} for part in parts]
        results = self._jobs.results(self._spec, parts, logs)
        failed = [r.failure.error() for r in results if r.failure is not None]
        if failed or any(r.stop is not None or r.damage is not None for r in results):
            self._discard(results)
        if failed:
            # An error that ends the connector comes before one that may pass.
            raise sorted(failed, key=lambda error: isinstance(error, TransientError))[0]
        return results

    def _discard(self, results: Sequence[TaskResult]) -> None:
        for r in results:
            self._sink.discard(StagedCommit(r.files))

    # The commit

    def _commit(self, wanted: Sequence[OffsetRange], results: Sequence[TaskResult]) -> None:
        letters = [letter for r in results for letter in r.letters]
        letters.sort(key=lambda x: (x.topic, x.partition, x.offset))
        staged = StagedCommit([f for r in results for f in r.files], letters)
        logs = {tp.topic: e.log for tp, e in self._entries.items()}
        advances = of_logs(whole(wanted, [a for r in results for a in r.advances]), logs)
        self._doing = "the commit is in progress"
        self._commit_staged(advances, staged)
        self._overdue.end()
        progress = self._progress
        progress.records += sum(a.read for a in advances)
        progress.rows += sum(a.written for a in advances)
        progress.failed += sum(a.failed for a in advances)
        progress.unplaced = sum_of([progress.unplaced, *(a.unplaced for a in advances)])
        self._unplaced_log.tell(progress.unplaced)
        progress.commits += 1
        progress.deliveries = self._committer.totals
        until = {a.range.topic_partition: a.range.until_offset for a in advances}
        progress.positions |= until
        progress.tasks |= {r.index: Report("progress", r.index, 0) for r in results}
        failpoints.hit("task.before_publish")
        if self._publisher is not None:
            self._publisher.publish(self._kept(until))
        self._run.observe(progress)

    def _kept(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The positions that the ledger stores. A ledger inside the target exists only once the
        target does."""
        targets = self._sink.targets({tp.topic for tp in positions})
        return {tp: at for tp, at in positions.items() if targets.get(tp.topic, _KEPT) is not None}

    def _commit_staged(self, advances: Sequence[Advance], staged: StagedCommit) -> None:
        """Commit; after a failure with an unknown outcome, the next attempt asks the ledger.

        Staged files are left alone whatever happens: some of them may be committed.

        Raises:
            Stopped: the run was asked to stop before the commit took place.
        """
        try:
            self._committer.retrying(lambda: self._committer.commit(advances, staged))
        except TargetChanged:
            raise  # the records are staged again
        except TransientError:
            raise Stopped from None


def interval(run: Run) -> float:
    """Seconds from one trigger to the next, unless the next one is full.

    Raises:
        ConfigError: ``processingTime`` is not an interval.
    """
    if "processingTime" in run.connector.originals:
        return seconds(run.connector.processing_time)
    assert isinstance(run.sink, StagingSink)
    return run.sink.interval or seconds(_INTERVAL)


def _start(damage: Damage) -> int:
    return damage.range.from_offset


def whole(wanted: Sequence[OffsetRange], parts: Sequence[Advance]) -> list[Advance]:
    """One advance per topic-partition, combined from the parts that several tasks have read.

    Raises:
        TransientError: the parts lack offsets or overlap, because results of tasks are missing or
            belong to another trigger; a commit would skip records.
    """
    advances = []
    for r in wanted:
        own = [a for a in parts if a.range.topic_partition == r.topic_partition]
        at = r.from_offset
        for part in sorted((a.range for a in own), key=lambda p: (p.from_offset, p.until_offset)):
            at = part.until_offset if part.from_offset == at else -1
        if at != r.until_offset:
            raise TransientError(
                f"the tasks' results do not cover {r.topic_partition} from offset "
                f"{r.from_offset} to {r.until_offset}"
            )
        last = max((a for a in own if a.read), key=lambda a: a.range.from_offset, default=None)
        advances.append(
            Advance(
                r,
                read=sum(a.read for a in own),
                written=sum(a.written for a in own),
                filtered=sum(a.filtered for a in own),
                failed=sum(a.failed for a in own),
                unplaced=sum_of(a.unplaced for a in own),
                leader_epoch=last.leader_epoch if last else -1,
                epoch_offset=last.epoch_offset if last else -1,
            )
        )
    return advances


class Jobs:
    """The Spark jobs of one run, one at a time: each runs the tasks of a trigger and returns their
    results to the driver.

    ``look`` is called several times a second while a job is waited for; it returns whether the run
    was asked to stop.
    """

    def __init__(
        self, connector: str, spark: Callable[[], SparkContext], look: Callable[[], bool]
    ) -> None:
        self._connector = connector
        self._spark = spark
        self._look = look
        self._lines = Lines()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semel-job")

    def close(self) -> None:
        self._lines.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def results(
        self,
        spec: BoundedSpec,
        parts: Sequence[Sequence[OffsetRange]],
        logs: Sequence[Mapping[str, LogId]],
    ) -> list[TaskResult]:
        """Run a job whose task ``i`` stages ``parts[i]``, which are of ``logs[i]``.

        Raises:
            TransientError: the job has failed as a whole.
            Stopped: the job does not end although the run was asked to stop.
        """
        self._lines.begin()
        return self._watched(self._thread.submit(self._run, spec, parts, logs), spec)

    def _watched(self, future: Future[list[TaskResult]], spec: BoundedSpec) -> list[TaskResult]:
        """Wait for a job. Cancel it if one of its processes is frozen, so that Spark ends the
        process, or if the job does not end soon after a stop."""
        asked: float | None = None
        frozen = ""
        while not wait([future], timeout=_LOOK).done:
            stopping, now = self._look(), time.monotonic()
            if process := self._lines.frozen():
                frozen = process
                self._cancel(spec)
            if asked is None:
                if stopping:
                    asked = now
                    self._lines.stop()
            elif now - asked > 2 * SETTLE:
                log.warning("connector %s: its Spark job does not end", self._connector)
                raise Stopped
            elif now - asked > SETTLE:
                self._cancel(spec)
        try:
            return future.result()
        except TransientError:
            if not frozen:
                raise
            raise TransientError(
                f"connector {self._connector}: {frozen} has not reported for {FROZEN:.0f} s, and "
                "was ended"
            ) from None

    def _cancel(self, spec: BoundedSpec) -> None:
        with contextlib.suppress(Exception):  # Spark may have stopped
            self._spark().cancelJobGroup(_group(spec))

    def _run(
        self,
        spec: BoundedSpec,
        parts: Sequence[Sequence[OffsetRange]],
        logs: Sequence[Mapping[str, LogId]],
    ) -> list[TaskResult]:
        context = self._spark()
        try:
            addressed = replace(spec, control=self._lines.address(context))

            def body(index: int, _rows: Iterable[int]) -> Iterator[bytes]:
                yield pickle.dumps(run_task(addressed, index, parts[index], logs[index]))

            context.setJobGroup(_group(spec), f"connector {self._connector}", True)
            job = context.parallelize(range(len(parts)), len(parts))
            answers: list[Any] = job.mapPartitionsWithIndex(body).collect()
        except Exception as error:
            text = str(error)
            missing = not_shipped(spec.connector, text)
            if missing is not None:
                raise missing from None
            gone = spark_gone(spec.connector, error)
            if gone is not None:
                raise gone from None
            log.debug("the job failed: %s", text)
            raise TransientError(
                f"connector {self._connector}: the Spark job failed: {first_error(text)}"
            ) from None
        return [pickle.loads(answer) for answer in answers]


def _group(spec: BoundedSpec) -> str:
    return f"semel-{spec.run}"


# What a trigger reads, and which task reads which part of it


def limited(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int
) -> list[OffsetRange]:
    """About ``most`` offsets in all: the same share of each partition's lag, but at least one."""
    lags = {tp: ends[tp] - at for tp, at in positions.items() if ends[tp] > at}
    total = sum(lags.values())
    ranges = []
    for tp, lag in sorted(lags.items()):
        size = lag if total <= most else max(1, lag * most // total)
        ranges.append(OffsetRange(*tp, positions[tp], positions[tp] + size))
    return ranges


def shared(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Ranges cut into parts of equal size, at most one per task; a large partition is split across
    several."""
    total = sum(r.until_offset - r.from_offset for r in ranges)
    count = max(1, min(tasks, -(-total // _SHARE)))
    size = -(-total // count)
    parts: list[list[OffsetRange]] = [[]]
    room = size
    for r in ranges:
        at = r.from_offset
        while at < r.until_offset:
            if not room:
                parts.append([])
                room = size
            end = min(r.until_offset, at + room)
            parts[-1].append(OffsetRange(r.topic, r.partition, at, end))
            room -= end - at
            at = end
    return parts


def _before(ranges: Sequence[OffsetRange], tp: TopicPartition, offset: int) -> list[OffsetRange]:
    """The ranges, with one partition's cut before ``offset``."""
    kept = []
    for r in ranges:
        until = min(r.until_offset, offset) if r.topic_partition == tp else r.until_offset
        if until > r.from_offset:
            kept.append(OffsetRange(r.topic, r.partition, r.from_offset, until))
    return kept
