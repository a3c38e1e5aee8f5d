"""The same topologies in Kafka Streams' test driver and in semel's: after each record, both have
written the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from semel.streams import (
    Context,
    KStream,
    KTable,
    Streams,
    hopping,
    session,
    sliding,
    tumbling,
    within,
)
from semel.streams.testing import TestDriver
from semel_lab.jars import KAFKA_STREAMS
from tests.processes import run_java

pytestmark = pytest.mark.integration
NULL, DAY = "\\N", 86_400_000
OUTPUTS = ("out", "large", "x", "rest")
Input = tuple[str, str | None, str | None, int]
Build = Callable[[Streams], None]
TEXT = "{0}.c || ':' || {0}.a"
BOTH = f"coalesce({TEXT.format('this')}, 'null') || '+' || coalesce({TEXT.format('other')}, 'null')"
TOPOLOGIES: dict[str, Build] = {}


def left(streams: Streams) -> KStream:
    return streams.stream("left")


def right(streams: Streams) -> KStream:
    return streams.stream("right")


def there(streams: Streams) -> KStream:
    return left(streams).filter("value IS NOT NULL")


def texts(streams: Streams) -> KStream:
    return there(streams).map_values(TEXT.format("value"))


def table(streams: Streams, topic: str = "left") -> KTable:
    return streams.table(topic)


def text(value: Any) -> str:
    return "null" if value is None else f"{value['c']}:{value['a']}"


def both(one: Any, other: Any) -> str:
    """Joined by Python, whatever the sides are."""
    return "+".join(
        text(side) if isinstance(side, dict) or side is None else str(side) for side in (one, other)
    )


def stateless() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    yield "filter", lambda s: left(s).filter("a > 4")
    yield "filter_not", lambda s: left(s).filter_not("a > 4")
    yield "map", lambda s: there(s).map(key="c", value="coalesce(key, 'null') || ':' || a * 2")
    yield "map_values", lambda s: there(s).map_values({"c": "c", "a": "a + 1"})
    yield (
        "flat_map",
        lambda s: there(s).flat_map(
            lambda _, v: [(v["c"], {"c": v["c"], "a": n}) for n in range(v["a"] % 4)]
        ),
    )
    yield "flat_map_values", lambda s: there(s).flat_map_values("[c, c || '!']")
    yield "select_key", lambda s: there(s).select_key("c")
    yield "merge", lambda s: left(s).merge(right(s))
    yield "to_table", lambda s: left(s).to_table().filter("a > 4")


def aggregates() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    yield "count", lambda s: left(s).group_by_key().count()
    yield "group_by", lambda s: there(s).group_by("c").count()
    yield "reduce", lambda s: texts(s).group_by_key().reduce("{}+{}".format)
    yield "aggregate", lambda s: left(s).group_by_key().sum("a")
    yield (
        "aggregate to nothing",
        lambda s: (
            left(s)
            .group_by_key()
            .aggregate(lambda: 0, lambda v, total: None if v["a"] == 7 else total + v["a"])
        ),
    )
    yield "min", lambda s: left(s).group_by_key().min("a")
    yield "table", table
    yield "table filter", lambda s: table(s).filter("a > 4")
    yield "table map_values", lambda s: table(s).map_values("c")
    yield "table group_by count", lambda s: table(s).group_by("c").count()
    yield "table group_by sum", lambda s: table(s).group_by("c").sum("a")
    yield (
        "table group_by reduce",
        lambda s: (
            table(s)
            .group_by("c", TEXT.format("value"))
            .reduce(lambda one, other: f"{one}+{other}", lambda one, other: f"{one}-{other}")
        ),
    )
    yield "suppress time", lambda s: left(s).group_by_key().count().suppress(15)
    yield "suppress most", lambda s: left(s).group_by_key().count().suppress(40, max_records=2)


def windowed() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    for name, windows in (
        ("tumbling", tumbling(10, grace=0)),
        ("tumbling grace", tumbling(10, grace=7)),
        ("hopping", hopping(10, advance=3, grace=5)),
    ):
        yield name, lambda s, w=windows: left(s).group_by_key().windowed_by(w).count()
        yield f"{name} sum", lambda s, w=windows: there(s).group_by_key().windowed_by(w).sum("a")
        yield (
            f"{name} final",
            lambda s, w=windows: (
                left(s).group_by_key().windowed_by(w, emit="final", retention=DAY).count()
            ),
        )
        yield (
            f"{name} suppress",
            lambda s, w=windows: left(s).group_by_key().windowed_by(w).count().suppress(),
        )


def sessions() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    for name, windows in (
        ("session", session(5, grace=0)),
        ("session grace", session(6, grace=12)),
    ):
        yield name, lambda s, w=windows: left(s).group_by_key().windowed_by(w).count()
        yield (
            f"{name} reduce",
            lambda s, w=windows: texts(s).group_by_key().windowed_by(w).reduce("{}+{}".format),
        )
        yield (
            f"{name} aggregate",
            lambda s, w=windows: (
                there(s)
                .group_by_key()
                .windowed_by(w)
                .aggregate(
                    lambda: 0,
                    lambda v, total: total + v["a"],
                    merger=lambda one, other: one + other,
                )
            ),
        )
        yield (
            f"{name} final",
            lambda s, w=windows: (
                left(s).group_by_key().windowed_by(w, emit="final", retention=DAY).count()
            ),
        )
        yield (
            f"{name} suppress",
            lambda s, w=windows: left(s).group_by_key().windowed_by(w).count().suppress(),
        )


def slidings() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    for name, windows in (
        ("sliding", sliding(10, grace=0)),
        ("sliding grace", sliding(8, grace=20)),
    ):
        yield name, lambda s, w=windows: left(s).group_by_key().windowed_by(w).count()
        yield (
            f"{name} reduce",
            lambda s, w=windows: texts(s).group_by_key().windowed_by(w).reduce("{}+{}".format),
        )
        yield (
            f"{name} final",
            lambda s, w=windows: (
                left(s).group_by_key().windowed_by(w, emit="final", retention=DAY).count()
            ),
        )


def stream_joins() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    for name, windows in (
        ("streams", within(10, grace=0)),
        ("streams grace", within(6, grace=9)),
        ("streams before", within(0, before=12, grace=4)),
        ("streams after", within(3, after=15, grace=2)),
    ):
        yield f"{name} inner", lambda s, w=windows: left(s).join(right(s), BOTH, windows=w)
        yield f"{name} left", lambda s, w=windows: left(s).left_join(right(s), BOTH, windows=w)
        yield f"{name} outer", lambda s, w=windows: left(s).outer_join(right(s), BOTH, windows=w)
    yield "streams self", lambda s: left(s).join(left(s), BOTH, windows=within(5, grace=5))


def table_joins() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    yield "stream table inner", lambda s: left(s).join(table(s, "right"), BOTH)
    yield "stream table left", lambda s: left(s).left_join(table(s, "right"), BOTH)
    yield "stream table rekeyed", lambda s: there(s).select_key("c").join(table(s, "right"), BOTH)
    yield (
        "stream filtered table",
        lambda s: left(s).left_join(table(s, "right").filter("a > 4"), BOTH),
    )
    yield "stream counted table", lambda s: left(s).left_join(right(s).group_by_key().count(), both)
    yield "numbered", lambda s: left(s).join(left(s).group_by_key().count(), both)
    yield "tables inner", lambda s: table(s).join(table(s, "right"), BOTH)
    yield "tables left", lambda s: table(s).left_join(table(s, "right"), BOTH)
    yield "tables outer", lambda s: table(s).outer_join(table(s, "right"), BOTH)
    yield (
        "tables of tables",
        lambda s: (
            table(s)
            .filter("a > 2")
            .left_join(table(s, "right").map_values("c"), both)
            .outer_join(table(s, "third"), both)
        ),
    )
    yield "foreign inner", lambda s: table(s).join(table(s, "right"), BOTH, foreign_key="c")
    yield "foreign left", lambda s: table(s).left_join(table(s, "right"), BOTH, foreign_key="c")
    yield (
        "foreign some",
        lambda s: table(s).join(table(s, "right"), BOTH, foreign_key="CASE WHEN a <= 6 THEN c END"),
    )
    yield "global inner", lambda s: left(s).join(s.global_table("right"), BOTH, key="c")
    yield (
        "global left",
        lambda s: left(s).left_join(
            s.global_table("right"), BOTH, key="CASE WHEN a <= 6 THEN c END"
        ),
    )


def counting(key: Any, value: Any, context: Context) -> None:
    seen, name = context.store("seen"), "none" if key is None else key
    now = (seen.get(name) or 0) + 1
    if value is None:
        seen.delete(name)
    else:
        seen.put(name, now)
        context.forward(key, f"{name} {now}")


def processed() -> Iterator[tuple[str, Callable[[Streams], KStream | KTable]]]:
    yield (
        "process",
        lambda s: left(s).process(
            counting,
            ["seen"],
            timers={10: lambda time, context: context.forward("timer", f"at {time}")},
        ),
    )


FAMILIES = {
    "stateless": stateless,
    "aggregates": aggregates,
    "windows": windowed,
    "sessions": sessions,
    "slidings": slidings,
    "stream joins": stream_joins,
    "table joins": table_joins,
    "process": processed,
}
BY_VALUE = ("foreign", "global", "stream table rekeyed")
"""Topologies that find records of the right side by a value of the left."""
UNORDERED = ("final", "suppress", "streams", "foreign")
"""What one record brings forth here, Kafka Streams has in the order of its stores' bytes."""


