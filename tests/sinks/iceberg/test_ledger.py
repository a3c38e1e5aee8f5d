"""The ledger in an Iceberg table: one commit, one snapshot, and what outlives snapshots."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

from semel.core.errors import (
    ConfigError,
    LedgerConflict,
    ServiceError,
    TargetChanged,
    TransientError,
)
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, DeadLetter
from semel.sinks.iceberg import sink as module
from semel.sinks.staging import CommitConflict, StagedCommit
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import FIRST, advance, values


def ids(warehouse: Warehouse) -> list[int]:
    return sorted(r["id"] for r in warehouse.rows())


def test_rows_and_positions_are_one_commit(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    sink.accommodate(values(0, 1).records[0])
    before = warehouse.table().metadata
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
    after = warehouse.table().metadata
    assert len(after.metadata_log) == len(before.metadata_log) + 1
    assert len(after.snapshots) == len(before.snapshots) + 1
    assert (warehouse.stored(), ids(warehouse)) == (10, list(range(10)))


def test_of_two_commits_from_one_snapshot_the_second_is_not_rebased(warehouse: Warehouse) -> None:
    """PyIceberg's own append would be: it tries again on top of what came first."""
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    staged = [f.data_file() for f in sink.stage(values(10, 20)).files]
    first, second = (warehouse.sink()._tables.of("db.t").table for _ in range(2))
    first.commit(staged, {"x": "1"})
    before = set(warehouse.path.rglob("*.avro"))
    with pytest.raises(CommitConflict, match="branch main has changed"):
        second.commit(staged, {"x": "2"})
    assert warehouse.table().properties["x"] == "1"
    assert set(warehouse.path.rglob("*.avro")) == before, "manifests of the loser stay"
    assert len(warehouse.rows()) == 20


