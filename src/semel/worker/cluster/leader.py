"""The leader: its right to write the config topic, and how it assigns connectors and tasks to
workers, evenly and with as few moves as possible."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from semel.config.worker import ClusterConfig
from semel.core.errors import LedgerConflict, SemelError, ServiceError
from semel.driver.planning import plan_any
from semel.kafka.compacted import FollowedTopic
from semel.kafka.transactions import RecordsRefused, Transactions
from semel.worker.cluster.membership import Group, Membership
from semel.worker.cluster.records import Assignment, Record, assigned, left, session_key
from semel.worker.cluster.store import Store, refused

log = logging.getLogger(__name__)

Owners = Mapping[str, Sequence[str]]
"""The worker of each share of each connector. A share is a task, or the connector as a whole."""
_Share = tuple[str, int]
_DIVISIBLE = ("direct", "source")
"""The engines whose tasks do not need a common driver."""


class Leader:
    """Leads the cluster while this worker owns the config topic's partition."""

    def __init__(
        self, config: ClusterConfig, store: Store, membership: Membership, leadership: Leadership
    ) -> None:
        self._config = config
        self._store = store
        self._membership = membership
        self._leadership = leadership
        self._left: dict[str, float] = {}
        """When each worker that is expected back was last known to be away."""
        self._noticed: dict[tuple[str, int], float] = {}
        """When this process has first seen each departure: clocks of machines may differ."""
        self._is_new = True
        """Whether this process has not yet been part of a cluster that had a leader."""
        self._begun_at = 0.0
        """When the cluster was started as a whole, in milliseconds; 0 if it was running before."""
        self._awaited: frozenset[str] = frozenset()

    def look(self) -> None:
        """Become or stop being the leader as the group decides, and write what has changed.

        Raises:
            SemelError: a topic could not be written. Call again.
        """
        group = self._membership.group
        if group.leader != self._config.url:
            if group.leader is not None:
                self._is_new = False
                self._leadership.give_up()
            return
        try:
            self._lead(group)
        except LedgerConflict:
            log.info("worker %s no longer leads", self._config.id)

    def _lead(self, group: Group) -> None:
        if not self._leadership.is_held:
            log.info("worker %s leads group %s", self._config.id, self._config.group_id)
            self._leadership.take()
            if self._is_new and not self._has_stayed(group):
                self._begun_at = time.time() * 1000
            self._is_new = False
            if not self._store.configs.session_key:
                self._leadership.write([session_key()])
            self._store.wake()  # requests wait for it
        since = time.time() * 1000 - self._config.rebalance_delay_ms
        assignment = self._assigning(group, since)
        if assignment is not None:
            self._leadership.write([assigned(assignment)])
            owners = assignment.owners - self._awaited
            log.info(
                "group %s: assigned %d connectors to %d workers (assignment %d)",
                *(self._config.group_id, len(assignment.workers), len(owners), assignment.epoch),
            )
        self._forget(group, since)

    def _assigning(self, group: Group, since: float) -> Assignment | None:
        """The assignment that replaces the current one. Workers that left before ``since``, in
        milliseconds, are not awaited any more."""
        store = self._store
        with store.changed:
            before = store.configs.assignment
            connectors = {n: dict(c) for n, c in store.configs.connectors.items()}
            versions = {name: store.configs.version(name) for name in connectors}
            departures = store.statuses.leaving.items()
            leaving = {worker: at for worker, at in departures if at > self._begun_at}
        workers = [worker for worker in group.members if worker not in leaving]
        if not workers:
            return None
        now, delay = time.monotonic(), self._config.rebalance_delay_ms / 1000
        self._noticed = {each: self._noticed.get(each, now) for each in leaving.items()}
        awaited = [
            worker
            for (worker, at), noticed in self._noticed.items()
            if at > since and now - noticed < delay
        ]
        awaited += self._returning(leaving, group)
        self._tell_awaited(frozenset(awaited) & before.owners)
        share_counts = {n: len(of) for n, of in before.workers.items() if of}
        shares = {
            name: share_counts[name]
            if name in share_counts and before.versions.get(name) == versions[name]
            else self._shares(config)
            for name, config in connectors.items()
        }
        owners = assign(shares, workers, before.workers, awaited)
        if owners == before.workers and versions == before.versions:
            return None
        return Assignment(before.epoch + 1, owners, versions)

    def _has_stayed(self, group: Group) -> bool:
        """Whether a worker that was assigned work is still there. If none is, the cluster was
        stopped as a whole, and nobody waits for workers that may have other addresses now."""
        with self._store.changed:
            before = self._store.configs.assignment
            leaving = set(self._store.statuses.leaving)
        return bool(before.owners & group.members - leaving - {self._config.url})

    def _tell_awaited(self, awaited: frozenset[str]) -> None:
        if awaited - self._awaited:
            log.info(
                "group %s: keeping the work of %s for workers that were stopped, for %.0f s at "
                "most (scheduled.rebalance.max.delay.ms)",
                self._config.group_id,
                ", ".join(sorted(awaited)),
                self._config.rebalance_delay_ms / 1000,
            )
        self._awaited = awaited

    def _returning(self, leaving: Collection[str], group: Group) -> list[str]:
        """Workers that are back, but not yet in the group as this worker saw it last."""
        now, session = time.monotonic(), self._config.session_timeout_ms / 1000
        self._left |= dict.fromkeys(leaving, now)
        self._left = {
            worker: at
            for worker, at in self._left.items()
            if worker in leaving or (now - at < session and worker not in group.members)
        }
        return [worker for worker in self._left if worker not in leaving]

    def _shares(self, config: Mapping[str, str]) -> int:
        """The number of shares that a connector can be divided into: its tasks, if they need not be
        together. A connector that cannot run has one, and its worker says why."""
        try:
            planned = plan_any(self._config.inherited(self._config.permitted(config)))
        except Exception:  # a plugin may raise any
            return 1
        try:
            if planned.engine not in _DIVISIBLE or planned.is_local:
                return 1
            return planned.connector.tasks_max
        finally:
            planned.close()

    def _forget(self, group: Group, since: float) -> None:
        """Remove deleted connectors from the status topic, and workers that left before ``since``
        and have not come back."""
        with self._store.changed:
            statuses = self._store.statuses
            gone = statuses.known() - set(self._store.configs.connectors)
            records = [r for name in gone for r in statuses.forgetting(name)]
            departures = statuses.leaving.items()
            workers = [w for w, at in departures if at <= since and w not in group.members]
            records += [left(worker, None) for worker in workers]
        self._left = {w: at for w, at in self._left.items() if w not in workers}
        self._store.report(records)


