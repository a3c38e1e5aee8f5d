"""Many connectors on one Spark: states, pauses, stops, restarts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.core.errors import BadRecord, ConfigError, ServiceError
from semel.core.ledger import UNKNOWN_LOG, TopicPartition, first
from semel.driver import run, startup
from semel.driver.base import State
from semel.driver.runtime import Connector, Runtime
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce, wait_gone
from tests.engine.conftest import Configure, Lake
from tests.engine.harness import (
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    records,
    sql,
    wait_until,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    spark: Any = LocalSpark()
    with Runtime(spark) as made:
        yield made
    assert all(wait_gone(worker.pid) for worker in spark.workers.values())


def states(connector: Connector) -> list[State]:
    return [status.state for status in connector.status().tasks.values()]


def state(connector: Connector) -> State:
    return connector.status().connector.state


def rows(connector: Connector) -> int:
    return connector.progress.rows if connector.progress is not None else 0


def owned(connector: Connector) -> list[int]:
    """How many partitions each task has."""
    progress = connector.progress
    return [] if progress is None else [len(r.positions) for r in progress.tasks.values()]


def reached(connector: Connector, offsets: int) -> Callable[[], bool]:
    def is_there() -> bool:
        assert connector.error is None
        progress = connector.progress
        return progress is not None and sum(progress.positions.values()) >= offsets

    return is_there


@pytest.mark.long
def test_a_paused_connector_keeps_its_tasks_and_reads_nothing_while_others_go_on(
    runtime: Runtime, topic: MakeTopic, produce: Produce, configure: Configure,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    sources = [topic(partitions=2), topic(partitions=2)]
    configs = [configure(source, {"tasks.max": 2}) for source in sources]
    paused, other = (runtime.start(config) for config in configs)
    wait_until(lambda: states(paused) == states(other) == [State.RUNNING] * 2)
    produce(sources[0], records(100))
    wait_until(reached(paused, 100))
    paused.pause()
    wait_until(lambda: states(paused) == [State.PAUSED] * 2)
    for source in sources:
        produce(source, records(100, start=100))
    wait_until(reached(other, 100))
    assert state(paused) is State.PAUSED
    assert (rows(paused), rows(other)) == (100, 100)
    paused.resume()
    wait_until(reached(paused, 200))
    assert "reconnecting" not in caplog.text
    assert states(paused) == [State.RUNNING] * 2
    assert_nothing_lost_nothing_twice(configs[0], range(200))
    assert_nothing_lost_nothing_twice(configs[1], range(100, 200))


def test_a_task_that_fails_leaves_the_others_running_and_can_be_restarted(
    runtime: Runtime, topic: MakeTopic, produce: Produce, configure: Configure, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    source, trouble = topic(partitions=2), tmp_path / "trouble"
    trouble.touch()

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        if trouble.exists() and 7 in batch["id"].to_pylist():
            raise BadRecord("seven is bad luck")
        return batch

    # The partition of a task that fails stays with it until its session ends.
    config = configure(source, {"tasks.max": 2, "consumer.override.session.timeout.ms": 300_000})
    connector = runtime.start(config, transform)
    wait_until(lambda: owned(connector) == [1, 1])
    assert states(connector) == [State.RUNNING] * 2
    produce(source, [b'{"id": 7}'], partition=0)
    wait_until(lambda: State.FAILED in states(connector))
    failed = next(n for n, s in connector.status().tasks.items() if s.state is State.FAILED)
    assert "seven is bad luck" in connector.status().tasks[failed].trace
    assert f"task {failed} has failed" in caplog.text
    produce(source, [b'{"id": 8}'], partition=1)
    wait_until(reached(connector, 1))
    assert state(connector) is State.RUNNING
    assert states(connector)[1 - failed] is State.RUNNING
    trouble.unlink()
    connector.restart_task(failed)
    wait_until(reached(connector, 2))
    assert states(connector) == [State.RUNNING] * 2
    with pytest.raises(LookupError, match="has no task 2"):
        connector.restart_task(2)
    assert_nothing_lost_nothing_twice(config, [7, 8])


def test_a_task_of_the_bounded_engine_is_restarted_with_the_others(
    runtime: Runtime, topic: MakeTopic, produce: Produce, lake: Lake
) -> None:
    source = topic()
    connector = runtime.start(lake(source))
    produce(source, records(10))
    wait_until(reached(connector, 10))
    connector.restart_task(0)
    wait_until(lambda: connector.progress is not None and connector.progress.restarts == 1)
    produce(source, records(10, start=10))
    wait_until(reached(connector, 20))
    assert (state(connector), rows(connector)) == (State.RUNNING, 20)


@pytest.mark.long
def test_a_topic_that_is_missing_at_the_start_is_waited_for(
    runtime: Runtime, kafka: Kafka, produce: Produce, configure: Configure,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    later = f"later-{uuid.uuid4().hex[:8]}"
    connector = runtime.start(configure(later))
    wait_until(lambda: f"topic {later} does not exist" in caplog.text)
    assert state(connector) is State.RUNNING
    kafka.create_topic(later, 1)
    produce(later, records(10))
    wait_until(reached(connector, 10))


@pytest.mark.long
def test_a_stopped_connector_has_no_tasks_until_it_resumes(
    runtime: Runtime, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=2)
    config = configure(source)
    connector = runtime.start(config, initial_state=State.STOPPED)
    assert (state(connector), states(connector)) == (State.STOPPED, [])
    produce(source, records(100))
    connector.resume()
    wait_until(reached(connector, 100))
    assert connector.stop()
    assert (state(connector), states(connector)) == (State.STOPPED, [])
    produce(source, records(100, start=100))
    connector.restart()  # which is for those that run or have failed
    assert state(connector) is State.STOPPED
    connector.resume()
    wait_until(reached(connector, 200))
    assert_nothing_lost_nothing_twice(config, range(200))


def test_a_connector_that_fails_says_why_and_disturbs_no_other(
    runtime: Runtime, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source, missing = topic(), "not-there"
    good = runtime.start(configure(source))
    keys = {"name": "bad", "auto.create": "false", "table.name.format": missing}
    bad = runtime.start(configure(topic(), keys))
    assert bad.wait()
    assert state(bad) is State.FAILED
    assert missing in bad.status().connector.trace
    assert "Traceback" not in bad.status().connector.trace
    produce(source, records(10))
    wait_until(reached(good, 10))
    with pytest.raises(ConfigError, match="connector bad already exists"):
        runtime.start(configure(source, {"name": "bad"}))
    runtime.remove("bad")
    assert set(runtime.connectors) == {good.name}


def test_topics_that_do_not_exist_yet_are_waited_for_and_named_each_time(
    runtime: Runtime,
    kafka: Kafka,
    produce: Produce,
    configure: Configure,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(run, "_LOOKS", 0.1)
    one, two = (f"late-{uuid.uuid4().hex[:8]}" for _ in range(2))
    connector = runtime.start(configure(one, {"topics": f"{one},{two}", "tasks.max": "2"}))
    wait_until(lambda: f"topics {one}, {two} do not exist" in caplog.text)
    assert (state(connector), states(connector)) == (State.RUNNING, [State.RUNNING] * 2)
    kafka.create_topic(one)
    wait_until(lambda: f"topic {two} does not exist" in caplog.text)
    assert connector.stop(PATIENCE)
    connector.resume()
    kafka.create_topic(two)
    for source in (one, two):
        produce(source, records(10))
    wait_until(reached(connector, 20))


@pytest.mark.long
def test_tasks_start_while_the_run_is_prepared_and_end_if_it_cannot_be(
    runtime: Runtime, topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = runtime._spark._given
    enter = startup.enter
    trouble = [ServiceError("no database")]

    def late(run: Any) -> None:
        wait_until(lambda: 0 in spark.workers)
        if trouble:
            raise trouble.pop()
        enter(run)

    monkeypatch.setattr(startup, "enter", late)
    source = topic(values=records(10))
    config = configure(source)
    connector = runtime.start(config)
    wait_until(lambda: state(connector) is State.FAILED)
    assert connector.wait(PATIENCE)
    assert connector.status().connector.trace == "no database"
    assert wait_gone(spark.workers[0].pid)
    spark.workers.clear()
    connector.restart()
    wait_until(reached(connector, 10))
    assert spark.jobs == 2
    assert_nothing_lost_nothing_twice(config, range(10))


@pytest.mark.long
def test_positions_may_be_moved_while_tasks_wait_for_their_plan(
    runtime: Runtime, topic: MakeTopic, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another program has continued the connector: that takes a ledger without runs."""
    source = topic(values=records(10))
    config = configure(source)
    enter = startup.enter
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        f"AND application_name = 'semel/{config['name']}'"
    )

    def moving(run: Any) -> None:
        wait_until(lambda: sql(config["connection.url"], sessions) == [2])
        run.sink.claim()
        run.sink.set_positions([first(TopicPartition(source, 0), 4, UNKNOWN_LOG)])
        enter(run)

    monkeypatch.setattr(startup, "enter", moving)
    connector = runtime.start(config)
    wait_until(reached(connector, 10))
    assert_nothing_lost_nothing_twice(config, range(4, 10))


