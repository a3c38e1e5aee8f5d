"""Fences that end neither a task nor a run: where workers share a connector, the older process that
caused one may have been cut off or frozen, and will be told to stop once it is back."""

from __future__ import annotations

from semel.tasks.retry import Backoff

MOST = 10
"""How many fences in a row are survived."""
_IN_A_ROW = 60.0
"""A fence within this many seconds of a start counts as following the one before."""


class FencesInARow:
    """The fences of something that starts again after each."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self.count = 0

    def one_more(self, lasted: float) -> float:
        """Count a fence after ``lasted`` seconds of work; returns the seconds to pause before the
        next start."""
        self.count = self.count + 1 if lasted < _IN_A_ROW else 1
        return self._backoff.after(lasted)
