"""What a worker reports to Prometheus, built from the state of its connectors at each scrape: Kafka
Connect's metrics that have a counterpart here, and semel's own."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from semel.config.definition import text_of
from semel.driver.base import State, Wait
from semel.driver.offsets import Lag as SourceLag
from semel.tasks.control import BUCKETS, Deliveries, Report
from semel.worker.observed import Lag, Lags, ObservedConnector, SourceLags, waits

Observe = Callable[[], Sequence[ObservedConnector]]
Audits = Callable[[], Mapping[str, Mapping[str, float]]]
Rebalances = Callable[[], Mapping[str, float | str]]
_CONNECTOR = ("connector",)
_TASK = ("connector", "task")
_TOTALS: tuple[tuple[str, str, Callable[[ObservedConnector], float]], ...] = (
    ("semel_records", "Records read.", lambda each: each.progress.records),
    ("semel_rows", "Rows or records written.", lambda each: each.progress.rows),
    ("semel_bad_records", "Records that could not be processed.", lambda e: e.progress.failed),
    ("semel_commits", "Commits.", lambda each: each.progress.commits),
    ("semel_replays", "Commits the ledger already had.", lambda e: _deliveries(e).replays),
    ("semel_conflicts", "Commits the ledger refused.", lambda e: _deliveries(e).conflicts),
    ("semel_commit_failures", "Commits that failed.", lambda e: _deliveries(e).failures),
    ("semel_task_restarts", "Tasks that were started again.", lambda e: e.progress.restarts),
    ("semel_fences", "Fences by another run.", lambda each: each.tally.fences),
)
_WINDOW = 30.0
"""Kafka's metrics are averages over this many seconds, too."""
_now = time.monotonic


def registry(
    observe: Observe,
    audits: Audits = dict,
    rebalances: Rebalances = dict,
    lags: Lags | None = None,
) -> CollectorRegistry:
    """The registry behind ``/metrics``: the connectors, and this process.

    Args:
        observe: the connectors at a scrape.
        audits: the figures of the last audit of each connector.
        rebalances: the figures of a cluster, by Kafka Connect's names.
        lags: asks Kafka, if others ask as well.
    """
    collectors = CollectorRegistry()
    collectors.register(ConnectorCollector(observe, audits, rebalances, lags))
    ProcessCollector(registry=collectors)
    PlatformCollector(registry=collectors)
    return collectors


class ConnectorCollector:
    """The connectors of a process."""

    def __init__(
        self,
        observe: Observe,
        audits: Audits,
        rebalances: Rebalances = dict,
        lags: Lags | None = None,
    ) -> None:
        self._observe = observe
        self._audits = audits
        self._rebalances = rebalances
        self._lags = lags or Lags()
        self._source_lags = SourceLags()
        self._rates = Rates()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance; each scrape decides."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, at this moment."""
        with self._lock:
            observed = list(self._observe())
            lags = self._lags.of(observed)
            yield from _worker(observed)
            yield from _cluster(self._rebalances())
            yield from _connectors(observed)
            yield from self._tasks(observed, lags)
            self._rates.forget_all_but_latest()
            yield from _own(observed, lags)
            yield _held_up(waits(observed, self._lags))
            yield _left(self._source_lags.of(observed))
            yield from _audited(self._audits())

    def _tasks(
        self, observed: Sequence[ObservedConnector], lags: Mapping[str, Lag]
    ) -> Iterator[Metric]:
        sinks = [each for each in observed if not each.is_source]
        sources = [each for each in observed if each.is_source]
        for metrics, those in (
            (_OF_TASKS, observed),
            (_OF_SINK_TASKS, sinks),
            (_OF_SOURCE_TASKS, sources),
        ):
            for metric in metrics:
                family = _family(metric.name, metric.help, _TASK)
                for each in those:
                    for number, report in each.reports.items():
                        labels, value = (each.name, str(number)), float(metric.value(report))
                        if metric.is_rate:
                            value = self._rates.of((metric.name, *labels), value)
                        family.add_metric(labels, value)
                yield family
        lag_max = _family(_LAG_MAX, "Lag of the partition that is furthest behind.", _TASK)
        for each in sinks:
            lag = lags.get(each.name, {})
            for number, report in each.reports.items():
                behind = [lag[tp] for tp in report.positions if tp in lag]
                if behind:
                    lag_max.add_metric((each.name, str(number)), max(behind))
        yield lag_max


