"""Where a connector begins: after Kafka Connect, after its ledger is gone, in another target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.audit import audit
from semel.core.errors import ConfigError, OffsetOutOfRange
from semel.core.ledger import Target, TopicPartition
from semel.kafka.groups import Groups
from semel.tasks.publish import is_copy, ledger_of
from semel_lab.embedded import Kafka, Postgres
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure
from tests.engine.harness import caught_up, ids, name, positions, records, sql, wait_until


def committed(
    config: Mapping[str, str], offsets: Mapping[TopicPartition, int], metadata: str = ""
) -> None:
    """Leave a group as Kafka Connect leaves it, or as a program that commits metadata does."""
    consumer = Consumer(
        {
            "bootstrap.servers": config["bootstrap.servers"],
            "group.id": f"connect-{config['name']}",
        }
    )
    try:
        consumer.commit(
            offsets=[KafkaPartition(*tp, at, metadata) for tp, at in offsets.items()],
            asynchronous=False,
        )
    finally:
        consumer.close()


def test_only_semels_own_offsets_count_as_copies() -> None:
    assert is_copy('{"semel": "table semel_offsets in localhost:5432/shop"}')
    assert ledger_of('{"semel": "table t"}') == "table t"
    assert is_copy('{"start":0,"read":3,"at":"2026"}')  # a Kafka sink's ledger
    for foreign in ("", "node-7", "{", "[1]", '"text"', '{"at": 1}'):
        assert not is_copy(foreign)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (Target("public.a"), Target("public.a", "7", "1"), None),
        (Target("public.a", "7", "1"), Target("public.a", "7", "1"), None),
        (Target("public.a", "7", "1"), Target("public.a", "9", "2"), None),  # restored as a whole
        (Target("public.a", "7", "1"), Target("public.a", "9", "1"), "dropped and created again"),
        (Target("a"), Target("b"), "went to a so far, and would go to b now"),
        (Target("a#b@c"), Target("a#b@c"), None),
    ],
)
def test_a_target_is_recognised(before: Target, now: Target, told: str | None) -> None:
    change = Target.parse(str(before)).replaced_by(now)
    assert change is None if told is None else told in str(change)


@pytest.mark.integration
def test_a_connector_of_kafka_connect_continues_at_its_groups_offsets(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(2)
    for partition in (0, 1):
        produce(source, records(10, 100 * partition), partition=partition)
    config = configure(source)
    committed(config, {TopicPartition(source, 0): 7})
    caught_up({**config, "first.position": "group"})
    assert ids(config["connection.url"], source) == [7, 8, 9, *range(100, 110)]

    again = configure(source, {"table.name.format": f"{source}-b", "first.position": "reset"})
    committed(again, {TopicPartition(source, 0): 7})
    caught_up(again)
    assert len(ids(again["connection.url"], f"{source}-b")) == 20


@pytest.mark.integration
def test_a_connector_that_another_program_has_continued_repeats_nothing(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    caught_up(config)  # its own copies in the group are no other program's
    produce(source, records(10, 10))
    groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    wait_until(lambda: groups.is_idle(f"connect-{config['name']}"))  # members leave late
    committed(config, {TopicPartition(source, 0): 17})
    with pytest.raises(
        ConfigError,
        match=rf"consumer group connect-{config['name']} is at 17 for {source}-0, and the "
        r"ledger .* at 10: another program, perhaps Kafka Connect, has continued",
    ):
        caught_up(config)
    caught_up({**config, "first.position": "group"})
    assert ids(config["connection.url"], source) == [*range(10), 17, 18, 19]
    report = audit(config)
    assert (report.lost, report.duplicated) == (0, 0)
    assert f"{source}-0: offsets 10 to 16 were read before this ledger" in report.not_judged[0]
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id < 10')
    assert audit(config).lost == 10


@pytest.mark.integration
def test_rows_that_another_program_has_written_are_not_duplicated(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source, {"provenance": "false", "first.position": "group"})
    database = config["connection.url"]
    sql(database, f'CREATE TABLE "{source}" (id bigint, name text)')
    sql(database, f'INSERT INTO "{source}" (id) SELECT * FROM generate_series(0, 6)')
    committed(config, {TopicPartition(source, 0): 7})
    caught_up(config)
    assert ids(database, source) == [*range(10)]
    found = audit(config)
    assert (found.broken, found.records, found.duplicated, found.unknown) == (False, 3, 0, 7)
    sql(database, f'INSERT INTO "{source}" (id) VALUES (1)')
    assert audit(config).duplicated == 1


KINDS = [
    "lines",
    "postgresql",
    "sqlite",
    "files",
]


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_before_another_program_went_on_is_not_duplicated(
    kind: str, topic: MakeTopic, produce: Produce, configure: Configure, tmp_path: Path
) -> None:
    source = topic(values=records(10))
    config = configure(source, {"provenance": "false", "first.position": "group"})
    if kind == "lines":
        del config["auto.create"]
        config |= {"connector.class": "FileStreamSink", "file": str(tmp_path / "lines")}
    elif kind == "sqlite":
        config |= {"connection.url": f"jdbc:sqlite:{tmp_path / 'store'}", "connector.class": kind}
    elif kind == "files":
        config |= {"connector.class": kind, "path": str(tmp_path / "store")}
    caught_up(config)
    groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    for reached in (17, 27):
        produce(source, records(10, reached - 7))
        wait_until(lambda: groups.is_idle(f"connect-{config['name']}"))
        committed(config, {TopicPartition(source, 0): reached})
        caught_up(config)
    found = audit(config)
    assert (found.broken, found.records, found.lost, found.duplicated) == (False, 16, 0, 0)
    assert [line.split(" began,")[0] for line in found.not_judged] == [
        f"{source}-0: offsets {span} were read before this ledger"
        for span in ("10 to 16", "20 to 26")
    ]


@pytest.mark.integration
def test_a_group_offset_outside_the_log_is_refused(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    committed(config, {TopicPartition(source, 0): 50})
    with pytest.raises(OffsetOutOfRange, match=r"is at 50 for .*first.position=reset"):
        caught_up(config)
    assert positions(config) == {}
    config = configure(source)
    committed(config, {TopicPartition(source, 0): 3})
    kafka.delete_records(source, {0: 6})
    with pytest.raises(OffsetOutOfRange, match=r"holds offsets 6 to 9 .*offset.out.of.range"):
        caught_up(config)
    caught_up({**config, "offset.out.of.range": "earliest"})
    assert ids(config["connection.url"], source) == [6, 7, 8, 9]


@pytest.mark.integration
def test_offsets_without_metadata_do_not_begin_an_empty_ledger(
    kafka: Kafka, topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    committed(config, {TopicPartition(source, 0): 7})
    with pytest.raises(
        ConfigError,
        match=rf"has no entry for topic {source}, but consumer group connect-{config['name']} "
        r"is at 7 .*without metadata that says who .*first.position=group.*semel offsets reset",
    ):
        caught_up(config)
    assert positions(config) == {}
    kafka.delete_records(source, {0: 7})  # nothing is left out any more
    caught_up(config)
    assert ids(config["connection.url"], source) == [7, 8, 9]


@pytest.mark.long
@pytest.mark.integration
def test_offsets_that_another_program_has_marked_begin_a_ledger(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    committed(config, {TopicPartition(source, 0): 7}, "host-3")
    caught_up(config)
    assert ids(config["connection.url"], source) == [7, 8, 9]


@pytest.fixture
def elsewhere(postgres: Postgres) -> Callable[[Config], Config]:
    """The same connector, with an empty database."""
    return lambda config: {**config, "connection.url": postgres.create_database(name())}


@pytest.mark.long
@pytest.mark.integration
def test_semels_own_copy_does_not_make_a_connector_skip_what_an_empty_database_lacks(
    topic: MakeTopic, produce: Produce, configure: Configure, elsewhere: Callable[[Config], Config]
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    moved = elsewhere(config)
    with pytest.raises(
        ConfigError,
        match=rf"has no entry for topic {source}, but consumer group connect-{config['name']} "
        r"holds a copy of a ledger that was at 10 .*semel offsets reset.*target.changed",
    ):
        caught_up(moved)
    caught_up({**moved, "first.position": "reset"})
    assert ids(moved["connection.url"], source) == list(range(10))
    kept = elsewhere(config)
    produce(source, records(5, 10))
    caught_up({**kept, "target.changed": "continue"})
    assert ids(kept["connection.url"], source) == list(range(10, 15))


@pytest.mark.integration
def test_another_table_under_the_same_name_is_refused_and_taken_if_so_configured(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    other = {**config, "table.name.format": "another"}
    sql(config["connection.url"], "CREATE TABLE another (LIKE " + f'"{source}")')
    with pytest.raises(
        ConfigError,
        match=rf"results went to public.{source} so far, and would go to public.another now.*"
        rf"{source}-0 up to offset 9 would be missing.*target.changed=continue",
    ):
        caught_up(other)
    produce(source, records(5, 10))
    caught_up({**other, "target.changed": "continue"})
    assert ids(config["connection.url"], "another") == list(range(10, 15))
    assert sql(config["connection.url"], "SELECT reason FROM semel_holes") == ["target changed"]
    caught_up(other)


@pytest.mark.integration
def test_a_table_that_was_dropped_under_the_ledger_is_not_silently_made_anew(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    caught_up(config)
    url = config["connection.url"]
    sql(url, f'CREATE TABLE kept (LIKE "{source}")')
    sql(url, f'DROP TABLE "{source}"')
    with pytest.raises(ConfigError, match=rf"public.{source}, which held 10 rows, is gone"):
        caught_up(config)
    sql(url, f'ALTER TABLE kept RENAME TO "{source}"')
    with pytest.raises(ConfigError, match=rf"public.{source} was dropped and created again"):
        caught_up(config)
