"""What a topology writes does not depend on how its records are cut into steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from semel.streams import Streams
from semel.streams.testing import Record, TestDriver
from tests.streams.test_beside_kafka_streams import (
    FAMILIES,
    OUTPUTS,
    Build,
    Input,
    build,
    records,
    shown,
)

MERGED = ("count", "group_by", "reduce", "aggregate", "min", "tumbling", "hopping", "suppress")
"""Topologies whose aggregates give one change for each key of a step."""
ALONE = ("foreign inner", "foreign left", "foreign some", "stream table rekeyed", "suppress time")
ALONE += ("suppress most", "global inner", "global left")
"""Those that read what they write to a topic in a later step; those that hold back the first of
several changes, of which a step gives one; and those whose tables follow no order."""

Written = tuple[str, str, str, int]


def written(make: Build, given: Sequence[Input], sizes: Sequence[int]) -> list[Written]:
    """What is written if records are processed in steps of these sizes."""
    streams = Streams({"name": "test"})
    make(streams)
    driver, place, made = TestDriver(streams), 0, []
    for size in sizes:
        step: dict[str, list[Record]] = {}
        for topic, key, value, time in given[place : place + size]:
            parts = None if value is None else value.split(":")
            fields = parts and {"c": parts[0], "a": int(parts[1])}
            step.setdefault(topic, []).append(Record(key, fields, time))
        place += size
        driver.pipe_all(step)
        made += [
            (output, shown(record.key), shown(record.value), record.timestamp)
            for output in OUTPUTS
            for record in driver.read(output)
        ]
    return made


def in_turn(given: Sequence[Input], sizes: Sequence[int]) -> list[Input]:
    """Records in the order in which steps process them: the topic whose next is the oldest goes
    first."""
    made, place = [], 0
    for size in sizes:
        latest: dict[str, int] = {}
        keyed = []
        for row, record in enumerate(given[place : place + size]):
            topic, *_, time = record
            latest[topic] = max(latest.get(topic, 0), time)
            keyed.append((latest[topic], topic, row, record))
        made += [record for *_, record in sorted(keyed, key=lambda k: k[:3])]
        place += size
    return made


EVERYTHING = {name: make for family in FAMILIES for name, make in build(family).items()}


def compare(name: str, seed: int) -> None:
    draw = random.Random(seed)
    given = records(draw, name, 120)
    sizes, left = [], len(given)
    while left:
        sizes.append(min(left, draw.choice((1, 2, 7, 30))))
        left -= sizes[-1]
    at_once = written(EVERYTHING[name], given, sizes)
    one_by_one = written(EVERYTHING[name], in_turn(given, sizes), [1] * len(given))
    if any(word in name for word in MERGED) and "final" not in name:
        at_once, one_by_one = (
            sorted({w[:2]: w for w in m}.values()) for m in (at_once, one_by_one)
        )
    assert sorted(at_once) == sorted(one_by_one), (name, seed)


@pytest.mark.parametrize(
    "name", ["filter", "tumbling", "session grace", "tables outer", "stream counted table"]
)
def test_steps_of_many_records_give_what_single_records_give(name: str) -> None:
    compare(name, 3)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in EVERYTHING if n not in ALONE])
def test_steps_of_any_topology_give_what_single_records_give(name: str) -> None:
    for seed in range(2):
        compare(name, seed)
