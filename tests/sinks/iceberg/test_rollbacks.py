"""A branch that went back: a rollback takes rows back, and leaves table properties."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from semel.core.errors import ConfigError, RolledBack
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, DeadLetter
from semel.sinks.iceberg.sink import IcebergSink
from semel.sinks.staging import StagedCommit
from tests.sinks.iceberg import test_routing as routing
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.iceberg.test_ledger import ids
from tests.sinks.target import FIRST, advance, values

UPSERT = {"iceberg.tables.upsert-mode-enabled": "true", "pk.fields": "id"}


def head(warehouse: Warehouse, name: str = "") -> int:
    found = warehouse.table(name).current_snapshot()
    assert found is not None
    return int(found.snapshot_id)


def filled(warehouse: Warehouse, **keys: Any) -> tuple[IcebergSink, int, int]:
    """A sink with two commits, and the snapshots that they made."""
    sink = warehouse.sink(keys=keys)
    sink.commit([advance(0, 10)], values(0, 10))
    first = head(warehouse)
    sink.commit([advance(10, 20)], values(10, 20))
    return sink, first, head(warehouse)


def roll_back(warehouse: Warehouse, to: int, name: str = "") -> None:
    with warehouse.table(name).manage_snapshots() as snapshots:
        snapshots.set_current_snapshot(to)


def append(warehouse: Warehouse, start: int = 100) -> None:
    """As another program does."""
    table = warehouse.table()
    table.append(pa.table({"id": [start]}, schema=table.schema().as_arrow()))


def expire(table: Table) -> None:
    table.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(1)).commit()


def without_history(warehouse: Warehouse) -> None:
    """Take away the older metadata files, as ``write.metadata.delete-after-commit.enabled`` does
    in the end."""
    newest = warehouse.table().metadata_location.rpartition("/")[2]
    for file in warehouse.files("**/*.metadata.json"):
        if file.name != newest:
            file.unlink()


def compact(warehouse: Warehouse) -> None:
    table = warehouse.table()
    table.overwrite(table.scan().to_arrow())


def test_a_table_that_was_rolled_back_is_refused_with_the_facts_and_the_ways_out(
    warehouse: Warehouse,
) -> None:
    sink, first, last = filled(warehouse)
    roll_back(warehouse, first)
    facts = (
        rf"branch main is at snapshot {first}, which does not descend from snapshot {last}.*"
        rf"the positions remain \(t-0 at 20\).*set the branch to snapshot {last} again\. .*"
        "semel offsets set FILE t-0=10$"
    )
    with pytest.raises(RolledBack, match=facts):
        sink.commit([advance(20, 30)], values(20, 30))
    with pytest.raises(RolledBack, match=facts):
        warehouse.made().prepare(["t"])
    with pytest.raises(RolledBack, match=facts):
        warehouse.made().start(firsts({TopicPartition("t", 1): 0}))
    assert len(ids(warehouse)) == 10


def test_a_run_that_has_nothing_to_commit_notices_a_rollback_too(warehouse: Warehouse) -> None:
    sink, first, _ = filled(warehouse)
    sink.claim()
    assert sink.entries()[0].position == 20
    roll_back(warehouse, first)
    with pytest.raises(RolledBack):
        sink.entries()


def test_rows_that_others_have_added_since_the_rollback_hide_nothing(warehouse: Warehouse) -> None:
    sink, first, _ = filled(warehouse)
    roll_back(warehouse, first)
    append(warehouse)
    with pytest.raises(RolledBack, match=r"t-0=10$"):
        sink.commit([advance(20, 30)], values(20, 30))


def test_a_rollback_that_is_undone_leaves_nothing_to_refuse(warehouse: Warehouse) -> None:
    sink, first, last = filled(warehouse)
    roll_back(warehouse, first)
    roll_back(warehouse, last)
    warehouse.made().prepare(["t"])
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
    assert ids(warehouse) == list(range(30))


def test_positions_that_are_set_by_hand_are_right_for_the_table_as_it_is(
    warehouse: Warehouse,
) -> None:
    _, first, _ = filled(warehouse)
    roll_back(warehouse, first)
    warehouse.made().set_positions(firsts({FIRST: 10}))
    assert warehouse.sink().commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED
    assert ids(warehouse) == list(range(20))


def test_positions_of_a_table_that_was_rolled_back_are_set_together(warehouse: Warehouse) -> None:
    sink, first, _ = filled(warehouse)
    sink.start(firsts({TopicPartition("t", 1): 0}))
    roll_back(warehouse, first)
    with pytest.raises(ConfigError, match="Every position must be set: name t-1 too"):
        warehouse.made().set_positions(firsts({FIRST: 10}))
    warehouse.made().set_positions(firsts({FIRST: 10, TopicPartition("t", 1): 0}))
    warehouse.made().prepare(["t"])


def test_a_table_that_was_rolled_back_can_be_read_anew_from_the_start(
    warehouse: Warehouse,
) -> None:
    _, first, _ = filled(warehouse)
    roll_back(warehouse, first)
    warehouse.made().set_positions(None)
    left = [p for p in warehouse.table().properties if p.startswith("semel")]
    assert left == ["semel-reset:c:t:0"]  # what the audit must know
    assert warehouse.sink().commit([advance(0, 20)], values(0, 20)) is Outcome.APPLIED


def test_upserts_notice_a_rollback(warehouse: Warehouse) -> None:
    sink, first, _ = filled(warehouse, **UPSERT)
    roll_back(warehouse, first)
    with pytest.raises(RolledBack):
        sink.commit([advance(20, 30)], values(20, 30))


def test_compaction_expiry_and_rows_of_others_stop_nobody(warehouse: Warehouse) -> None:
    sink, _, _ = filled(warehouse)
    for run, other in enumerate((sink, warehouse.made())):
        append(warehouse, 100 + run)
        compact(warehouse)
        expire(warehouse.table())
        other.prepare(["t"])
        at = 20 + 10 * run
        assert other.commit([advance(at, at + 10)], values(at, at + 10)) is Outcome.APPLIED
    assert ids(warehouse) == [*range(40), 100, 101]


def test_a_commit_is_found_after_several_expiries(warehouse: Warehouse) -> None:
    filled(warehouse)
    compact(warehouse)  # its files are gone, too
    expire(warehouse.table())
    for number in (100, 101, 102):
        append(warehouse, number)
        expire(warehouse.table())
    assert warehouse.sink().commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
    assert ids(warehouse) == [*range(30), 100, 101, 102]


def test_what_an_idle_run_has_seen_outlives_the_snapshots_that_showed_it(
    warehouse: Warehouse,
) -> None:
    """It commits nothing, but others compact and expire: once seen, it is seen for good."""
    sink, _, _ = filled(warehouse)
    sink.claim()
    for _ in range(3):
        compact(warehouse)
        sink.entries()
        expire(warehouse.table())
        without_history(warehouse)
        sink.entries()
        without_history(warehouse)
    warehouse.made().prepare(["t"])


def test_files_of_the_last_commit_tell_that_it_is_there(warehouse: Warehouse) -> None:
    filled(warehouse)
    append(warehouse, 100)
    append(warehouse, 101)
    expire(warehouse.table())
    without_history(warehouse)
    warehouse.made().prepare(["t"])


def test_what_nothing_tells_any_more_is_not_guessed(warehouse: Warehouse) -> None:
    filled(warehouse)
    compact(warehouse)
    expire(warehouse.table())
    without_history(warehouse)
    with pytest.raises(RolledBack, match=r"have expired, so nobody can tell.*set FILE t-0=20;"):
        warehouse.made().prepare(["t"])
    warehouse.made().set_positions(firsts({FIRST: 20}))
    warehouse.made().prepare(["t"])


def test_a_branch_is_judged_by_its_own_head(warehouse: Warehouse) -> None:
    _, first, last = filled(warehouse)
    with warehouse.table().manage_snapshots() as snapshots:
        snapshots.create_branch(first, "older").create_branch(last, "same")
    branch = "iceberg.tables.default-commit-branch"
    warehouse.made(keys={branch: "same"}).prepare(["t"])
    with pytest.raises(RolledBack, match=f"branch older is at snapshot {first}"):
        warehouse.made(keys={branch: "older"}).prepare(["t"])


def test_of_several_tables_one_that_was_rolled_back_is_refused(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=routing.ROUTED)
    sink.commit([advance(0, 40)], routing.values(0, 40))
    before = head(warehouse, "db.b")
    sink.commit([advance(40, 80)], routing.values(40, 80))
    roll_back(warehouse, before, "db.b")
    with pytest.raises(RolledBack, match=r"db\.b.*t-0=40. The connector's other tables"):
        sink.commit([advance(80, 120)], routing.values(80, 120))
    with pytest.raises(RolledBack, match=r"db\.b"):
        warehouse.made(keys=routing.ROUTED).prepare(["t"])
    assert len(routing.found(warehouse)["db.a"]) == 40


def test_tables_that_records_name_are_refused_too(warehouse: Warehouse) -> None:
    keys = {
        "iceberg.tables": None,
        "iceberg.tables.route-field": "kind",
        "iceberg.tables.dynamic-enabled": "true",
    }
    sink = warehouse.sink(keys=keys)

    def commit(at: int) -> Outcome:
        rows = [{"id": i, "kind": f"db.{'ab'[i % 2]}"} for i in range(at, at + 10)]
        batch = routing.records(rows, offsets=range(at, at + 10))
        return sink.commit([advance(at, at + 10)], Commit([batch]))

    commit(0)
    before = head(warehouse, "db.b")
    commit(10)
    roll_back(warehouse, before, "db.b")
    with pytest.raises(RolledBack, match=r"db\.b"):
        commit(20)
    with pytest.raises(RolledBack, match=r"db\.b"):
        warehouse.made(keys=keys).prepare(["t"])
    assert len(warehouse.rows("db.a")) == 10


def test_dead_letters_that_were_rolled_back_are_missed(warehouse: Warehouse) -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "db.dead"}
    sink = warehouse.sink(keys=keys)

    def letter(offset: int) -> StagedCommit:
        return StagedCommit((), [DeadLetter("t", 0, offset, None, b"", [], 0, "STAGE", "E", "why")])

    for offset in range(2):
        sink.commit_staged([advance(offset, offset + 1)], letter(offset))
    (first, *_) = warehouse.table("db.dead").metadata.snapshots
    roll_back(warehouse, first.snapshot_id, "db.dead")
    with pytest.raises(RolledBack, match=r"db\.dead, which holds dead letters"):
        sink.commit_staged([advance(2, 3)], letter(2))
    with pytest.raises(RolledBack, match=r"db\.dead, which holds dead letters"):
        warehouse.made(keys=keys).prepare(["t"])
    warehouse.made(keys=keys).set_positions(firsts({FIRST: 2}))
    other = warehouse.sink(keys=keys)
    assert other.commit_staged([advance(2, 3)], letter(2)) is Outcome.APPLIED
