"""Connectors in figures, gathered in the background so that no page waits for Kafka or for another
worker: the last 15 minutes of this worker's connectors, and what other workers report of theirs."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import psutil
from pydantic import TypeAdapter, ValidationError

from semel.config.rest import RestConfig
from semel.core.answers import MOST
from semel.driver.planning import AnyPlan, SourcePlan
from semel.worker import plugins
from semel.worker.audits import Audits
from semel.worker.observed import Lags, ObservedConnector
from semel.worker.rest.tls import client_context

log = logging.getLogger(__name__)

_SPAN = 15 * 60.0
_STEP = 30.0
"""Seconds between two samples: rates are averages over as many, as in Kafka's metrics."""
_WATCHED = 10.0
"""Seconds between two questions about lag while somebody looks at a page."""
_LEAST = 5.0
_KNOWN = 2 * _STEP
PATH = "/ui/figures"
_FRESH, _STALE = 5.0, 60.0
"""Seconds after which a worker is asked again, and after which its last answer is forgotten."""
_FIRST = 0.15
"""Seconds that a page waits for the first answers."""
_TIMEOUT = 5.0
_AT_ONCE = 8


# This worker


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
                kept = self._samples.setdefault(each.name, deque(maxlen=int(_SPAN / _STEP) + 1))
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


# All workers


@dataclass(frozen=True, slots=True)
class Store:
    """A store of a topology, with the topics that its sub-topology reads."""

    name: str
    kind: str
    sub: int
    reads: Sequence[str]
    changelog: str


def stores(planned: AnyPlan) -> Sequence[Store] | None:
    """The stores of a topology; None for other connectors."""
    topology = None if isinstance(planned, SourcePlan) else planned.topology
    if topology is None:
        return None
    from semel.streams.changelog import Topics  # it takes longer to import than the rest

    topics = Topics(planned.connector.name, topology)
    return [
        Store(
            spec.name,
            spec.kind,
            sub.number,
            sorted(map(topics.real, sub.topics)),
            topics.changelogs(sub).get(spec.name, ""),
        )
        for sub in topology.subs
        for spec in sub.stores
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    """A connector, as the table shows it. ``lags`` is its course, and a topology has ``stores``."""

    rate: float | None
    lag: int | None
    behind: float | None
    lags: Sequence[tuple[float, float]]
    errors: int
    dead: int
    moved: float | None
    delivery: str
    stores: Sequence[Store] | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, with the connectors that it counts and the verdicts of the audits that it was asked
    for."""

    version: str
    memory: int
    connectors: Mapping[str, Figures] = field(default_factory=dict)
    audits: Mapping[str, str] = field(default_factory=dict)


_ADAPTER: TypeAdapter[Worker] = TypeAdapter(Worker)


def own(history: History, audits: Audits) -> Worker:
    """This worker."""
    counted = {name: _figures(each, course) for name, (each, course) in history.now().items()}
    verdicts = {n: "broken" if a["broken"] else "kept" for n, a in audits.figures().items()}
    return Worker(plugins.VERSION, psutil.Process().memory_info().rss, counted, verdicts)


def _figures(each: ObservedConnector, course: ConnectorSamples) -> Figures:
    return Figures(
        rate=course.rate,
        lag=course.lag,
        behind=course.behind,
        lags=course.lags,
        errors=each.tally.failures + each.progress.restarts,
        dead=each.progress.failed,
        moved=each.moved if each.progress.commits else None,
        delivery=each.planned.guarantee.delivery.value,
        stores=stores(each.planned),
    )


def written(worker: Worker) -> bytes:
    """As another worker reads it."""
    return _ADAPTER.dump_json(worker)


class Peers:
    """What the other workers of a cluster have said last. They are asked in the background, with
    the login of whoever looks at a page, or that of the cluster's workers if there is ``token``."""

    def __init__(self, worker: RestConfig, token: Callable[[], str] = str) -> None:
        self._worker, self._token = worker, token
        self._known: dict[str, tuple[float, Worker]] = {}
        self._asked: dict[str, tuple[float, Future[None]]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="semel-peers")

    def now(self, urls: Sequence[str], authorization: str) -> Mapping[str, Worker]:
        """What is known of these workers. Only the first answer is waited for, a moment."""
        now = time.monotonic()
        with self._lock:
            for url in urls:
                at, answer = self._asked.get(url, (-_FRESH, None))
                if now - at >= _FRESH and (answer is None or answer.done()):
                    self._asked[url] = now, self._pool.submit(self._ask, url, authorization)
            first = [self._asked[url][1] for url in urls if url not in self._known]
        if first:
            wait(first, _FIRST)
        with self._lock:
            kept = {u: w for u, (at, w) in self._known.items() if now - at < _STALE}
        return {url: kept[url] for url in urls if url in kept}

    def _ask(self, url: str, authorization: str) -> None:
        token = self._token()
        login = f"Bearer {token}" if token else authorization
        headers = {"Authorization": login} if login else {}
        verify = client_context(self._worker) if url.startswith("https") else True
        content = bytearray()
        with (
            suppress(httpx.HTTPError, ValidationError),
            httpx.Client(timeout=_TIMEOUT, verify=verify, trust_env=False) as client,
            client.stream("GET", url + PATH, headers=headers) as answer,
        ):
            for part in answer.raise_for_status().iter_bytes():
                content += part
                if len(content) > MOST:
                    return
            worker = _ADAPTER.validate_json(bytes(content))
            with self._lock:
                self._known[url] = time.monotonic(), worker


# Drawn


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
        f"{max(0.0, width * (1 - (end - at) / _SPAN)):.1f},{1 + (height - 2) * (1 - v / high):.1f}"
        for at, v in samples
    )
    return Graph(points, min(values), max(values), values[-1], width, height)
