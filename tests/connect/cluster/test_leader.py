"""What the leader knows of workers that come and go."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.config.connector import MOST_TASKS
from semel.core.errors import LedgerConflict, ServiceError, TransientError
from semel.kafka.cluster import Cluster as KafkaCluster
from semel.kafka.compacted import FollowedTopic
from semel.kafka.transactions import PlainProducer, RecordsRefused, Transactions
from semel.worker.cluster import leader as module
from semel.worker.cluster.leader import Leader, Leadership
from semel.worker.cluster.membership import Group
from semel.worker.cluster.records import Assignment, Configs, Statuses, assigned
from semel.worker.cluster.store import Store
from semel.worker.cluster.worker import ClusterWorker
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.connect.cluster.test_membership import given

AWAY, HERE = "http://away:8083", "http://here:8083"


def test_a_worker_that_is_back_is_awaited_until_the_group_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    none = cast(Any, None)
    leader = Leader(given("127.0.0.1:1"), none, none, none)
    without, whole = Group(frozenset({HERE})), Group(frozenset({HERE, AWAY}))
    assert leader._returning([AWAY], without) == []  # it is still announced to be away
    now += 100
    assert leader._returning([AWAY], without) == []
    assert leader._returning([], without) == [AWAY]
    assert leader._returning([], whole) == []
    assert leader._returning([], without) == [], "it has died since"

    leader._returning([AWAY], without)
    now += 2.9
    assert leader._returning([], without) == [AWAY]
    now += 0.2
    assert leader._returning([], without) == [], "it has not joined for the length of a session"


class Cluster:
    """A leader, and what it writes. The connector ``orders`` was assigned to a worker that has been
    stopped a moment ago."""

    def __init__(self) -> None:
        config = given("127.0.0.1:1")
        self.here = config.url
        connectors = {"orders": {"connector.class": "Datagen"}}
        configs = Configs(connectors=connectors, session_key="known")
        versions = {"orders": configs.version("orders")}
        configs.assignment = Assignment(7, {"orders": (AWAY,)}, versions)
        statuses = Statuses(leaving={AWAY: int(time.time() * 1000) - 1000})
        self.reported: list[Any] = []
        self.store: Any = SimpleNamespace(
            changed=threading.Condition(),
            configs=configs,
            statuses=statuses,
            wake=lambda: None,
            report=self.reported.extend,
        )
        self.membership: Any = SimpleNamespace(group=Group())
        self.written: list[Any] = []
        self.leadership: Any = SimpleNamespace(
            is_held=False, take=self._take, write=self.written.extend, give_up=lambda: None
        )
        self.leader = Leader(config, self.store, self.membership, self.leadership)

    def _take(self) -> None:
        self.leadership.is_held = True

    def look(self, leader: str, *others: str) -> None:
        self.membership.group = Group(frozenset({self.here, leader, *others}), leader)
        self.leader.look()


def test_workers_that_were_all_stopped_are_not_awaited(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.look(cluster.here, "http://new:8083")
    (record,) = cluster.written
    assert AWAY not in str(record)
    assert "keeping the work" not in caplog.text


@pytest.mark.parametrize("has_led", [True, False])
def test_a_worker_that_was_stopped_is_awaited_where_another_one_has_stayed(
    has_led: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster()
    if has_led:  # and leaves only now
        cluster.look("http://other:8083")
    else:
        workers = {**cluster.store.configs.assignment.workers, "lines": ("http://other:8083",)}
        cluster.store.configs.assignment = Assignment(7, workers)
    cluster.look(cluster.here, "http://other:8083")
    assert all(AWAY in str(record) for record in cluster.written)
    assert f"keeping the work of {AWAY} for workers that were stopped" in caplog.text


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_worker_whose_clock_is_wrong_is_awaited_no_longer_than_others(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, later = Cluster(), 0.0
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + later, time=lambda: time.time() + later
    )
    monkeypatch.setattr(module, "time", clock)
    cluster.store.statuses.leaving[AWAY] += hours * 3_600_000
    cluster.look("http://other:8083")
    cluster.look(cluster.here, "http://other:8083")
    later = cluster.leader._config.rebalance_delay_ms / 1000 + 1
    cluster.look(cluster.here, "http://other:8083")
    assert AWAY not in str(cluster.written[-1])
    forgotten = (f"semel-worker-{AWAY}".encode(), None)
    assert (forgotten in cluster.reported) == (hours < 0)


def test_the_leader_gives_the_workers_a_secret_where_they_have_none() -> None:
    cluster, configs = Cluster(), Configs()
    cluster.store.configs.session_key = ""
    cluster.look(cluster.here)
    (key, value), *_ = cluster.written
    configs.apply(key, value)
    assert key == b"session-key" and len(configs.peer_token) == 64
    assert configs.session_key not in configs.peer_token
    assert Configs().peer_token == ""
    again = Cluster()
    again.look(again.here)
    assert b"session-key" not in dict(again.written)


def test_a_connector_that_nobody_can_plan_has_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(_config: object) -> None:
        raise ValueError("a plugin's mistake")

    monkeypatch.setattr(module, "plan_any", planned)
    cluster, configs = Cluster(), Configs()
    cluster.store.configs.connectors["new"] = {"connector.class": "Theirs"}
    cluster.look(cluster.here)
    for key, value in cluster.written:
        configs.apply(key, value)
    assert configs.assignment.workers["new"] == (cluster.here,)


def test_an_unforeseen_error_ends_a_worker() -> None:
    worker = ClusterWorker(cast(Any, None), given("127.0.0.1:1"), {"bootstrap.servers": "x:1"})

    def look() -> None:
        raise ValueError("nobody has foreseen this")

    worker._repeat(look)
    with pytest.raises(ValueError, match="foreseen"):
        worker.wait(threading.Event())


@pytest.mark.integration
def test_an_assignment_of_many_tasks_is_written(kafka: Kafka, topic: MakeTopic) -> None:
    name = topic(partitions=1)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    heard: dict[bytes, bytes | None] = {}
    configs = FollowedTopic("config.storage.topic", name, KafkaCluster(client), heard.__setitem__)
    owners = (HERE, AWAY) * (MOST_TASKS // 2)
    key, value = assigned(Assignment(1, {f"sink-{n}": owners for n in range(10)}))
    configs.start()
    try:
        leadership = Leadership(name, client, configs)
        leadership.take()
        leadership.write([(key, value)])
        leadership.give_up()
    finally:
        configs.close()
    assert heard == {key: value}


def test_a_leader_that_has_lost_its_producer_writes_nothing() -> None:
    """As after another thread's write has failed; the leader takes its right again."""
    leadership = Leadership("g", {"bootstrap.servers": "127.0.0.1:1"}, cast(Any, None))
    with pytest.raises(LedgerConflict, match="take the lead again"):
        leadership.write([(b"key", None)])


def test_a_record_that_brokers_refuse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RecordsRefused

    monkeypatch.setattr(Transactions, "is_open", True)
    monkeypatch.setattr(Transactions, "run", refuse)
    monkeypatch.setattr(PlainProducer, "send", refuse)
    client = {"bootstrap.servers": "127.0.0.1:1"}
    record = b"key", bytes(2_000_000)
    with pytest.raises(ServiceError, match=r"topic configs: .* 2,000,003 bytes"):
        Leadership("g", client, cast(Any, SimpleNamespace(name="configs"))).write([record])
    with pytest.raises(TransientError, match=r"topic statuses: .* 2,000,003 bytes"):
        Store(given("127.0.0.1:1"), client).report([(b"k", None), record])
