"""States of a connector and of its tasks, by the names of Kafka Connect's REST API."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Status:
    """A state, and the error that led to it. ``executor`` is the host and the process of a task
    that runs in a Spark cluster."""

    state: State
    trace: str = ""
    executor: str = ""
