"""One topic, several Iceberg tables: nothing lost, nothing twice, in any of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.audit import AuditReport, audit
from semel.core import failpoints
from semel.core.errors import BadRecord, Fenced
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel.kafka.groups import Groups
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import (
    Running,
    caught_up,
    drive,
    driving,
    some,
    until_one_is_fenced,
    wait_until,
)
from tests.engine.test_first_positions import committed
from tests.engine.test_iceberg import catalog
from tests.patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("small_shares")]

COUNT = 400
TABLES = ("db.even", "db.odd", "db.tens")
ROUTED = {
    "iceberg.tables": ",".join(TABLES),
    "iceberg.tables.route-field": "digit",
    "iceberg.table.db.even.route-regex": "[02468]",
    "iceberg.table.db.odd.route-regex": "[1357]",
    "iceberg.table.db.tens.route-regex": "0",
}


def records(count: int, start: int = 0) -> list[bytes]:
    """Records of ten kinds; 9 goes nowhere, 0 to two tables."""
    return [
        json.dumps({"id": i, "digit": i % 10, "text": f"text {i}"}).encode()
        for i in range(start, start + count)
    ]


def ids(config: Config, table: str) -> list[int]:
    scanned = catalog(config).load_table(table).scan(selected_fields=("id",)).to_arrow()
    return sorted(scanned.column("id").to_pylist())


def assert_each_where_it_belongs_and_once(config: Config, expected: Iterable[int]) -> AuditReport:
    """Checked twice: by the audit, and straight from the tables."""
    wanted = list(expected)
    assert ids(config, "db.even") == [i for i in wanted if i % 2 == 0]
    assert ids(config, "db.odd") == [i for i in wanted if i % 2 and i % 10 < 9]
    assert ids(config, "db.tens") == [i for i in wanted if i % 10 == 0]
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept, report.exact) == (0, 0, True, True)
    by_counts = audit({**config, "provenance": "false"})
    assert (by_counts.lost, by_counts.duplicated) == (0, 0)
    assert sum(p.filtered for p in report.partitions) == len([i for i in wanted if i % 10 == 9])
    return report


@pytest.mark.parametrize(
    ("skip", "most"),
    some([(3, "120"), (4, "35"), (4, "200"), (5, "35")], ()),
)
def test_killed_before_the_commit_of_a_table(
    skip: int, most: str, topic: MakeTopic, produce: Produce, warehouse: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = warehouse(source, ROUTED)
    failpoints.arm(points, "sink.before_commit", "kill-driver", skip=skip)
    assert drive(config, points) == -9
    produce(source, records(50, start=COUNT))
    caught_up({**config, "maxOffsetsPerTrigger": most})
    assert failpoints.fired(points)[0][:2] == ("sink.before_commit", "kill-driver")
    assert_each_where_it_belongs_and_once(config, range(COUNT + 50))


@pytest.mark.long
def test_a_failure_between_two_tables_is_judged_by_their_ledgers(
    topic: MakeTopic, warehouse: Configure, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = warehouse(source, ROUTED)
    monkeypatch.setattr(failpoints, "_directory", str(points))
    failpoints.arm(points, "sink.before_commit", "raise", skip=4)
    assert caught_up(config).restarts == 0
    assert failpoints.fired(points)
    assert_each_where_it_belongs_and_once(config, range(COUNT))


@pytest.mark.long
def test_of_two_drivers_one_is_fenced_and_nothing_is_duplicated(
    topic: MakeTopic, produce: Produce, warehouse: Configure, start: Start
) -> None:
    source = topic(partitions=2)
    config = warehouse(source, ROUTED)

    def feed(sent: int) -> int:
        produce(source, records(COUNT, start=sent))
        return sent + COUNT

    sent, _ = until_one_is_fenced(start, config, feed)
    caught_up(config)
    assert_each_where_it_belongs_and_once(config, range(sent))


@pytest.mark.parametrize("skip", some([3, 4], ()))
def test_a_driver_that_was_frozen_in_a_commit_is_fenced_when_it_wakes_up(
    skip: int, topic: MakeTopic, warehouse: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT))
    config = warehouse(source, ROUTED)
    failpoints.arm(points, "sink.before_commit", "freeze", skip=skip)
    zombie = driving(config, points)
    assert zombie.pid is not None
    wait_until((points / f"frozen.{zombie.pid}").exists)
    caught_up({**config, "maxOffsetsPerTrigger": "70"})
    locations = [catalog(config).load_table(t).metadata_location for t in TABLES]
    failpoints.thaw(points, zombie.pid)
    zombie.join(PATIENCE)
    assert zombie.exitcode == Fenced.exit_code
    assert [catalog(config).load_table(t).metadata_location for t in TABLES] == locations
    assert_each_where_it_belongs_and_once(config, range(COUNT))


@pytest.mark.long
def test_a_topic_that_is_not_read_any_more_holds_up_no_other_one(
    topic: MakeTopic, produce: Produce, warehouse: Configure, points: Path
) -> None:
    """A crash between two tables left it uneven."""
    first, second = topic(), topic()
    produce(first, records(50))
    config = warehouse(first, {**ROUTED, "topics": f"{first},{second}"})
    failpoints.arm(points, "sink.before_commit", "kill-driver", skip=1)
    assert drive(config, points) == -9
    produce(second, records(50, start=50))
    one = {**config, "topics": second}
    assert caught_up(one).records == 50
    assert ids(config, "db.odd") == [i for i in range(50, 100) if i % 2 and i % 10 < 9]
    caught_up(config)
    assert_each_where_it_belongs_and_once(config, range(100))


@pytest.mark.long
def test_what_another_program_has_continued_is_not_written_again(
    topic: MakeTopic, produce: Produce, warehouse: Configure
) -> None:
    source = topic(values=records(20))
    config = warehouse(source, {**ROUTED, "first.position": "group"})
    caught_up(config)
    groups = Groups({"bootstrap.servers": config["bootstrap.servers"]})
    wait_until(lambda: groups.is_idle(f"connect-{config['name']}"))  # members leave late
    produce(source, records(20, start=20))
    committed(config, {TopicPartition(source, 0): 30})
    caught_up(config)
    written = [*range(20), *range(30, 40)]
    assert ids(config, "db.even") == [i for i in written if i % 2 == 0]
    report = audit(config)
    assert (report.lost, report.duplicated, report.broken) == (0, 0, False)


@pytest.mark.long
def test_a_table_may_join_later(topic: MakeTopic, produce: Produce, warehouse: Configure) -> None:
    source = topic(partitions=2, values=records(100))
    keys: dict[str, Any] = {**ROUTED, "iceberg.tables": "db.even,db.odd"}
    del keys["iceberg.table.db.tens.route-regex"]
    caught_up({**warehouse(source, keys), "name": "joining"})
    produce(source, records(100, start=100))
    config = {**warehouse(source, ROUTED), "name": "joining"}
    caught_up(config)
    assert ids(config, "db.even") == list(range(0, 200, 2))
    assert ids(config, "db.tens") == list(range(100, 200, 10))
    report = audit(config)
    assert (report.lost, report.duplicated, report.exact) == (0, 0, True)


@pytest.mark.long
def test_a_bad_record_between_two_tables_commits_is_named(
    topic: MakeTopic, warehouse: Configure, points: Path
) -> None:
    source = topic(values=[*records(50), b"{bad", *records(50, start=51)])
    config = warehouse(source, {**ROUTED, "maxOffsetsPerTrigger": "40"})
    failpoints.arm(points, "sink.before_commit", "kill-driver", skip=4)
    assert drive(config, points) == -9
    with pytest.raises(BadRecord, match="offset 50"):
        caught_up(config)
    tolerant = {
        **config,
        "errors.tolerance": "all",
        "errors.deadletterqueue.table": "db.dead",
    }
    caught_up(tolerant)
    assert_each_where_it_belongs_and_once(tolerant, [*range(50), *range(51, 101)])


@pytest.mark.long
def test_an_audit_finds_what_a_table_lacks_or_has_twice(
    topic: MakeTopic, warehouse: Configure
) -> None:
    source = topic(partitions=2, values=records(100))
    config = warehouse(source, ROUTED)
    caught_up(config)
    odd = catalog(config).load_table("db.odd")
    some = odd.scan().to_arrow()
    odd.delete("id == 31")
    assert (audit(config).lost, audit(config).duplicated) == (1, 0)
    odd.append(some.filter([i == 11 for i in some.column("id").to_pylist()]))
    assert (audit(config).lost, audit(config).duplicated) == (1, 1)


# Tables that records name

DYNAMIC = {
    "iceberg.tables": None,
    "iceberg.tables.dynamic-enabled": "true",
    "iceberg.tables.route-field": "table",
    "iceberg.tables.ledger": "db.ledger",
}
NAMES = ("DB.Zero", "db.one", "db.two", None)


def named(count: int, start: int = 0) -> list[bytes]:
    """Records for three tables and none, in turn; the third one appears from the 100th on."""
    found = []
    for i in range(start, start + count):
        name = NAMES[i % 4] if i % 4 != 2 or i >= 100 else "db.one"
        found.append(json.dumps({"id": i, "table": name}).encode())
    return found


def assert_each_in_the_table_it_names_and_once(config: Config, expected: Iterable[int]) -> None:
    wanted = list(expected)
    assert ids(config, "db.zero") == [i for i in wanted if i % 4 == 0]
    assert ids(config, "db.one") == [i for i in wanted if i % 4 == 1 or (i % 4 == 2 and i < 100)]
    assert ids(config, "db.two") == [i for i in wanted if i % 4 == 2 and i >= 100]
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept, report.exact) == (0, 0, True, True)
    by_counts = audit({**config, "provenance": "false"})
    assert (by_counts.lost, by_counts.duplicated) == (0, 0)
    assert sum(p.filtered for p in report.partitions) == len([i for i in wanted if i % 4 == 3])


@pytest.mark.parametrize(
    ("skip", "most"),
    some(
        [(0, "120"), (1, "35"), (3, "35"), (4, "120"), (6, "200"), (7, "35")],
        {(4, "120")},
    ),
)
def test_killed_before_the_commit_of_a_table_that_is_named(
    skip: int, most: str, topic: MakeTopic, produce: Produce, warehouse: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=named(COUNT))
    config = warehouse(source, DYNAMIC)
    failpoints.arm(points, "sink.before_commit", "kill-driver", skip=skip)
    assert drive(config, points) == -9
    produce(source, named(50, start=COUNT))
    caught_up({**config, "maxOffsetsPerTrigger": most})
    assert_each_in_the_table_it_names_and_once(config, range(COUNT + 50))


@pytest.mark.long
def test_of_two_drivers_with_tables_that_are_named_nothing_is_duplicated(
    topic: MakeTopic, produce: Produce, warehouse: Configure, start: Start
) -> None:
    source = topic(partitions=2)
    config = warehouse(source, DYNAMIC)

    def feed(sent: int) -> int:
        produce(source, named(COUNT, start=sent))
        return sent + COUNT

    sent, _ = until_one_is_fenced(start, config, feed)
    caught_up(config)
    assert_each_in_the_table_it_names_and_once(config, range(sent))


@pytest.mark.parametrize(("skip", "most"), some([(4, "50"), (5, "130"), (7, "50")], ()))
def test_a_zombie_wakes_up_among_tables_that_are_named(
    skip: int, most: str, topic: MakeTopic, warehouse: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=named(COUNT))
    config = warehouse(source, DYNAMIC)
    failpoints.arm(points, "sink.before_commit", "freeze", skip=skip)
    zombie = driving(config, points)
    assert zombie.pid is not None
    wait_until((points / f"frozen.{zombie.pid}").exists)
    caught_up({**config, "maxOffsetsPerTrigger": most})
    failpoints.thaw(points, zombie.pid)
    zombie.join(PATIENCE)
    assert zombie.exitcode == Fenced.exit_code
    assert_each_in_the_table_it_names_and_once(config, range(COUNT))


@pytest.mark.long
def test_a_zombie_may_put_a_table_ahead_of_the_run_that_followed_it(
    topic: MakeTopic, produce: Produce, warehouse: Configure, points: Path
) -> None:
    """Its trigger reached further, to the first record of a table that no other run has met."""
    source = topic(values=named(101))
    config = warehouse(source, {**DYNAMIC, "maxOffsetsPerTrigger": "200"})
    caught_up({**config, "maxOffsetsPerTrigger": "90"}, spark=None)
    produce(source, named(20, start=101))
    failpoints.arm(points, "sink.before_commit", "freeze", skip=2)
    zombie = driving(config, points)
    assert zombie.pid is not None
    wait_until((points / f"frozen.{zombie.pid}").exists)
    follower = {**config, "maxOffsetsPerTrigger": "1"}
    halted = Running(follower)
    try:
        halted.until(lambda p: p.commits >= 1)
        failpoints.thaw(points, zombie.pid)
        zombie.join(PATIENCE)
        wait_until(lambda: not halted.alive or halted.progress.commits >= 20)
    finally:
        halted.end()
    assert zombie.exitcode == Fenced.exit_code
    caught_up(config)
    assert_each_in_the_table_it_names_and_once(config, range(121))


def test_names_that_are_no_tables_are_bad_records_and_unknown_ones_are_filtered(
    topic: MakeTopic, warehouse: Configure
) -> None:
    values = [{"id": 0, "table": "db.zero"}, {"id": 1, "table": "zero"}, {"id": 2, "table": "db.x"}]
    values += [{"id": 3, "table": "db.ledger"}]
    source = topic(values=[json.dumps(v).encode() for v in values])
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "db.dead"}
    config = warehouse(source, {**DYNAMIC, **keys, "iceberg.tables.auto-create-enabled": "false"})
    made = catalog(config)
    made.create_namespace("db")
    made.create_table("db.zero", pa.schema([("id", pa.int64()), ("table", pa.string())]))
    config["provenance"] = "false"
    caught_up(config)
    assert ids(config, "db.zero") == [0]
    assert not made.table_exists("db.x")
    letters = made.load_table("db.dead").scan().to_arrow()
    assert sorted(letters.column("offset").to_pylist()) == [1, 3]
    (entry,) = plan(config).sink.entries()
    assert (entry.rows_written, entry.records_filtered, entry.records_failed) == (1, 1, 2)
