"""States of a connector and of its tasks, by the names of Kafka Connect's REST API."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a connector or a task is doing.

    ``UNASSIGNED`` waits for one of Spark's slots, ``RESTARTING`` has ended early and starts again
    after a pause, ``FAILED`` stays so until it is restarted by hand. A ``PAUSED`` one keeps its
    place and reads nothing; a ``STOPPED`` connector has no tasks left.
    """

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


class WaitKind(StrEnum):
    """What a running connector may wait for: a topic that does not exist, a service that does not
    answer (its store, Kafka, or the system that a source reads), partitions that its consumer group
    has not given to its tasks, or new records."""

    TOPIC = "topic"
    SERVICE = "service"
    PARTITIONS = "partitions"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Wait:
    """What is waited for, why, and since when, in seconds since 1970."""

    on: WaitKind
    why: str
    since: float


def waiting(on: WaitKind, why: str, before: Wait | None) -> Wait | None:
    """What is waited for now; None if ``why`` is empty. If ``before`` it was the same, it has
    been waited for since then, even if the reason is another one."""
    if not why:
        return None
    since = before.since if before is not None and before.on is on else time.time()
    return Wait(on, why, since)


@dataclass(frozen=True, slots=True)
class Status:
    """A state, and the error that led to it. ``executor`` is the host and the process of a task
    that runs in a Spark cluster; ``waiting`` is what holds a running one up."""

    state: State
    trace: str = ""
    executor: str = ""
    waiting: Wait | None = None
