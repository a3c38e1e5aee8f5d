"""A member that joins the connector's group while Spark starts, so that tasks need not wait.

Kafka gives the first member of an empty group its partitions only after
``group.initial.rebalance.delay.ms``, 3 s by default, and waits that long again for each one that
joins meanwhile. The placeholder uses the time that Spark takes: tasks that start once it is a
member join a group that is no longer empty. It reads nothing and cannot displace anybody: it has no
``group.instance.id``, it only joins a group without members, and it leaves as soon as tasks have
come.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.abandoned import Abandoned, within
from semel.core.context import is_over, kept
from semel.driver.base import Run
from semel.kafka.clients import HEARTBEAT, SESSION, client_config
from semel.kafka.consumer import consumer_config
from semel.kafka.groups import Groups
from semel.sinks.protocols import FencesByGroup
from semel.tasks.publish import other_run

log = logging.getLogger(__name__)

_LOOK = 0.02
_PATIENCE = 6.0
"""Seconds that tasks wait for it at most."""
_LATE = 0.5
"""Seconds that the other tasks get after the first one has joined."""
_STAYS = 60.0
_SESSION = 6_000
"""Milliseconds: Kafka's default ``group.min.session.timeout.ms``."""
_LEAVES = 5.0


class Placeholder:
    """Keeps the group non-empty, in a thread of its own, until tasks have joined or it is
    closed."""

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=kept(self._hold), daemon=True, name="semel-placeholder"
        )
        if run.topics:
            self._thread.start()

    def wait(self, stop: threading.Event) -> None:
        """Wait until tasks may join: the placeholder is a member, or is not needed."""
        deadline = time.monotonic() + _PATIENCE
        while self._thread.is_alive() and not stop.is_set() and time.monotonic() < deadline:
            if self._ready.wait(0.02):
                return

    def close(self) -> None:
        """Leave the group, unless that has already happened."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _LEAVES)

    def _hold(self) -> None:
        try:
            connector = self._run.connector
            groups = Groups(client_config(connector, "admin"))
            if not groups.is_idle(connector.group_id):
                self._ready.set()  # tasks need not wait
                self._introduce_itself()
                return
            if isinstance(self._run.sink, FencesByGroup):
                return  # it treats each member as a task of another run
            consumer = Consumer(placeholder_config(self._run), logger=log)
            try:
                consumer.subscribe(sorted(self._run.topics), on_assign=self._given)
                self._wait(groups, consumer)
            finally:
                with suppress(Abandoned):
                    within(_LEAVES, "the placeholder's consumer", consumer.close)
        except Exception as error:  # it only saves time
            log.debug("the placeholder could not join the group: %s", error)

    def _introduce_itself(self) -> None:
        """Say that this run takes the place of another one, or of one that has just died."""
        run = self._run
        if run.run_control.assignment.moves:
            return
        who = other_run(run.connector, run.topics, self._name, self._stop.wait, later=False)
        log.log(
            logging.INFO if is_over(who) else logging.WARNING,
            "connector %s: consumer group %s still has members of another run%s. This run takes "
            "their place; if the other one is alive, it stops",
            *(run.connector.name, run.connector.group_id, f", started by {who}" if who else ""),
        )

    def _given(self, consumer: Consumer, _partitions: list[KafkaPartition]) -> None:
        consumer.assign([])  # what is not assigned is not read
        self._ready.set()

    def _wait(self, groups: Groups, consumer: Consumer) -> None:
        """Stay until the tasks have joined."""
        began, came = time.monotonic(), None
        while not self._stop.is_set() and (now := time.monotonic()) < began + _STAYS:
            event = consumer.poll(_LOOK)
            if event is not None and event.error():  # refused, or the coordinator cannot be reached
                return
            if not self._ready.is_set():
                continue
            found = groups.describe(self._run.connector.group_id)
            tasks = [m for m in found.members if m.group_instance_id] if found else []
            if tasks and came is None:
                came = now
            late = came is not None and now > came + _LATE
            if late or len(tasks) >= self._run.connector.tasks_max:
                return


def placeholder_config(run: Run) -> dict[str, Any]:
    """A task's configuration without ``group.instance.id``. If this process is killed, the group
    waits for the placeholder's session to end, so the session is as short as brokers allow."""
    config = consumer_config(run.connector, 0)
    del config["group.instance.id"]
    session = min(int(config[SESSION]), _SESSION)
    return {
        **config,
        "client.id": f"semel-{run.connector.name}-placeholder",
        SESSION: session,
        HEARTBEAT: session // 3,
    }
