"""A topology's results, state and positions move together, whenever a process dies."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from semel.core import failpoints
from semel.core.errors import ConfigError, LedgerConflict, RolledBack, SemelError, ServiceError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.kafka.compacted import partition_of
from semel.streams import Streams
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.conftest import Config
from tests.engine.harness import LocalSpark, some, sql, wait_until
from tests.engine.streams.conftest import (
    COLORS,
    PLACES,
    TOPOLOGIES,
    App,
    by_color,
    by_key,
    expected,
    results,
    values,
)
from tests.engine.streams.topologies import counting, enriching, joining, looking_up, to_kafka
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
    report = app.audit()
    assert (report.lost, report.duplicated, report.broken) == (0, 0, False)
    assert {p.topic for p in report.partitions} == {app.source}, "not what the topology writes"
    sql(app.config["connection.url"], "UPDATE semel_offsets SET records_read = records_read - 3")
    assert app.audit().lost == 6, "of two partitions"


@pytest.mark.long
@pytest.mark.parametrize("app", TOPOLOGIES, indirect=True)
def test_a_table_of_results_that_is_gone_stops_it_unless_it_may_continue(app: App) -> None:
    app.feed(50)
    app.until_right(app.run())
    sql(app.config["connection.url"], "DROP TABLE counts")
    running = app.run()
    wait_until(lambda: not running.alive)
    with pytest.raises(ConfigError, match=r"which held .* is gone"):
        running.wait()
    app.config["target.changed"] = "continue"
    running = app.run()
    app.feed(50)
    running.stop_when(lambda _: results(app.config) == expected(100, app.by))


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


@pytest.mark.long
def test_a_table_beside_the_stream_is_read_in_the_order_of_time(
    app: App, topic: MakeTopic, kafka: Kafka, points: Path
) -> None:
    """Each key has a shade before its first record; it changes after the last."""
    app.topology, app.by = joining, lambda i: f"shade {i % 7 % 3}"
    kafka.create_topic(f"{app.source}-shades", 2)
    keys = [f"k{n}" for n in range(7)]
    now = int(time.time() * 1000)
    for round_, at in ((0, now), (1, now + 9000)):
        shades = [
            json.dumps({"shade": f"shade {n % 3}" if not round_ else "late"}).encode()
            for n in range(7)
        ]
        app.produce(f"{app.source}-shades", shades, keys, timestamps=[at] * 7)
    count = 700
    app.produce(
        app.source,
        values(count),
        [by_key(i) for i in range(count)],
        timestamps=[now + 1000 + i for i in range(count)],
    )
    app.sent = count
    for place in PLACES:
        failpoints.arm(points, place, "kill-worker", skip=1)
    app.until_right(app.run(LocalSpark(points)))


def _hues(app: App, kafka: Kafka, place: Callable[[bytes], int]) -> None:
    """A table of a hue for each color, in its partition, older than all records."""
    kafka.create_topic(f"{app.source}-hues", 2)
    earlier = int(time.time() * 1000) - 60_000
    for color in COLORS:
        hue = json.dumps({"hue": f"hue {len(color)}"}).encode()
        key = color.encode()
        app.produce(f"{app.source}-hues", [hue], [key], place(key), timestamps=[earlier])


@pytest.mark.long
def test_records_with_new_keys_meet_a_table(app: App, kafka: Kafka, points: Path) -> None:
    app.topology, app.by = enriching, lambda i: f"hue {len(by_color(i))}"
    _hues(app, kafka, lambda key: partition_of(key, 2))
    app.feed(700)
    for place in PLACES:
        failpoints.arm(points, place, "kill-worker", skip=1)
    app.until_right(app.run(LocalSpark(points)))


@pytest.mark.long
def test_records_meet_a_global_table_whatever_partition_its_keys_are_in(
    app: App, kafka: Kafka, points: Path
) -> None:
    app.topology, app.by = looking_up, lambda i: f"hue {len(by_color(i))}"
    _hues(app, kafka, lambda key: len(key) % 2)
    app.feed(700)
    for place in PLACES:
        failpoints.arm(points, place, "kill-worker", skip=1)
    app.until_right(app.run(LocalSpark(points)))


@pytest.mark.long
def test_a_global_table_follows_its_topic(app: App, kafka: Kafka) -> None:
    app.topology, app.by = looking_up, lambda i: f"hue {len(by_color(i))}"
    _hues(app, kafka, lambda key: len(key) % 2)
    app.feed(100)
    running = app.run()
    running.until(lambda _: app.is_right)
    for color in COLORS:
        key, hue = color.encode(), json.dumps({"hue": "new"}).encode()
        app.produce(f"{app.source}-hues", [hue], [key], len(key) % 2)

    def all_new() -> bool:
        app.feed(10)
        found = results(app.config)
        running.until(lambda _: sum(n for n, _ in results(app.config).values()) == app.sent)
        return results(app.config).get("new", (0, 0))[0] - found.get("new", (0, 0))[0] == 10

    wait_until(all_new)
    running.stop()
    shutil.rmtree(app.config["state.dir"])
    before = results(app.config)["new"][0]
    app.feed(10)
    again = app.run()
    again.stop_when(lambda _: results(app.config)["new"][0] == before + 10)


def test_keys_that_records_with_new_keys_would_not_meet_are_refused(app: App, kafka: Kafka) -> None:
    """As librdkafka's default partitioner places them, or any other."""
    app.topology = enriching
    _hues(app, kafka, lambda key: 1 - partition_of(key, 2))
    app.feed(10)
    with pytest.raises(ConfigError, match="would not meet"):
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
    running.stop_when(lambda _: {k: v[-1] for k, v in seen().items()} == expected(1000, by_key))
    assert all(rows == sorted(set(rows)) for rows in seen().values())
    assert failpoints.fired(points)
    report = app.audit()
    assert (report.lost, report.duplicated, report.broken) == (0, 0, False)
    assert sum(p.kafka for p in report.partitions) == 1000