@pytest.mark.long
def test_restarting_the_failed_tasks_leaves_the_others_alone(
    runtime: Runtime, topic: MakeTopic, produce: Produce, configure: Configure, tmp_path: Path
) -> None:
    source, trouble = topic(partitions=2), tmp_path / "trouble"
    trouble.touch()

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        if trouble.exists():
            raise BadRecord("trouble")
        return batch

    config = configure(source, {"tasks.max": 2})
    connector = runtime.start(config, transform)
    wait_until(lambda: states(connector) == [State.RUNNING] * 2)
    produce(source, [b'{"id": 1}'], partition=0)
    wait_until(lambda: State.FAILED in states(connector))
    whole = states(connector).index(State.RUNNING)
    spark: Any = runtime._spark._given
    pid = spark.workers[whole].pid
    trouble.unlink()
    connector.restart(include_tasks=True, only_failed=True)
    wait_until(reached(connector, 1))
    assert spark.workers[whole].pid == pid
    connector.restart(include_tasks=True)
    wait_until(lambda: spark.workers[whole].pid != pid)
    wait_until(lambda: states(connector) == [State.RUNNING] * 2)


@pytest.mark.long
def test_a_paused_connector_of_a_lake_commits_nothing_until_it_resumes(
    runtime: Runtime, topic: MakeTopic, produce: Produce, lake: Lake, tmp_path: Path
) -> None:
    source = topic(partitions=2)
    soon = {"processingTime": "100 milliseconds"}
    paused = runtime.start(lake(source, soon))
    elsewhere = str(tmp_path / "elsewhere")
    other = runtime.start(lake(source, {**soon, "delta.table.path": elsewhere}))
    produce(source, records(100))
    wait_until(reached(paused, 100))
    paused.pause()
    wait_until(lambda: State.PAUSED in states(paused))
    produce(source, records(100, start=100))
    wait_until(reached(other, 200))
    assert rows(paused) == 100
    paused.resume()
    wait_until(reached(paused, 200))
    assert (rows(paused), rows(other)) == (200, 200)
