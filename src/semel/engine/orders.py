"""What is wanted of a run, from outside and while it goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.engine.base import Progress


@dataclass(frozen=True, slots=True)
class Orders:
    """What is wanted of a run.

    ``stop`` ends it after the batch in hand, ``paused`` keeps it from reading, ``restarts`` holds
    the numbers of tasks to start anew: all three may change while it runs. ``until_caught_up`` ends
    it when what Kafka held at the start is committed; with ``keeps_going`` a task that fails leaves
    the others running. ``observe`` is called with the totals several times a second.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    restarts: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    until_caught_up: bool = False
    keeps_going: bool = False
    observe: Callable[[Progress], None] = lambda _progress: None

    def observed_by(self, observe: Callable[[Progress], None]) -> Orders:
        """The same orders, with another observer."""
        return replace(self, observe=observe)
