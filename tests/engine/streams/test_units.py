"""Records of several topics go in the order of time, as far as Kafka is known to have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from semel.config import ConnectorConfig, read
from semel.core.errors import (
    ConfigError,
    LedgerConflict,
    ServiceError,
    TopicGone,
    TransientError,
    Unavailable,
)
from semel.core.ledger import Hole, LedgerEntry, TopicPartition
from semel.core.records import DeadLetter
from semel.kafka.compacted import partition_of
from semel.sinks.base import Capabilities
from semel.streams import Streams
from semel.streams.changelog import Marker, Topics
from semel.streams.codec import pack_keys, unpack
from semel.streams.records import Records
from semel.streams.store import State
from semel.streams.topology import Source
from semel.tasks.direct.reader import Conflicts, Reader
from semel.tasks.poll import TopicTable
from semel.tasks.streams import globals as globals_
from semel.tasks.streams.globals import Globals
from semel.tasks.streams.states import States
from semel.tasks.streams.task import StatefulReader
from semel.tasks.streams.unit import Decoder, Outputs, Queue, Step, Unit

NEVER_WAIT, AS_KNOWN, LONG = -1.0, 0.0, 600.0


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    """Reads left and right, and writes both to the same topic."""
    streams = Streams({"name": "app"})
    streams.stream("left").merge(streams.stream("right")).to_topic("out")
    (sub,) = streams.topology().subs
    state = State(tmp_path, [])
    made = Unit(sub, 0, state, {}, {"left": "left", "right": "right"}, {}, ())
    made.begin(Marker({"left": 0, "right": 0}, {}, ""))
    yield made
    state.close()


def add(unit: Unit, topic: str, times: Sequence[int]) -> None:
    queue = unit.queues[topic]
    offsets = np.arange(queue.end, queue.end + len(times))
    keys = pa.array([f"{topic} {time}" for time in times])
    queue.add(Records(keys, keys, pa.array(times, pa.int64())), offsets, lambda _: 3)


def made(step: Step | None) -> list[int]:
    if step is None:
        return []
    return [time for part in step.outputs.values() for time in part.times.to_pylist()]


def positions(step: Step | None) -> dict[str, int]:
    assert step is not None
    return {a.range.topic: a.range.until_offset for a in step.advances}


def test_records_wait_for_a_topic_whose_end_was_not_seen(unit: Unit) -> None:
    add(unit, "left", [1, 5])
    assert unit.step(AS_KNOWN) is None
    unit.queues["right"].reached(0)
    assert made(unit.step(AS_KNOWN)) == [1, 5]


def test_no_record_goes_before_one_that_may_yet_be_older(unit: Unit) -> None:
    add(unit, "left", [1, 4, 9])
    add(unit, "right", [2, 4])
    assert made(unit.step(AS_KNOWN)) == [1, 2, 4, 4]
    add(unit, "right", [7])
    assert made(unit.step(AS_KNOWN)) == [7]
    unit.queues["right"].reached(3)
    assert made(unit.step(AS_KNOWN)) == [9]


def test_the_head_counts_and_not_what_is_late_behind_it(unit: Unit) -> None:
    add(unit, "left", [5, 1])
    add(unit, "right", [3, 6])
    assert made(unit.step(NEVER_WAIT)) == [3, 5, 1, 6]


def test_with_idle_time_records_wait_for_what_is_not_written_yet(unit: Unit) -> None:
    add(unit, "left", [1])
    unit.queues["left"].reached(1)
    unit.queues["right"].reached(0)
    assert unit.step(LONG) is None
    assert made(unit.step(NEVER_WAIT)) == [1]


def test_a_step_moves_positions_over_what_it_has_processed(unit: Unit) -> None:
    add(unit, "left", [1, 4, 9])
    add(unit, "right", [5])
    step = unit.step(AS_KNOWN)
    assert positions(step) == {"left": 2, "right": 1}
    assert step is not None
    assert (step.advances[0].read, step.advances[0].leader_epoch) == (2, 3)
    unit.queues["left"].reached(5)
    assert unit.step(AS_KNOWN) is None
    unit.queues["right"].reached(1)
    assert positions(unit.step(AS_KNOWN)) == {"left": 5}


def test_ends_without_records_move_positions(unit: Unit) -> None:
    unit.queues["left"].reached(7)
    assert positions(unit.step(AS_KNOWN)) == {"left": 7}


def test_a_bad_record_tells_the_epoch_of_the_log_as_well(unit: Unit) -> None:
    letter = DeadLetter("left", 0, 4, None, None, (), None, "VALUE_CONVERTER", "", "")
    unit.queues["left"].letters = [(letter, 2)]
    unit.queues["left"].reached(7)
    step = unit.step(AS_KNOWN)
    assert step is not None
    advance = step.advances[0]
    assert (advance.read, advance.leader_epoch, advance.epoch_offset) == (1, 2, 5)


def test_nothing_after_a_bad_record_is_processed(unit: Unit) -> None:
    queue = unit.queues["left"]
    queue.stop = DeadLetter("left", 0, 1, None, None, (), None, "VALUE_CONVERTER", "", "")
    add(unit, "left", [1, 2, 3])
    unit.queues["right"].reached(0)
    assert made(unit.step(AS_KNOWN)) == [1]
    assert unit.step(AS_KNOWN) is None
    assert unit.stop is queue.stop


def test_steps_stay_small_where_each_record_gives_a_large_value(tmp_path: Path) -> None:
    """A list that grows is passed on after every record."""
    streams = Streams({"name": "app"})
    left = streams.stream("left")
    left.join(streams.stream("right").group_by_key().collect("value")).to_topic("out")
    (sub,) = streams.topology().subs
    state = State(tmp_path, [spec.name for spec in sub.stores])
    unit = Unit(sub, 0, state, {}, {"left": "left", "right": "right"}, {}, ())
    unit.begin(Marker({"left": 0, "right": 0}, {}, ""))
    add(unit, "left", range(0, 2400, 2))
    add(unit, "right", range(1, 2400, 2))
    unit.queues["left"].reached(1200)
    unit.queues["right"].reached(1200)
    steps = [positions(unit.step(AS_KNOWN)) for _ in range(3)]
    assert steps == [
        {"left": 500, "right": 500},
        {"left": 1000, "right": 1000},
        {"left": 1200, "right": 1200},
    ]
    state.close()


@pytest.mark.parametrize("written", ["", ', "format": 2', ', "format": 4'])
def test_a_state_of_another_format_is_refused(written: str) -> None:
    text = f'{{"positions": {{}}, "logs": {{}}, "plan": "x"{written}}}'.encode()
    with pytest.raises(
        ServiceError, match=r"^state of t: it was stored in format [124] by another"
    ):
        Marker.loaded(text, "state of t")
    assert Marker.kept(text) is None, "the local state is restored from what was stored"
    marker = Marker({"t": 5}, {}, "x")
    assert Marker.loaded(marker.dumped(local=False), "state of t") == marker
    assert Marker.kept(marker.dumped(local=True)) == marker
    assert Marker.kept(None) is None


@pytest.mark.parametrize(
    ("sample", "texts", "values"),
    [
        ('{"v": 1}', ['{"v": 1}', '{"v": 1.5}'], [{"v": 1}, {"v": 1.5}]),
        ('{"v": 1}', ['{"v": "x"}', "{", '{"v": 1}'], [{"v": '"x"'}, None, {"v": "1"}]),
    ],
)
def test_no_record_is_bad_for_what_a_poll_holds_beside_it(
    sample: str, texts: list[str], values: list[Any]
) -> None:
    decoder = json_decoder()
    schema = decoder.infer(pa.array([sample.encode()]))
    assert schema is not None
    decoder.expect(schema)
    records, bad = decoder.records(poll(["1"] * len(texts), texts))
    assert records.values.to_pylist() == values
    assert [texts[row] for row in bad] == [text for text in texts if text == "{"]


@pytest.mark.parametrize("texts", [["1", "2.5"], ["1", "2.5", "{"], ["1", '"x"', "true"]])
def test_keys_have_the_bytes_that_they_have_alone(texts: list[str]) -> None:
    records, bad = json_decoder().records(poll(texts, texts))
    good = [text for text in texts if text != "{"]
    assert [texts[row] for row in bad] == [text for text in texts if text not in good]
    alone = [json_decoder().records(poll([text], [text]))[0] for text in good]
    for together, apart in (
        (records.keys, [one.keys for one in alone]),
        (records.values, [one.values for one in alone]),
    ):
        assert pack_keys(together)[: len(good)].to_pylist() == [
            pack_keys(a)[0].as_py() for a in apart
        ]


def json_decoder() -> Decoder:
    raw = {"name": "app", "connector.class": "postgresql", "topics": "in"}
    for name in ("key.converter", "value.converter"):
        raw |= {name: "JsonConverter", f"{name}.schemas.enable": "false"}
    return Decoder(read(ConnectorConfig, {**raw, "bootstrap.servers": "none:1"}), Source("in"))


def poll(keys: Sequence[str], values: Sequence[str]) -> TopicTable:
    columns = {
        "key": [key.encode() for key in keys],
        "value": [value.encode() for value in values],
        "partition": [0] * len(keys),
        "offset": range(len(keys)),
        "timestamp": pa.array([7] * len(keys), pa.timestamp("ms")),
    }
    return TopicTable("in", pa.table(columns))


def test_what_waits_is_limited_by_records_and_by_bytes() -> None:
    queue = Queue(TopicPartition("t", 0), 0)
    large = pa.array(["x" * 1000] * 3)
    queue.add(Records(large, large, pa.array([1, 2, 3])), np.arange(3), lambda _: 0)
    assert not queue.holds(4, 10_000)
    assert queue.holds(3, 10_000)
    assert queue.holds(4, 6000)


@pytest.mark.parametrize("key", ['{"id":5}', '{"id": 5}'])
def test_a_key_counts_as_the_topology_writes_it(key: str) -> None:
    """Its producer may write the same key with other bytes, which have another partition."""
    streams = Streams({"name": "app"})
    streams.stream("in").select_key("id").join(streams.table("met")).to_topic("out")
    raw = {"name": "app", "connector.class": "postgresql", "topics": "in"}
    as_json = {"key.converter": "JsonConverter", "key.converter.schemas.enable": "false"}
    connector = read(ConnectorConfig, {**raw, **as_json, "bootstrap.servers": "none:1"})
    cluster = cast(Any, SimpleNamespace(topics=lambda: {"met": 100}))
    outputs = Outputs(connector, Topics("app", streams.topology()), cluster)
    place = TopicPartition("met", partition_of(key.encode(), 100))
    columns = {"key": [key.encode()], "value": [b"{}"], "partition": [place.partition]}
    poll = TopicTable("met", pa.table({**columns, "offset": [0]}))
    if " " not in key:
        outputs.check_places(poll, place)
        return
    with pytest.raises(ConfigError, match="which semel writes as"):
        outputs.check_places(poll, place)
    cluster.topics = dict  # deleted meanwhile
    with pytest.raises(Unavailable, match="topic met does not exist"):
        outputs.check_places(poll, place)


def test_a_key_has_the_same_bytes_whatever_was_stored_beside_it() -> None:
    streams = Streams({"name": "app"})
    streams.stream("in").to_topic("out")
    raw = {"name": "app", "connector.class": "postgresql", "topics": "in"}
    as_json = {"key.converter": "JsonConverter", "key.converter.schemas.enable": "false"}
    connector = read(ConnectorConfig, {**raw, **as_json, "bootstrap.servers": "none:1"})
    topology = streams.topology()
    outputs = Outputs(connector, Topics("app", topology), cast(Any, None))
    (sub,) = topology.subs
    (name,) = sub.sinks

    def written(*keys: Any) -> list[bytes | None]:
        stored = unpack(pack_keys(pa.array(keys)))
        times = pa.array([0] * len(keys), pa.int64())
        messages = outputs.messages(sub, name, Records(stored, pa.nulls(len(keys)), times))
        assert messages is not None
        found: list[bytes | None] = messages.keys.to_pylist()
        return found

    keys = [{"b": 1, "a": None}, {"b": 1, "a": "x"}, None, {"c": 2, "b": None, "a": "y"}, {}]
    assert written(*keys) == [written(key)[0] for key in keys]
    assert written(*keys)[:3] == [b'{"b":1}', b'{"a":"x","b":1}', None]


def test_topics_of_an_application_do_not_go_by_what_brokers_have_as_defaults() -> None:
    streams = Streams({"name": "app"})
    streams.stream("in").group_by("a", name="r").count(store="s")
    topics, there = Topics("app", streams.topology()), {"in": 2}
    created: dict[str, Mapping[str, str]] = {}
    other = {"message.timestamp.type": "LogAppendTime"}
    cluster = cast(Any, SimpleNamespace(topics=lambda: there))
    cluster.create_topic = lambda name, count, config: created.update({name: config})
    cluster.topic_config = lambda topic: {**created[topic], **other}
    topics.create(cluster, 1)
    assert created["app-r-repartition"]["message.timestamp.type"] == "CreateTime"
    assert created["app-s-changelog"]["delete.retention.ms"] == "86400000"
    there |= dict.fromkeys(created, 2)
    with pytest.raises(ConfigError, match=r"r-repartition has message\.timestamp\.type=Log"):
        topics.create(cluster, 1)


@pytest.mark.parametrize(
    ("partitions", "tasks", "fits"), [(2, 1, True), (2, 2, False), (2, 3, True), (1, 2, True)]
)
def test_topics_of_unlike_partitions_need_tasks_that_can_share_them(
    partitions: int, tasks: int, fits: bool
) -> None:
    """Kafka's range assignor gives two tasks the first two and the last of three partitions, and
    one of two each."""
    streams = Streams({"name": "app"})
    streams.stream("a").merge(streams.stream("b")).to_topic("out")
    there = {"a": 3, "b": partitions}
    cluster = cast(Any, SimpleNamespace(topics=lambda: there))
    cluster.create_topic = lambda name, count, config: None
    topics = Topics("app", streams.topology())
    if fits:
        assert topics.create(cluster, tasks) == there
        return
    with pytest.raises(
        ConfigError, match=r"\(a: 3, b: 2\)\. With .* Set tasks\.max to 1 or to at least 3"
    ):
        topics.create(cluster, tasks)


def test_records_of_1970_are_not_sent_on_as_of_now() -> None:
    streams = Streams({"name": "app"})
    streams.stream("in").repartition(name="r").to_topic("out")
    raw = {"name": "app", "connector.class": "postgresql", "topics": "in"}
    connector = read(ConnectorConfig, {**raw, "bootstrap.servers": "none:1"})
    topology = streams.topology()
    outputs = Outputs(connector, Topics("app", topology), cast(Any, None))
    (sub, _) = topology.subs
    (name,) = sub.sinks
    keys = pa.array(["a", "b", "c"])
    messages = outputs.messages(sub, name, Records(keys, keys, pa.array([-1, 0, 5])))
    assert messages is not None
    assert messages.timestamps == [1, 1, 5]


@pytest.mark.parametrize(
    ("code", "stops"),
    [(KafkaError.UNKNOWN_TOPIC_OR_PART, True), (KafkaError._TRANSPORT, False)],
)
def test_a_global_table_whose_topic_is_gone_stops(code: int, stops: bool) -> None:
    met = Globals.__new__(Globals)
    error = SimpleNamespace(
        error=lambda: KafkaError(code), topic=lambda: "colors", partition=lambda: 0
    )
    met._consumer = cast(Any, SimpleNamespace(consume=lambda *_: [error]))
    met._connector = cast(Any, SimpleNamespace(name="app"))
    if not stops:
        met.follow()
        return
    with pytest.raises(ServiceError, match=r"global table: colors \[0\] cannot be followed"):
        met.follow()


def test_a_global_table_that_was_filled_in_part_is_filled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streams = Streams({"name": "app"})
    streams.stream("in").join(streams.global_table("colors"), key="color").to_topic("out")
    raw = {"name": "app", "connector.class": "postgresql", "topics": "in"}
    connector = read(ConnectorConfig, {**raw, "bootstrap.servers": "none:1"})
    place = TopicPartition("colors", 0)
    cluster = SimpleNamespace(
        topics=lambda: {"colors": 1}, earliest=lambda _: {place: 0}, latest=lambda _: {place: 2}
    )
    topics = Topics("app", streams.topology())
    met = Globals(connector, topics, cast(Any, cluster), tmp_path, print)
    attempts = []

    def fails_once(*_: Any) -> Iterator[Any]:
        attempts.append(place)
        if len(attempts) == 1:
            raise TransientError("Kafka sent nothing")
        yield from ()

    monkeypatch.setattr(globals_, "read_ranges", fails_once)
    with pytest.raises(TransientError):
        met.start(lambda: None)
    try:
        for _ in range(2):
            met.start(lambda: None)
    finally:
        met.close()
    assert len(attempts) == 2


def test_a_state_beside_a_topic_as_the_target_is_never_ahead_of_its_changelog(unit: Unit) -> None:
    """Retention has removed what was not read, so the ledger alone has moved: a commit would be a
    replay, and send nothing."""
    hole = Hole("left", 0, 0, 7)
    states = States.__new__(States)
    states._sink = cast(
        Any, SimpleNamespace(capabilities=Capabilities(ledger_in_group=True), holes=lambda: [hole])
    )
    entries = {"left": LedgerEntry("left", 0, 7, 0), "right": LedgerEntry("right", 0, 0, 0)}
    states._catch_up(unit, entries, lambda *_: pytest.fail("it commits"))
    assert unit.state.marker is None
    add(unit, "left", [1])
    unit.queues["right"].reached(0)
    step = unit.step(AS_KNOWN)
    assert step is not None and step.marker.positions == {"left": 8, "right": 0}


def test_a_state_behind_a_ledger_that_moves_with_it_is_refused(unit: Unit) -> None:
    """As after ``kafka-consumer-groups.sh --reset-offsets``, of which no hole tells."""
    states = States.__new__(States)
    states._connector = cast(Any, SimpleNamespace(name="app"))
    states._sink = cast(
        Any, SimpleNamespace(capabilities=Capabilities(ledger_in_group=True), holes=lambda: [])
    )
    entries = {"left": LedgerEntry("left", 0, 7, 0), "right": LedgerEntry("right", 0, 0, 0)}
    with pytest.raises(ServiceError, match=r"is at 0 for left-0, but the ledger at 7.*offsets"):
        states._catch_up(unit, entries, lambda *_: pytest.fail("it commits"))


def test_a_task_whose_recovery_meets_a_conflict_begins_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def recover(*_: Any) -> None:
        asked.append("recovers")
        if asked.count("recovers") == 1:
            raise LedgerConflict("the transaction was aborted")

    def read_again(*_: Any) -> dict[TopicPartition, LedgerEntry]:
        asked.append("reads")
        return {}

    monkeypatch.setattr(Reader, "_read_ledger", read_again)
    reader = StatefulReader.__new__(StatefulReader)
    reader.states = cast(
        Any, SimpleNamespace(settle=lambda _: asked.append("fences"), recover=recover)
    )
    reader._committer = cast(Any, SimpleNamespace(commit=None))
    reader._conflicts = Conflicts("app", 0.0, print)
    stop = threading.Event()
    reader._line = cast(Any, SimpleNamespace(stop=stop))
    assert reader._ledger_entries(cast(Any, None)) == {}
    assert asked == 2 * ["fences", "reads", "recovers"]
    asked.clear()
    stop.set()
    with pytest.raises(TransientError, match="the transaction was aborted"):
        reader._ledger_entries(cast(Any, None))
    assert asked == ["fences", "reads", "recovers"]


def test_a_topic_that_recovery_misses_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's next answer leaves out topics that it has assigned, but not the state's."""

    def recover(*_: Any) -> None:
        raise TopicGone("global table: no such topic")

    monkeypatch.setattr(Reader, "_read_ledger", lambda *_: {})
    reader = StatefulReader.__new__(StatefulReader)
    reader.states = cast(Any, SimpleNamespace(settle=lambda _: None, recover=recover))
    reader._committer = cast(Any, SimpleNamespace(commit=None))
    with pytest.raises(TopicGone):
        reader._ledger_entries(cast(Any, None))
