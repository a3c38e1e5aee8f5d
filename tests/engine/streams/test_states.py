"""A topology's results, state and positions move together, whenever a process dies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.streams import Streams
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import sql
from tests.engine.streams.topologies import counting, distributing

pytestmark = pytest.mark.integration

COLORS = ("blue", "green", "red", "white", "yellow")


def values(count: int, start: int = 0) -> list[bytes]:
    return [
        json.dumps({"id": i, "color": COLORS[i * i % 5]}).encode()
        for i in range(start, start + count)
    ]


def expected(count: int, by: Callable[[int], str]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for i in range(count):
        n, total = found[by(i)]
        found[by(i)] = n + 1, total + i
    return dict(found)


def by_key(i: int) -> str:
    return f"k{i % 7}"


def by_color(i: int) -> str:
    return COLORS[i * i % 5]


def results(config: Config) -> dict[str, tuple[int, int]]:
    try:
        rows = sql(config["connection.url"], "SELECT key, count, total FROM counts")
    except Exception:
        return {}
    return {key: (n, total) for key, n, total in rows}


@pytest.fixture
def stream(configure: Configure, tmp_path: Path) -> Configure:
    def make(topics: str | None, keys: dict[str, str] | None = None) -> Config:
        return configure(
            None,
            {
                "provenance": None,
                "state.dir": str(tmp_path / "state"),
                "consumer.override.max.poll.records": "40",
                "tasks.max": "2",
                **(keys or {}),
            },
        )

    return make


@pytest.mark.parametrize(
    ("topology", "by"), [(counting, by_key), (distributing, by_color)], ids=["keys", "repartition"]
)
def test_results_are_those_of_all_records(
    topology: Callable[[Config, str], Streams],
    by: Callable[[int], str],
    stream: Configure,
    topic: MakeTopic,
    produce: Produce,
    start: Start,
) -> None:
    source = topic(partitions=2)
    produce(source, values(300), [by_key(i) for i in range(300)])
    config = stream(None)
    running = start(config, topology(config, source).topology())
    running.until(lambda _: results(config) == expected(300, by))
    running.stop()
    produce(source, values(300, 300), [by_key(i) for i in range(300, 600)])
    running = start(config, topology(config, source).topology())
    running.until(lambda _: results(config) == expected(600, by))
