"""A real Kafka in KRaft mode, with one or several brokers, in a directory."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from semel.core.errors import ServiceError
from semel.spark import jars
from semel_lab.embedded import topics
from semel_lab.embedded.java import console_logging, find_java
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import Server
from semel_lab.jars import KAFKA

# Measured on 2 cores: G1 takes 15 % more CPU and 120 MB more memory. Without the second compiler
# it starts 0.5 s sooner, for 2.3 s of CPU instead of 3.9, but serves half as many small requests.
JVM_FLAGS = ("-XX:+UseParallelGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")
COMPILE_LITTLE = "-XX:TieredStopAtLevel=1"

FIRST = 1
OTHERS = "256m"
"""The heap of the additional brokers."""
COORDINATOR_PARTITIONS = 8


class Broker(Server):
    """One broker of a cluster. It can be stopped, killed and started while the others run."""

    name = "Kafka"
    log_name = "kafka.log"
    port_names: ClassVar[tuple[str, ...]] = ("kafka",)
    start_timeout = 300.0  # after a crash it recovers its logs first
    stop_timeout = 60.0  # one that is killed instead may not lead its partitions when it is back

    def __init__(
        self, directory: Path, port: int | None, heap: str, *, detached: bool, node: int, of: Kafka
    ) -> None:
        super().__init__(directory, port, detached=detached)
        self.heap = heap
        self.node = node
        self._cluster = of
        self._admin: AdminClient | None = None

    @property
    def address(self) -> str:
        """The address that it listens on."""
        return f"{LOOPBACK}:{self.port}"

    def _launch(self) -> None:
        java = find_java()
        classpath = jars.classpath(KAFKA)
        self._check_ports()
        properties = self.directory / "server.properties"
        properties.write_text(_properties(self._settings()))
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING)
        if not self._identity.exists():
            self._format(java, classpath, properties, logging)
        self._process.launch(
            [
                str(java),
                f"-Xms{self.heap}",
                f"-Xmx{self.heap}",
                *JVM_FLAGS,
                *((COMPILE_LITTLE,) if self._cluster.short_lived else ()),
                *(self._cluster.flags or self._mapped("kafka", java, jars.resolve(KAFKA))),
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                classpath,
                "kafka.Kafka",
                str(properties),
            ],
            detached=self.detached,
            directory=self.directory,
        )

    def stop(self) -> None:
        self._admin = None
        super().stop()

    def kill(self) -> None:
        self._admin = None
        super().kill()

    def _administer(self) -> AdminClient:
        if self._admin is None:
            if self.pid is None:
                raise ServiceError(f"{self.name} in {self.directory} is not running: start it.")
            self._admin = AdminClient(
                {
                    "bootstrap.servers": self.address,
                    "log_level": 0,  # while the broker starts, refused connections are no news
                    "reconnect.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 200,
                }
            )
        return self._admin

    def _answers(self) -> bool:
        """Whether the broker is in its own metadata, every partition has a leader, and the broker
        has everything that the leaders of its partitions have."""
        metadata = self._metadata()
        return (
            metadata is not None
            and self.node in metadata.brokers
            and all(
                partition.leader in metadata.brokers
                and (self.node in partition.isrs or self.node not in partition.replicas)
                for topic in metadata.topics.values()
                for partition in topic.partitions.values()
            )
        )

    def _is_registered(self) -> bool:
        """Whether the broker is in its own metadata."""
        metadata = self._metadata()
        return metadata is not None and self.node in metadata.brokers

    def _metadata(self) -> ClusterMetadata | None:
        """The broker's metadata of the cluster; None while it does not answer."""
        if not listening(self.port):
            return None
        try:
            return self._administer().list_topics(timeout=5)
        except (KafkaException, ServiceError):
            return None

    def _format(self, java: Path, classpath: str, properties: Path, logging: Path) -> None:
        done = subprocess.run(
            [
                str(java),
                COMPILE_LITTLE,
                "-XX:+UseSerialGC",
                *([] if self._cluster.flags else self._mapped("kafka", java, jars.resolve(KAFKA))),
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                classpath,
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                self._cluster.cluster_id,
                "--config",
                str(properties),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServiceError(
                f"{self.name} cannot prepare {self.directory}: {done.stderr}{done.stdout}"
            )

    @property
    def _identity(self) -> Path:
        return self.directory / "data" / "meta.properties"

    def _settings(self) -> dict[str, Any]:
        cluster = self._cluster
        replicas, in_sync = 1 + len(cluster.others), max(1, len(cluster.others))
        return {
            "process.roles": "broker",
            "node.id": self.node,
            "controller.quorum.voters": f"{FIRST}@{cluster.controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": self.directory / "data",
            # Every broker has every partition, and one of several may be away.
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "share.coordinator.state.topic.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.min.isr": in_sync,
            "broker.session.timeout.ms": int(cluster.session * 1000),
            **_SETTINGS,
            **cluster.settings,
        }


class Kafka(Broker):
    """A cluster: one broker that is also the controller, and ``brokers`` - 1 others.

    Topics are not created automatically. The cluster survives the death of one of the others; they
    are started, stopped and killed together with it.

    ``settings`` override the brokers' settings made here. ``short_lived`` brokers take less CPU to
    start, and more for each request.

    A broker that is silent for ``session`` seconds counts as dead: others lead its partitions, and
    nothing can be written if there are none. A killed broker may not come back before that, so
    tests that kill brokers want it short: with 9 s, a start after a kill took 12 s.
    """

    port_names = ("kafka", "controller")

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        heap: str = "384m",
        *,
        detached: bool = False,
        brokers: int = 1,
        session: float = 9.0,
        settings: Mapping[str, Any] | None = None,
        short_lived: bool = False,
    ) -> None:
        super().__init__(directory, port, heap, detached=detached, node=FIRST, of=self)
        self.session = session
        self.short_lived = short_lived
        self.settings = dict(settings or {})
        self.others = tuple(
            Broker(self.directory / f"broker-{n}", None, OTHERS, detached=detached, node=n, of=self)
            for n in range(FIRST + 1, FIRST + brokers)
        )

    @property
    def bootstrap_servers(self) -> str:
        """The clients' ``bootstrap.servers``."""
        return ",".join(each.address for each in (self, *self.others))

    @property
    def controller(self) -> str:
        """The controller's address for the brokers."""
        return f"{LOOPBACK}:{self._ports['controller']}"

    @property
    def cluster_id(self) -> str:
        """The cluster id, chosen once. It is as long as Kafka's own, which may begin with "-"."""
        if not self._identity.exists():
            return uuid.uuid4().hex[:22]
        entries = (line.partition("=") for line in self._identity.read_text().splitlines())
        return next(value for key, _, value in entries if key == "cluster.id")

    def stop(self) -> None:
        for each in self.others:
            each.stop()
        super().stop()

    def kill(self) -> None:
        super().kill()
        for each in self.others:
            each.kill()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until clients can use it."""
        topics.create(self._administer, name, partitions, replication, config or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until clients no longer see it."""
        topics.delete(self._administer, name)

    def increase_partitions(self, topic: str, total: int) -> None:
        """Give a topic ``total`` partitions and wait until clients can use them."""
        topics.increase_partitions(self._administer, topic, total)

    def delete_records(self, topic: str, before_offsets: Mapping[int, int]) -> None:
        """Delete each partition's records before an offset, as retention would."""
        topics.delete_records(self._administer, topic, before_offsets)

    def _answers(self) -> bool:
        """With other brokers: whether it is ready for them to join. A partition may need one of
        them as its leader: after an unclean stop this broker has to copy it first."""
        return self._is_registered() if self.others else super()._answers()

    def _complete(self) -> None:
        """Start the others, and create the topics of groups and transactions as the brokers would
        at first use.

        Clients then find their coordinator at once; otherwise the first one retries for 4 s.
        """
        stopped = [each for each in self.others if each.pid is None]
        with ThreadPoolExecutor(max_workers=1 + len(stopped)) as pool:
            for starting in [pool.submit(each.start) for each in stopped]:
                starting.result()
        self._process.await_ready(super()._answers, self.start_timeout)
        try:
            existing = self._administer().list_topics(timeout=topics.ADMIN_TIMEOUT).topics
        except KafkaException as failure:
            raise ServiceError(f"Kafka does not list its topics: {failure}") from failure
        for topic, config in _COORDINATORS.items():
            if topic not in existing:
                self.create_topic(topic, COORDINATOR_PARTITIONS, config=config)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self.controller}",
        }


_SETTINGS = {
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "offsets.topic.num.partitions": COORDINATOR_PARTITIONS,
    "transaction.state.log.num.partitions": COORDINATOR_PARTITIONS,
    "share.coordinator.state.topic.num.partitions": 1,
    "broker.heartbeat.interval.ms": 400,
    # Groups form at once, and a test may use short sessions.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    # A restarted broker leads its partitions again, so that the next one to die leads some, too.
    "leader.imbalance.check.interval.seconds": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    # A small machine. The cleaner's buffer would be 128 MB of the heap.
    "num.network.threads": 2,
    "num.io.threads": 4,
    "num.recovery.threads.per.data.dir": 2,
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    "log.retention.check.interval.ms": 10_000,
    "log.segment.delete.delay.ms": 1000,
    "metrics.num.samples": 2,
}

_COORDINATORS = {
    "__consumer_offsets": {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}

_LOGGING = (
    console_logging("info")
    + """\
# One line for each setting of each client and topic: too much to read past.
logger.configs.name = org.apache.kafka.common.config.AbstractConfig
logger.configs.level = warn
logger.server.name = kafka.server.KafkaConfig
logger.server.level = warn
"""
)


def _properties(settings: Mapping[str, Any]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