def split(streams: Streams) -> None:
    parts = left(streams).split().branch("a > 5", "large").branch("c = 'x'", "x")
    for name, stream in parts.default_branch("rest").items():
        stream.to_topic(name)


def build(family: str) -> dict[str, Build]:
    def to_out(make: Callable[[Streams], KStream | KTable]) -> Build:
        return lambda streams: make(streams).to_topic("out")

    found = {name: to_out(make) for name, make in FAMILIES[family]()}
    return found | ({"split": split} if family == "stateless" else {})


def records(draw: random.Random, name: str, number: int) -> list[Input]:
    """Records of keys and times that go forth and back, with nulls."""
    now, made = draw.randint(0, 40), []
    by_value = name.startswith(BY_VALUE)
    for _ in range(number):
        now += draw.choice((0, 0, 1, 1, 2, 3, 5, 8))
        if draw.random() < 0.02:
            now += draw.choice((60, 1_000, 100_000))
        late = draw.randint(0, 30) if draw.random() < 0.3 else 0
        topic = draw.choice(("left", "right", "third")[: 3 if name == "tables of tables" else 2])
        if not name.startswith(TWO) or name == "streams self":
            topic = "left"
        keys = "xyz" if by_value and topic == "right" else "abc"
        key = None if draw.random() < 0.04 else draw.choice(keys)
        value = f"{draw.choice('xyz')}:{draw.randint(0, 9)}" if draw.random() > 0.12 else None
        made.append((topic, key, value, max(0, now - late)))
    return made