def test_a_ledger_that_moves_without_rows_fences_too(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    zombie = warehouse.sink()._tables.of("db.t").table
    sink.advance([advance(10, 20)])
    with pytest.raises(CommitConflict):
        zombie.commit([], {"x": "1"})
    warehouse.sink().set_positions(firsts({FIRST: 3}))
    with pytest.raises(LedgerConflict, match="is at 3"):
        sink.commit([advance(20, 30)], values(20, 30))


def test_pyiceberg_rebases_appends_by_itself(warehouse: Warehouse) -> None:
    """Why commits are made as they are: the library's default would double a zombie's rows."""
    warehouse.sink().commit([advance(0, 10)], values(0, 10))
    one = warehouse.arrow().slice(0, 1)
    first, second = warehouse.table(), warehouse.table()
    first.append(one)
    try:
        second.append(one)
    except CommitFailedException:
        pytest.fail(
            "PyIceberg has changed: look again at semel.sinks.iceberg.table._SingleTryTransaction"
        )
    assert len(warehouse.rows()) == 12


def test_other_writers_of_the_table_do_not_disturb(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    one = warehouse.arrow().slice(0, 1)
    raced = []

    def race(place: str) -> None:
        if place == "sink.before_commit" and len(raced) < 3:
            raced.append(place)
            warehouse.table().append(one)

    monkeypatch.setattr(module, "hit", race)
    assert sink.commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED
    assert len(raced) == 3
    assert len(warehouse.rows()) == 23
    assert warehouse.stored() == 20


def test_positions_and_counts_outlive_rewrites_and_the_expiry_of_snapshots(
    warehouse: Warehouse,
) -> None:
    sink = warehouse.sink()
    for n in range(5):
        sink.commit([advance(10 * n, 10 * n + 10)], values(10 * n, 10 * n + 10))
    table = warehouse.table()
    table.overwrite(table.scan().to_arrow())
    table.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(1)).commit()
    assert len(warehouse.table().metadata.snapshots) == 1
    (entry,) = warehouse.sink().entries()
    assert (entry.position, entry.records_read, entry.rows_written) == (50, 50, 50)
    assert entry.updated_at.startswith("20")
    assert sink.commit([advance(50, 60)], values(50, 60)) is Outcome.APPLIED
    assert ids(warehouse) == list(range(60))


@pytest.mark.parametrize("merges", ["true", "false"])
def test_manifests_are_merged_unless_the_table_says_otherwise(
    merges: str, warehouse: Warehouse
) -> None:
    prefix = "iceberg.tables.auto-create-props.commit."
    keys = {f"{prefix}manifest.min-count-to-merge": "4", f"{prefix}manifest-merge.enabled": merges}
    sink = warehouse.sink(keys=keys)
    for n in range(8):
        sink.commit([advance(n, n + 1)], values(n, n + 1))
    snapshot = warehouse.table().current_snapshot()
    assert snapshot is not None
    count = len(snapshot.manifests(warehouse.table().io))
    assert count < 4 if merges == "true" else count == 8
    assert ids(warehouse) == list(range(8))


def test_each_connector_and_topic_has_an_entry_of_its_own(warehouse: Warehouse) -> None:
    keys = {"topics": "t,u.v"}
    first, second = warehouse.sink("a", keys), warehouse.sink("a:b", keys)
    other = TopicPartition("u.v", 3)
    assert first.start(firsts({other: 7})) == {other: 7}
    first.commit([advance(0, 10), advance(7, 9, topic="u.v", partition=3)], values(0, 10))
    second.commit([advance(0, 5)], values(0, 5))
    found = {
        name: {str(e.topic_partition): e.position for e in warehouse.sink(name, keys).entries()}
        for name in ("a", "a:b")
    }
    assert found == {"a": {"t-0": 10, "u.v-3": 9}, "a:b": {"t-0": 5}}
    first.set_positions(None)
    assert warehouse.made("a", keys).entries() == []
    assert len(warehouse.sink("a:b", keys).entries()) == 1


def test_first_positions_are_stored_before_the_first_row(warehouse: Warehouse) -> None:
    """With auto.offset.reset=latest nothing is passed over by a crash before the first commit."""
    sink = warehouse.made()
    sink.prepare(["t"])
    assert sink.start(firsts({FIRST: 100})) == {FIRST: 100}
    assert sink.schema("t") is None
    later = warehouse.made()
    later.prepare(["t"])
    assert later.start(firsts({FIRST: 500})) == {FIRST: 100}
    assert later.commit([advance(100, 110)], values(100, 110)) is Outcome.APPLIED
    (entry,) = later.entries()
    assert (entry.position, entry.start_position) == (110, 100)


def test_dead_letters_are_kept_once(warehouse: Warehouse) -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "db.dead"}
    sink = warehouse.sink(keys=keys)

    def letter(offset: int) -> DeadLetter:
        text = b"bad"
        return DeadLetter("t", 0, offset, None, text, [("h", text)], 7, "STAGE", "E", "why")

    sink.commit([advance(0, 10)], Commit(values(0, 9).records, [letter(9)]))
    again = warehouse.sink(keys=keys)
    assert again._letters is not None
    again._letters.keep([letter(9), letter(10)])  # a crash came before the results
    again._letters.keep([letter(10)])
    assert sorted(r["offset"] for r in warehouse.rows("db.dead")) == [9, 10]
    snapshot = again.snapshot(["t"])
    assert sorted(snapshot.dead["t"].column("offset").to_pylist()) == [9, 10]
    assert snapshot.dead["t"].column("timestamp").to_pylist() == [7, 7]
    again.set_positions(firsts({FIRST: 9}))
    again._letters.keep([letter(9)])
    assert sorted(r["offset"] for r in warehouse.rows("db.dead")) == [9, 9, 10]


