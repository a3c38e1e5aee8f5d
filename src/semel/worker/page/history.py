"""What connectors did in the last 15 minutes. It is sampled in the background: no page waits for
Kafka."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from semel.worker.metrics.lags import Lags
from semel.worker.metrics.observed import ObservedConnector

log = logging.getLogger(__name__)

SPAN = 15 * 60.0
_STEP = 30.0
"""Seconds between two samples: rates are averages over as many, as in Kafka's metrics."""
_WATCHED = 10.0
"""Seconds between two questions about lag while somebody looks at a page."""
_LEAST = 5.0
_KNOWN = 2 * _STEP


@dataclass(frozen=True, slots=True)
class Sample:
    """A connector at a moment: the records that this run has read, the sum of its positions, and
    the records that it had still to read, where that is known."""

    at: float
    records: int
    position: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class ConnectorSamples:
    """The samples of a connector, the last of them made now."""

    samples: Sequence[Sample] = ()

    @property
    def lag(self) -> int | None:
        """How many records it is behind."""
        return self.samples[-1].lag if self.samples else None

    @property
    def lags(self) -> list[tuple[float, float]]:
        """The lag at each moment."""
        return [(s.at, s.lag) for s in self.samples if s.lag is not None]

    @property
    def rate(self) -> float | None:
        """Records per second, now."""
        return self.rates[-1][1] if self.rates else None

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Records per second at each moment; there is none over the start of a run."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return [
            (now.at, (now.records - before.records) / (now.at - before.at))
            for before, now in pairs
            if now.records >= before.records and now.at > before.at
        ]

    @property
    def behind(self) -> float | None:
        """How many seconds ago the logs ended where the connector is now: its lag in time, judged
        by all partitions together. The whole span if it is further behind."""
        if self.lag is None:
            return None
        if self.lag == 0:
            return 0.0
        now = self.samples[-1]
        for sample in reversed(self.samples):
            if sample.lag is not None and sample.position + sample.lag <= now.position:
                return now.at - sample.at
        return now.at - self.samples[0].at


class History:
    """Samples connectors from the start of its ``with`` statement to its end."""

    def __init__(self, observe: Callable[[], Sequence[ObservedConnector]], lags: Lags) -> None:
        self._observe = observe
        self._lags = lags
        self._samples: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()
        self._wake, self._over = threading.Event(), False
        self._asked = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="semel-history")

    def __enter__(self) -> History:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over = True
        self._wake.set()
        self._thread.join(2.0)

    def now(self) -> Mapping[str, tuple[ObservedConnector, ConnectorSamples]]:
        """Each connector that this worker counts, and its course until now."""
        if time.monotonic() - self._asked > _WATCHED:
            self._wake.set()
        at, courses = time.time(), {}
        with self._lock:
            for each in self._counted():
                samples = list(self._samples.get(each.name, ()))
                # A rate over a moment is no rate.
                while samples and at - samples[-1].at < _LEAST:
                    samples.pop()
                courses[each.name] = each, ConnectorSamples([*samples, self._sample(each, at)])
        return courses

    def take(self) -> None:
        """Take a sample."""
        at, observed = time.time(), self._counted()
        with self._lock:
            names = {each.name for each in observed}
            self._samples = {n: s for n, s in self._samples.items() if n in names}
            for each in observed:
                kept = self._samples.setdefault(each.name, deque(maxlen=int(SPAN / _STEP) + 1))
                kept.append(self._sample(each, at))

    def _counted(self) -> list[ObservedConnector]:
        return [each for each in self._observe() if each.is_counted]

    def _sample(self, each: ObservedConnector, at: float) -> Sample:
        lag = self._lags.recent(each.name, _KNOWN)
        behind = sum(lag.values()) if lag else None
        position = sum(list(each.progress.positions.values()))
        return Sample(at, each.progress.records, position, behind)

    def _work(self) -> None:
        due = time.monotonic()
        while not self._over:
            try:
                self._asked = time.monotonic()
                if observed := self._observe():
                    self._lags.of(observed)
                if time.monotonic() >= due:
                    self.take()
                    due = time.monotonic() + _STEP
            except Exception:
                log.exception("the course of connectors cannot be sampled")
            self._wake.wait(max(0.1, due - time.monotonic()))
            self._wake.clear()


@dataclass(frozen=True, slots=True)
class Graph:
    """A line for an SVG of this size."""

    points: str
    low: float
    high: float
    last: float
    width: int
    height: int


def graph(course: Iterable[tuple[float, float]], width: int, height: int) -> Graph | None:
    """The line of the last 15 minutes; None if there are no two points."""
    samples = list(course)
    if len(samples) < 2:
        return None
    end, values = samples[-1][0], [value for _, value in samples]
    high = max(*values, 1e-9)
    points = " ".join(
        f"{max(0.0, width * (1 - (end - at) / SPAN)):.1f},{1 + (height - 2) * (1 - v / high):.1f}"
        for at, v in samples
    )
    return Graph(points, min(values), max(values), values[-1], width, height)
