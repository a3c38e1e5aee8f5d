"""The bounded direct engine on an Iceberg table: nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table

from semel.audit import AuditReport, audit
from semel.core import failpoints
from semel.core.errors import RolledBack
from semel.core.ledger import TopicPartition
from semel.sinks.iceberg.catalog import connect
from tests import matrix
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import assert_each_exactly_once, caught_up, drive, positions, records

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("small_shares")]

COUNT = 300
UPSERT = matrix.SINKS["iceberg"].keyed


def catalog(config: Config) -> Catalog:
    prefix = "iceberg.catalog."
    keys = {k.removeprefix(prefix): v for k, v in config.items() if k.startswith(prefix)}
    return connect("iceberg", keys)


def table(config: Config) -> Table:
    return catalog(config).load_table(config["iceberg.tables"])


def rows(config: Config, of: str = "") -> pa.Table:
    return catalog(config).load_table(of or config["iceberg.tables"]).scan().to_arrow()


def ids(config: Config) -> list[int]:
    found: list[int] = rows(config).column("id").to_pylist()
    return sorted(found)


def assert_nothing_lost_nothing_twice(config: Config, expected: Iterable[int]) -> AuditReport:
    """Checked twice: by the audit, and straight from the table."""
    return assert_each_exactly_once(config, ids(config), expected)


def test_a_table_that_is_rolled_back_ends_a_run_at_once(
    topic: MakeTopic, produce: Produce, warehouse: Configure, start: Start
) -> None:
    source = topic(values=records(10))
    config = warehouse(source)
    running = start(config)
    running.until(lambda p: sum(p.positions.values()) == 10 and p.commits > 0)
    first = table(config).current_snapshot()
    assert first is not None
    produce(source, records(10, 10))
    running.until(lambda p: sum(p.positions.values()) == 20)
    with table(config).manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(first.snapshot_id)
    with pytest.raises(RolledBack, match=r"set FILE .*=10$"):
        running.wait()


@pytest.mark.long
def test_the_table_may_be_rewritten_and_its_snapshots_expired_meanwhile(
    topic: MakeTopic, produce: Produce, warehouse: Configure, start: Start
) -> None:
    source = topic(partitions=2, values=records(100))
    config = warehouse(source, {"maxOffsetsPerTrigger": "50"})
    running = start(config)
    running.until(lambda p: p.rows >= 100)
    rewritten = 0
    for batch in range(1, 6):
        found = table(config)
        rows_then = found.scan().to_arrow()
        if batch > 1:  # else nothing happens meanwhile
            produce(source, records(50, start=50 * batch))
        with contextlib.suppress(CommitFailedException, ValidationException):  # semel was faster
            found.overwrite(rows_then)
            found.maintenance.expire_snapshots().older_than(dt.datetime.now()).commit()
            rewritten += 1
    assert rewritten
    running.stop_when(lambda p: p.rows >= 300)
    assert_nothing_lost_nothing_twice(config, range(300))


@pytest.mark.long
def test_with_latest_nothing_is_passed_over_by_a_crash_before_the_first_row(
    topic: MakeTopic, produce: Produce, warehouse: Configure, points: Path
) -> None:
    source = topic(values=records(10))
    config = warehouse(source, {"auto.offset.reset": "latest"})
    caught_up(config)
    assert positions(config) == {TopicPartition(source, 0): 10}
    produce(source, records(10, start=10))
    failpoints.arm(points, "sink.before_commit", "kill-driver")
    assert drive(config, points) == -9
    produce(source, records(10, start=20))
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(10, 30))


@pytest.mark.long
def test_the_last_change_of_a_key_wins_however_its_partition_is_split(
    topic: MakeTopic, produce: Produce, warehouse: Configure
) -> None:
    source = topic(partitions=2)
    changes = [(f"k{i % 7}", {"id": i % 7, "n": i}) for i in range(200)]
    changes += [("k3", None), ("k4", None), ("k4", {"id": 4, "n": 1000})]
    produce(
        source,
        [None if v is None else json.dumps(v).encode() for _, v in changes],
        [k.encode() for k, _ in changes],
    )
    keys = {
        "iceberg.tables.upsert-mode-enabled": "true",
        "iceberg.tables.default-id-columns": "key",
        "pk.mode": "record_key",
        "delete.enabled": "true",
        "maxOffsetsPerTrigger": "90",
    }
    config = warehouse(source, keys)
    caught_up(config)
    final: dict[str, int] = {}
    for key, value in changes:
        final.pop(key, None)
        if value is not None:
            final[key] = value["n"]
    found = rows(config)
    assert dict(zip(*(found.column(n).to_pylist() for n in ("key", "n")), strict=True)) == final
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True), report


@pytest.mark.long
def test_several_topics_share_a_table(topic: MakeTopic, warehouse: Configure) -> None:
    first = topic(values=records(100))
    second = topic(partitions=2, values=records(100, start=100))
    config = warehouse(f"{first},{second}")
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(200))
    by_counts = audit({**config, "provenance": "false"})
    assert (by_counts.lost, by_counts.duplicated, by_counts.exact) == (0, 0, False)


@pytest.mark.long
def test_change_events_insert_replace_and_delete_rows(
    topic: MakeTopic, produce: Produce, warehouse: Configure
) -> None:
    """As Iceberg's own sink does with its transform and a cdc-field."""
    one, two, other = ({"id": i, "name": n} for i, n in ((1, "a"), (2, "b"), (1, "c")))
    changes = [("c", None, one), ("c", None, two), ("u", one, other), ("d", two, None)]
    again = [("c", None, two), ("d", two, None), ("r", None, {"id": 3, "name": "d"})]
    facts = {"source": {"schema": "public", "table": "t"}, "ts_ms": 1}

    def events(given: Iterable[tuple[str, object, object]]) -> list[bytes | None]:
        parts = ({"op": op, "before": b, "after": a, **facts} for op, b, a in given)
        return [json.dumps(event).encode() for event in parts]

    source = topic(values=[*events(changes), None])
    config = warehouse(
        source,
        {
            "transforms": "debezium",
            "transforms.debezium.type": "io.tabular.iceberg.connect.transforms.DebeziumTransform",
            "iceberg.tables.cdc-field": "_cdc.op",
            "iceberg.tables.default-id-columns": "id",
        },
    )
    caught_up(config)
    assert rows(config).select(["id", "name"]).to_pylist() == [other]
    produce(source, events(again))
    caught_up(config)
    assert sorted(rows(config).column("id").to_pylist()) == [1, 3]
    assert audit(config).kept
