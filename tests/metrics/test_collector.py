"""The metrics of connectors that Prometheus gets."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from semel.cli.common import served
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import TopicPartition
from semel.driver import run
from semel.driver.base import Progress, State, Status
from semel.driver.offsets import Lag as SourceLag
from semel.driver.offsets import StoredSourceOffsets
from semel.driver.planning import SourcePlan, plan_any
from semel.driver.run import Tally
from semel.driver.runtime import ConnectorStatus, Runtime
from semel.kafka.cluster import Cluster
from semel.tasks.control import Deliveries, Report
from semel.worker.metrics import ConnectorCollector, Rates, registry
from semel.worker.observed import Lag, Lags, ObservedConnector, SourceLags, of_runtime
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

TP = TopicPartition("t", 0)
SINK = {
    "name": "orders",
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "bootstrap.servers": "127.0.0.1:1",
    "topics": "t",
    "tasks.max": "2",
    "connection.url": "postgresql://localhost:1/db",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
SOURCE = {
    "name": "lines",
    "connector.class": "FileStreamSource",
    "bootstrap.servers": "127.0.0.1:1",
    "file": "/tmp/lines.txt",
    "topic": "lines",
}


LEFT = SourceLag(
    [
        {"partition": {"filename": name}, "offset": None, "lag": lag}
        for name, lag in (("a", 4), ("b", 8))
    ],
    "bytes",
)


def deliveries() -> Deliveries:
    made = Deliveries().committed(0.004, 60).committed(0.2, 40).committed(70.0, 10)
    return replace(made, replays=1)


def observed(config: Mapping[str, str] = SINK, **more: int) -> ObservedConnector:
    report = Report(
        "progress",
        1,
        0,
        positions={TP: 110},
        records=110,
        rows=100,
        failed=3,
        commits=3,
        deliveries=deliveries(),
    )
    progress = Progress(
        records=110,
        rows=100,
        failed=3,
        commits=3,
        positions={TP: 110},
        tasks={1: report},
        deliveries=deliveries(),
    )
    return ObservedConnector(
        plan_any(config), State.RUNNING, {0: "FAILED", 1: "RUNNING"}, progress, Tally(2, 1, 1)
    )


def scraped(*connectors: ObservedConnector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = generate_latest(registry(lambda: list(connectors))).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(autouse=True)
def known_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(_self: Lags, connectors: list[ObservedConnector]) -> Mapping[str, Lag]:
        return {each.name: {TP: 7} for each in connectors if not each.is_source}

    def of_sources(
        _self: SourceLags, connectors: list[ObservedConnector]
    ) -> Mapping[str, SourceLag]:
        return {each.name: LEFT for each in connectors if each.is_source}

    monkeypatch.setattr(Lags, "of", of)
    monkeypatch.setattr(SourceLags, "of", of_sources)


def test_tasks_have_the_metrics_of_kafka_connect() -> None:
    found = scraped(observed())
    task = frozenset({("connector", "orders"), ("task", "1")})
    expected = {
        "sink_task_sink_record_read_total": 110,
        "sink_task_sink_record_send_total": 100,
        "sink_task_sink_record_lag_max": 7,
        "sink_task_partition_count": 1,
        "sink_task_offset_commit_completion_total": 3,
        "sink_task_put_batch_max_time_ms": 70_000,
        "connector_task_batch_size_max": 60,
        "connector_task_offset_commit_failure_percentage": 0,
        "connector_task_offset_commit_success_percentage": 1,
        "task_error_total_records_skipped": 3,
    }
    assert {name: found[f"kafka_connect_{name}", task] for name in expected} == expected
    assert found["kafka_connect_connector_status", task | {("status", "running")}] == 1


def test_source_tasks_have_theirs_and_none_of_sinks() -> None:
    found = scraped(observed(SOURCE))
    task = frozenset({("connector", "lines"), ("task", "1")})
    assert found["kafka_connect_source_task_source_record_write_total", task] == 100
    assert found["kafka_connect_source_task_transaction_size_max", task] == 60
    assert not [name for name, _ in found if name.startswith("kafka_connect_sink_task")]
    assert found["semel_source_lag", frozenset({("connector", "lines"), ("unit", "bytes")})] == 12


def test_a_worker_counts_connectors_and_tasks_by_state() -> None:
    found = scraped(observed(), observed(SOURCE))
    nothing: frozenset[tuple[str, str]] = frozenset()
    assert found["kafka_connect_worker_connector_count", nothing] == 2
    assert found["kafka_connect_worker_task_count", nothing] == 4
    assert found["kafka_connect_worker_connector_startup_failure_total", nothing] == 2
    orders = frozenset({("connector", "orders")})
    assert found["kafka_connect_worker_connector_failed_task_count", orders] == 1
    assert found["kafka_connect_worker_connector_total_task_count", orders] == 2


def test_a_cluster_counts_a_connector_where_its_first_task_is() -> None:
    def counted(state: State, *tasks: int, has_first: bool) -> bool:
        status = ConnectorStatus("orders", Status(state), dict.fromkeys(tasks, Status(state)))
        connector: Any = SimpleNamespace(
            status=lambda: status,
            planned=plan_any(SINK),
            progress=None,
            tally=Tally(),
            has_first=has_first,
            moved=0.0,
        )
        runtime: Any = SimpleNamespace(connectors={"orders": connector})
        found = scraped(*of_runtime(runtime))
        return bool(found["kafka_connect_worker_connector_count", frozenset()])

    assert counted(State.RUNNING, 0, 2, has_first=True)
    assert not counted(State.RUNNING, 1, has_first=False)
    assert not counted(State.FAILED, 1, has_first=False)
    assert counted(State.STOPPED, has_first=True)
    assert not counted(State.STOPPED, has_first=False)


def test_a_cluster_tells_its_leader_and_its_rebalances() -> None:
    facts = {"leader-name": "http://w:1", "epoch": 7, "time-since-last-rebalance-ms": math.inf}
    found = generate_latest(registry(list, dict, lambda: facts)).decode()
    for line in (
        'kafka_connect_worker_rebalance_leader_name{leader_name="http://w:1"} 1.0',
        "kafka_connect_worker_rebalance_epoch 7.0",
        "kafka_connect_worker_rebalance_time_since_last_rebalance_ms +Inf",
    ):
        assert line in found.splitlines()


def test_commits_are_timed_and_replays_conflicts_and_fences_counted() -> None:
    found = scraped(observed())
    orders = frozenset({("connector", "orders")})

    def within(bound: str) -> float:
        return found["semel_commit_seconds_bucket", orders | {("le", bound)}]

    assert [within(bound) for bound in ("0.005", "0.1", "0.25", "60.0", "+Inf")] == [1, 1, 2, 2, 3]
    assert found["semel_commit_seconds_sum", orders] == pytest.approx(70.204)
    assert found["semel_replays_total", orders] == 1
    assert found["semel_conflicts_total", orders] == 0
    assert found["semel_fences_total", orders] == 1
    place = orders | {("topic", "t"), ("partition", "0")}
    assert (found["semel_position", place], found["semel_lag_records", place]) == (110, 7)
    kept = {("delivery", "exactly-once"), ("mechanism", "transactional"), ("engine", "direct")}
    assert found["semel_guarantee_info", orders | kept] == 1


def test_the_last_audit_is_exported() -> None:
    figures = {"time_seconds": 5.0, "broken": 0.0, "records": 9.0, "lost": 0.0, "duplicated": 0.0}
    collector = ConnectorCollector(lambda: [], lambda: {"orders": figures})
    found = {family.name: family.samples for family in collector.collect()}
    assert found["semel_audit_records"][0].value == 9
    assert found["semel_audit_records"][0].labels == {"connector": "orders"}


def test_where_the_driver_commits_its_counts_are_task_0s() -> None:
    config = {**SINK, "connector.class": "delta", "delta.table.path": "/tmp/none", "name": "lake"}
    del config["connection.url"]
    found = scraped(observed(config))
    task = frozenset({("connector", "lake"), ("task", "0")})
    assert found["kafka_connect_sink_task_sink_record_read_total", task] == 110


def test_a_rate_is_what_was_added_since_the_scrapes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("semel.worker.metrics._now", lambda: now[0])
    rates = Rates()
    told = []
    for second, total in ((0, 0), (15, 150), (30, 450), (60, 750), (90, 750), (120, 10)):
        now[0] = float(second)
        told.append(rates.of(("a",), total))
    assert told == [0, 10, 15, 10, 0, 0]


def test_a_scrape_does_not_wait_for_brokers_that_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(Lags, "patience", 0.1)
    assert Lags().of([observed()]) == {}


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_cluster_is_asked_once_for_all_of_its_connectors(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.undo()
    gone, asked = TopicPartition("gone", 0), []

    class Ends:
        def __init__(self, _config: Any) -> None:
            pass

        def latest(self, wanted: Any, timeout: float) -> dict[TopicPartition, int]:
            asked.append(set(wanted))
            if gone in wanted:
                raise ServiceError("gone-0 is gone")
            return dict.fromkeys(wanted, 115)

    monkeypatch.setattr("semel.worker.observed.Cluster", Ends)
    first, second = observed(), observed({**SINK, "name": "second"})
    second.progress.positions[gone if is_gone else TopicPartition("t", 7)] = 100
    found = Lags().of([first, second])
    alone = [set(first.progress.positions), set(second.progress.positions)]
    assert asked == [alone[0] | alone[1], *(alone if is_gone else ())]
    assert found[first.name] == {TP: 5}
    assert ("second" in found) != is_gone


def test_a_connector_that_moves_while_kafka_is_asked_is_not_said_to_have_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    moving = observed()

    def latest(_cluster: Cluster, wanted: Any, timeout: float) -> dict[TopicPartition, int]:
        ends = dict.fromkeys(wanted, 115)
        moving.progress.positions[TP] = 115  # by now, the topic may have more
        return ends

    monkeypatch.setattr(Cluster, "latest", latest)
    assert Lags().of([moving]) == {moving.name: {TP: 5}}


def test_nothing_is_kept_of_connectors_that_are_gone_or_have_another_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(Lags, "fresh", 0.0)
    monkeypatch.setattr(
        Cluster, "latest", lambda _cluster, wanted, timeout: dict.fromkeys(wanted, 1)
    )
    lags, collector = Lags(), ConnectorCollector(lambda: present, dict)
    for number in range(3):
        login = {"consumer.override.sasl.password": str(number)}
        present = [observed({**SINK, **login, "name": f"sink-{number}"})]
        list(collector.collect())
        lags.of(present)
    assert len(lags._clusters) == 1
    assert lags._answers.keys() == {"sink-2"}
    assert {key[1] for key in collector._rates._samples} == {"sink-2"}


@pytest.mark.parametrize("error", [ServiceError("no broker"), RuntimeError("no more threads")])
def test_a_cluster_that_has_no_answer_keeps_nobody_from_that_of_another(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.undo()

    def latest(cluster: Cluster, wanted: Any, timeout: float) -> dict[TopicPartition, int]:
        if "away" in cluster.config["bootstrap.servers"]:
            raise error
        return dict.fromkeys(wanted, 115)

    monkeypatch.setattr(Cluster, "latest", latest)
    away = observed({**SINK, "name": "away", "bootstrap.servers": "away:9092"})
    lags = Lags()
    assert lags.of([away, observed()]) == {SINK["name"]: {TP: 5}}
    trouble = lags.trouble("away")
    assert trouble is not None
    assert trouble.why == str(error)


def test_a_scrape_is_told_what_a_source_had_left_and_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    answers = threading.Event()
    asked = []

    def lag(offsets: StoredSourceOffsets) -> SourceLag:
        asked.append(offsets._source)
        assert answers.wait(PATIENCE)
        return LEFT

    monkeypatch.setattr(StoredSourceOffsets, "lag", lag)
    source = observed(SOURCE)
    elsewhere = replace(observed({**SOURCE, "name": "others"}), is_counted=False)
    connectors = [source, elsewhere, observed()]
    found = SourceLags()
    assert found.of(connectors) == {}
    answers.set()
    wait_until(lambda: found.of(connectors) == {"lines": LEFT})
    (own,) = asked
    assert isinstance(source.planned, SourcePlan)
    assert own is not source.planned.source, "the run's own is for one thread"
    assert SourceLag([*LEFT.partitions, {"lag": None}], "bytes").total is None


def test_a_run_serves_its_metrics(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(*arguments: Any) -> Progress:
        progress = Progress(records=5, states={0: Status(State.RUNNING)})
        arguments[-1].observe(progress)
        assert arguments[-1].stop.wait(PATIENCE)
        return progress

    monkeypatch.setattr(run, "drive", drive)
    caplog.set_level("INFO", "semel")
    spark: Any = SimpleNamespace(sparkContext=None)
    with Runtime(spark) as runtime, served("0", runtime):
        connector = runtime.start(SINK)
        wait_until(lambda: connector.progress is not None)
        url = caplog.messages[0].removeprefix("metrics are at ")
        text = httpx.get(url, timeout=PATIENCE).text
        assert url.startswith("http://127.0.0.1:")
        assert 'semel_records_total{connector="orders"} 5.0' in text
        assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize("port", ["x", "1:x", "70000", "localhost"])
def test_an_invalid_metrics_port_is_refused(port: str) -> None:
    with (
        Runtime() as runtime,
        pytest.raises(ConfigError, match="--metrics-port"),
        served(port, runtime),
    ):
        pass
