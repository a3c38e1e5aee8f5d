"""The stage of a cluster's drill: services, workers, a sink and a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from semel.audit.source import SourceAuditReport, audit_source
from semel.core.errors import ConfigError, SemelError
from semel.driver.planning import plan_source
from semel.kafka.cluster import admin_client
from semel.sources.offsets import SourceOffsets
from semel.worker.cluster.membership import described
from semel_lab.drill.cluster.member import Member
from semel_lab.drill.cluster.reached import ProxiedKafka
from semel_lab.drill.processes import PATIENCE
from semel_lab.drill.stage import Stage
from semel_lab.embedded import Kafka

SESSION = 6.0
"""Seconds after which a worker that is silent loses its work."""
_COMES_BACK = 60.0
_GROUP, _CONFIGS = "drill-cluster", "drill-configs"
_SPARE = 2
"""Workers that may be there besides those that belong to the cluster."""
_SOURCE = {
    "name": "drill-source",
    "connector.class": "Datagen",
    "kafka.topic": "drill-made",
    "quickstart": "orders",
    "max.interval": "40",
    "tasks.max": "3",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


class ClusterStage(Stage):
    """Some ``workers``, which run the connector of a configuration and a source."""

    def __init__(self, raw: Mapping[str, str], directory: Path, workers: int) -> None:
        self._workers = workers
        self.members: list[Member] = []
        self._made = 0
        super().__init__(raw, directory)
        if self.store.brokers > 1:
            raise ConfigError(
                f"connector {self.planned.connector.name}: its drill needs several brokers, which "
                "--cluster cannot cut a worker off from. Name a sink of another store"
            )
        worker = {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": _GROUP}
        offsets = {"offsets.storage.topic": "drill-offsets", "offset.storage.partitions": "5"}
        replication = {"offset.storage.replication.factor": "1"}
        self.source = {**_SOURCE, "admin.override.reconnect.backoff.max.ms": "500"}
        self._planned_source = plan_source({**worker, **offsets, **replication, **self.source})

    def _kafka(self) -> Kafka:
        # No fault ends the broker, and one that a busy machine holds up must not count as dead.
        self._proxied = ProxiedKafka(self.directory / "kafka", self._workers + _SPARE)
        return self._proxied

    def open(self) -> None:
        super().open()
        self.kafka.create_topic(_SOURCE["kafka.topic"], 2)
        for _ in range(self._workers):
            self.add()
        self.until(lambda: all(m.is_up for m in self.members), PATIENCE, "a worker does not start")
        sink = {k: v for k, v in self.raw.items() if k != "bootstrap.servers"}
        for config in (sink, self.source):
            name = config["name"]
            self.until(partial(self._configured, name, config), PATIENCE, f"{name} is not created")
        self.until(self.is_even, PATIENCE, self.state_report)

    def _configured(self, name: str, config: Mapping[str, str]) -> bool:
        return self.ask("PUT", f"/connectors/{name}/config", dict(config)) is not None

    def close(self) -> None:
        for member in self.members:
            member.close()
        self._proxied.close()
        super().close()

    # Workers

    def add(self) -> Member:
        """Start one more worker."""
        used = {member.way for member in self.members}
        way = next(way for way in self._proxied.ways if way not in used)
        self._made += 1
        keys = {
            "group.id": _GROUP,
            "config.storage.topic": _CONFIGS,
            "status.storage.topic": "drill-status",
            "offset.storage.topic": "drill-offsets",
            "offset.storage.partitions": "5",
            **{f"{k}.storage.replication.factor": "1" for k in ("config", "status", "offset")},
            "session.timeout.ms": str(int(SESSION * 1000)),
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": str(int(_COMES_BACK * 1000)),
        }
        member = Member(self.directory, self._made, keys, self.environment, way)
        self.members.append(member)
        return member

    def remove(self, member: Member) -> None:
        """Remove a worker, and end its remaining processes."""
        self.members.remove(member)
        member.close()

    @property
    def leader(self) -> Member | None:
        """The worker that leads."""
        with suppress(Exception):  # no answer yet
            leader_id = described(admin_client(self.client), _GROUP, _CONFIGS).leader or ""
            return next((m for m in self.members if leader_id.endswith(m.id)), None)
        return None

    def ask(self, method: str, path: str, body: Any = None, *, but: Member | None = None) -> Any:
        """The answer of the first worker that answers, except ``but``."""
        for member in self.members:
            if member is not but and (answer := member.ask(method, path, body)) is not None:
                return answer
        return None

    # Observing

    def state_report(self) -> str:
        """The cluster's report on its connectors."""
        statuses = self.ask("GET", "/connectors?expand=status") or {}
        states = [
            f"{name}: {of['status']['connector']['state']} "
            + ", ".join(f"{t['state']} on {t['worker_id']}" for t in of["status"]["tasks"])
            for name, of in statuses.items()
            if "status" in of
        ]
        return f"not all tasks run where they should: {'; '.join(states) or 'nobody answers'}"

    def runs(self, without: Member | None = None) -> Counter[str] | None:
        """How many tasks each worker runs; None unless all tasks run, on workers of the cluster
        other than ``without``."""
        statuses = self.ask("GET", "/connectors?expand=status", but=without) or {}
        there = {member.id for member in self.members if member is not without}
        task_counts = {
            self.raw["name"]: self.tasks,
            self.source["name"]: int(self.source["tasks.max"]),
        }
        loads = Counter(dict.fromkeys(there, 0))
        for name, count in task_counts.items():
            status = statuses.get(name, {}).get("status")
            if status is None or len(status["tasks"]) != count:
                return None
            for part in (status["connector"], *status["tasks"]):
                if part["state"] != "RUNNING" or part["worker_id"] not in there:
                    return None
            loads.update(task["worker_id"] for task in status["tasks"])
        return loads

    def is_even(self) -> bool:
        """Whether all tasks run, and no worker has two more than another. A connector that cannot
        be divided counts as one task."""
        loads = self.runs()
        if loads is None:
            return False
        whole = self.planned.engine != "direct" or self.planned.sink.local
        most = max(self.tasks, 1) if whole else 1
        return max(loads.values()) - min(loads.values()) <= most

    def records_generated(self) -> int:
        """The number of records that the source has generated, by its offsets."""
        try:
            stored = SourceOffsets(self._planned_source.connector, self.cluster).read()
        except SemelError:
            return 0
        return sum(int(offset["current.iteration"]) for _, offset in stored.offsets)

    def audit_made(self) -> SourceAuditReport:
        """Audit the source while it is paused."""
        self._let("pause", "PAUSED")
        try:
            return audit_source(self._planned_source)
        finally:
            self._let("resume", "RUNNING")

    def _let(self, verb: str, state: str) -> None:
        """Pause or resume the source, and wait for its tasks."""
        path = f"/connectors/{self.source['name']}"

        def done() -> bool:
            status = self.ask("GET", f"{path}/status") or {"tasks": []}
            states = {task["state"] for task in status["tasks"]}
            return states == {state}

        def asked() -> bool:
            return self.ask("PUT", f"{path}/{verb}") is not None

        self.until(asked, PATIENCE, f"the source cannot be asked to {verb}")
        self.until(done, PATIENCE, f"the source does not {verb}")
