"""What only the worker of a connector's first task knows, and how another worker asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from semel.worker.metrics.observed import ObservedConnector
from semel.worker.page.history import ConnectorSamples, History
from semel.worker.rest.tls import client_context

PATH = "/ui/figures"
_FRESH, _STALE = 5.0, 60.0
"""Seconds after which a worker is asked again, and after which its last answer is forgotten."""
_FIRST = 0.15
"""Seconds that a page waits for the first answers."""
_TIMEOUT = 5.0
_AT_ONCE = 8


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
                at, _ = self._asked.get(url, (-_FRESH, None))
                if now - at >= _FRESH:
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
