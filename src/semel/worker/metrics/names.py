"""Kafka Connect's metrics that have a counterpart here.

A metric has the name that the JMX exporter's example configuration for Kafka Connect gives it, so
that dashboards and alerts carry over: the attribute ``put-batch-avg-time-ms`` of
``kafka.connect:type=sink-task-metrics`` becomes ``kafka_connect_sink_task_put_batch_avg_time_ms``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from semel.driver.base import State
from semel.tasks.control import Report
from semel.worker.metrics.observed import ObservedConnector

TASK, SINK, SOURCE, ERRORS = "connector-task", "sink-task", "source-task", "task-error"
WORKER, REBALANCES = "connect-worker", "connect-worker-rebalance"


@dataclass(frozen=True, slots=True)
class TaskMetric:
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

OF_TASKS = (
    TaskMetric(TASK, "batch-size-max", "Records of the largest commit.", _largest),
    TaskMetric(TASK, "batch-size-avg", "Average records per commit.", _average_size),
    TaskMetric(TASK, "offset-commit-max-time-ms", "Time of the slowest commit.", _slowest_ms),
    TaskMetric(TASK, "offset-commit-avg-time-ms", "Average time of a commit.", _average_ms),
    TaskMetric(
        TASK,
        "offset-commit-failure-percentage",
        "Share of commit attempts that failed.",
        _failed_share,
    ),
    TaskMetric(
        TASK,
        "offset-commit-success-percentage",
        "Share of commit attempts that succeeded.",
        lambda report: 1 - _failed_share(report),
    ),
    TaskMetric(ERRORS, "total-record-failures", "Records that could not be processed.", _failed),
    TaskMetric(ERRORS, "total-record-errors", "Records that could not be processed.", _failed),
    TaskMetric(ERRORS, "total-records-skipped", "Records left out because of errors.", _failed),
    TaskMetric(
        ERRORS,
        "total-retries",
        "Commits that failed and were tried again.",
        attrgetter("deliveries.failures"),
    ),
)
OF_SINK_TASKS = (
    TaskMetric(SINK, "sink-record-read-total", "Records read from Kafka.", _records),
    TaskMetric(SINK, "sink-record-read-rate", "Records read per second.", _records, is_rate=True),
    TaskMetric(SINK, "sink-record-send-total", "Rows written.", _rows),
    TaskMetric(SINK, "sink-record-send-rate", "Rows written per second.", _rows, is_rate=True),
    TaskMetric(
        SINK, "partition-count", "Partitions that it reads.", lambda report: len(report.positions)
    ),
    TaskMetric(SINK, "offset-commit-seq-no", "Number of the last commit.", _commits),
    TaskMetric(SINK, "offset-commit-completion-total", "Commits.", _commits),
    TaskMetric(
        SINK, "offset-commit-completion-rate", "Commits per second.", _commits, is_rate=True
    ),
    TaskMetric(SINK, "put-batch-max-time-ms", "Time of the slowest commit.", _slowest_ms),
    TaskMetric(SINK, "put-batch-avg-time-ms", "Average time of a commit.", _average_ms),
)
OF_SOURCE_TASKS = (
    TaskMetric(SOURCE, "source-record-poll-total", "Records read from the source.", _records),
    TaskMetric(
        SOURCE, "source-record-poll-rate", "Records read per second.", _records, is_rate=True
    ),
    TaskMetric(SOURCE, "source-record-write-total", "Records written to Kafka.", _rows),
    TaskMetric(
        SOURCE, "source-record-write-rate", "Records written per second.", _rows, is_rate=True
    ),
    TaskMetric(SOURCE, "transaction-size-max", "Records of the largest transaction.", _largest),
    TaskMetric(SOURCE, "transaction-size-avg", "Average records per transaction.", _average_size),
)
LAG_MAX = prometheus_name(SINK, "sink-record-lag-max")

OF_REBALANCES = {
    "leader-name": "The worker that leads the cluster.",
    "epoch": "Number of the current assignment.",
    "completed-rebalances-total": "How often the assignment has changed.",
    "rebalancing": "Whether no worker leads.",
    "time-since-last-rebalance-ms": "Time since the assignment last changed.",
}

TASK_COUNTS = {
    f"connector-{state.lower()}-task-count": str(state)
    for state in (State.RUNNING, State.PAUSED, State.FAILED, State.UNASSIGNED, State.RESTARTING)
}
"""The worker's metrics that count the tasks of a connector by their state."""


@dataclass(frozen=True, slots=True)
class StartCounts:
    """How often connectors were started."""

    attempts: int
    failures: int

    @staticmethod
    def of(connectors: list[ObservedConnector]) -> StartCounts:
        """The starts of all connectors together."""
        return StartCounts(
            sum(each.tally.starts for each in connectors),
            sum(each.tally.failures for each in connectors),
        )

    @property
    def metrics(self) -> dict[str, tuple[str, float]]:
        """Kafka Connect's attributes, with what they mean and their values."""
        succeeded = self.attempts - self.failures
        return {
            "connector-startup-attempts-total": ("Starts of connectors.", self.attempts),
            "connector-startup-success-total": ("Starts that have not failed.", succeeded),
            "connector-startup-failure-total": ("Connectors that failed.", self.failures),
            "connector-startup-success-percentage": (
                "Share of the starts that have not failed.",
                _share(succeeded, self.attempts),
            ),
            "connector-startup-failure-percentage": (
                "Share of the starts that have failed.",
                _share(self.failures, self.attempts),
            ),
        }