def _family(name: str, text: str, labels: Sequence[str]) -> Any:
    """A counter if the name ends like one, as the JMX exporter has it, else a gauge."""
    if name.endswith("_total"):
        return CounterMetricFamily(name, text, labels=labels)
    return GaugeMetricFamily(name, text, labels=labels)


def _worker(observed: Sequence[ObservedConnector]) -> Iterator[Metric]:
    connectors = sum(each.is_counted for each in observed)
    tasks = sum(len(each.tasks) for each in observed)
    counts = {
        "connector-count": ("Connectors whose first task is on this worker.", connectors),
        "task-count": ("Tasks of this worker.", tasks),
    }
    for attribute, (text, value) in {**counts, **_starts(observed)}.items():
        family = _family(prometheus_name(_WORKER, attribute), text, ())
        family.add_metric((), value)
        yield family
    states = {each.name: Counter(each.tasks.values()) for each in observed}
    by_state = {"connector-total-task-count": "", **_TASK_COUNTS}
    for attribute, state in by_state.items():
        text = f"Tasks that are {state}." if state else "Tasks of the connector."
        family = _family(prometheus_name(_WORKER, attribute), text, _CONNECTOR)
        for name, count in states.items():
            family.add_metric((name,), count[state] if state else count.total())
        yield family


def _starts(observed: Sequence[ObservedConnector]) -> dict[str, tuple[str, float]]:
    """How often connectors were started: the worker's attributes, what they mean, their values."""
    attempts = sum(each.tally.starts for each in observed)
    failures = sum(each.tally.failures for each in observed)
    succeeded = attempts - failures
    return {
        "connector-startup-attempts-total": ("Starts of connectors.", attempts),
        "connector-startup-success-total": ("Starts that have not failed.", succeeded),
        "connector-startup-failure-total": ("Connectors that failed.", failures),
        "connector-startup-success-percentage": (
            "Share of the starts that have not failed.",
            _share(succeeded, attempts),
        ),
        "connector-startup-failure-percentage": (
            "Share of the starts that have failed.",
            _share(failures, attempts),
        ),
    }


def _cluster(facts: Mapping[str, float | str]) -> Iterator[Metric]:
    for attribute, value in facts.items():
        name = prometheus_name(_REBALANCES, attribute)
        label = attribute.replace("-", "_")
        in_words = isinstance(value, str)
        family = _family(name, OF_REBALANCES[attribute], (label,) if in_words else ())
        if isinstance(value, str):
            family.add_metric((value,), 1)
        else:
            family.add_metric((), value)
        yield family


def _connectors(observed: Sequence[ObservedConnector]) -> Iterator[Metric]:
    """Facts in words are labels of a metric whose value is 1."""
    facts: dict[str, Callable[[ObservedConnector], str]] = {
        "type": lambda each: "source" if each.is_source else "sink",
        "class": lambda each: each.planned.connector.connector_class.strip(),
    }
    for fact, value in facts.items():
        name = prometheus_name("connector", f"connector-{fact}")
        family = _family(name, f"The connector's {fact}.", ("connector", f"connector_{fact}"))
        for each in observed:
            family.add_metric((each.name, value(each)), 1)
        yield family
    states = Metric("kafka_connect_connector_status", "State of a connector or a task.", "gauge")
    for each in observed:
        states.add_sample(states.name, {"connector": each.name, "status": each.state.lower()}, 1)
        for number, state in each.tasks.items():
            labels = {"connector": each.name, "task": str(number), "status": state.lower()}
            states.add_sample(states.name, labels, 1)
    yield states


