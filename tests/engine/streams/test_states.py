"""A topology's results, state and positions move together, whenever a process dies."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from semel.core import failpoints
from semel.core.errors import LedgerConflict, RolledBack, SemelError, ServiceError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.streams import Streams
from semel_lab.embedded import Kafka
from tests.engine.conftest import Config
from tests.engine.harness import LocalSpark, some, sql, wait_until
from tests.engine.streams.conftest import PLACES, TOPOLOGIES, App, by_key, expected, results
from tests.engine.streams.topologies import counting, to_kafka
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


def positions(config: Config, streams: Streams) -> dict[TopicPartition, int]:
    sink = plan(config, streams.topology()).sink
    try:
        return {e.topic_partition: e.position for e in sink.entries()}
    finally:
        sink.close()


def committed(kafka: Kafka, topic: str) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all committed records of a topic of two partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reads",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([KafkaPartition(topic, p, 0) for p in (0, 1)])
    left = 2
    while left:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            left -= 1
            continue
        yield bytes(message.key() or b""), bytes(message.value() or b"")
    consumer.close()


def recreate(kafka: Kafka, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic], request_timeout=PATIENCE)[topic].result(PATIENCE)
    wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics)
    new = NewTopic(topic, partitions, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result(PATIENCE)


@pytest.mark.parametrize("app", some(TOPOLOGIES, {"repartition"}), indirect=True)
def test_results_are_those_of_all_records_wherever_tasks_are_killed(app: App, points: Path) -> None:
    """Among the places: between the steps of a commit; local state is lost at some of them."""
    app.feed(1500)
    for place in PLACES:
        failpoints.arm(points, place, "kill-worker", skip=2)
    spark = LocalSpark(points)
    running = app.run(spark)
    app.until_right(running)
    assert {f.place for f in failpoints.fired(points)} == set(PLACES)
    shutil.rmtree(app.config["state.dir"])
    app.feed(100)
    app.until_right(app.run())


@pytest.mark.long
@pytest.mark.parametrize("app", TOPOLOGIES, indirect=True)
@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_is_killed_at_a_place_continues(app: App, place: str, points: Path) -> None:
    app.feed(400)
    failpoints.arm(points, place, "kill-worker", skip=3)
    app.until_right(app.run(LocalSpark(points)))
    assert failpoints.fired(points)
    app.feed(100)
    app.until_right(app.run())


@pytest.mark.long
@pytest.mark.parametrize("app", TOPOLOGIES, indirect=True)
def test_failures_whose_outcome_is_unknown_change_nothing(app: App, points: Path) -> None:
    app.feed(1500)
    for place in PLACES:
        if place != "task.before_publish":
            failpoints.arm(points, place, "raise", skip=2)
    app.until_right(app.run(LocalSpark(points)))
    assert len(failpoints.fired(points)) == len(PLACES) - 1


@pytest.mark.long
@pytest.mark.parametrize("app", TOPOLOGIES, indirect=True)
def test_of_two_drivers_one_is_fenced(app: App) -> None:
    app.feed(300)
    first = app.run()
    first.until(lambda _: bool(results(app.config)))
    second = app.run()
    app.feed(300)
    wait_until(lambda: not (first.alive and second.alive))
    with pytest.raises(LedgerConflict):
        (second if first.alive else first).wait()
    app.until_right(first if first.alive else second)


@pytest.mark.parametrize("app", some(TOPOLOGIES, {"keys"}), indirect=True)
@pytest.mark.parametrize(
    "place", some(["streams.after_changes", "streams.before_kafka"], {"streams.after_changes"})
)
def test_a_zombie_that_wins_the_commit_of_the_target_leaves_the_state_behind(
    app: App, place: str, points: Path
) -> None:
    app.config["tasks.max"] = "1"
    app.feed(100)
    spark = LocalSpark(points)
    running = app.run(spark)
    running.until(lambda _: app.is_right)
    failpoints.arm(points, place, "freeze")
    app.feed(30)
    zombie = spark.workers[0].pid
    wait_until((points / f"frozen.{zombie}").exists)
    app.feed(30)
    failpoints.arm(points, "streams.after_changes", "freeze")
    assert spark.replace(0) == zombie
    successor = spark.workers[0].pid
    wait_until((points / f"frozen.{successor}").exists)
    before = positions(app.config, app.topology(app.config, app.source))
    failpoints.thaw(points, zombie)
    if place == "streams.after_changes":
        wait_until(lambda: positions(app.config, app.topology(app.config, app.source)) != before)
    failpoints.thaw(points, successor)
    app.until_right(running)


def test_a_target_that_was_restored_is_noticed(app: App) -> None:
    app.feed(200)
    app.until_right(app.run())
    url = app.config["connection.url"]
    sql(url, "CREATE TABLE saved AS SELECT * FROM semel_offsets")
    app.feed(200)
    app.until_right(app.run())
    columns = ", ".join(
        sql(
            url,
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'saved'",
        )
    )
    sql(url, "DELETE FROM semel_offsets")
    sql(url, f"INSERT INTO semel_offsets ({columns}) SELECT {columns} FROM saved")
    with pytest.raises(RolledBack, match="restored from a backup"):
        app.run().wait()


@pytest.mark.long
def test_a_changelog_that_was_created_again_is_noticed(app: App, kafka: Kafka) -> None:
    app.feed(200)
    app.until_right(app.run())
    recreate(kafka, f"{app.config['name']}-counts-changelog", 2)
    with pytest.raises(ServiceError, match="was created again"):
        app.run().wait()


@pytest.mark.long
def test_another_topology_under_the_same_name_is_refused(app: App) -> None:
    app.feed(50)
    app.until_right(app.run())
    app.topology = counting
    with pytest.raises(SemelError, match=r"another topology|partitions"):
        app.run().wait()


@pytest.mark.parametrize("places", some(["streams.after_kafka", "every"], {"every"}))
def test_a_topic_as_the_target_has_each_result_once(
    app: App, places: str, points: Path, kafka: Kafka
) -> None:
    """What a topic gets is in the transaction that moves the state."""
    app.topology, app.by = to_kafka, by_key
    out = f"{app.source}-counts"
    kafka.create_topic(out, 2)
    app.feed(1000)
    for key in ("connection.url", "connection.loginTimeout", "auto.create", "connector.class"):
        app.config.pop(key)
    chosen = [p for p in PLACES if p not in ("streams.before_kafka", "streams.after_changes")]
    for place in chosen if places == "every" else [places]:
        failpoints.arm(points, place, "kill-worker", skip=2)

    def seen() -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for key, value in committed(kafka, out):
            made = json.loads(value)
            found[key.decode()].append((made["count"], made["total"]))
        return found

    running = app.run(LocalSpark(points))
    running.until(lambda _: {k: v[-1] for k, v in seen().items()} == expected(1000, by_key))
    running.stop()
    assert all(rows == sorted(set(rows)) for rows in seen().values())
    assert failpoints.fired(points)
