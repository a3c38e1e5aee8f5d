"""Where a drill plays: services, the connector's processes, and what can be seen of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import psutil
import pyspark
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from semel import failpoints
from semel.audit import AuditReport, audit
from semel.errors import ConfigError, SemelError, TransientError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.lab.drill import own
from semel.lab.drill.disk import Disk
from semel.lab.drill.lakes import Lake
from semel.lab.drill.plan import Kind
from semel.lab.drill.process import Process
from semel.lab.drill.stores import SESSION, store_of
from semel.lab.embedded import Kafka
from semel.lab.embedded.process import comes_true
from semel.lab.embedded.proxy import Proxy
from semel.lab.embedded.server import Server
from semel.ledger import TopicPartition
from semel.plan import plan

BUILT_IN = {
    "name": "drill",
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "connection.url": "jdbc:postgresql://localhost/drill",
    "tasks.max": "2",
    "topics": "drill",
    "insert.mode": "insert",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "provenance": "true",
}
"""The connector of a drill without a file: inserts without a key, which forgive nothing."""

PARTITIONS = 4

_QUICK = {
    "auto.create": "true",
    "provenance": "true",  # or an audit could only count
    "errors.deadletterqueue.topic.replication.factor": "1",
    "consumer.override.session.timeout.ms": str(int(SESSION * 1000)),
    "consumer.override.heartbeat.interval.ms": "500",
    "consumer.override.metadata.max.age.ms": "2000",
    "consumer.override.reconnect.backoff.ms": "50",
    "consumer.override.reconnect.backoff.max.ms": "500",
    "admin.override.reconnect.backoff.ms": "50",
    "admin.override.reconnect.backoff.max.ms": "500",
    "retry.backoff.ms": "200",
    "store.timeout.ms": "3000",
}
"""Shorter timeouts than in production, so that a drill does not wait for most of its time."""

PATIENCE = 300.0
_POLL = 0.03
_AUDITS, _PAUSE = 20, 0.5
_BROKERS = 2.0
"""Seconds after which a killed broker is known to be dead, and may come back."""


class DrillFailed(SemelError):
    """A fault could not be injected, or the connector has not recovered from it."""


class Stage:
    """Services and connector of one drill, in one directory; ``kinds`` of faults are to come.

    Results go into the ``own_store`` of the connector if it is wanted, which must be empty.
    """

    def __init__(
        self,
        raw: Mapping[str, str],
        directory: Path,
        kinds: Collection[Kind] = (),
        *,
        own_store: bool = False,
    ) -> None:
        self.directory = directory
        self.points = directory / "failpoints"
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise ConfigError(
                f"--dir {directory} is not empty, and a drill removes it in the end. Name a new "
                "directory"
            )
        self.points.mkdir(parents=True)
        self._spark_home = _spark_home(directory / "spark")
        self._started = 0
        self._seen: set[psutil.Process] = set()
        self.on_executors = False
        self.own_store = own_store
        self.store = store_of(raw, directory, own=own_store)
        self.kafka = Kafka(directory / "kafka", brokers=self.store.brokers, session=_BROKERS)
        self.kinds = self.store.possible(kinds, raw.get("name", ""))
        self.raw = self._adapted(raw)
        self.planned = plan(self.raw)
        connector = self.planned.connector
        self.client = client_config(connector, "admin")
        """What an admin client of Kafka needs."""
        self.cluster = Cluster(self.client)
        self.tasks = connector.tasks_max
        self.topics = dict.fromkeys(connector.topics, PARTITIONS)
        self.direct = self.planned.engine == "direct"
        self.process: Process | None = None
        self.proxy = self._proxy()

    def _proxy(self) -> Proxy | None:
        """What stands between the connector and its store's server; the drill itself goes past
        it."""
        silent = Kind.STORE_SILENT in self.kinds and self.store.server is not None
        return Proxy.before(self.raw["connection.url"]) if silent else None

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the topics have now."""
        return [TopicPartition(t, p) for t, n in self.topics.items() for p in range(n)]

    @property
    def takes_over(self) -> bool:
        """Whether other tasks go on with the partitions of one that is frozen."""
        return self.direct and self.tasks > 1 and not self.store.one_writer

    def open(self) -> None:
        """Start the services and create the topics."""
        if self.own_store:
            own.check_empty(self.raw, self.topics)
        if self.store.disk is not None:
            self.store.disk.open(mount=Kind.DISK_FULL in self.kinds)
        if self.store.server is not None:
            self.store.server.start()
        self.kafka.start()
        for topic, partitions in self.topics.items():
            self.kafka.create_topic(topic, partitions)

    def _adapted(self, raw: Mapping[str, str]) -> dict[str, str]:
        """The connector's configuration with this stage's services and short timeouts."""
        name = raw.get("name", "")
        if self.own_store:
            raw = own.without_letters(raw)
        if raw.get("topics.regex"):
            raise ConfigError(f"connector {name}: a drill needs topics, it cannot guess a name "
                              "from topics.regex")  # fmt: skip
        replaced = (
            "bootstrap.servers",
            "iceberg.control.commit.interval-ms",
            "spark.master",
            *("topic.auto.create", "auto.create.indices.at.start"),  # other names of auto.create
        )
        of_store = ("connection.username", "storage.options.", "iceberg.catalog.")
        secured = ("security.", "sasl.", "ssl.")
        kept = {
            k: v
            for k, v in raw.items()
            if not k.endswith(replaced)
            and (self.own_store or not k.startswith(of_store))
            and not any(f".override.{s}" in k for s in secured)
        }
        servers = {"bootstrap.servers": self.kafka.bootstrap_servers}
        return {**kept, **_QUICK, **servers, **self.store.keys, **(self.store.where or {})}

    @property
    def server(self) -> Server:
        """The server that the connector writes to; a server's faults are for such stores only."""
        assert self.store.server is not None
        return self.store.server

    @property
    def lake(self) -> Lake:
        """The lake whose tables the connector writes; the same holds."""
        assert self.store.lake is not None
        return self.store.lake

    @property
    def disk(self) -> Disk:
        """The disk that the connector writes to; the same holds."""
        assert self.store.disk is not None
        return self.store.disk

    # The connector's processes

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    def launch(
        self, *, on_executors: bool | None = None, keys: Mapping[str, str] | None = None
    ) -> Process:
        """Start one more process of the connector, with some ``keys`` for this time."""
        if on_executors is not None:
            self.on_executors = on_executors
        settings = {**self.raw, **(keys or {})}
        if self.proxy is not None:
            settings["connection.url"] = self.proxy.url(settings["connection.url"])
        if self.on_executors:
            settings |= {
                "spark.master": f"local-cluster[{self.tasks},1,1024]",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            }
        file = self.directory / "connector.json"
        file.touch(mode=0o600)  # with the password of the user's own store
        file.write_text(json.dumps(settings, indent=2) + "\n")
        self._started += 1
        log = self.directory / f"connector-{self._started:03}.log"
        environment = {
            failpoints.DIRECTORY: str(self.points),
            "SPARK_HOME": str(self._spark_home),
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        return Process(file, log, environment)

    def start(
        self, *, on_executors: bool | None = None, keys: Mapping[str, str] | None = None
    ) -> None:
        """Start the connector's process; the one before has ended."""
        self.process = self.launch(on_executors=on_executors, keys=keys)

    def switch(self, on_executors: bool) -> None:
        """Start the connector again on the other cluster, if it is not there already."""
        if self.process is None or on_executors != self.on_executors:
            if self.process is not None:
                self.remember()
                os.kill(self.process.pid, signal.SIGTERM)
                process = self.process
                self.until(
                    lambda: process.status is not None, PATIENCE, "the connector does not stop"
                )
            self.start(on_executors=on_executors)

    def remember(self) -> None:
        """Note the connector's processes, so that none outlives the drill."""
        if self.process is not None:
            self._seen.update(self.process.family())

    def adopt(self, process: Process) -> None:
        """Note a process that is none of the connector's any more."""
        self._seen.update(process.family())
        if process.status is None:
            self._seen.add(psutil.Process(process.pid))

    def close(self) -> None:
        """End everything."""
        self.remember()
        if self.process is not None and self.process.status is None:
            os.kill(self.process.pid, signal.SIGKILL)
        for process in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.ExitStack() as ending:  # whatever fails, the rest is ended too
            if self.store.disk is not None:
                ending.callback(self.store.disk.close)
            if self.store.server is not None:
                ending.callback(self.store.server.kill)
            if self.proxy is not None:
                ending.callback(self.proxy.close)
            ending.callback(self.kafka.kill)
            ending.callback(self.planned.sink.close)

    # Failpoints

    def arm(self, place: str, action: str, skip: int) -> None:
        failpoints.arm(self.points, place, action, skip)

    def disarm(self) -> None:
        failpoints.disarm(self.points)

    def fired(self) -> list[int]:
        """The processes in which failpoints have fired so far."""
        return [f.pid for f in failpoints.fired(self.points)]

    # What is to be seen

    def positions(self) -> dict[TopicPartition, int]:
        """The ledger's positions; empty while the store is away."""
        try:
            return {e.topic_partition: e.position for e in self.planned.sink.entries()}
        except SemelError:
            self.planned.sink.close()
            return {}

    def latest(self) -> dict[TopicPartition, int]:
        """Where Kafka's committed records end."""
        return self.cluster.latest(self.partitions)

    def group_is_whole(self) -> bool:
        """Whether every task is a member of the consumer group, and no rebalance is under way."""
        group = self.planned.connector.group_id
        # A new client each time: one that has seen a broker restart may not recover from it.
        admin = AdminClient({**self.client, "log_level": 0})
        try:
            found = admin.describe_consumer_groups([group], request_timeout=5)[group].result()
        except KafkaException:
            return False
        return found.state is ConsumerGroupState.STABLE and len(found.members) == self.tasks

    def audit(self) -> AuditReport:
        """Audit; again if the store is not back yet, or has ended a session that was slow."""
        for _ in range(_AUDITS - 1):
            try:
                return audit(None, planned=self.planned)
            except TransientError:
                self.planned.sink.close()
                time.sleep(_PAUSE)
        return audit(None, planned=self.planned)

    def until(
        self,
        condition: Callable[[], bool],
        patience: float,
        otherwise: str | Callable[[], str],
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for a condition.

        Raises:
            DrillFailed: it does not come true in time.
        """

        def has_come() -> bool:
            if condition():
                return True
            meanwhile()
            return False

        if not comes_true(has_come, patience, _POLL):
            what = otherwise if isinstance(otherwise, str) else otherwise()
            raise DrillFailed(f"{what} (waited {patience:.0f} s)")


def _spark_home(directory: Path) -> Path:
    """Spark as it came with PySpark, in a place where its workers may write their logs."""
    directory.mkdir()
    package = Path(pyspark.__file__).parent
    for name in ("jars", "bin", "sbin", "python"):
        if (package / name).exists():
            (directory / name).symlink_to(package / name)
    return directory