def _own(observed: Sequence[ObservedConnector], lags: Mapping[str, Lag]) -> Iterator[Metric]:
    for name, text, value in _TOTALS:
        total = CounterMetricFamily(name, text, labels=_CONNECTOR)
        for each in observed:
            total.add_metric((each.name,), value(each))
        yield total
    of_fields = ("connector", "topic", "field")
    unplaced = CounterMetricFamily(
        "semel_unplaced_values", "Values that reached no column.", labels=of_fields
    )
    for each in observed:
        for (topic, name), count in sorted(each.progress.unplaced.items()):
            unplaced.add_metric((each.name, topic, name), count)
    yield unplaced
    labels = ("connector", "topic", "partition")
    position = GaugeMetricFamily("semel_position", "Offset of the next record.", labels=labels)
    behind = GaugeMetricFamily("semel_lag_records", "Records still to be read.", labels=labels)
    for each in observed:
        lag = lags.get(each.name, {})
        for tp, at in sorted(each.progress.positions.items()):
            where = (each.name, tp.topic, str(tp.partition))
            position.add_metric(where, at)
            if tp in lag:
                behind.add_metric(where, lag[tp])
    yield position
    yield behind
    seconds = HistogramMetricFamily("semel_commit_seconds", "Time of commits.", labels=_CONNECTOR)
    for each in observed:
        counted = _deliveries(each)
        bounds = [*map(str, BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(counted.by_time), strict=True))
        seconds.add_metric((each.name,), buckets, counted.seconds)
    yield seconds
    kept = ("connector", "delivery", "mechanism", "engine")
    guarantee = GaugeMetricFamily("semel_guarantee_info", "The guarantee that holds.", labels=kept)
    for each in observed:
        promise = each.planned.guarantee
        mechanism = text_of(promise.mechanism) or "none"
        facts = (each.name, promise.delivery.value, mechanism, each.planned.engine)
        guarantee.add_metric(facts, 1)
    yield guarantee


def _held_up(by_name: Mapping[str, Wait]) -> Metric:
    text = (
        "How long a running connector has been waiting for a topic, a service, partitions or "
        "records."
    )
    family = GaugeMetricFamily("semel_waiting_seconds", text, labels=("connector", "for"))
    for name, waiting in by_name.items():
        family.add_metric((name, waiting.on), max(0.0, time.time() - waiting.since))
    return family


def _left(lags: Mapping[str, SourceLag]) -> Metric:
    text = "What a source still has to read, counted in its unit."
    family = GaugeMetricFamily("semel_source_lag", text, labels=("connector", "unit"))
    for name, lag in lags.items():
        if lag.total is not None:
            family.add_metric((name, lag.unit), lag.total)
    return family


