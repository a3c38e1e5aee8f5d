"""The direct engine without Spark's start: its driver, and its tasks in processes of their own.

``LocalSpark`` stands in for the session that the driver gets. It does for a job what Spark does:
one process a task, and a new one, with the next attempt number, for each that dies. The driver, the
tasks, Kafka and PostgreSQL are the real ones.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark import TaskContext, cloudpickle

from semel import run
from semel.audit import AuditReport, audit
from semel.config import ConnectorConfig, read
from semel.core import failpoints
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, Fenced, SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.databases.postgresql import driver
from semel.driver.base import Progress
from semel.driver.planning import plan
from semel_lab.embedded import Kafka
from tests import databases, matrix, searching
from tests.conftest import wait_gone
from tests.patience import PATIENCE

log = logging.getLogger(__name__)

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "semel.driver.run",
        "semel.databases.postgresql.driver",
        "semel.sinks.delta.sink",
        "semel.sinks.iceberg.sink",
        "semel.sinks.files.sink",
        "semel.sinks.search.sink",
        "pyiceberg.catalog.glue",
        "pyiceberg.catalog.rest",
        "pyiceberg.catalog.sql",
        __name__,
    ]
)


class _Attempt:
    def __init__(self, number: int) -> None:
        self._number = number

    def attemptNumber(self) -> int:
        return self._number


def _work(
    body: bytes, index: int, attempt: int, points: str | None, answers: Connection[Any, Any]
) -> None:
    """The process of one task."""
    os.setpgid(0, 0)
    failpoints._directory = points
    TaskContext._taskContext = _Attempt(attempt)  # type: ignore[assignment]
    answers.send(list(cloudpickle.loads(body)(index, iter(()))))


def freezing(marker: Path) -> Callable[[Any], Any]:
    """A transform that freezes the first task process that calls it, with all its threads."""
    driver = os.getpid()

    def freezes(batch: Any) -> Any:
        if os.getpid() != driver and not marker.exists():  # it is called for a sample, too
            marker.touch()
            ctypes.PyDLL(None).sleep(600)  # Python's lock is kept
        return batch

    return freezes


class LocalSpark:
    """A session without a JVM; ``workers`` holds the process that runs each task, the latest where
    several connectors have a task of that number.

    ``only`` starts just these tasks; ``restarts`` is how often a task that dies is started again
    before its job fails.
    """

    def __init__(
        self, points: Path | None = None, *, only: Sequence[int] | None = None, restarts: int = 1000
    ) -> None:
        self.points = points
        self.only = only
        self.restarts = restarts
        self.workers: dict[int, ForkServerProcess] = {}
        self.owners: dict[int, LocalJob] = {}
        self.attempts: collections.Counter[int] = collections.Counter()
        self.jobs = 0
        self.master = "local[*]"
        self.cancelled: set[str] = set()
        self._group = threading.local()

    @property
    def sparkContext(self) -> LocalSpark:
        return self

    def getConf(self) -> dict[str, str]:
        return {"spark.driver.host": "127.0.0.1"}

    def setJobGroup(self, group: str, *_arguments: object) -> None:
        self._group.name = group

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.add(group)

    def parallelize(self, items: Iterable[int], slices: int) -> LocalJob:
        tasks = list(items)
        assert len(tasks) == slices
        return LocalJob(self, tasks, self._group.name)

    def start(self, job: LocalJob, task: int, attempt: int) -> None:
        """Start a task's process."""
        self.attempts[task] = attempt
        points = str(self.points) if self.points else None
        job.answers[task], theirs = _SERVER.Pipe(duplex=False)
        arguments = (job.body, task, attempt, points, theirs)
        worker = _SERVER.Process(target=_work, args=arguments)
        worker.daemon = True
        worker.start()
        theirs.close()
        job.workers[task] = self.workers[task] = worker
        self.owners[task] = job

    def replace(self, index: int) -> int:
        """Restart a task although it lives, as Spark does when it loses sight of an executor;
        returns the id of the process that is left."""
        left = self.workers[index].pid
        assert left is not None
        self.start(self.owners[index], index, self.attempts[index] + 1)
        return left

    def signal(self, index: int, number: signal.Signals) -> int:
        """Signal a task's process; returns its id."""
        pid = self.workers[index].pid
        assert pid is not None
        os.kill(pid, number)
        return pid


