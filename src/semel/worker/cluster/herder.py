"""Serves requests about the connectors of a cluster. Any worker answers reads; the leader writes,
and a connector's own worker restarts it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from semel.config.worker import ClusterConfig
from semel.core.errors import LedgerConflict, TransientError
from semel.driver.base import State
from semel.worker.cluster import records
from semel.worker.cluster.follower import Follower
from semel.worker.cluster.leader import Leadership
from semel.worker.cluster.membership import Membership
from semel.worker.cluster.records import Level, Record, Restart
from semel.worker.cluster.store import Store, known_tasks, stopped
from semel.worker.errors import Conflict, NotFound, OtherWorker, UnknownWorker
from semel.worker.herder import Answer, Herder, Parts

_LEADER_IN = 10.0
"""Seconds that a request waits for a leader: the first worker of a group takes three to join."""
_STOPS_IN = 10.0


class ClusterHerder(Herder):
    """Answers from the cluster's topics.

    Requests that another worker must answer raise :class:`OtherWorker` with its URL.
    """

    def __init__(
        self,
        worker: ClusterConfig,
        store: Store,
        membership: Membership,
        leadership: Leadership,
        follower: Follower,
    ) -> None:
        super().__init__(worker)
        self._me = worker.url
        self._store = store
        self._membership = membership
        self._leadership = leadership
        self._follower = follower
        self._changing = threading.RLock()
        """Held from reading the configurations until the change that depends on them is written."""

    def peer_token(self) -> str:
        with self._store.changed:
            return self._store.configs.peer_token

    @property
    def is_ready(self) -> bool:
        return self._membership.absences > 0

    @property
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        with self._store.changed:
            return dict(self._store.configs.connectors)

    @property
    def me(self) -> str:
        return self._me

    @property
    def members(self) -> frozenset[str]:
        return self._membership.group.members

    @property
    def rebalances(self) -> Mapping[str, float | str]:
        leader = self._membership.group.leader
        with self._store.changed:
            return {
                "leader-name": leader or "",
                "epoch": self._store.configs.assignment.epoch,
                "completed-rebalances-total": self._store.rebalances,
                "rebalancing": float(leader is None),
                "time-since-last-rebalance-ms": 1000
                * (time.monotonic() - self._store.rebalanced_at),
            }

    def create(self, name: str, config: Mapping[str, str], state: State) -> Answer:
        self.lead()
        warned = self.check(config)
        # The state first: a worker may see the one before the other.
        initial = [records.targeted(name, state)] if state is not State.RUNNING else []
        with self._changing:
            if name in self._configs:
                raise Conflict(f"Connector {name} already exists")
            self._write([*initial, records.configured(name, config)])
            self._log(name, "created")
            return self.info(name) | warned

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Answer]:
        self.lead()
        warned = self.check(self.kept(name, config))
        with self._changing:
            config = self.kept(name, config)  # a secret may have changed since
            created = name not in self._configs
            self._write([records.configured(name, config)])
            self._log(name, "created" if created else "reconfigured")
            return created, self.info(name) | warned

    def patch(self, name: str, changes: Mapping[str, str | None]) -> Answer:
        self.lead()  # the leader has read all that came before
        with self._changing:
            return super().patch(name, changes)

    def delete(self, name: str) -> None:
        self.lead()
        with self._changing:
            self.config(name)
            self._write(records.forgotten(name))
            self._log(name, "deleted")

    def target(self, name: str, state: State) -> None:
        self.lead()
        with self._changing:
            self._known(name)
            self._write([records.targeted(name, state)])
            self._log(name, f"target state {state}")
        if state is State.STOPPED:
            self._wait_for(lambda: stopped(self._store, name), _STOPS_IN)

    def restart(self, name: str) -> None:
        self.own(name)
        hosted = self._follower.hosted(name)
        if hosted is not None:
            hosted.restart()
        self._log_restart(name)

    def restart_all(self, name: str, *, tasks: bool, only_failed: bool) -> Answer:
        self.lead()
        answer = self._restarting(name, tasks=tasks, only_failed=only_failed)
        self._write([records.restarting(Restart(name, tasks, only_failed))])
        self._log_restart(name, tasks=tasks, only_failed=only_failed)
        return answer

    def restart_task(self, name: str, task: int) -> None:
        self.own(name, task)
        hosted = self._follower.hosted(name)
        try:
            if hosted is None:
                raise LookupError
            hosted.restart_task(task)
        except LookupError:
            raise NotFound(f"Task {name}-{task} not found") from None
        self._log_restart(f"{name}, task {task}")

    def set_level(self, logger: str, level: str) -> None:
        self.lead()
        self._write([records.levelled(Level(logger, level))])

    def _parts(self, name: str) -> Parts | None:
        with self._store.changed:
            connector = self._store.statuses.connectors.get(name)
            tasks = known_tasks(self._store, name)
        if connector is None:
            return None
        return Parts(connector, tasks)

    def _tasks(self, name: str) -> Sequence[int]:
        with self._store.changed:
            return sorted(known_tasks(self._store, name))

    def _is_stopped(self, name: str) -> bool:
        with self._store.changed:
            return stopped(self._store, name)

    def _check_stopped(self, name: str) -> None:
        self.lead()
        super()._check_stopped(name)

    def _used_topics(self, name: str) -> Sequence[str]:
        with self._store.changed:
            return sorted(self._store.statuses.topics.get(name, ()))

    def _forget_topics(self, name: str) -> None:
        used = self._used_topics(name)
        self._store.report([records.topic_used(name, topic, None) for topic in used])
        self._wait_for(lambda: not set(used) & {*self._used_topics(name)}, _STOPS_IN)

    # Who does it

    def lead(self) -> None:
        self._wait_for(lambda: self._membership.group.leader is not None, _LEADER_IN)
        leader = self._membership.group.leader
        if leader is None:
            raise UnknownWorker
        if leader != self._me:
            raise OtherWorker(leader)
        if not self._wait_for(lambda: self._leadership.is_held, _LEADER_IN):
            raise UnknownWorker

    def own(self, name: str, task: int = 0) -> None:
        super().own(name, task)
        with self._store.changed:
            owner = self._store.configs.assignment.owner(name, task)
        if owner is None or owner not in self._membership.group.members:
            raise UnknownWorker
        if owner != self._me:
            raise OtherWorker(owner)

    def _write(self, new: Sequence[Record]) -> None:
        try:
            self._leadership.write(new)
        except LedgerConflict:
            raise UnknownWorker from None
        except TransientError as error:
            raise Conflict(f"{error}. Ask again: it may have been done") from None

    def _wait_for(self, true: Callable[[], bool], timeout: float) -> bool:
        """Wait for a change of the topics or of the group."""
        deadline = time.monotonic() + timeout
        with self._store.changed:
            while not (done := true()) and (remaining := deadline - time.monotonic()) > 0:
                self._store.changed.wait(remaining)
        return done
