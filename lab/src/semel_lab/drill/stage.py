"""The stage of a sink's drill: services, the connector, and what can be observed of both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from semel import converters, sinks
from semel.audit import AuditReport, audit, holes
from semel.converters.registry.converter import RegistryConverter
from semel.core.errors import ConfigError, SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.driver.planning.programs import topology_of, with_topology
from semel.driver.validation import keys_of
from semel.kafka.answers import UNBOUNDED, coordinators_answer
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.streams.changelog import Topics
from semel.streams.topology import Topology
from semel_lab.drill import own
from semel_lab.drill.disk import Disk
from semel_lab.drill.lakes import Lake
from semel_lab.drill.plan import OF_QUERIES, OF_TOPOLOGIES, Kind
from semel_lab.drill.processes import BROKERS, QUICK, Processes, without_place
from semel_lab.drill.recompute import Comparison, compared
from semel_lab.drill.report import AuditResult
from semel_lab.drill.stores import SESSION, store_of
from semel_lab.embedded import Kafka
from semel_lab.embedded.proxy import Proxy
from semel_lab.embedded.registry import SchemaRegistry
from semel_lab.embedded.server import Server

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
"""The connector of a drill without a file: inserts without a key, which show every duplicate."""

PARTITIONS = 4
_OWN = (Kind.CHECKPOINT_LOST, Kind.STATE_LOST, Kind.TASKS_CHANGED)
"""Faults of a query's or a topology's own, whatever the store."""

_QUICK = {
    **QUICK,
    "auto.create": "true",
    "provenance": "true",  # without it an audit could only count
    "errors.deadletterqueue.topic.replication.factor": "1",
    "consumer.override.session.timeout.ms": str(int(SESSION * 1000)),
    "consumer.override.heartbeat.interval.ms": "500",
    "consumer.override.metadata.max.age.ms": "2000",
    "consumer.override.reconnect.backoff.ms": "50",
    "consumer.override.reconnect.backoff.max.ms": "500",
    "store.timeout.ms": "3000",
}

_AUDITS, _PAUSE = 20, 0.5
_ASKED_IN = 5.0
_CONVERTERS = ("key.converter", "value.converter")


def _known(keys: Mapping[str, str], raw: Mapping[str, str]) -> dict[str, str]:
    """Those of these keys that the connector's class has: a third party's sink may have no
    ``auto.create``. Client settings are every connector's."""
    name = raw.get("connector.class", "")
    if sinks.is_built_in(name):
        return dict(keys)
    names = {key.name for key in keys_of(name)}
    return {k: v for k, v in keys.items() if k in names or ".override." in k}


