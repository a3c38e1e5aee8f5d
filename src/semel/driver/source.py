"""The source engine's driver: it divides the source, fences what ran before, and starts tasks.

What a task may rely on when it starts: the offsets topic names this run as the owner, and after
that was written, the producers of all tasks of earlier runs were fenced. So a task of an earlier
run that lives on cannot commit, and one that is started again finds out that it has been replaced:
no other task reads the same source partition, however the partitions were divided before.

Where several workers share the tasks, the one that has the first task does this for all, and the
offsets topic tells the others which source partitions each task has. The division stays while the
partitions are the same, whichever worker runs the first task: so a task that moves to another
worker is fenced by its own successor alone.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pyspark import SparkContext

from semel.config import SourceConnectorConfig
from semel.core import failpoints
from semel.core.abandoned import BackgroundCall
from semel.core.context import is_over
from semel.core.delivery import Delivery, Guarantee
from semel.core.errors import Fenced, TransientError
from semel.driver.base import MOST_FENCES, Progress, RunControl
from semel.driver.supervisor import Supervisor
from semel.kafka.cluster import Cluster
from semel.sources.base import Source, TopicEach
from semel.sources.offsets import Owner, SourceOffsets, new_run, own, taken_over
from semel.tasks.control import serving
from semel.tasks.retry import Retries
from semel.tasks.source.task import SourceSpec
from semel.tasks.source.topics import Topics, with_records
from semel.transforms import known_chain

log = logging.getLogger(__name__)

Partitions = Sequence[Mapping[str, Any]]
T = TypeVar("T")

_LOOK = 0.2
"""Seconds between checks of who has divided a source."""
_CALM = 1.0
"""Seconds between checks for changed partitions."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """What a run was asked to do."""

    connector: SourceConnectorConfig
    guarantee: Guarantee
    source: Source
    cluster: Cluster
    run_control: RunControl


class SourceEngine:
    """One run of a source connector."""

    def __init__(self, run: SourceRun, spark: Callable[[], SparkContext]) -> None:
        self._run = run
        self._spark = spark
        self._offsets = SourceOffsets(run.connector, run.cluster)
        self._supervisor = Supervisor(run.run_control, spark)
        self._chain = known_chain(run.connector.originals)

    def run(self) -> Progress:
        """Divide the source and run its tasks, again and again as its partitions change.

        Raises:
            SemelError: what ended the connector.
        """
        try:
            return self._prepared()
        except TransientError:
            if not self._run.run_control.stop.is_set():
                raise
            return self._supervisor.progress
        finally:
            self._offsets.close()

    def _prepared(self) -> Progress:
        run = self._run
        self._offsets.prepare()
        topics = Topics(run.connector, run.cluster)
        for topic in self._routed(run.source.topics()):
            topics.ensure(topic)
        partitions = run.source.partitions()
        if later := self._topics_of(partitions):
            topics.check(later)
        owner = Owner()
        while not run.run_control.stop.is_set():  # a run that is over fences nobody
            if not run.run_control.assignment.is_whole:
                return self._run_share(partitions, owner)
            watch = _Watch(run.connector.name, run.source, partitions, self._may_divide)
            owner = self._own(partitions, owner)
            progress = self._run_tasks(owner, watch, is_whole=True)
            if watch.changed is not None:
                partitions = watch.changed
                log.info(
                    "connector %s: there are %d source partitions now: dividing them again",
                    *(run.connector.name, len(partitions)),
                )
            elif not watch.gives_away:
                return progress
        return self._supervisor.progress

    def _run_share(self, partitions: Partitions, known: Owner) -> Progress:
        """Run this worker's tasks each time the source is divided; ``known`` is the owner that was
        seen last."""
        run, stop = self._run, self._run.run_control.stop
        fenced, last = 0, Owner()
        while not stop.is_set():
            owner = self._patiently(partial(self._divided, partitions, last, known))
            if owner is None:  # the first task's worker has not divided it yet
                stop.wait(_LOOK)
                partitions = self._patiently(run.source.partitions)
                continue
            known = owner
            watch = _Watch(run.connector.name, run.source, partitions, self._may_divide)
            try:
                progress = self._run_tasks(owner, watch)
            except Fenced as error:
                fenced = fenced + 1 if owner == last else 1
                # Their own successors fence tasks that move to another worker.
                if fenced > MOST_FENCES:
                    raise
                log.info("%s; checking who has divided the source since", error)
                last = owner
                stop.wait(fenced * _LOOK)
                continue
            if watch.changed is None:
                return progress
            partitions = watch.changed
        return self._supervisor.progress

    def _divided(self, partitions: Partitions, before: Owner, known: Owner) -> Owner | None:
        """Who has divided these partitions; that is done here if nobody has and the first task is
        here. None if another worker has yet to do it.

        Args:
            before: the owner that was fenced last.
            known: the owner that was seen last.

        Raises:
            Fenced: a run that does not share its tasks with this cluster has taken over, whether or
                not it has fenced a task here yet.
            ServiceError: no owner is stored any more.
        """
        run = self._run
        owner = self._offsets.owner()
        if self._has_divided(owner, partitions):
            return owner
        if known.run and not owner.run:
            raise taken_over(run.connector, owner, known)
        if not run.run_control.assignment.has_first:
            return None
        shared = owner.parts and self._is_of_cluster(owner)
        if before.run and owner.run != before.run and not shared:
            raise taken_over(run.connector, owner, before)
        if known.run and owner.run != known.run and not self._is_of_cluster(owner):
            raise taken_over(run.connector, owner, known)
        return self._own(partitions, Owner(), shared=True)

    def _may_divide(self, partitions: Partitions) -> bool:
        """Whether the tasks may be divided again. Until another worker has divided these
        partitions, tasks continue with what they have.

        Raises:
            TransientError: Kafka does not answer, so a takeover would fail.
        """
        # The driver's consumer may be in use in its own thread.
        with closing(SourceOffsets(self._run.connector, self._run.cluster)) as offsets:
            owner = offsets.owner()
        return self._run.run_control.assignment.has_first or self._has_divided(owner, partitions)

    def _has_divided(self, owner: Owner, partitions: Partitions) -> bool:
        parts = self._run.source.divide(partitions, self._run.connector.tasks_max)
        divided = [partition for part in owner.parts for partition in part]
        return (
            self._is_of_cluster(owner)
            and len(owner.parts) == len(parts)
            and _canonical(divided) == _canonical(partitions)
        )

    def _is_of_cluster(self, owner: Owner) -> bool:
        """Whether the producers of its tasks have the same transactional ids as those here: only
        then does a task fence the one that had its place."""
        return owner.group in ("", self._run.connector.group_id)

    def _patiently(self, action: Callable[[], T]) -> T:
        """Like a task, wait for brokers, or a source, that do not answer.

        Raises:
            TransientError: the run was stopped meanwhile.
        """
        tell = partial(log.warning, "%s")
        return Retries(self._run.connector, tell).run(action, self._run.run_control.stop.wait)

    def _own(self, partitions: Partitions, before: Owner, *, shared: bool = False) -> Owner:
        """Divide the source, and end what ran before; ``shared`` tells other processes how.

        Raises:
            Fenced: another run has taken over since ``before``, if that is a run.
            ServiceError: no owner is stored any more.
        """
        # An attempt that failed may have stored this run as the owner.
        take = partial(self._take_over, partitions, before, new_run(), shared)
        return self._patiently(take)

    def _take_over(self, partitions: Partitions, before: Owner, name: str, shared: bool) -> Owner:
        run = self._run
        stored = self._offsets.uncommitted()
        if before.run and stored.owner.run not in (before.run, name):
            raise taken_over(run.connector, stored.owner, before)
        if not stored.owner.run and not stored.offsets:
            self._warn_of_repetition(partitions)
        if stored.owner.run not in ("", name, before.run) and not run.run_control.assignment.moves:
            self._announce(stored.owner.by)
        parts = run.source.divide(partitions, run.connector.tasks_max)
        return own(
            run.connector,
            self._offsets,
            parts,
            fences=run.guarantee.delivery is Delivery.EXACTLY_ONCE,
            shared=shared,
            run=name,
        )

    def _announce(self, before: str) -> None:
        """Say whose place this run takes, unless that one has certainly ended."""
        if before and not is_over(before):
            log.warning(
                "connector %s: this run takes over from the one started by %s. If that one is "
                "still alive, it stops",
                *(self._run.connector.name, before),
            )

    def _warn_of_repetition(self, partitions: Partitions) -> None:
        """Warn that records which an earlier run wrote will come again: no offset is stored."""
        run = self._run
        topics = {*self._routed(run.source.topics()), *self._topics_of(partitions)}
        if topics and (filled := with_records(run.cluster, topics)):
            log.warning(
                "connector %s: %s holds no source offset, so the source is read from its "
                "beginning. But records are in topic %s: if an earlier run has written them, they "
                "are written once more. To continue after them, stop the connector and set its "
                "source offsets with semel offsets set",
                *(run.connector.name, self._offsets.where, ", ".join(filled)),
            )

    def _topics_of(self, partitions: Partitions) -> list[str]:
        """The topics of source partitions that have one each."""
        source = self._run.source
        if not isinstance(source, TopicEach):
            return []
        return self._routed([source.topic_of(partition) for partition in partitions])

    def _routed(self, topics: Sequence[str]) -> list[str]:
        """The topics that transforms send these records to; none if that depends on the record."""
        return [self._chain.route(t) for t in topics] if self._chain.goes_by_topic else []

    def _run_tasks(self, owner: Owner, watch: _Watch, *, is_whole: bool = False) -> Progress:
        """Run tasks until the run is over, or the partitions have changed; or, if all tasks are to
        run here, until others have some of them: they must be told how the source is divided."""
        run = self._run
        parts = owner.parts
        server, address = serving(self._spark())
        spec = SourceSpec(
            connector=run.connector,
            control=address,
            environment=failpoints.environment(),
            guarantee=run.guarantee,
            owner=owner,
            parts=parts,
            until_caught_up=run.run_control.until_caught_up,
        )

        def over(progress: Progress) -> bool:
            watch.gives_away = is_whole and not run.run_control.assignment.is_whole
            if run.run_control.stop.is_set() or watch.gives_away:
                return True
            reports = [progress.tasks.get(n) for n in range(len(parts))]
            caught_up = all(report is not None and report.caught_up for report in reports)
            return (run.run_control.until_caught_up and caught_up) or watch.look()

        try:
            return self._supervisor.supervise(server, spec, len(parts), over, calm=_CALM)
        finally:
            server.close()


class _Watch:
    """Asks a source for its partitions now and then; ``changed`` are the new ones once they have
    changed and are ``ready``. ``gives_away`` is set once other workers must run some tasks."""

    def __init__(
        self,
        connector: str,
        source: Source,
        partitions: Partitions,
        ready: Callable[[Partitions], bool] = lambda _partitions: True,
    ) -> None:
        self._ready = ready
        self._partitions = partitions
        self._connector = connector
        self._source = source
        self._known = _canonical(partitions)
        self._due = time.monotonic() + source.refresh
        self._asked: BackgroundCall[Partitions] | None = None
        self.changed: Partitions | None = None
        self.gives_away = False

    def look(self) -> bool:
        """Whether they have changed. Does not wait for the source.

        Raises:
            SemelError: the source fails for good.
        """
        if self._asked is None:
            if time.monotonic() >= self._due:
                what = f"asking connector {self._connector}'s source for its partitions"
                self._asked = BackgroundCall(what, self._ask)
            return False
        if not self._asked.ended(0):
            return False
        asked, self._asked = self._asked, None
        self._due = time.monotonic() + self._source.refresh
        try:
            partitions = asked.result()
        except TransientError as error:
            log.warning("%s; asking for its partitions again later", error)
            return False
        if _canonical(partitions) != self._known:
            self.changed = partitions
        return self.changed is not None

    def _ask(self) -> Partitions:
        partitions = self._source.partitions()
        is_new = _canonical(partitions) != self._known
        return partitions if is_new and self._ready(partitions) else self._partitions


def _canonical(partitions: Partitions) -> list[str]:
    return sorted(json.dumps(dict(p), sort_keys=True) for p in partitions)
