"""Each guarantee, killed at each moment of a commit, holds what it promises and nothing more."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from semel import failpoints
from semel.audit import audit
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import (
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    caught_up,
    ids,
    records,
)

pytestmark = pytest.mark.integration

COUNT = 300
UPSERT = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
DELIVERIES = {
    "at-most-once": {"delivery": "at-most-once"},
    "at-least-once": {"delivery": "at-least-once"},
    "transactional": {"delivery": "exactly-once", "delivery.mechanism": "transactional"},
    "idempotent": {"delivery": "exactly-once", "delivery.mechanism": "idempotent", **UPSERT},
}
# Where positions and results are committed apart, dying between the two is sure to show. (Elsewhere
# it may: the batch before is being committed by another thread.)
LOSES = {"deliver.between", "sink.after_positions", "sink.before_commit"}
REPEATS = {"deliver.between", "sink.after_commit"}


@pytest.mark.parametrize("place", failpoints.PLACES)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_killed_at(
    delivery: str,
    place: str,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    points: Path,
) -> None:
    if delivery == "transactional" and place == "deliver.between":
        pytest.skip("a transaction has no between")
    source = topic(partitions=2)
    produce(source, records(COUNT))
    config = configure(source, {"consumer.override.max.poll.records": 40, **DELIVERIES[delivery]})
    failpoints.arm(points, place, "kill-worker", skip=2)
    spark = LocalSpark(points)
    caught_up(config, spark=spark)
    assert (points / "fired.log").read_text().startswith(f"{place} kill-worker")
    assert spark.attempts[0] == 1
    if DELIVERIES[delivery]["delivery"] == "exactly-once":
        assert_nothing_lost_nothing_twice(config, range(COUNT))
        return
    seen = collections.Counter(ids(config["connection.url"], source))
    report = audit(config)
    assert report.kept
    lost, repeated = COUNT - len(seen), seen.total() - len(seen)
    assert (report.lost, report.duplicated) == (lost, repeated)
    if delivery == "at-most-once":
        assert repeated == 0
        assert lost or place not in LOSES
    else:
        assert lost == 0
        assert repeated or place not in REPEATS
