"""Rates of totals, between scrapes."""

from __future__ import annotations

import time
from collections import deque

_WINDOW = 30.0
"""Kafka's metrics are averages over this many seconds, too."""
_now = time.monotonic


class Rates:
    """How fast totals grow, computed at each scrape."""

    def __init__(self) -> None:
        self._told: dict[tuple[object, ...], deque[tuple[float, float]]] = {}

    def of(self, key: tuple[object, ...], total: float) -> float:
        """A total's growth per second, over the last half minute or since the scrape before that. A
        total that has become smaller has restarted."""
        now, told = _now(), self._told.setdefault(key, deque())
        if told and total < told[-1][1]:
            told.clear()
        told.append((now, total))
        while len(told) > 2 and told[1][0] <= now - _WINDOW:
            told.popleft()
        began, before = told[0]
        return (total - before) / (now - began) if now > began else 0.0