class Leadership:
    """The right to write the config topic: a transactional producer that fences the leader before
    it. Held from :meth:`take` until another worker takes it. Its ``transactional.id`` is that of
    Kafka Connect's leaders."""

    def __init__(self, group: str, client: Mapping[str, Any], configs: FollowedTopic) -> None:
        self._id = f"connect-cluster-{group}"
        self._configs = configs
        self._lock = threading.Lock()
        # An assignment names a worker for each task: brokers refuse large records, but compressed
        # it is small.
        settings = {"compression.type": "gzip", **client}
        self._transactions = Transactions(f"group {group}", settings)

    @property
    def is_held(self) -> bool:
        """Whether this worker leads, as far as it knows."""
        return self._transactions.is_open

    def take(self) -> None:
        """Fence the previous leader, then read all that it has written."""
        with self._lock:
            self._transactions.open(self._id)
            try:
                self._configs.catch_up(committed=False)
            except SemelError:
                self._transactions.drop()
                raise

    def write(self, records: Sequence[Record]) -> None:
        """Write records, all or none, and wait until this worker has read them.

        Raises:
            LedgerConflict: another worker leads, or this one must first take the right again.
            ServiceError: a record is too large for the topic; nothing was written.
            TransientError: it is unknown whether they were written.
        """

        def send(producer: Any, failed: Any) -> None:
            for key, value in records:
                producer.produce(self._configs.name, value, key, 0, on_delivery=failed)

        with self._lock:
            if not self.is_held:  # a write by another thread has failed meanwhile
                raise LedgerConflict(f"{self._id}: this worker must first take the lead again")
            try:
                self._transactions.run(send, [], None)
            except LedgerConflict:
                self._transactions.drop()
                raise
            except RecordsRefused:
                raise ServiceError(refused(self._configs.name, records)) from None
            self._configs.catch_up(committed=False)

    def give_up(self) -> None:
        """Stop writing."""
        with self._lock:
            self._transactions.drop()