def test_staged_files_that_vanished_are_staged_again(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    staged = sink.stage(values(0, 10))
    sink.discard(staged)
    with pytest.raises(TargetChanged, match="is gone"):
        sink.commit_staged([advance(0, 10)], staged)
    assert warehouse.stored() == 0


def test_what_is_not_committed_is_seen_by_nobody_and_is_recognized_by_its_name(
    warehouse: Warehouse,
) -> None:
    sink = warehouse.sink("my connector")
    stager = sink.stager("t-0-100-200")
    stager.add(values(0, 10))
    stager.finish()
    (file,) = warehouse.files()
    assert file.name.startswith("semel-my_connector-t-0-100-200-")
    assert warehouse.rows() == []
    stager.discard()
    assert warehouse.files() == []


def test_tables_that_cannot_be_written_are_refused(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"iceberg.tables": "db.u", "iceberg.tables.auto-create-enabled": "false"}, "no Iceberg t"),
        ({"iceberg.table.db.t.commit-branch": "audit"}, "has no branch audit"),
        ({"iceberg.tables.write-props.write.format.default": "orc"}, "wants orc files"),
        (
            {
                "iceberg.tables.upsert-mode-enabled": "true",
                "iceberg.tables.default-id-columns": "key",
            },
            "has no column key; it has id",
        ),
    ]
    for keys, message in wrong:
        with pytest.raises(ConfigError, match=message):
            warehouse.sink(keys=keys)


def test_a_table_that_was_dropped_and_created_again_is_not_mistaken_for_the_old_one(
    warehouse: Warehouse,
) -> None:
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    schema = warehouse.table().schema()
    warehouse.catalog.drop_table("db.t")
    with pytest.raises(ServiceError, match="does not exist"):
        sink.commit([advance(10, 20)], values(10, 20))
    warehouse.catalog.create_table("db.t", schema)
    with pytest.raises(ServiceError, match="dropped and created again"):
        sink.commit([advance(10, 20)], values(10, 20))


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("semel:c:t:0", "ten", "a ledger entry"),
        ("semel:c:t:x", "{}", "a ledger entry"),
        ("semel:c:t:0", '{"position": 1e400}', "a ledger entry"),
        ("semel:c:t:0", '{"position": 1, "holes": [["a", 2]]}', "a ledger entry"),
        ("semel:c:t:0", '{"position": 1, "elsewhere": "x"}', "a ledger entry"),
        ("semel-reset:c:t:x", '[0, 1, "reset"]', "a hole of the ledger"),
        ("semel-reset:c:t:0", "[0]", "a hole of the ledger"),
        ("semel-snapshot:c", "head", "the id of a snapshot"),
    ],
)
def test_a_ledger_entry_that_was_changed_by_hand_is_named(
    warehouse: Warehouse, name: str, text: str, what: str
) -> None:
    warehouse.sink()
    with warehouse.table().transaction() as transaction:
        transaction.set_properties({name: text})
    said = re.escape(f"property {name}={text!r} is not {what}. Was it changed by hand?")
    with pytest.raises(ServiceError, match=said):
        warehouse.sink().holes()


def test_a_catalog_that_cannot_be_written_is_a_transient_error(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = warehouse.sink()
    staged: StagedCommit = sink.stage(values(0, 10))
    catalog = warehouse.path / "catalog.db"
    hidden = catalog.rename(warehouse.path / "hidden.db")
    catalog.mkdir()
    sink._catalog.engine.dispose()  # type: ignore[attr-defined]
    with pytest.raises(TransientError, match=r"Iceberg table db\.t"):
        sink.commit_staged([advance(0, 10)], staged)
    catalog.rmdir()
    hidden.rename(catalog)
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.APPLIED
    assert ids(warehouse) == list(range(10))


def test_a_catalog_whose_tables_another_process_makes_first_is_no_error(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqlCatalog.create_tables
    raced = []

    def slow(self: SqlCatalog) -> None:
        create(self)
        if not raced:
            raced.append(self)
            raise OperationalError("CREATE TABLE", None, Exception("table exists"))

    monkeypatch.setattr(SqlCatalog, "create_tables", slow)
    assert warehouse.sink().entries() != []
    assert raced