class LocalJob:
    """A job of some tasks, each of which has the number that it was made from."""

    def __init__(self, spark: LocalSpark, tasks: Sequence[int], group: str) -> None:
        self._spark = spark
        self._tasks = tasks
        self._group = group
        self._work: Callable[..., Any]
        self.body = b""
        self.workers: dict[int, ForkServerProcess] = {}
        self.answers: dict[int, Connection[Any, Any]] = {}

    def mapPartitionsWithIndex(self, body: Callable[..., Any]) -> LocalJob:
        self._work = body
        return self

    def count(self) -> int:
        """Run the job to its end, as Spark's DAG scheduler would."""
        return len(self.collect())

    def collect(self) -> list[Any]:
        """The same, and what its tasks have yielded."""
        spark = self._spark
        spark.jobs += 1
        found: dict[int, list[Any]] = {}
        left = {n: 0 for n in self._tasks if spark.only is None or n in spark.only}
        idle = not left
        self.body = cloudpickle.dumps(self._work)
        spark.cancelled.discard(self._group)  # an earlier job's
        for task in left:
            spark.start(self, task, 0)
        try:
            while left or idle:
                time.sleep(0.01)
                if idle and self._group in spark.cancelled:
                    raise RuntimeError("Error: the job was cancelled")
                for task in list(left):
                    code = self.workers[task].exitcode
                    if task not in found and self.answers[task].poll():
                        with contextlib.suppress(EOFError):  # it died
                            found[task] = self.answers[task].recv()
                    if code == 0:
                        del left[task]
                    elif code is not None:
                        left[task] += 1
                        if left[task] > spark.restarts:
                            raise RuntimeError(f"Error: task {task} died with {code}")
                        spark.start(self, task, left[task])
                    elif self._group in spark.cancelled:
                        raise RuntimeError("Error: the job was cancelled")
        finally:
            for worker in self.workers.values():
                worker.kill()
        return [answer for task in sorted(found) for answer in found[task]]


class InlineSpark(LocalSpark):
    """Runs tasks in the driver's own process: what kills one kills all."""

    def parallelize(self, items: Iterable[int], slices: int) -> InlineJob:  # type: ignore[override]
        return InlineJob(self, list(items), "")


class InlineJob(LocalJob):
    """Its tasks run one after the other."""

    def collect(self) -> list[Any]:
        body = cloudpickle.loads(cloudpickle.dumps(self._work))
        return [a for n in range(len(self._tasks)) for a in body(n, iter(()))]


def driving(config: Mapping[str, Any], points: Path) -> ForkServerProcess:
    """Start a connector in a process of its own, until it has caught up."""
    driver = _SERVER.Process(target=_drive, args=(dict(config), str(points)))
    driver.start()
    return driver


def drive(config: Mapping[str, Any], points: Path) -> int | None:
    """The same, to its end; returns the exit code, or the negative number of a signal."""
    driver = driving(config, points)
    driver.join(PATIENCE)
    assert not driver.is_alive()
    return driver.exitcode


def _drive(config: Mapping[str, Any], points: str) -> None:
    failpoints._directory = points
    try:
        run(config, spark=InlineSpark(), until_caught_up=True)  # type: ignore[arg-type]
    except SemelError as error:
        sys.exit(error.exit_code)


