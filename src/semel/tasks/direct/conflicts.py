"""Decides when ledger conflicts prove that another run of the connector is at work."""

from __future__ import annotations

import time
from collections.abc import Callable

from semel.core.errors import Fenced, LedgerConflict, NotAssigned

_ENOUGH = 5
_NOTICED_IN = 3.0
"""Conflicts must last at least this many seconds before they prove that another run is at work. A
run that the group has fenced may need that long to notice, and must not stop its successor."""


class Conflicts:
    """Counts conflicts in a row. ``heartbeats`` is in seconds; ``tell`` writes a line to the
    driver's log."""

    def __init__(self, connector: str, heartbeats: float, tell: Callable[[str], None]) -> None:
        self._connector = connector
        self._lasts = max(heartbeats, _NOTICED_IN)
        self._tell = tell
        self._count = 0
        self._since = 0.0
        self._moved = False

    def clear(self) -> None:
        """Reset the count: a commit has succeeded."""
        self._count = 0
        self._moved = False

    def note(self, conflict: LedgerConflict) -> None:
        """Count a conflict. Partitions that move between tasks do not indicate another run.

        Raises:
            Fenced: another run is at work.
        """
        if isinstance(conflict, Fenced):
            raise conflict
        if isinstance(conflict, NotAssigned):
            if not self._moved:
                self._tell(str(conflict))
            self._moved = True
            return
        if not self._count:
            self._since = time.monotonic()
        self._count += 1
        self._tell(str(conflict))
        if self._count >= _ENOUGH and time.monotonic() - self._since > self._lasts:
            raise Fenced(
                f"another run of connector {self._connector} is active: this one has stopped "
                f"after {self._count} conflicts in a row. The last one: {conflict}"
            )