def _audited(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    texts = {
        "time_seconds": "When the last audit ended, in seconds since 1970.",
        "broken": "Whether the last audit found the guarantee broken.",
        "records": "Records that the last audit compared.",
        "lost": "Records that it found lost.",
        "duplicated": "Records that it found duplicated.",
    }
    for figure, text in texts.items():
        family = GaugeMetricFamily(f"semel_audit_{figure}", text, labels=_CONNECTOR)
        for name, values in figures.items():
            family.add_metric((name,), values[figure])
        yield family


def _deliveries(each: ObservedConnector) -> Deliveries:
    return each.progress.deliveries


class Rates:
    """How fast totals grow, computed at each scrape."""

    def __init__(self) -> None:
        self._samples: dict[tuple[object, ...], deque[tuple[float, float]]] = {}
        self._asked: set[tuple[object, ...]] = set()

    def of(self, key: tuple[object, ...], total: float) -> float:
        """A total's growth per second, over the last half minute or since the scrape before that. A
        total that has become smaller has restarted."""
        self._asked.add(key)
        now, samples = _now(), self._samples.setdefault(key, deque())
        if samples and total < samples[-1][1]:
            samples.clear()
        samples.append((now, total))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW:
            samples.popleft()
        began, before = samples[0]
        return (total - before) / (now - began) if now > began else 0.0

    def forget_all_but_latest(self) -> None:
        """Forget the totals that were not asked for since this was last called."""
        self._samples = {key: of for key, of in self._samples.items() if key in self._asked}
        self._asked.clear()


# Kafka Connect's metrics have the names that the JMX exporter's example configuration for Kafka
# Connect gives them, so that dashboards and alerts carry over: the attribute put-batch-avg-time-ms
# of kafka.connect:type=sink-task-metrics becomes kafka_connect_sink_task_put_batch_avg_time_ms.

_ANY_TASK, _SINK, _SOURCE, _ERRORS = "connector-task", "sink-task", "source-task", "task-error"
_WORKER, _REBALANCES = "connect-worker", "connect-worker-rebalance"


@dataclass(frozen=True, slots=True)
class _TaskMetric:
    """A metric of a task. With ``is_rate`` it reports how fast its value grows."""

    group: str
    attribute: str
    help: str
    value: Callable[[Report], float]
    is_rate: bool = False

    @property
    def name(self) -> str:
        """Its name for Prometheus."""
        return prometheus_name(self.group, self.attribute)


def prometheus_name(group: str, attribute: str) -> str:
    """The name of a JMX attribute of a group such as ``sink-task``."""
    group = group.removeprefix("connect-")
    return f"kafka_connect_{group}_{attribute}".replace("-", "_")


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _failed_share(report: Report) -> float:
    deliveries = report.deliveries
    return _share(deliveries.failures, deliveries.failures + deliveries.commits)


def _slowest_ms(report: Report) -> float:
    return 1000 * report.deliveries.slowest


def _average_ms(report: Report) -> float:
    return 1000 * _share(report.deliveries.seconds, report.deliveries.commits)


def _average_size(report: Report) -> float:
    return _share(report.records, report.commits)


_records, _rows, _failed, _commits = map(attrgetter, ("records", "rows", "failed", "commits"))
_largest = attrgetter("deliveries.largest")

_OF_TASKS = (
    _TaskMetric(_ANY_TASK, "batch-size-max", "Records of the largest commit.", _largest),
    _TaskMetric(_ANY_TASK, "batch-size-avg", "Average records per commit.", _average_size),
    _TaskMetric(_ANY_TASK, "offset-commit-max-time-ms", "Time of the slowest commit.", _slowest_ms),
    _TaskMetric(_ANY_TASK, "offset-commit-avg-time-ms", "Average time of a commit.", _average_ms),
    _TaskMetric(
        _ANY_TASK,
        "offset-commit-failure-percentage",
        "Share of commit attempts that failed.",
        _failed_share,
    ),
    _TaskMetric(
        _ANY_TASK,
        "offset-commit-success-percentage",
        "Share of commit attempts that succeeded.",
        lambda report: 1 - _failed_share(report),
    ),
    _TaskMetric(_ERRORS, "total-record-failures", "Records that could not be processed.", _failed),
    _TaskMetric(_ERRORS, "total-record-errors", "Records that could not be processed.", _failed),
    _TaskMetric(_ERRORS, "total-records-skipped", "Records left out because of errors.", _failed),
    _TaskMetric(
        _ERRORS,
        "total-retries",
        "Commits that failed and were tried again.",
        attrgetter("deliveries.failures"),
    ),
)
_OF_SINK_TASKS = (
    _TaskMetric(_SINK, "sink-record-read-total", "Records read from Kafka.", _records),
    _TaskMetric(_SINK, "sink-record-read-rate", "Records read per second.", _records, is_rate=True),
    _TaskMetric(_SINK, "sink-record-send-total", "Rows written.", _rows),
    _TaskMetric(_SINK, "sink-record-send-rate", "Rows written per second.", _rows, is_rate=True),
    _TaskMetric(
        _SINK, "partition-count", "Partitions that it reads.", lambda report: len(report.positions)
    ),
    _TaskMetric(_SINK, "offset-commit-seq-no", "Number of the last commit.", _commits),
    _TaskMetric(_SINK, "offset-commit-completion-total", "Commits.", _commits),
    _TaskMetric(
        _SINK, "offset-commit-completion-rate", "Commits per second.", _commits, is_rate=True
    ),
    _TaskMetric(_SINK, "put-batch-max-time-ms", "Time of the slowest commit.", _slowest_ms),
    _TaskMetric(_SINK, "put-batch-avg-time-ms", "Average time of a commit.", _average_ms),
)
_OF_SOURCE_TASKS = (
    _TaskMetric(_SOURCE, "source-record-poll-total", "Records read from the source.", _records),
    _TaskMetric(
        _SOURCE, "source-record-poll-rate", "Records read per second.", _records, is_rate=True
    ),
    _TaskMetric(_SOURCE, "source-record-write-total", "Records written to Kafka.", _rows),
    _TaskMetric(
        _SOURCE, "source-record-write-rate", "Records written per second.", _rows, is_rate=True
    ),
    _TaskMetric(_SOURCE, "transaction-size-max", "Records of the largest transaction.", _largest),
    _TaskMetric(_SOURCE, "transaction-size-avg", "Average records per transaction.", _average_size),
)
_LAG_MAX = prometheus_name(_SINK, "sink-record-lag-max")

OF_REBALANCES = {
    "leader-name": "The worker that leads the cluster.",
    "epoch": "Number of the current assignment.",
    "completed-rebalances-total": "How often the assignment has changed.",
    "rebalancing": "Whether no worker leads.",
    "time-since-last-rebalance-ms": "Time since the assignment last changed.",
}

_TASK_COUNTS = {
    f"connector-{state.lower()}-task-count": str(state)
    for state in (State.RUNNING, State.PAUSED, State.FAILED, State.UNASSIGNED, State.RESTARTING)
}
"""The worker's metrics that count the tasks of a connector by their state."""