class Running:
    """A connector that runs in a thread of the test, its tasks in processes."""

    def __init__(
        self,
        config: Mapping[str, Any],
        transform: Callable[..., Any] | None = None,
        *,
        spark: Any = None,
        until_caught_up: bool = False,
    ) -> None:
        self.spark = LocalSpark() if spark is None else spark
        self.progress = Progress()
        self.error: BaseException | None = None
        self.halt = threading.Event()
        self._arguments = (dict(config), transform, until_caught_up)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        config, transform, until_caught_up = self._arguments
        try:
            self.progress = run(
                config,
                transform,
                spark=self.spark,
                until_caught_up=until_caught_up,
                stop=self.halt,
                observe=self._observe,
            )
        except BaseException as error:
            self.error = error
            log.warning("the run has ended: %s", error)  # a test may wait in vain for what it does

    def _observe(self, progress: Progress) -> None:
        self.progress = progress

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float = PATIENCE) -> Progress:
        """The run's totals once it has ended; raises what ended it."""
        self._thread.join(timeout)
        assert not self.alive, f"still running after {timeout} s: {self.progress}"
        if self.error is not None:
            raise self.error
        return self.progress

    def until(self, condition: Callable[[Progress], bool], timeout: float = PATIENCE) -> None:
        """Wait until the progress is as wanted; raises what has ended the run."""
        has_ended = False

        def over() -> bool:
            nonlocal has_ended
            has_ended = not self.alive
            return has_ended or condition(self.progress)

        wait_until(over, timeout)
        if has_ended and self.error is not None:
            raise self.error
        assert not has_ended or condition(self.progress), self.progress

    def stop(self) -> Progress:
        """Ask it to stop, as SIGTERM does, and wait."""
        self.halt.set()
        return self.wait()

    def stop_when(self, condition: Callable[[Progress], bool]) -> Progress:
        """Stop it once the progress is as wanted."""
        self.until(condition)
        return self.stop()

    def end(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        self.halt.set()
        if isinstance(self.spark, LocalSpark):
            for worker in list(self.spark.workers.values()):
                if worker.pid is not None and worker.exitcode is None:
                    os.kill(worker.pid, signal.SIGCONT)
        self._thread.join(PATIENCE)
        assert not self.alive
        if isinstance(self.spark, LocalSpark):
            assert all(wait_gone(w.pid) for w in self.spark.workers.values() if w.pid)


def until_one_is_fenced(
    start: Callable[..., Running], config: Mapping[str, Any], feed: Callable[[int], int]
) -> tuple[int, int]:
    """Run a connector that commits on its driver twice, until a run has met the other's commit.

    Their triggers differ in size: the same range from both would be a replay. ``feed`` produces
    more records than a trigger holds, and is told how many there are.

    Returns:
        How many records there are, and how many of the two runs were fenced.
    """
    first = start({**config, "maxOffsetsPerTrigger": "60"})
    sent, deadline = feed(0), time.monotonic() + PATIENCE
    first.until(lambda p: p.commits > 0)
    both = [first, start({**config, "maxOffsetsPerTrigger": "100"})]
    while all(each.alive for each in both):
        assert time.monotonic() < deadline, "they never met"
        sent = feed(sent)
        wait_until(
            lambda sent=sent: (  # type: ignore[misc]
                not all(each.alive for each in both)
                or all(sum(each.progress.positions.values()) >= sent for each in both)
            )
        )
    fenced = 0
    for each in both:
        try:
            each.stop()
        except Fenced as error:
            fenced += 1
            assert "the ledger is at" in str(error)
    assert fenced
    return sent, fenced


def one_takes_the_place(first: Running, second: Running) -> Running:
    """The one of two runs that goes on, once the other one is fenced."""
    wait_until(lambda: not (first.alive and second.alive))
    loser, winner = (first, second) if not first.alive else (second, first)
    with pytest.raises(Fenced, match="another run of this connector has taken its place"):
        loser.wait()
    return winner


def wait_until(condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait for a condition. A service that does not answer means only that it is not met yet."""
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        try:
            if condition():
                return
        except TransientError:
            if late:
                raise
        assert not late, "the condition was not met in time"
        time.sleep(0.02)


def outlast_retries(config: Mapping[str, str]) -> None:
    """Let an outage last twice as long as all retries of a batch, and their pauses, would take."""
    connector = read(ConnectorConfig, config)
    time.sleep(2 * connector.max_retries * connector.retry_backoff_ms / 1000)


def once_let_go(change: Callable[[], object]) -> None:
    """Make a change that is refused while a run is alive: the server may learn a little later that
    it has ended."""

    def made() -> bool:
        try:
            change()
        except ConfigError:
            return False
        return True

    wait_until(made)


def caught_up(
    config: Mapping[str, Any],
    transform: Callable[..., Any] | None = None,
    *,
    spark: Any = None,
    timeout: float = PATIENCE,
) -> Progress:
    """Run a connector until everything that Kafka holds is committed."""
    running = Running(config, transform, spark=spark, until_caught_up=True)
    try:
        return running.wait(timeout)
    finally:
        running.end()


MANY_COMMITS = {
    "consumer.override.max.poll.records": "20",
    "consumer.override.heartbeat.interval.ms": "300",
}
SHORT_SESSION = {**MANY_COMMITS, "consumer.override.session.timeout.ms": "1500"}


def name() -> str:
    return f"c{uuid.uuid4().hex[:8]}"


def records(count: int, start: int = 0) -> list[bytes]:
    """JSON values that :func:`ids` recognises."""
    return [
        json.dumps({"id": i, "text": f"text {i}"}).encode() for i in range(start, start + count)
    ]


def transaction(kafka: Kafka, topic: str, values: Iterable[bytes]) -> None:
    """Send records to partition 0 in one transaction, which takes one more offset."""
    servers = kafka.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name()})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.commit_transaction(PATIENCE)
    wait_until(lambda: no_transaction_is_open(kafka, topic, 0))  # the marker comes later


def no_transaction_is_open(kafka: Kafka, topic: str, partition: int) -> bool:
    """Whether a partition's last stable offset is its end."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    place = KafkaPartition(topic, partition)
    stable, last = (
        admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=isolation)[place]
        .result(PATIENCE)
        .offset
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return bool(stable == last)


def recreate(kafka: Kafka, topic: str) -> None:
    """Delete a topic and create it again, with one partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic], request_timeout=PATIENCE)[topic].result(PATIENCE)
    wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics)
    kafka.create_topic(topic, 1)


def sql(url: str, statement: str) -> list[Any]:
    """The rows of a query (single values where it has one column); any other statement runs."""
    if url.startswith("jdbc:"):
        found = databases.query(url, statement)
        return [row[0] for row in found] if found and len(found[0]) == 1 else found
    with driver.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        if cursor.description is None:
            return []
        rows = cursor.fetchall()
    return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows


def ids(url: str, table: str) -> list[int]:
    if url.startswith("http:"):
        return sorted(document["id"] for document in searching.documents(url, table))
    return sorted(sql(url, f'SELECT id FROM "{table}"'))


def positions(config: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The ledger."""
    sink = plan(config).sink
    try:
        return {e.topic_partition: e.position for e in sink.entries()}
    finally:
        sink.close()


def assert_nothing_lost_nothing_twice(
    config: Mapping[str, Any], expected: Iterable[int], transform: Callable[..., Any] | None = None
) -> AuditReport:
    """The claim of every exactly-once test, checked twice: by the audit, and straight from SQL.

    ``expected`` are the ``id`` values that the tables of ``topics`` must hold once each.
    """
    found = []
    for topic in config["topics"].split(","):
        found += ids(config["connection.url"], topic)
    wanted = collections.Counter(expected)
    seen = collections.Counter(found)
    lost, twice = wanted - seen, seen - wanted
    assert not lost, f"{lost.total()} lost, such as {sorted(lost)[:5]}"
    assert not twice, f"{twice.total()} twice or strange, such as {sorted(twice)[:5]}"
    report = audit(config, transform)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report
    return report


def some(cases: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which those that are not in ``short`` are marked as long."""
    return [
        c
        if c in short
        else pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.long)
        for c in cases
    ]


def assert_each_exactly_once(
    config: Mapping[str, Any], ids: Sequence[int], expected: Iterable[int]
) -> AuditReport:
    """Each record is there once: by the sorted ``ids`` found in the store, and by the audit."""
    assert ids == sorted(expected)
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report
    assert report.exact
    return report


def assert_promise_kept(
    config: Mapping[str, Any],
    points: Path,
    found: Iterable[int],
    count: int,
    *,
    shows: bool = False,
    exact: bool = True,
) -> None:
    """The claim of every crash test, checked twice: by the audit, and straight from the store.

    Args:
        config: of the connector that was killed, and has caught up since.
        points: the directory of its failpoints.
        found: the ``id`` values that are in the store, of ``range(count)``.
        count: how many records Kafka has.
        shows: whether dying there must lose or repeat records under a weaker guarantee.
        exact: whether the store's rows name their records; else the audit goes by counts.
    """
    matrix.killed(config, points)
    seen = collections.Counter(found)
    assert seen.keys() <= set(range(count))
    lost, repeated = count - len(seen), seen.total() - len(seen)
    report = audit(config)
    assert (report.kept, report.exact) == (True, exact), report
    assert (report.lost, report.duplicated) == (lost, repeated)
    delivery = plan(config).guarantee.delivery
    assert not lost or delivery is Delivery.AT_MOST_ONCE
    assert not repeated or delivery is Delivery.AT_LEAST_ONCE
    assert lost + repeated or not shows or delivery is Delivery.EXACTLY_ONCE
