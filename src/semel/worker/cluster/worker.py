"""A worker of a cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from semel.config.worker import ClusterConfig
from semel.core.errors import SemelError, TransientError
from semel.driver.runtime import Runtime
from semel.worker.cluster.follower import Follower
from semel.worker.cluster.herder import ClusterHerder
from semel.worker.cluster.leader import Leader, Leadership
from semel.worker.cluster.membership import Membership
from semel.worker.cluster.store import Store

log = logging.getLogger(__name__)

_LOOK, _CALM = 0.2, 1.0
_STIRS = 5.0
"""For this many seconds after a change of the topics or of the group, looks are more frequent."""


class ClusterWorker:
    """Takes part in its group from its start until it is closed. Use it in a ``with`` statement.

    Args:
        runtime: runs the connectors that this worker is assigned.
        client: librdkafka's settings to reach the cluster.

    Raises:
        ConfigError: a topic cannot be used as it is.
        ServiceError: a topic cannot be created.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClusterConfig,
        client: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._store = Store(config, client)
        self._membership = Membership(config, client, self._store.wake)
        self._leadership = Leadership(config.group_id, client, self._store.config_topic)
        self._follower = Follower(config, self._store, self._membership, runtime)
        self._store.on_restart = self._follower.restart
        self._leader = Leader(config, self._store, self._membership, self._leadership)
        self.herder = ClusterHerder(
            config, self._store, self._membership, self._leadership, self._follower
        )
        self.failed: SemelError | None = None
        """what has ended this worker early"""
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(look,), daemon=True, name=f"semel-{name}")
            for name, look in (
                ("follow", self._follower.look),
                ("report", self._follower.write),
                ("lead", self._leader.look),
            )
        ]

    def __enter__(self) -> ClusterWorker:
        try:
            self._store.start()
        except SemelError:
            self._store.close()
            raise
        self._membership.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Ask the others to wait for this worker, end its connectors, and leave the group."""
        self._follower.leave()
        self._ended.set()
        self._store.wake()
        for thread in self._threads:
            thread.join()
        self._follower.end()
        self._leadership.give_up()
        self._membership.leave()
        self._store.close()

    def wait(self, stop: threading.Event) -> None:
        """Wait until ``stop`` is set.

        Raises:
            SemelError: this worker cannot continue.
        """
        while not stop.wait(_LOOK):
            if self.failed is not None:
                raise self.failed

    def _repeat(self, look: Callable[[], None]) -> None:
        calm_at = time.monotonic() + _STIRS
        while not self._ended.is_set():
            known = self._store.changes
            try:
                look()
            except TransientError as error:
                log.warning("%s; trying again", error)
            except SemelError as error:
                self.failed = error
                return
            with self._store.changed:
                if self._store.changes == known and not self._ended.is_set():
                    is_calm = time.monotonic() > calm_at
                    self._store.changed.wait(_CALM if is_calm else _LOOK)
                if self._store.changes != known:
                    calm_at = time.monotonic() + _STIRS
