"""What the leader does unasked: it gives connectors to workers."""

from __future__ import annotations

import logging
import time

from semel.config.cluster import ClusterConfig
from semel.connect.cluster.assignment import assign
from semel.connect.cluster.leadership import Leadership
from semel.connect.cluster.membership import Group, Membership
from semel.connect.cluster.records import Assignment, assigned
from semel.connect.cluster.store import Store
from semel.errors import LedgerConflict

log = logging.getLogger(__name__)


class Leading:
    """Leads while this worker's group says so."""

    def __init__(
        self, config: ClusterConfig, store: Store, membership: Membership, leadership: Leadership
    ) -> None:
        self._config = config
        self._store = store
        self._membership = membership
        self._leadership = leadership

    def look(self) -> None:
        """Take or give up the lead as the group says, and write what has changed.

        Raises:
            SemelError: a topic could not be written. Look again.
        """
        group = self._membership.group
        if group.leader != self._config.url:
            if group.leader is not None:
                self._leadership.give_up()
            return
        try:
            self._lead(group)
        except LedgerConflict:
            log.info("worker %s leads no more: another one does", self._config.id)

    def _lead(self, group: Group) -> None:
        if not self._leadership.is_held:
            log.info("worker %s leads group %s", self._config.id, self._config.group_id)
            self._leadership.take()
        assignment = self._assigning(group)
        if assignment is not None:
            self._leadership.write([assigned(assignment)])
        self._forget()

    def _assigning(self, group: Group) -> Assignment | None:
        """The assignment that is to replace the present one."""
        store = self._store
        with store.changed:
            before = store.configs.assignment
            connectors = list(store.configs.connectors)
            leaving = dict(store.statuses.leaving)
        since = time.time() * 1000 - self._config.rebalance_delay_ms
        workers = [worker for worker in group.members if worker not in leaving]
        if not workers:
            return None
        awaited = [worker for worker, at in leaving.items() if at > since]
        found = assign(connectors, workers, before.workers, awaited)
        return None if found == before.workers else Assignment(before.epoch + 1, found)

    def _forget(self) -> None:
        """Make the status topic forget connectors that are no more."""
        with self._store.changed:
            gone = self._store.statuses.known() - set(self._store.configs.connectors)
            records = [r for name in gone for r in self._store.statuses.forgetting(name)]
        self._store.report(records)
