"""The bounded direct engine with catalogs behind a wire, REST and Glue: nothing lost or twice."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from semel import failpoints
from semel.engine import triggers
from semel.errors import Fenced
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import (
    PATIENCE,
    assert_promise_kept,
    assert_told_twice,
    caught_up,
    drive,
    driving,
    records,
    wait_until,
)
from tests.faults import Faults
from tests.s3 import Bucket, glue

pytestmark = pytest.mark.integration

COUNT = 300
PREFIX = "iceberg.catalog."
EVOLVES = {"iceberg.tables.evolve-schema-enabled": "true"}
Behind = tuple[Callable[..., Config], Faults]


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers of few records are spread over the tasks too."""
    monkeypatch.setattr(triggers, "_SHARE", 10)


@pytest.fixture(params=["rest", "glue"])
def behind(request: pytest.FixtureRequest, warehouse: Configure) -> Iterator[Behind]:
    """A connector to tables of a catalog behind a wire, and what may happen there."""
    rest = request.param == "rest"
    faults: Faults = request.getfixturevalue("faulty_rest" if rest else "faulty_aws")
    mine = {"type": "rest", "uri": faults.url}
    if not rest:
        mine = glue(Bucket(faults.backend), faults.url)
    keys: dict[str, str | None] = {f"{PREFIX}uri": None, f"{PREFIX}warehouse": None}
    keys |= {f"{PREFIX}{name}": value for name, value in mine.items()}
    keys["iceberg.tables"] = f"n{uuid.uuid4().hex[:8]}.t"

    def make(topics: str, more: dict[str, str] | None = None) -> Config:
        return warehouse(topics, {**keys, **(more or {})})

    yield make, faults
    faults.clear()


def table(config: Config) -> Table:
    keys = {k.removeprefix(PREFIX): v for k, v in config.items() if k.startswith(PREFIX)}
    return load_catalog("iceberg", **keys).load_table(config["iceberg.tables"])


def ids(config: Config) -> list[int]:
    found: list[int] = table(config).scan().to_arrow().column("id").to_pylist()
    return sorted(found)


def assert_nothing_lost_nothing_twice(config: Config, expected: Iterable[int]) -> None:
    """Told twice: by the audit, and straight from the table."""
    assert_told_twice(config, ids(config), expected)


@pytest.mark.parametrize("place", ["sink.before_commit", "sink.after_commit"])
def test_killed_at(
    place: str, topic: MakeTopic, produce: Produce, behind: Behind, points: Path
) -> None:
    source = topic(partitions=2)
    produce(source, records(COUNT))
    config = behind[0](source)
    failpoints.arm(points, place, "kill-worker", skip=1)
    assert drive(config, points) == -9
    caught_up(config)
    assert (points / "fired.log").read_text().startswith(f"{place} kill-worker")
    assert_promise_kept(config, points, ids(config), COUNT)


def test_of_two_drivers_one_is_fenced_and_nothing_is_doubled(
    topic: MakeTopic, produce: Produce, behind: Behind, start: Start
) -> None:
    source = topic(partitions=2)
    produce(source, records(500))
    config = behind[0](source, {"maxOffsetsPerTrigger": "100"})
    fenced = 0
    for running in [start(config, until_caught_up=True) for _ in range(2)]:
        try:
            running.wait()
        except Fenced as error:
            fenced += 1
            assert "the ledger stands at" in str(error)
    assert fenced < 2
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(500))


def test_a_driver_that_was_frozen_in_a_commit_is_fenced_when_it_wakes_up(
    topic: MakeTopic, produce: Produce, behind: Behind, points: Path
) -> None:
    source = topic(partitions=2)
    produce(source, records(COUNT))
    config = behind[0](source)
    failpoints.arm(points, "sink.before_commit", "freeze", skip=1)
    zombie = driving(config, points)
    assert zombie.pid is not None
    wait_until((points / f"frozen.{zombie.pid}").exists)
    caught_up(config)
    location = table(config).metadata_location
    failpoints.thaw(points, zombie.pid)
    zombie.join(PATIENCE)
    assert zombie.exitcode == Fenced.exit_code
    assert table(config).metadata_location == location
    assert_nothing_lost_nothing_twice(config, range(COUNT))


def test_a_catalog_that_loses_answers_and_columns_that_appear(
    topic: MakeTopic, produce: Produce, behind: Behind
) -> None:
    source = topic(partitions=2)
    produce(source, records(100))
    make, faults = behind
    config = make(source, {**EVOLVES, "maxOffsetsPerTrigger": "50"})
    caught_up(config)
    rest = config[f"{PREFIX}type"] == "rest"
    part = "/tables/t\n" if rest else "AWSGlue.UpdateTable"
    befell = [faults.come(kind, "POST", part) for kind in ("lost", "cut", "twice", "refused")]
    more = [json.dumps({"id": i, "color": "red"}).encode() for i in range(100, COUNT)]
    produce(source, more)
    caught_up(config)
    assert all(fault.befell for fault in befell)
    assert_nothing_lost_nothing_twice(config, range(COUNT))
    colors = table(config).scan().to_arrow().column("color").to_pylist()
    assert colors.count("red") == len(more)