TWO = ("merge", "streams", "stream ", "tables", "foreign", "global")


def by_java(cases: Sequence[tuple[str, Sequence[Input]]]) -> Iterator[list[tuple[str, ...]]]:
    lines = []
    for name, given in cases:
        lines.append(name)
        for topic, key, value, time in given:
            lines.append("\t".join([topic, key or NULL, value or NULL, str(time)]))
    made: list[tuple[str, ...]] = []
    program = Path(__file__).with_name("Reference.java")
    for line in run_java(program, "\n".join(lines), KAFKA_STREAMS):
        if line == ".":
            yield made
            made = []
        else:
            made.append(tuple(line.split("\t")))


def milliseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def shown(thing: Any) -> str:
    match thing:
        case None:
            return NULL
        case {"key": key, "window_start": start, "window_end": end}:
            return f"{key}@{milliseconds(start)}/{milliseconds(end)}"
        case {"c": _, "a": _}:
            return text(thing)
    return str(thing)


def by_semel(build: Build, given: Sequence[Input]) -> Iterator[list[tuple[str, ...]]]:
    streams = Streams({"name": "test"})
    build(streams)
    driver = TestDriver(streams)
    for topic, key, value, time in given:
        parts = None if value is None else value.split(":")
        driver.pipe(topic, key, parts and {"c": parts[0], "a": int(parts[1])}, time)
        yield [
            (output, shown(record.key), shown(record.value), str(record.timestamp))
            for output in OUTPUTS
            for record in driver.read(output)
        ]


def compare(topologies: Mapping[str, Build], seed: int, number: int) -> None:
    draw = random.Random(seed)
    check(topologies, [(name, records(draw, name, number)) for name in topologies])


def check(topologies: Mapping[str, Build], cases: Sequence[tuple[str, Sequence[Input]]]) -> None:
    expected = by_java(cases)
    for name, given in cases:
        for place, found in enumerate(by_semel(topologies[name], given)):
            wanted = next(expected)
            in_order = sorted if any(word in name for word in UNORDERED) else list
            assert in_order(found) == in_order(wanted), (
                name,
                place,
                given[: place + 1][-12:],
            )


def test_a_topology_of_each_family_does_what_kafka_streams_does() -> None:
    chosen = ("table filter", "table group_by sum", "hopping", "session grace final")
    chosen += (
        "sliding grace",
        "streams grace outer",
        "tables left",
        "foreign left",
        "numbered",
    )
    everything = {name: make for family in FAMILIES for name, make in build(family).items()}
    compare({name: everything[name] for name in chosen}, 1, 60)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_all_topologies_of_a_family_do_what_kafka_streams_does(family: str) -> None:
    for seed in range(2):
        compare(build(family), seed, 200)


SEQUENCE = "l0 r0 lA ra lB rb l0 r0 lC rc r0 l0 r0 rd lD l0 lE re"
"""One key on both sides, as in the join tests of Kafka Streams: values, and 0 for a null."""


@pytest.mark.long
@pytest.mark.parametrize("times", [range(1, 19), range(40, 4, -2), [7, 3, 9] * 6])
def test_joins_of_one_key_do_what_kafka_streams_does(times: Sequence[int]) -> None:
    given = [
        (
            {"l": "left", "r": "right"}[side],
            "a",
            None if letter == "0" else f"a:{ord(letter) % 32}",
            time,
        )
        for (side, letter), time in zip(SEQUENCE.split(), times, strict=True)
    ]
    joins = build("stream joins") | build("table joins")
    del joins["streams self"], joins["numbered"]  # they read one topic
    check(joins, [(name, given) for name in joins])