class Stage(Processes):
    """The services and the connector of one drill, in one directory, for these ``kinds`` of faults.

    With ``own_store`` the results go to the configured store, which must be empty.
    """

    def __init__(
        self,
        raw: Mapping[str, str],
        directory: Path,
        kinds: Collection[Kind] = (),
        *,
        own_store: bool = False,
    ) -> None:
        super().__init__(directory)
        raw = with_target(raw)
        self.own_store = own_store
        self.store = store_of(raw, directory, own=own_store)
        self.kafka = self._kafka()
        registered = [where for where in _CONVERTERS if _is_registered(raw, where)]
        self.registry = SchemaRegistry(directory / "registry") if registered else None
        self._registered = registered
        self.checkpoint = directory / "checkpoint"
        self.state = directory / "state"
        self.kinds = self.store.possible(kinds, raw.get("name", ""))
        self.raw = self._adapted(raw)
        self.planned = plan(self.raw)
        if self.planned.query is not None:
            self.kinds = [k for k in kinds if k in OF_QUERIES and k in {*self.kinds, *_OWN}]
        self.topology = self.planned.topology
        if self.topology is not None:
            self.kinds = [k for k in kinds if k in OF_TOPOLOGIES and k in {*self.kinds, *_OWN}]
        connector = self.planned.connector
        self.client = client_config(connector, "admin")
        """The configuration of Kafka admin clients."""
        self.cluster = Cluster(self.client)
        self.tasks = connector.tasks_max
        self.topics = dict.fromkeys(connector.topics, PARTITIONS)
        self._own_topics: Collection[str] = ()
        """Those that the connector makes, and reads."""
        if self.topology is not None:
            outside = Topics(connector.name, self.topology).outside()
            self._own_topics = self.topics.keys() - set(outside)
            self.topics = dict.fromkeys(outside, PARTITIONS)
        self.direct = self.planned.engine == "direct"
        self.proxy = self._proxy()

    def _kafka(self) -> Kafka:
        return Kafka(self.directory / "kafka", brokers=self.store.brokers, session=BROKERS)

    def _proxy(self) -> Proxy | None:
        """The proxy between the connector and its store's server. The drill itself bypasses it."""
        silent = Kind.STORE_SILENT in self.kinds and self.store.server is not None
        return Proxy.before(self.raw["connection.url"]) if silent else None

    @property
    def partitions(self) -> list[TopicPartition]:
        """The current partitions of the topics."""
        return [TopicPartition(t, p) for t, n in self.topics.items() for p in range(n)]

    @property
    def takes_over(self) -> bool:
        """Whether other tasks take over the partitions of a frozen task."""
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
        if self.registry is not None:
            self.registry.start()
        written = [] if self.topology is None else written_topics(self.topology)
        for topic in [*self.topics, *written]:
            self.kafka.create_topic(topic, PARTITIONS)

    def _adapted(self, raw: Mapping[str, str]) -> dict[str, str]:
        """The connector's configuration, with this stage's services and short timeouts."""
        name = raw.get("name", "")
        if self.own_store:
            raw = own.without_letters(raw)
        if raw.get("topics.regex"):
            raise ConfigError(f"connector {name}: set topics for a drill, which cannot guess "
                              "names from topics.regex")  # fmt: skip
        of_store = ("connection.username", "storage.options.", "iceberg.catalog.")
        kept = {
            k: v
            for k, v in without_place(
                raw,
                "iceberg.control.commit.interval-ms",
                *("topic.auto.create", "auto.create.indices.at.start"),  # also auto.create
            ).items()
            if self.own_store or not k.startswith(of_store)
        }
        servers = {"bootstrap.servers": self.kafka.bootstrap_servers}
        if self.registry is not None:
            kept = _without_registry(kept)
            servers |= {f"{w}.schema.registry.url": self.registry.url for w in self._registered}
        quick = _known({**_QUICK, **self.store.keys}, raw)
        if raw.get("query", "").strip():  # its rows have no origin, and its state a new place
            quick["provenance"] = "false"
            quick["checkpoint.location"] = str(self.checkpoint)
        if raw.get("topology", "").strip():
            quick |= {"provenance": "false", "state.dir": str(self.state)}
        return {**kept, **quick, **servers, **(self.store.where or {})}

    @property
    def server(self) -> Server:
        """The server that the connector writes to. Only such stores get faults of servers."""
        assert self.store.server is not None
        return self.store.server

    @property
    def lake(self) -> Lake:
        """The lake whose tables the connector writes. Only such stores get faults of lakes."""
        assert self.store.lake is not None
        return self.store.lake

    @property
    def disk(self) -> Disk:
        """The disk that the connector writes to. Only such stores get faults of disks."""
        assert self.store.disk is not None
        return self.store.disk

    def settings(self) -> dict[str, str]:
        if self.proxy is None:
            return self.raw
        return {**self.raw, "connection.url": self.proxy.url(self.raw["connection.url"])}

    def close(self) -> None:
        """End all processes and services."""
        self.end()
        with contextlib.ExitStack() as ending:  # ends the rest even if one fails
            if self.store.disk is not None:
                ending.callback(self.store.disk.close)
            if self.store.server is not None:
                ending.callback(self.store.server.kill)
            if self.proxy is not None:
                ending.callback(self.proxy.close)
            if self.registry is not None:
                ending.callback(self.registry.kill)
            ending.callback(self.kafka.kill)
            ending.callback(self.planned.sink.close)

    # Observing

    def positions(self) -> dict[TopicPartition, int]:
        """The ledger's positions; empty while the store cannot be reached."""
        try:
            return {e.topic_partition: e.position for e in self.planned.sink.entries()}
        except SemelError:
            self.planned.sink.close()
            return {}

    def latest(self) -> dict[TopicPartition, int]:
        """The offsets at which Kafka's committed records end."""
        return self.cluster.latest(self.partitions)

    def ends(self) -> dict[TopicPartition, int]:
        """Where everything ends that the connector reads, open transactions included."""
        counts = self.cluster.topics() if self._own_topics else {}
        own = [TopicPartition(t, p) for t in self._own_topics for p in range(counts.get(t, 0))]
        return self.latest() | self.cluster.latest(own, committed=False)

    def set_tasks(self, tasks: int) -> None:
        """Run with so many tasks from the next start on."""
        self.tasks = tasks
        self.raw["tasks.max"] = str(tasks)

    def group_is_whole(self) -> bool:
        """Whether every task is a member of the consumer group, and no rebalance is under way."""
        group = self.planned.connector.group_id
        # A new client each time: an old one may not recover from a broker's restart.
        admin = AdminClient({**self.client, "log_level": 0})
        try:
            answer = admin.describe_consumer_groups([group], request_timeout=UNBOUNDED)
            description = coordinators_answer(admin, answer[group], _ASKED_IN)
        except KafkaException:
            return False
        return (
            description.state is ConsumerGroupState.STABLE
            and len(description.members) == self.tasks
        )

    def audit(self) -> AuditResult:
        """Audit. Try again if the store is not back yet or has ended a slow session."""
        for _ in range(_AUDITS - 1):
            try:
                return self._audited()
            except TransientError:
                self.planned.sink.close()
                time.sleep(_PAUSE)
        return self._audited()

    def _audited(self) -> AuditReport | Comparison:
        """An audit without the holes that the drill itself makes the connector leave."""
        if self.topology is not None:
            comparison = compared(self.planned, self.topology, self.latest())
            report = audit(None, planned=self.planned)
            lost = comparison.lost + report.lost
            duplicated = comparison.duplicated + report.duplicated
            return replace(comparison, lost=lost, duplicated=duplicated)
        report = audit(None, planned=self.planned)
        not_judged = [line for line in report.not_judged if line not in report.gaps]
        if self.planned.query is not None:
            not_judged = []  # the recomputation after all faults judges the rows
        capabilities = self.planned.sink.capabilities
        certain = report.exact and not (
            capabilities.replaces or capabilities.only_updates or report.expired
        )
        if certain and report.unknown > holes.extent(report.holes):
            not_judged.append(
                f"{report.unknown} records or rows, more than the drill has made doubtful"
            )
        return replace(report, not_judged=tuple(not_judged))


def with_target(raw: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a connector and, if it runs a topology, of the target that this
    names."""
    topology = topology_of(raw, None)
    return dict(raw) if topology is None else with_topology(raw, topology)


def written_topics(topology: Topology) -> list[str]:
    """The topics that a topology writes its results to."""
    sinks = [sink for sub in topology.subs for sink in sub.sinks.values()]
    return [sink.topic for sink in sinks if sink.topic is not None and not sink.is_repartition]


def _is_registered(raw: Mapping[str, str], where: str) -> bool:
    """Whether the converter's schemas are in a registry."""
    name = raw.get(where, "").strip()
    return bool(name) and issubclass(converters.find(name, where=where), RegistryConverter)


def _without_registry(raw: Mapping[str, str]) -> dict[str, str]:
    """The configuration without the user's registry: its address, login and certificates."""
    theirs = ("schema.registry.", "apicurio.registry.url", "basic.auth.", "bearer.auth.", "proxy.")
    foreign = tuple(f"{where}.{begin}" for where in _CONVERTERS for begin in theirs)
    return {k: v for k, v in raw.items() if not k.startswith(foreign)}
