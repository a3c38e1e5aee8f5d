"""Topologies that count, at work: the results must be those of all records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from semel.audit import audit
from semel.audit.report import AuditReport
from semel.driver.planning import plan
from semel.streams import Streams
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import LocalSpark, Running, sql
from tests.engine.streams.topologies import counting, distributing

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


TOPOLOGIES = {"keys": (counting, by_key), "repartition": (distributing, by_color)}
PLACES = (
    "task.after_poll",
    "task.after_convert",
    "streams.after_changes",
    "sink.after_positions",
    "sink.before_commit",
    "sink.after_commit",
    "streams.before_kafka",
    "streams.after_kafka",
    "streams.after_state",
    "task.before_publish",
)


@dataclass
class App:
    """A topology over a topic of two partitions."""

    topology: Callable[[Config, str], Streams]
    by: Callable[[int], str]
    config: Config
    source: str
    produce: Produce
    start: Start
    sent: int = 0

    def feed(self, count: int) -> None:
        keys = [by_key(i) for i in range(self.sent, self.sent + count)]
        self.produce(self.source, values(count, self.sent), keys)
        self.sent += count

    def run(self, spark: LocalSpark | None = None) -> Running:
        made = self.topology(self.config, self.source)
        return self.start(self.config, made.topology(), spark=spark)

    def audit(self) -> AuditReport:
        planned = plan(self.config, self.topology(self.config, self.source).topology())
        return audit(self.config, planned=planned)

    @property
    def is_right(self) -> bool:
        return results(self.config) == expected(self.sent, self.by)

    def until_right(self, running: Running) -> None:
        """Wait until the results are those of all records, and stop."""
        running.until(lambda _: self.is_right)
        running.stop()
        assert self.is_right


@pytest.fixture
def app(
    request: pytest.FixtureRequest,
    stream: Configure,
    topic: MakeTopic,
    produce: Produce,
    start: Start,
) -> App:
    topology, by = TOPOLOGIES[getattr(request, "param", "repartition")]
    return App(topology, by, stream(None), topic(partitions=2), produce, start)
