"""The bounded direct engine on Delta tables: nothing lost, nothing twice, whatever dies when."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from deltalake import DeltaTable

from semel.audit import AuditReport, audit
from semel.config.connector import seconds
from semel.core import failpoints
from semel.core.errors import (
    BadRecord,
    ConfigError,
    OffsetOutOfRange,
    SemelError,
    ServiceError,
    TransientError,
)
from semel.core.ledger import Advance, OffsetRange, TopicPartition
from semel.driver import bounded
from semel.driver.planning import plan
from semel.kafka import consumer as consumers
from semel.tasks import bounded as boundedtask
from semel.tasks import control
from semel_lab.embedded import Kafka, logs
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Lake, Start
from tests.engine.harness import (
    InlineSpark,
    assert_each_exactly_once,
    caught_up,
    driving,
    freezing,
    name,
    positions,
    records,
    recreate,
    some,
    wait_until,
)
from tests.patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("small_shares")]

COUNT = 300


@pytest.mark.parametrize(
    "found", [[], [(0, 5)], [(0, 5), (6, 10)], [(0, 5), (0, 5), (5, 10)], [(0, 10), (10, 20)]]
)
def test_positions_move_only_over_what_the_tasks_have_answered_for(
    found: list[tuple[int, int]],
) -> None:
    wanted = [OffsetRange("t", 0, 0, 10)]
    parts = [Advance(OffsetRange("t", 0, *part), read=1) for part in found]
    with pytest.raises(TransientError, match="do not cover t-0 from offset 0 to 10"):
        bounded.whole(wanted, parts)
    halves = [Advance(OffsetRange("t", 0, *part), read=1) for part in [(5, 10), (0, 5)]]
    (moved,) = bounded.whole(wanted, halves)
    assert (moved.range, moved.read) == (wanted[0], 2)


def test_files_are_discarded_if_the_logs_cannot_be_looked_up() -> None:
    engine, discarded = object.__new__(bounded.BoundedEngine), []

    def away(_wanted: object) -> bool:
        raise TransientError("no broker answers")

    result = SimpleNamespace(files=["a"], stop=None, damage=None)
    vars(engine).update(
        _connector=SimpleNamespace(max_offsets_per_trigger=10),
        _overdue=SimpleNamespace(begin=lambda: None),
        _sink=SimpleNamespace(discard=lambda staged: discarded.append(staged.files)),
        _plan=lambda _most: ([OffsetRange("t", 0, 0, 10)], False),
        _staged=lambda _wanted: [result],
        _others=away,
    )
    with pytest.raises(TransientError):
        engine._trigger()
    assert discarded == [["a"]]


def table(config: Config, topic: str) -> DeltaTable:
    return DeltaTable(f"{config['delta.table.path']}/{topic}")


def rows(config: Config, topic: str) -> pa.Table:
    return table(config, topic).to_pyarrow_table()


def ids(config: Config) -> list[int]:
    found: list[int] = []
    for topic in config["topics"].split(","):
        found += rows(config, topic).column("id").to_pylist()
    return sorted(found)


def assert_nothing_lost_nothing_twice(config: Config, expected: Iterable[int]) -> AuditReport:
    """Checked twice: by the audit, and straight from the table."""
    return assert_each_exactly_once(config, ids(config), expected)


def test_a_job_may_end_in_the_moment_that_waiting_for_it_does(
    topic: MakeTopic, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []

    def wait(futures: Collection[Future[Any]], timeout: float) -> Any:
        ended = concurrent.futures.wait(futures)
        if late:
            return ended
        late.append(len(futures))
        return SimpleNamespace(done=set(), not_done=set(futures))

    source = topic(values=records(10))
    config = lake(source)
    monkeypatch.setattr(bounded, "wait", wait)
    assert caught_up(config).restarts == 0
    assert late
    assert_nothing_lost_nothing_twice(config, range(10))


def test_an_error_that_nobody_expected_ends_the_connector_and_is_not_tried_again(
    topic: MakeTopic, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(values=records(10))
    tried = []

    def broken(_worker: object, index: int, *_wanted: object) -> None:
        tried.append(index)
        raise ZeroDivisionError("nobody saw this coming")

    monkeypatch.setattr(boundedtask.BoundedWorker, "stage", broken)
    with pytest.raises(SemelError, match="task 0 failed unexpectedly: ZeroDivisionError: nobody"):
        caught_up(lake(source), spark=InlineSpark())
    assert tried == [0]


@pytest.mark.long
def test_a_driver_that_was_frozen_in_a_commit_writes_nothing_of_a_topic_created_again_meanwhile(
    kafka: Kafka, topic: MakeTopic, produce: Produce, lake: Lake, points: Path
) -> None:
    source = topic(values=records(COUNT))
    config = lake(source)
    failpoints.arm(points, "sink.before_commit", "freeze")
    zombie = driving(config, points)
    assert zombie.pid is not None
    wait_until((points / f"frozen.{zombie.pid}").exists)
    recreate(kafka, source)
    caught_up({**config, "topic.recreated": "earliest"})  # it moves the position to the new topic
    failpoints.thaw(points, zombie.pid)
    zombie.join(PATIENCE)
    assert not zombie.is_alive()
    produce(source, records(COUNT, start=COUNT))
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(COUNT, 2 * COUNT))


@pytest.mark.long
def test_a_task_that_freezes_with_all_its_threads_is_replaced(
    topic: MakeTopic,
    lake: Lake,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(control, "FROZEN", 50.0)
    source = topic(values=records(10))
    config = lake(source)
    running = start(config, freezing(tmp_path / "marker"))
    running.stop_when(lambda p: p.rows == 10)
    assert "has not reported for" in caplog.text
    assert_nothing_lost_nothing_twice(config, range(10))


@pytest.mark.long
def test_the_table_may_be_optimized_and_vacuumed_meanwhile(
    topic: MakeTopic, produce: Produce, lake: Lake, start: Start
) -> None:
    source = topic(partitions=2, values=records(100))
    config = lake(source, {"maxOffsetsPerTrigger": "50"})
    running = start(config)
    running.until(lambda p: p.rows >= 100)
    optimized = 0
    for batch in range(1, 10):
        produce(source, records(50, start=50 + 50 * batch))
        found = table(config, source)
        optimized += found.optimize.compact()["numFilesRemoved"] > 0
        found.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    running.stop_when(lambda p: p.rows >= 550)
    assert optimized
    assert_nothing_lost_nothing_twice(config, range(550))


@pytest.mark.long
def test_a_store_that_refuses_mid_commit_is_tried_again_and_then_named(
    topic: MakeTopic, produce: Produce, lake: Lake, tmp_path: Path, start: Start
) -> None:
    source = topic(values=records(100))
    config = lake(source, {"max.retries": "1"})
    caught_up(config)
    log = tmp_path / "lake" / source / "_delta_log"
    next_commit = log / f"{table(config, source).version() + 1:020}.json"
    next_commit.mkdir()  # the store takes data files and refuses the commit
    produce(source, records(100, start=100))
    with pytest.raises(ServiceError, match=r"gave up after 1 retries"):
        caught_up(config)
    next_commit.rmdir()
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(200))


def test_a_bad_record_ends_the_connector_after_everything_before_it(
    topic: MakeTopic, lake: Lake
) -> None:
    source = topic(values=[*records(95), b"{not JSON", *records(50, start=95)])
    config = lake(source)
    with pytest.raises(BadRecord, match=rf"{source}-0 offset 95 failed in VALUE_CONVERTER"):
        caught_up(config)
    assert positions(config) == {TopicPartition(source, 0): 95}
    assert ids(config) == list(range(95))
    left = Path(config["delta.table.path"], source).glob("*.parquet")
    assert sorted(map(str, left)) == sorted(table(config, source).file_uris())


@pytest.mark.long
def test_a_value_that_does_not_fit_the_table_is_a_bad_record(
    topic: MakeTopic, produce: Produce, lake: Lake
) -> None:
    source = topic(values=records(10))
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    config = lake(source, keys)
    caught_up(config)
    produce(source, [b'{"id": "eleven", "text": "x"}', *records(5, start=10)])
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(15))
    (letter,) = rows(config, "dead").to_pylist()
    assert letter["offset"] == 10


@pytest.mark.long
def test_topics_and_partitions_that_appear_are_picked_up(
    topic: MakeTopic, lake: Lake, start: Start, kafka: Kafka
) -> None:
    prefix = name()
    first = topic(prefix=f"{prefix}.a", values=records(20))
    config = lake(None, {"topics.regex": rf"{prefix}\..*"})
    running = start(config)
    running.until(lambda p: p.rows >= 20)
    second = topic(prefix=f"{prefix}.b", partitions=2, values=records(20, start=20))
    running.stop_when(lambda p: p.rows >= 40)
    sink = plan(config).sink  # knows nothing but the tables it finds
    assert {e.topic for e in sink.entries()} == {first, second}
    named = {k: v for k, v in config.items() if k != "topics.regex"}
    assert_nothing_lost_nothing_twice({**named, "topics": f"{first},{second}"}, range(40))


@pytest.mark.long
def test_a_topic_deleted_under_it_is_waited_for_and_is_another_one_when_it_is_back(
    topic: MakeTopic, lake: Lake, start: Start, kafka: Kafka
) -> None:
    source = topic(values=records(20))
    config = lake(source)
    running = start(config)
    running.until(lambda p: p.rows >= 20)
    kafka.delete_topic(source)
    running.until(lambda p: p.restarts > 0)
    kafka.create_topic(source)
    with pytest.raises(OffsetOutOfRange, match=f"topic {source} was deleted and created again"):
        running.wait()
    assert ids(config) == list(range(20))


@pytest.mark.long
def test_the_last_change_of_a_key_wins_however_its_partition_is_split(
    topic: MakeTopic, produce: Produce, lake: Lake
) -> None:
    source = topic(partitions=2)
    changes = [(f"k{i % 7}", {"id": i % 7, "n": i}) for i in range(200)]
    changes += [("k3", None), ("k4", None), ("k4", {"id": 4, "n": 1000})]
    produce(
        source,
        [None if v is None else json.dumps(v).encode() for _, v in changes],
        [k.encode() for k, _ in changes],
    )
    keys = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "key"}
    config = lake(source, {**keys, "delete.enabled": "true", "maxOffsetsPerTrigger": "90"})
    caught_up(config)
    final: dict[str, int] = {}
    for key, value in changes:
        final.pop(key, None)
        if value is not None:
            final[key] = value["n"]
    found = rows(config, source)
    assert dict(zip(*(found.column(n).to_pylist() for n in ("key", "n")), strict=True)) == final
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report


@pytest.mark.long
def test_fields_that_appear_become_columns(topic: MakeTopic, produce: Produce, lake: Lake) -> None:
    source = topic(partitions=2, values=records(50))
    config = lake(source, {"auto.evolve": "true"})
    caught_up(config)
    produce(source, [json.dumps({"id": i, "more": i / 2}).encode() for i in range(50, 200)])
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(200))
    found = rows(config, source).sort_by("id").column("more").to_pylist()
    assert found == [None] * 50 + [i / 2 for i in range(50, 200)]


@pytest.mark.parametrize("most", some([15, 21, 1000], {21, 1000}))
def test_aborted_transactions_and_markers_are_passed_over(
    most: int, topic: MakeTopic, produce: Produce, lake: Lake, kafka: Kafka
) -> None:
    from confluent_kafka import Producer

    source = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name()})
    producer.init_transactions()
    for n in range(6):
        producer.begin_transaction()
        for value in records(20, start=20 * n):
            producer.produce(source, value)
        producer.flush()
        if n % 2 == 0:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    config = lake(source, {"maxOffsetsPerTrigger": most})
    caught_up(config)
    expected = [i for i in range(120) if i // 20 % 2]
    assert_nothing_lost_nothing_twice(config, expected)


@pytest.mark.long
def test_a_consumer_that_has_lost_sight_of_all_brokers_is_replaced(
    topic: MakeTopic, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(values=records(50))
    made = []

    def blind_at_first(config: dict[str, Any], **more: Any) -> Consumer:
        made.append(config)
        nowhere = {"bootstrap.servers": "127.0.0.1:1"} if len(made) == 1 else {}
        return Consumer({**config, **nowhere}, **more)

    monkeypatch.setattr(boundedtask, "_SILENCE", 0.5)
    monkeypatch.setattr(consumers, "Consumer", blind_at_first)
    config = lake(source)
    caught_up(config, spark=InlineSpark())
    assert len(made) >= 2
    assert_nothing_lost_nothing_twice(config, range(50))


def test_files_that_were_staged_and_vanished_are_staged_again(
    topic: MakeTopic, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.driver.bounded import BoundedEngine

    source = topic(values=records(50))
    config = lake(source)
    original = BoundedEngine._commit
    removed = []

    def vacuumed(self: Any, wanted: Any, results: Any) -> None:
        if not removed:
            for file in results[0].files:
                removed.append(file.path)
                Path(file.table, file.path).unlink()
        original(self, wanted, results)

    monkeypatch.setattr(BoundedEngine, "_commit", vacuumed)
    caught_up(config)
    assert removed
    assert_nothing_lost_nothing_twice(config, range(50))


def test_a_table_that_is_deleted_is_not_resurrected_in_silence(
    topic: MakeTopic, lake: Lake
) -> None:
    source = topic(values=records(10))
    config = lake(source)
    caught_up(config)
    shutil.rmtree(Path(config["delta.table.path"], source))
    with pytest.raises(ConfigError, match=r"there is no Delta table"):
        caught_up({**config, "auto.create": "false"})


def test_micro_batch_needs_a_transform(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="commits on the driver"):
        caught_up(lake("t", {"engine": "micro-batch"}))


def test_an_interval_is_read_as_spark_reads_it() -> None:
    assert seconds("500 milliseconds") == 0.5
    assert seconds("2 minutes") == 120
    assert seconds("1 Minute 30 seconds") == 90
    with pytest.raises(ConfigError, match="processingTime='soon'"):
        seconds("soon")


def test_a_trigger_is_split_evenly_and_loses_no_offset() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    whole = bounded.limited({a: 0, b: 10}, {a: 900, b: 110}, 500)
    assert [(r.from_offset, r.until_offset) for r in whole] == [(0, 450), (10, 60)]
    parts = bounded.shared(whole, 3)
    assert len(parts) == 3
    sizes = [sum(r.until_offset - r.from_offset for r in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    read = [
        (r.partition, o)
        for part in parts
        for r in part
        for o in range(r.from_offset, r.until_offset)
    ]
    assert sorted(read) == [(0, o) for o in range(450)] + [(1, o) for o in range(10, 60)]
    assert all(len({r.partition for r in part}) == len(part) for part in parts)
    assert len(bounded.shared(bounded.limited({a: 0}, {a: 9}, 500), 4)) == 1


@pytest.mark.long
def test_a_log_that_is_cut_between_plan_and_reading_stops_it_before_anything_is_committed(
    own_kafka: Callable[[], Kafka], produce: Produce, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, source = own_kafka(), name()
    servers = kafka.bootstrap_servers
    kafka.create_topic(source, 1)
    for start in range(0, 50, 10):
        produce(source, records(10, start), bootstrap_servers=servers)
    config = lake(source, {"bootstrap.servers": servers})
    caught_up(config, spark=InlineSpark())
    produce(source, records(10, 50), bootstrap_servers=servers)
    staged = bounded.BoundedEngine._staged

    def cut_first(engine: bounded.BoundedEngine, wanted: Any) -> Any:
        monkeypatch.undo()
        kafka.stop()
        directory = kafka.directory / "data"
        logs.truncate(logs.partition_directory(directory, TopicPartition(source, 0)), 30)
        kafka.start()
        for start in range(100, 150, 10):
            produce(source, records(10, start), bootstrap_servers=servers)
        return staged(engine, wanted)

    monkeypatch.setattr(bounded.BoundedEngine, "_staged", cut_first)
    with pytest.raises(OffsetOutOfRange, match=r"gone from Kafka \(offsets 30 to 49\)"):
        caught_up(config, spark=InlineSpark())
    assert positions(config) == {TopicPartition(source, 0): 50}
