"""Topologies: how they are cut, what must be partitioned alike, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from builtins import sum as sum_of
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.core.errors import ConfigError, SemelError
from semel.driver.planning.programs import is_of_streams
from semel.streams import (
    Context,
    KTable,
    Streams,
    avg,
    count,
    hopping,
    session,
    sliding,
    sum,
    tumbling,
    within,
)
from semel.streams import max as greatest
from semel.streams import min as least
from semel.streams.aggregates import Aggregate
from semel.streams.codec import time_bytes
from semel.streams.operators.state import FIRST, expire
from semel.streams.records import Records, concatenated
from semel.streams.store import MemoryStore
from semel.streams.testing import Record, TestDriver
from tests.patience import PATIENCE


@pytest.fixture
def streams() -> Streams:
    return Streams({"name": "app"})


def test_a_topology_is_cut_where_records_go_through_kafka(streams: Streams) -> None:
    streams.stream("orders").group_by("customer", name="by-customer").count(store="counts")
    first, second = streams.topology().subs
    assert (first.topics, [s.topic for s in first.sinks.values()]) == (
        ("orders",),
        ["by-customer"],
    )
    assert (second.topics, [s.name for s in second.stores]) == (("by-customer",), ["counts"])
    assert second.sources["by-customer"].is_repartition


def test_joined_topics_are_read_together(streams: Streams) -> None:
    streams.stream("orders").join(streams.table("customers")).to_topic("out")
    (only,) = streams.topology().subs
    assert set(only.topics) == {"orders", "customers"}
    assert streams.topology().partitions({"orders": 3, "customers": 3}) == {}
    with pytest.raises(ConfigError, match="customers has 2, orders has 3"):
        streams.topology().partitions({"orders": 3, "customers": 2})


def test_a_repartition_topic_has_the_partitions_of_what_it_is_joined_with(streams: Streams) -> None:
    orders = streams.stream("orders").select_key("customer").repartition(name="r")
    orders.join(streams.table("customers")).group_by("city", name="cities").count()
    assert streams.topology().partitions({"orders": 2, "customers": 7}) == {"r": 7, "cities": 7}


def test_a_repartition_topic_alone_has_its_own_or_those_of_its_source(streams: Streams) -> None:
    streams.stream("orders").repartition(name="given", partitions=5).to_topic("a")
    streams.stream("orders").select_key("x").repartition(name="taken").to_topic("b")
    assert streams.topology().partitions({"orders": 3}) == {"given": 5, "taken": 3}


def test_tables_joined_by_a_foreign_key_need_no_equal_partitions(streams: Streams) -> None:
    streams.table("orders").join(streams.table("customers"), foreign_key="customer").to_topic("o")
    found = streams.topology().partitions({"orders": 3, "customers": 2})
    assert sorted(found.values()) == [2, 3]


def test_global_tables_are_filled_apart(streams: Streams) -> None:
    streams.stream("orders").join(streams.global_table("customers", store="all"), key="c")
    orders, filling = sorted(streams.topology().subs, key=lambda sub: sub.is_global)
    assert orders.globals == ("all",)
    assert filling.topics == ("customers",)


def test_streams_of_a_class_of_ones_own_are_a_topology_too() -> None:
    class Mine(Streams):
        pass

    assert is_of_streams(Mine({"name": "app"}))
    assert not is_of_streams({"name": "app"})


class Place(Enum):
    LEFT = 1
    RIGHT = 2


def test_the_digest_changes_with_the_plan() -> None:
    def digest(condition: object) -> str:
        streams = Streams({"name": "app"})
        streams.stream("orders").filter(condition).to_topic("out")
        return streams.topology().digest

    def above(least: Any) -> object:
        return lambda value: value["a"] > least

    conditions = ["a > 1", "a > 2", pc.field("a") > 1, lambda v: v["a"] > 1, lambda v: v["a"] > 2]
    conditions += [above(1), above(2), partial(max, 1), partial(max, 2), "x".endswith]
    conditions += [above(Decimal(1)), above(Decimal(2)), above({1}), above({2})]
    conditions += [above(timedelta(1)), above(timedelta(2)), above(date(2026, 1, 1))]
    conditions += [above(date(2026, 1, 2)), above(Place.LEFT), above(Place.RIGHT)]
    found = [digest(condition) for condition in conditions]
    assert len(set(found)) == len(conditions)
    assert [digest(condition) for condition in conditions] == found
    assert digest(above(2)) == found[6]


def test_the_digest_is_the_same_in_later_versions(streams: Streams) -> None:
    """It is stored beside the state: another one would stop each topology after an upgrade."""
    customers = streams.table("customers", store="customers")
    both = {"country": "other.country", "amount": "this.amount"}
    orders = streams.stream("orders").filter("amount > 0").join(customers, both)
    minutes = orders.group_by("country").windowed_by(tumbling(60_000, grace=0))
    minutes.aggregate(n=count(), total=sum("amount")).to_topic("revenue")
    assert streams.topology().digest == "c3bfa6cd09c04538c23cef348a5fe3c2"


def test_the_digest_is_the_same_in_another_process() -> None:
    program = (
        "from semel.streams import *\n"
        "s = Streams({'name': 'app'})\n"
        "s.stream('a').group_by(lambda v: {'x', 'y', v}).reduce('{}+{}'.format).to_topic('b')\n"
        "s.stream('a').group_by_key().windowed_by(session(5, grace=0)).aggregate("
        "n=count(), m=min('a')).to_topic('c')\n"
        "print(s.topology().digest)"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, timeout=PATIENCE
        ).stdout
        for _ in range(2)
    ]
    assert done[0] == done[1] != b""


def refused(streams: Streams) -> dict[str, object]:
    orders = streams.stream("orders")
    table = streams.table("t")
    return {
        "name": lambda: Streams({}),
        "two stores": lambda: [orders.group_by_key().count(store="s") for _ in range(2)],
        "read twice": lambda: streams.stream("orders", {"value.converter": "String"}),
        "taken back": lambda: table.group_by("c").max("a"),
        "subtractor": lambda: table.group_by("c").reduce(lambda one, other: one),
        "needs windows": lambda: orders.join(streams.stream("b")),
        "needs key=": lambda: orders.join(streams.global_table("g")),
        "needs until": table.suppress,
        "not final": lambda: (
            orders.group_by_key().windowed_by(tumbling(5, grace=0)).count().suppress(max_records=5)
        ),
        "emit must be": lambda: orders.group_by_key().windowed_by(tumbling(5, grace=0), emit="x"),
        "at least 1 ms": lambda: tumbling(0, grace=0),
        "86400000 windows": lambda: hopping(timedelta(days=1), advance=1, grace=0),
        "grace": lambda: within(5, grace=-1),
        "initializer and an adder": lambda: orders.group_by_key().aggregate(),
        "connector.class": lambda: orders.to({"name": "x"}),
        "both called orders": lambda: [orders.group_by("a", name="orders"), streams.topology()],
        "both called twice": lambda: [
            *(orders.group_by(key, name="twice").count() for key in "ab"),
            streams.topology(),
        ],
        "both called out": lambda: [
            orders.group_by("a", name="out").count().to_topic("out"),
            streams.topology(),
        ],
        "only with streams": lambda: orders.outer_join(table, windows=within(5, grace=0)),
    }


@pytest.mark.parametrize("why", refused(Streams({"name": "app"})))
def test_what_cannot_be_is_refused(why: str, streams: Streams) -> None:
    with pytest.raises(ConfigError, match=why):
        refused(streams)[why]()  # type: ignore[operator]


def test_steps_are_small_where_a_record_is_in_many_windows(streams: Streams) -> None:
    """All windows of a step are in memory."""
    keyed = streams.stream("in").group_by_key()
    keyed.windowed_by(hopping(timedelta(days=1), advance=1000, grace=0)).count().to_topic("out")
    (sub,) = streams.topology().subs
    assert sub.records_per_step == 1_000_000 // 86_400


def driver(table: KTable) -> TestDriver:
    table.to_topic("out")
    return TestDriver(table.builder)


def test_a_step_gives_one_change_for_each_key(streams: Streams) -> None:
    given = driver(streams.stream("in").group_by_key().aggregate(n=count(), total=sum("a")))
    given.pipe_all({"in": [Record(k, {"a": n}, n) for n, k in enumerate("abaab")]})
    assert given.read("out") == [
        Record("a", {"n": 3, "total": 5}, 3),
        Record("b", {"n": 2, "total": 5}, 4),
    ]
    given.pipe("in", "a", {"a": None}, 9)
    assert given.read("out") == [Record("a", {"n": 4, "total": 5}, 9)]


def test_sums_take_numbers_as_they_come(streams: Streams) -> None:
    given = driver(streams.stream("in").group_by_key().sum("a"))
    for value in (1, 2.5, None):
        given.pipe("in", "k", {"a": value})
    for value in ("0.1", "0.25"):
        given.pipe("in", "d", {"a": Decimal(value)})
    assert [record.value for record in given.read("out")] == [
        1,
        3.5,
        3.5,
        Decimal("0.10"),
        Decimal("0.35"),
    ]


def test_a_sum_that_is_too_large_says_where(streams: Streams) -> None:
    given = driver(streams.stream("in").group_by_key().sum("a"))
    given.pipe("in", "k", {"a": 2**63 - 1})
    with pytest.raises(SemelError, match=r"KSTREAM-AGGREGATE-\d+: overflow"):
        given.pipe("in", "k", {"a": 1})


def test_columns_of_both_sides_that_collide_are_named(streams: Streams) -> None:
    streams.stream("in").join(streams.table("t")).to_topic("out")
    given = TestDriver(streams)
    given.pipe("t", "k", {"a": 1})
    with pytest.raises(SemelError, match="both sides have a field a"):
        given.pipe("in", "k", {"a": 2})


def test_sessions_by_the_column_and_by_functions_are_the_same(streams: Streams) -> None:
    sessions = streams.stream("in").group_by_key().windowed_by(session(10, grace=50))
    sessions.aggregate(n=count(), total=sum("a")).to_topic("columns")
    sessions.aggregate(
        lambda: {"n": 0, "total": 0},
        lambda value, so_far: {"n": so_far["n"] + 1, "total": so_far["total"] + value["a"]},
        merger=lambda one, other: {name: one[name] + other[name] for name in one},
    ).to_topic("functions")
    given = TestDriver(streams)
    for time in (0, 30, 15, 7, 22, 100):
        given.pipe("in", "k", {"a": time}, time)
    assert given.read("columns") == given.read("functions") != []


@pytest.mark.parametrize("windows", [tumbling(50, grace=0), session(50, grace=0)])
@pytest.mark.parametrize(
    ("aggregate", "values", "result"),
    [
        (sum("a > 1"), [2, 3, 0], 2),
        (avg("a > 1"), [2, 3, 0, 0], 0.5),
        (sum("a"), [Decimal("9" * 29), Decimal("0.000000001")], Decimal("9" * 29 + ".000000001")),
        (least("a"), [2.0, float("nan"), 1.5], 1.5),
        (greatest("a"), [float("nan"), 2.0, 1.5], 2.0),
        (sum("a"), ["x", "y"], r"KSTREAM-AGGREGATE-\d+: sum\(\) needs numbers"),
        (sum("a"), [2**62, 2**62], r"KSTREAM-AGGREGATE-\d+: overflow"),
    ],
)
def test_aggregates_of_all_windows_are_the_same(
    aggregate: Aggregate, values: list[Any], result: Any, windows: Any, streams: Streams
) -> None:
    """Those of sessions go through records one by one."""
    given = driver(streams.stream("in").group_by_key().windowed_by(windows).aggregate(of=aggregate))
    records = [Record("k", {"a": value}, time) for time, value in enumerate(values)]
    if isinstance(result, str):
        with pytest.raises(SemelError, match=result):
            given.pipe_all({"in": records})
    else:
        given.pipe_all({"in": records})
        assert given.read("out")[-1].value == {"of": result}


def test_no_function_may_return_numbers_of_more_than_64_bits(streams: Streams) -> None:
    streams.stream("in").map_values(lambda value: 2 ** value["a"]).to_topic("out")
    with pytest.raises(SemelError, match=r"KSTREAM-MAPVALUES-\d+: overflow"):
        TestDriver(streams).pipe("in", "k", {"a": 63})


def test_stores_show_what_they_mean(streams: Streams) -> None:
    orders = streams.stream("in").group_by_key()
    orders.aggregate(n=count(), mean=avg("a"), store="all")
    orders.windowed_by(tumbling(10, grace=0), retention=50).count(store="minutes")
    orders.windowed_by(session(10, grace=0)).count(store="sessions")
    orders.windowed_by(sliding(10, grace=0)).count(store="near")
    orders.windowed_by(sliding(10, grace=0), emit="final").count()
    streams.table("t", store="latest")
    given = TestDriver(streams)
    given.pipe("in", "k", {"a": 1}, 15)
    given.pipe("in", "k", {"a": 2}, 17)
    given.pipe("t", {"a": 1, "b": "x"}, "v", 9)
    assert given.entries("all") == [Record("k", {"n": 2, "mean": 1.5}, 17)]
    assert given.entries("latest") == [Record({"a": 1, "b": "x"}, "v", 9)]
    (minute,) = given.entries("minutes")
    assert (minute.key["key"], minute.value, minute.timestamp) == ("k", 2, 17)
    assert minute.key["window_end"] - minute.key["window_start"] == timedelta(milliseconds=10)
    (whole,) = given.entries("sessions")
    assert whole.key["window_end"] - whole.key["window_start"] == timedelta(milliseconds=2)
    assert sorted(window.value for window in given.entries("near")) == [1, 1, 2]
    with pytest.raises(ConfigError, match="no store"):
        given.entries("KSTREAM-AGGREGATE-FINAL-STORE-0000000014")


def test_records_of_several_topics_go_in_the_order_of_their_times(streams: Streams) -> None:
    streams.stream("in").left_join(streams.table("t"), "other.a").to_topic("out")
    given = TestDriver(streams)
    given.pipe_all(
        {
            "in": [Record("k", {"b": n}, time) for n, time in enumerate((5, 3, 20, 30))],
            "t": [Record("k", {"a": time}, time) for time in (4, 10, 29, 31)],
        }
    )
    # The record of the time 3 waits behind that of the time 5.
    assert [record.value for record in given.read("out")] == [4, 4, 10, 29]


@pytest.mark.parametrize("windows", ["session", "sliding", "join"])
def test_a_time_far_ahead_costs_nothing(windows: str, streams: Streams) -> None:
    stream = streams.stream("in")
    if windows == "join":
        stream.left_join(stream, "this.a", windows=within(20, grace=0)).to_topic("out")
    else:
        of = session(20, grace=0) if windows == "session" else sliding(20, grace=0)
        stream.group_by_key().windowed_by(of).max("a").to_topic("out")
    given = TestDriver(streams)
    far = 1_700_000_000_000_000  # microseconds, where milliseconds are meant
    for times in ((5, far, 7), (8, far + 1)):
        given.pipe_all({"in": [Record("k", {"a": time}, time) for time in times]})
    (*_, last) = (value for part in given.read_columns("out") for value in part.values.to_pylist())
    assert last == far + 1


def test_joins_store_nothing_that_is_too_late(streams: Streams) -> None:
    streams.stream("a").join(streams.stream("b"), windows=within(5, grace=0)).to_topic("out")
    (sub,) = streams.topology().subs
    stores = {spec.name: MemoryStore() for spec in sub.stores}
    processor = sub.processor(stores)
    for time in (100_000_000, *range(10)):
        record = pa.array(["k"]), pa.array([{"a": time}]), pa.array([time])
        processor.process({"a": Records(*record)})
    (left, *_) = stores.values()
    assert len(list(left.range(FIRST, None))) == 1


def test_a_record_without_a_time_does_not_wait_for_ever(streams: Streams) -> None:
    left, right = streams.stream("l"), streams.stream("r")
    left.left_join(right, windows=within(10, grace=0)).to_topic("out")
    driver = TestDriver(streams)
    driver.pipe("l", "a", {"v": 1}, timestamp=-1)
    driver.pipe("l", "b", {"v": 2}, timestamp=100)
    assert [(record.key, record.timestamp) for record in driver.read("out")] == [("a", -1)]


def test_what_one_step_does_not_delete_the_next_ones_do() -> None:
    store = MemoryStore()
    times = [0, 1, 1, 1, 5, 9]
    names = [time_bytes(time) + bytes([n]) for n, time in enumerate(times)]
    store.put(pa.array(names, pa.binary()), pa.array(names, pa.binary()))
    left = []
    for _ in range(4):
        expire(store, 9, most=2)
        left.append([n for n, name in enumerate(names) if name in dict(store.range(FIRST, None))])
    assert left == [[2, 3, 4, 5], [4, 5], [5], [5]]


def test_a_step_reads_once_what_waits_in_a_join(streams: Streams) -> None:
    """However many of its records let others go on alone."""

    class Counted(MemoryStore):
        scans = 0

        def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
            self.scans += start == FIRST
            return super().range(start, stop)

    near = within(5, grace=0)
    streams.stream("a").outer_join(streams.stream("b"), "this.a", windows=near).to_topic("out")
    (sub,) = streams.topology().subs
    stores = {spec.name: Counted() for spec in sub.stores}
    times = range(0, 600, 3)
    keys = pa.array([f"k{time}" for time in times])
    processor = sub.processor(stores)
    half = Records(keys, pa.array([{"a": 1}] * len(times)), pa.array(times))
    processor.process(
        {"a": half, "b": half.holding(keys=pc.binary_join_element_wise("b", keys, ""))}
    )
    (alone,) = processor.finish().values()
    assert sum_of(map(len, alone)) > 300
    assert [store.scans for store in stores.values()][2] == 1


def test_values_of_several_types_are_json_together(streams: Streams) -> None:
    streams.table("in").join(streams.table("t")).to_topic("out")
    given = TestDriver(streams)
    for key, value in (("a", 2**53 + 1), ("b", 1.5), ("c", "x"), ("d", {"e": [1]})):
        given.pipe("t", key, {"zip": value})
    given.read("out")
    given.pipe_all({"in": [Record(key, {"f": 1}) for key in "abcd"]})
    zips = [record.value["zip"] for record in given.read("out")]
    assert zips == ["9007199254740993", "1.5", '"x"', '{"e":[1]}']


def test_functions_take_values_as_if_they_had_come_alone(streams: Streams) -> None:
    """What is of several types in a step is JSON there."""

    def seen(key: Any, value: Any, context: Context) -> None:
        before = context.store("s").get("all")
        context.store("s").put("all", value["a"])
        context.forward(key, [repr(key), repr(value["a"]), repr(before)])

    stream = streams.stream("in")
    stream.process(seen, ["s"]).to_topic("seen")
    stream.map_values(lambda value: value["a"]).to_topic("out")
    given, mixed = TestDriver(streams), (1, "x", 2)
    documents = concatenated([pa.array([value]) for value in mixed])
    values = pa.StructArray.from_arrays([documents], names=["a"])
    given.pipe_all({"in": Records(documents, values, pa.array([0, 0, 0]))})
    assert [record.value for record in given.read("seen")] == [
        ["1", "1", "None"],
        ["'x'", "'x'", "1"],
        ["2", "2", "'x'"],
    ]
    (made,) = given.read_columns("out")
    assert made.values.equals(documents)


def test_functions_take_no_times_that_python_has_not(streams: Streams) -> None:
    counts = streams.stream("in").group_by_key().windowed_by(tumbling(10, grace=0)).count()
    counts.to_stream().map_values(lambda key, value: value).to_topic("out")
    with pytest.raises(
        SemelError, match=r"KSTREAM-MAPVALUES-\d+: a function of Python cannot take"
    ):
        TestDriver(streams).pipe("in", "k", {"a": 1}, 1_700_000_000_000_000)


def test_answers_find_who_asked_whatever_comes_along(streams: Streams) -> None:
    orders = streams.table("orders")
    orders.join(streams.table("t"), "other.city", foreign_key="of").to_topic("out")
    given = TestDriver(streams)
    given.pipe("orders", "one", {"of": "ann", "amount": 5})
    given.pipe("orders", "two", {"of": "bob", "amount": 7.5, "note": "x"})
    given.pipe_all({"t": [Record("ann", {"city": "Oslo"}), Record("bob", {"city": "Rome"})]})
    assert sorted(record.value for record in given.read("out")) == ["Oslo", "Rome"]


def test_a_key_with_windows_cannot_get_others(streams: Streams) -> None:
    first = streams.stream("in").group_by_key().windowed_by(tumbling(10, grace=0)).count()
    again = first.to_stream().group_by_key().windowed_by(tumbling(100, grace=0))
    with pytest.raises(SemelError, match="have window_start or window_end already"):
        driver(again.count()).pipe("in", "k", {"a": 1}, 5)


def test_no_store_has_the_key_none(streams: Streams) -> None:
    stream = streams.stream("in").process(
        lambda key, value, context: context.store("s").put(key, value), ["s"]
    )
    stream.to_topic("out")
    with pytest.raises(SemelError, match="None cannot be the key"):
        TestDriver(streams).pipe("in", None, {"a": 1})