def assign(
    shares: Mapping[str, int],
    workers: Collection[str],
    before: Owners,
    awaited: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Assign each share of each connector to a worker.

    A share stays where it is, unless its worker is gone or has two more shares than another worker.
    First tasks are spread evenly, because their workers answer for the connectors; so are all
    shares together, and those of each connector where possible. A worker that is ``awaited``
    because it shut down cleanly keeps its shares; meanwhile they run nowhere.

    Args:
        shares: connectors, and how many shares each has.
        workers: the workers that are there. Nothing is assigned if there are none.
        before: the assignment until now.
        awaited: workers that are expected back.
    """
    if not workers:
        return {}
    keeping = {*workers, *awaited}
    firsts = [(name, 0) for name in sorted(shares)]
    others = [(name, n) for name in sorted(shares) for n in range(1, shares[name])]
    kept = {(name, n): w for name, owners in before.items() for n, w in enumerate(owners)}
    placed = {share: kept[share] for share in firsts + others if kept.get(share) in keeping}
    loads = _Loads(workers)
    for share in firsts:
        if share in placed:
            loads.add(share, placed[share])
    _level(firsts, placed, loads)
    for share in others:
        if share in placed:
            loads.add(share, placed[share])
    _level(others, placed, loads)
    return {name: tuple(placed[name, n] for n in range(shares[name])) for name in sorted(shares)}


def _level(shares: Sequence[_Share], placed: dict[_Share, str], loads: _Loads) -> None:
    """Place the shares that have no worker, then move shares until no worker has two more than
    another: from the worker with the most, and there from the connector with the most."""
    for share in shares:
        if share not in placed:
            placed[share] = loads.least(share[0])
            loads.add(share, placed[share])
    held: dict[str, dict[str, deque[_Share]]] = {}
    for share in shares:
        held.setdefault(placed[share], {}).setdefault(share[0], deque()).append(share)
    while loads.are_uneven():
        worker = loads.most()
        movable = held[worker]
        connector = max(movable, key=lambda name: loads.of(name, worker))
        share = movable[connector].popleft()
        if not movable[connector]:
            del movable[connector]
        to = placed[share] = loads.least(connector)
        loads.move(share, worker, to)
        held.setdefault(to, {}).setdefault(connector, deque()).append(share)


class _Loads:
    """How many shares each worker has: in all, and of each connector."""

    def __init__(self, workers: Iterable[str]) -> None:
        self._all = Counter(dict.fromkeys(workers, 0))
        self._of: Counter[tuple[str, str]] = Counter()

    def of(self, connector: str, worker: str) -> int:
        return self._of[connector, worker]

    def are_uneven(self) -> bool:
        return max(self._all.values()) > min(self._all.values()) + 1

    def add(self, share: _Share, worker: str) -> None:
        if worker in self._all:
            self._all[worker] += 1
            self._of[share[0], worker] += 1

    def move(self, share: _Share, worker: str, to: str) -> None:
        self._all[worker] -= 1
        self._of[share[0], worker] -= 1
        self.add(share, to)

    def least(self, connector: str) -> str:
        """The worker with the fewest shares; among equals, the one with the fewest of this
        connector."""
        return min(sorted(self._all), key=lambda w: (self._all[w], self._of[connector, w]))

    def most(self) -> str:
        """The worker with the most shares."""
        return max(sorted(self._all), key=self._all.__getitem__)
