"""Waits for topics that a sink reads and that do not exist yet."""

from __future__ import annotations

import logging
import threading

from semel.core.errors import ServiceError, TopicMissing, TransientError
from semel.driver.planning import Plan
from semel.driver.run_control import RunControl
from semel.driver.states import Awaited, State, Status, Waiting, waiting
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster

log = logging.getLogger(__name__)

_LOOKS = 3.0
_ANSWERS = 5.0


def wait_for_topics(planned: Plan, run_control: RunControl) -> None:
    """Wait until the topics exist, or the run is asked to stop or to restart: another connector may
    be about to create them. Only Kafka is asked, because the store has nothing to do with it."""
    from semel.driver.base import Progress

    connector = planned.connector
    cluster = Cluster(client_config(connector, "admin"))
    held_up: Waiting | None = None
    told, woken = "", threading.Event()
    with (
        run_control.notifier.subscribed(woken.set),
        run_control.notifier.notified_by(run_control.stop),
    ):
        while not run_control.stop.is_set() and run_control.restarts.empty():
            # As in Kafka Connect, tasks without a topic are running. Other workers of a cluster
            # would mistake the first task's state for a sign that it has prepared the store.
            states: dict[int, Status] = {}
            if run_control.assignment.is_whole:
                state = State.PAUSED if run_control.paused.is_set() else State.RUNNING
                states = dict.fromkeys(range(connector.tasks_max), Status(state))
            run_control.observe(Progress(states=states, waiting=held_up))
            try:
                cluster.matching(connector, _ANSWERS)
                if not told:  # a broker that has not heard of them yet has answered before
                    woken.wait(_LOOKS)
                return
            except (TopicMissing, TransientError, ServiceError) as error:
                if told != (told := str(error)):
                    log.warning("%s. Waiting for it", error)
                is_missing = isinstance(error, TopicMissing)
                on = Awaited.TOPIC if is_missing else Awaited.SERVICE
                held_up = waiting(on, told, held_up)
                run_control.observe(Progress(states=states, waiting=held_up))
            woken.wait(_LOOKS)
            woken.clear()
