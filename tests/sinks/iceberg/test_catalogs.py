"""Catalogs behind a wire, REST and Glue: who refuses a late commit, and what lost answers do."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.glue import GlueCatalog

from semel.core.errors import LedgerConflict, TransientError
from semel.core.ledger import Outcome
from semel.core.records import Commit, DeadLetter
from semel.sinks.iceberg import sink as module
from semel.sinks.iceberg.sink import IcebergSink
from semel.sinks.staging import CommitConflict
from semel_lab.embedded.proxy import Proxy
from tests.engine.harness import some
from tests.faults import KINDS, Fault, Faults
from tests.sinks.iceberg.conftest import Warehouse, glue_warehouse
from tests.sinks.iceberg.test_crashes import MODES
from tests.sinks.target import advance, values
from tests.sinks.test_lakes import outcome_of_a_race

Remote = tuple[Warehouse, Faults]


def ids(warehouse: Warehouse) -> list[int]:
    return sorted(r["id"] for r in warehouse.rows())


def of_a_commit(warehouse: Warehouse, faults: Faults, kind: str, times: int = 1) -> Fault:
    """A fault of the request that commits to the table."""
    if warehouse.properties["type"] == "glue":
        return faults.come(kind, "POST", "AWSGlue.UpdateTable", times)
    namespace, table = warehouse.name.split(".")
    return faults.come(kind, "POST", f"/namespaces/{namespace}/tables/{table}\n", times)


def committed(sink: IcebergSink, first: int, until: int) -> Outcome:
    """As the engine does it: the same again after an error whose outcome is not known."""
    staged = sink.stage(values(first, until))
    for _ in range(5):
        try:
            return sink.commit_staged([advance(first, until)], staged)
        except TransientError:
            continue
    raise AssertionError("it never came about")


def test_a_table_is_created_and_extended_and_each_commit_is_one(remote: Remote) -> None:
    warehouse, _ = remote
    sink = warehouse.sink(keys={"iceberg.tables.evolve-schema-enabled": "true"})
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
    before = warehouse.table().metadata
    staged = sink.stage(values(10, 20, text="new"))
    grown = warehouse.table().metadata
    assert sink.commit_staged([advance(10, 20)], staged) is Outcome.APPLIED
    after = warehouse.table().metadata
    assert len(grown.schemas) == len(before.schemas) + 1
    assert len(after.snapshots) == len(before.snapshots) + 1
    assert (warehouse.stored(), ids(warehouse)) == (20, list(range(20)))
    assert [r["text"] for r in warehouse.rows()].count("new") == 10


def test_a_replay_changes_nothing_and_gaps_are_refused(remote: Remote) -> None:
    warehouse, _ = remote
    sink, other = warehouse.sink(), warehouse.sink()
    staged = sink.stage(values(0, 10))
    sink.commit_staged([advance(0, 10)], staged)
    location = warehouse.table().metadata_location
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.REPLAYED
    assert other.commit([advance(0, 10)], values(0, 10)) is Outcome.REPLAYED
    for first, until in ((0, 20), (5, 15), (11, 20)):
        with pytest.raises(LedgerConflict, match="the ledger is at 10 for t-0"):
            other.commit([advance(first, until)], values(first, until))
    assert warehouse.table().metadata_location == location


def test_the_catalog_itself_refuses_the_second_commit_from_one_snapshot(remote: Remote) -> None:
    warehouse, _ = remote
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    staged = [f.data_file() for f in sink.stage(values(10, 20)).files]
    first, second = (warehouse.sink()._tables.of(warehouse.name).table for _ in range(2))
    first.commit(staged, {"x": "1"})
    with pytest.raises(CommitConflict, match=f"branch main has changed.*{first.snapshot_id}"):
        second.commit(staged, {"x": "2"})
    assert warehouse.table().properties["x"] == "1"
    assert ids(warehouse) == list(range(20))


def test_a_writer_that_wins_between_judgement_and_commit_is_noticed(remote: Remote) -> None:
    warehouse, _ = remote
    assert outcome_of_a_race(warehouse, module) is Outcome.REPLAYED


@pytest.mark.long
def test_glue_refuses_what_pyiceberg_has_not_seen(
    faulty_aws: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg checks a commit and sends it then; what comes in between is for Glue to notice."""
    warehouse = glue_warehouse(tmp_path, faulty_aws)
    sink, other = warehouse.sink(), warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    original = GlueCatalog._update_glue_table
    raced = []

    def slow(self: GlueCatalog, *args: Any, **keys: Any) -> None:
        if not raced:
            raced.append(self)
            other.commit([advance(10, 20)], values(10, 20))
        original(self, *args, **keys)

    monkeypatch.setattr(GlueCatalog, "_update_glue_table", slow)
    assert sink.commit([advance(10, 20)], values(10, 20)) is Outcome.REPLAYED
    assert raced
    assert ids(warehouse) == list(range(20))


@pytest.mark.parametrize(
    ("remote", "kind", "mode"),
    some(
        product(["rest", "glue"], KINDS, MODES),
        {("rest", "lost", "append"), ("rest", "twice", "upsert")},
    ),
    indirect=["remote"],
)
def test_a_commit_whose_answer_is_lost_is_neither_duplicated_nor_destroyed(
    kind: str, mode: str, remote: Remote
) -> None:
    """A client, or a gateway, that tries again by itself is told of a conflict with itself."""
    warehouse, faults = remote
    sink = warehouse.sink(keys=MODES[mode])
    sink.commit([advance(0, 10)], values(0, 10))
    fault = of_a_commit(warehouse, faults, kind)
    committed(sink, 10, 20)
    assert fault.matched
    assert (warehouse.stored(), ids(warehouse)) == (20, list(range(20)))
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
    assert ids(warehouse) == list(range(30))


def test_dead_letters_of_a_commit_whose_answer_is_lost_are_kept_once(remote: Remote) -> None:
    warehouse, faults = remote
    dead = f"{warehouse.name}_dead"
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": dead}
    sink = warehouse.sink(keys=keys)

    def letter(offset: int) -> DeadLetter:
        return DeadLetter("t", 0, offset, None, b"bad", [], 0, "STAGE", "E", "why")

    sink.commit([advance(0, 10)], Commit(values(0, 9).records, [letter(9)]))
    warehouse.name, name = dead, warehouse.name
    fault = of_a_commit(warehouse, faults, "twice")
    warehouse.name = name
    sink.commit([advance(10, 20)], Commit(values(10, 19).records, [letter(19)]))
    assert fault.matched
    assert sorted(r["offset"] for r in warehouse.rows(dead)) == [9, 19]


@pytest.mark.long
def test_a_catalog_in_a_database_that_falls_silent_is_left(tmp_path: Path, database: str) -> None:
    with Proxy.before(database) as proxy:
        url = proxy.url(database).replace("postgresql:", "postgresql+psycopg2:")
        where = f"file://{tmp_path}/warehouse"
        warehouse = Warehouse(tmp_path, {"type": "sql", "uri": url, "warehouse": where})
        sink = warehouse.sink(keys={"store.timeout.ms": "5000"})
        assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
        proxy.silence()
        with pytest.raises(TransientError):
            sink.commit([advance(10, 20)], values(10, 20))
        assert committed(sink, 10, 20) is Outcome.APPLIED
        assert ids(warehouse) == list(range(20))
