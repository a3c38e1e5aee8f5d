"""Each guarantee, killed at each moment of a commit, holds what it promises and nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core import failpoints
from tests import matrix
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import (
    LocalSpark,
    assert_promise_kept,
    caught_up,
    ids,
    records,
    some,
)
from tests.matrix import UPSERT

pytestmark = pytest.mark.integration

COUNT = 300
DELIVERIES = {**matrix.DELIVERIES, "idempotent": matrix.DELIVERIES["idempotent"] | UPSERT}
# Where positions and results are committed apart, dying between the two is sure to show. (Elsewhere
# it may: the batch before is being committed by another thread.)
LOSES = {"deliver.between", "sink.after_positions", "sink.before_commit"}
REPEATS = {"deliver.between", "sink.after_commit"}
CASES = [
    (delivery, place)
    for delivery in DELIVERIES
    for place in failpoints.PLACES
    if (delivery, place) != ("transactional", "deliver.between")  # a transaction has no between
]
SHOWS = {"at-most-once": LOSES, "at-least-once": REPEATS}
SHORT = [
    (delivery, place)
    for delivery, place in CASES
    if place == "deliver.between"
    or (delivery == "transactional" and place in {"sink.before_commit", "sink.after_commit"})
]


@pytest.mark.cell(sink="postgresql", mode="direct", delivery="delivery")
@pytest.mark.parametrize(("delivery", "place"), some(CASES, SHORT))
def test_killed_at(
    delivery: str,
    place: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    points: Path,
) -> None:
    source = topic(partitions=2)
    produce(source, records(COUNT))
    config = configure(source, {"consumer.override.max.poll.records": 40, **DELIVERIES[delivery]})
    failpoints.arm(points, place, "kill-worker", skip=2)
    spark = LocalSpark(points)
    caught_up(config, spark=spark)
    assert failpoints.fired(points)[0][:2] == (place, "kill-worker")
    assert spark.attempts[0] >= 1
    shows = place in SHOWS.get(delivery, set())
    found = ids(config["connection.url"], source)
    assert_promise_kept(config, points, found, COUNT, shows=shows)
