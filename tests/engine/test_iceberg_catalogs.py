"""The bounded direct engine with each kind of catalog, two of them behind a wire: nothing lost,
nothing twice, whoever dies, freezes or meets a twin."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.core import failpoints
from semel.core.errors import Fenced
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import (
    assert_promise_kept,
    caught_up,
    drive,
    driving,
    records,
    some,
    until_one_is_fenced,
    wait_until,
)
from tests.engine.test_iceberg import COUNT, assert_nothing_lost_nothing_twice, ids, rows, table
from tests.faults import Faults
from tests.hivemetastore import PATIENT, HiveMetastore
from tests.patience import PATIENCE
from tests.s3 import Bucket, glue

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.usefixtures("small_shares"),
]

PREFIX = "iceberg.catalog."
EVOLVES = {"iceberg.tables.evolve-schema-enabled": "true"}
Behind = tuple[Callable[..., Config], Faults]


def remote(kind: str, request: pytest.FixtureRequest, warehouse: Configure) -> Behind:
    """A connector to tables of a catalog behind a wire, and what may happen there."""
    faults: Faults = request.getfixturevalue({"rest": "faulty_rest", "glue": "faulty_aws"}[kind])
    mine = {"type": "rest", "uri": faults.url}
    if kind == "glue":
        mine = glue(Bucket(faults.backend), faults.url)
    keys: dict[str, str | None] = {f"{PREFIX}uri": None, f"{PREFIX}warehouse": None}
    keys |= {f"{PREFIX}{name}": value for name, value in mine.items()}
    keys["iceberg.tables"] = f"n{uuid.uuid4().hex[:8]}.t"

    def make(topics: str, more: dict[str, str] | None = None) -> Config:
        return warehouse(topics, {**keys, **(more or {})})

    return make, faults


@pytest.fixture(params=some(["rest", "glue"], {"rest"}))
def behind(request: pytest.FixtureRequest, warehouse: Configure) -> Iterator[Behind]:
    make, faults = remote(request.param, request, warehouse)
    yield make, faults
    faults.clear()


@pytest.fixture(params=some(["rest", "glue", "hive"], {"rest"}))
def anywhere(request: pytest.FixtureRequest, warehouse: Configure) -> Configure:
    """A connector to tables of each kind of catalog."""
    if request.param != "hive":
        return remote(request.param, request, warehouse)[0]
    metastore: HiveMetastore = request.getfixturevalue("hive_metastore")
    mine = {"type": "hive", "uri": metastore.uri, **PATIENT}
    keys = {f"{PREFIX}{name}": value for name, value in mine.items()}
    keys["iceberg.tables"] = f"{metastore.create_namespace()}.t"
    return lambda topics, more=None: warehouse(topics, {**keys, **(more or {})})


@pytest.mark.parametrize("place", ["sink.before_commit", "sink.after_commit"])
def test_killed_at(place: str, topic: MakeTopic, behind: Behind, points: Path) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = behind[0](source)
    failpoints.arm(points, place, "kill-worker", skip=1)
    assert drive(config, points) == -9
    caught_up(config)
    assert failpoints.fired(points)[0][:2] == (place, "kill-worker")
    assert_promise_kept(config, points, ids(config), COUNT)


@pytest.mark.long
def test_of_two_drivers_one_is_fenced_and_nothing_is_duplicated(
    topic: MakeTopic, produce: Produce, anywhere: Configure, start: Start
) -> None:
    source = topic(partitions=2)
    config = anywhere(source)

    def feed(sent: int) -> int:
        produce(source, records(COUNT, start=sent))
        return sent + COUNT

    sent, fenced = until_one_is_fenced(start, config, feed)
    assert fenced == 1
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(sent))


@pytest.mark.parametrize(
    ("anywhere", "place", "skip"),
    [
        ("rest", "sink.before_commit", 1),
        ("glue", "sink.before_commit", 1),
        # First positions, columns and the first trigger are a commit each.
        ("hive", "hive.before_alter", 3),
    ],
    indirect=["anywhere"],
    ids=["rest", "glue", "hive"],
)
def test_a_driver_that_was_frozen_in_a_commit_is_fenced_when_it_wakes_up(
    place: str, skip: int, topic: MakeTopic, anywhere: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = anywhere(source)
    failpoints.arm(points, place, "freeze", skip=skip)
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
    source = topic(partitions=2, values=records(100))
    make, faults = behind
    config = make(source, {**EVOLVES, "maxOffsetsPerTrigger": "50"})
    caught_up(config)
    rest = config[f"{PREFIX}type"] == "rest"
    part = "/tables/t\n" if rest else "AWSGlue.UpdateTable"
    pending = [faults.come(kind, "POST", part) for kind in ("lost", "cut", "twice", "refused")]
    more = [json.dumps({"id": i, "color": "red"}).encode() for i in range(100, COUNT)]
    produce(source, more)
    caught_up(config)
    assert all(fault.matched for fault in pending)
    assert_nothing_lost_nothing_twice(config, range(COUNT))
    colors = rows(config).column("color").to_pylist()
    assert colors.count("red") == len(more)
