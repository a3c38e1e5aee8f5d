"""Entries in an Iceberg table name the log that they point at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from semel.core.errors import ConfigError, LedgerConflict
from semel.core.ledger import RECREATED, RETENTION, TRUNCATED, Hole, LogId, Outcome, Rebase
from semel.core.records import Commit, DeadLetter
from semel.sinks.iceberg.sink import IcebergSink
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.iceberg.test_ledger import ids
from tests.sinks.iceberg.test_routing import BOTH, ROUTED, killed_between
from tests.sinks.otherlogs import FORMER, PRESENT
from tests.sinks.target import advance, held, values

DEAD = {"errors.tolerance": "all", "errors.deadletterqueue.table": "db.dead"}


def letter(offset: int, value: bytes) -> DeadLetter:
    return DeadLetter("t", 0, offset, None, value, (), 5, "STAGE", "E", "why")


def learn(warehouse: Warehouse, name: str, log: LogId, **facts: int) -> None:
    """Move a table's entry to a log by hand."""
    table = warehouse.catalog.load_table(name)
    known = json.loads(table.properties["semel:c:t:0"])
    known |= {**log._asdict(), **facts}
    with table.transaction() as transaction:
        transaction.set_properties({"semel:c:t:0": json.dumps(known)})


def learned_log(warehouse: Warehouse, name: str) -> LogId:
    known = json.loads(warehouse.catalog.load_table(name).properties["semel:c:t:0"])
    return LogId(known["cluster_id"], known["topic_id"])


def begin_another_log(sink: IcebergSink) -> None:
    """Recreate the topic after a run that was killed: it had committed the dead letter of offset 3,
    and the position was still at the beginning."""
    bare = held(sink)
    first, second = (replace(bare, topic_id=each) for each in ("first", "second"))
    sink.rebase([Rebase(bare, first)])
    assert sink._letters is not None
    sink._letters.keep([letter(3, b"old")])
    sink.rebase([Rebase(first, second)])


def test_an_entry_learns_its_log_and_keeps_epochs(
    warehouse: Warehouse,
) -> None:
    sink = warehouse.sink()
    old = held(sink)
    assert "topic" not in warehouse.table().properties["semel:c:t:0"]
    new = replace(old, cluster_id="k", topic_id="first")
    sink.rebase([Rebase(old, new)])
    warehouse.sink().rebase([Rebase(old, new)])
    sink.commit([replace(advance(0, 10), leader_epoch=0, epoch_offset=9)], values(0, 10))
    sink.commit([replace(advance(10, 20), leader_epoch=0, epoch_offset=19)], values(10, 20))
    entry = held(warehouse.sink())
    assert (entry.cluster_id, entry.topic_id, entry.position) == ("k", "first", 20)
    assert (entry.leader_epoch, entry.epoch_offset) == (0, 19)


def test_a_rebase_moves_back_and_records_what_the_former_log_left(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    sink.advance([advance(10, 12, lost=2)])
    old = held(sink)
    new = replace(old, position=0, start_position=0, topic_id="second")
    sink.rebase([Rebase(old, new, Hole("t", 0, 0, 12, RECREATED))])
    assert held(warehouse.sink()) == new
    assert sink.commit([advance(0, 6)], values(0, 6)) is Outcome.APPLIED
    after = held(sink)
    sink.rebase([Rebase(after, replace(after, position=4), Hole("t", 0, 4, 6, TRUNCATED))])
    assert {replace(h, at="") for h in warehouse.sink().snapshot(["t"]).holes} == {
        Hole("t", 0, 10, 12, RETENTION),
        Hole("t", 0, 0, 12, RECREATED),
        Hole("t", 0, 4, 6, TRUNCATED),
    }
    assert sink.commit([advance(4, 8)], values(4, 8)) is Outcome.APPLIED
    assert len(ids(warehouse)) == 20


def test_dead_letters_whose_records_no_position_counts_do_not_hide_those_of_a_new_log(
    warehouse: Warehouse,
) -> None:
    sink = warehouse.sink(keys=DEAD)
    begin_another_log(sink)
    sink.commit([advance(0, 10)], Commit(values(0, 9).records, [letter(2, b"new")]))
    assert sorted(r["value"] for r in warehouse.rows("db.dead")) == [b"new", b"old"]


def test_a_rebase_of_what_another_run_has_moved_is_a_conflict(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    old = held(sink)
    warehouse.sink().commit([advance(0, 10)], values(0, 10))
    with pytest.raises(LedgerConflict, match="position 0 before, now 10"):
        sink.rebase([Rebase(old, replace(old, topic_id="second"))])


def test_several_tables_learn_their_log_but_do_not_go_back(warehouse: Warehouse) -> None:
    sink = warehouse.sink(keys=BOTH)
    sink.commit([advance(0, 10)], values(0, 10))
    old = held(sink)
    new = replace(old, cluster_id="k", topic_id="first")
    sink.rebase([Rebase(old, new)])
    assert held(warehouse.sink(keys=BOTH)) == new
    back = Rebase(new, replace(new, position=0, topic_id="second"), Hole("t", 0, 0, 10, RECREATED))
    refused = r"t-0 must go back from offset 10 to 0 \(topic created again\).*set FILE t-0=0"
    with pytest.raises(ConfigError, match=refused):
        sink.rebase([back])
    assert held(warehouse.sink(keys=BOTH)) == new


def test_several_tables_begin_another_log_unless_one_of_them_is_ahead(
    warehouse: Warehouse,
) -> None:
    """Then a run was killed between their commits, and its position seems not to go back."""
    sink = warehouse.sink(keys={**ROUTED, **DEAD})
    begin_another_log(sink)
    assert sink._letters is not None
    sink._letters.keep([letter(2, b"new")])
    assert sorted(r["value"] for r in warehouse.rows("db.dead")) == [b"new", b"old"]
    killed_between(warehouse)
    sink = warehouse.sink(keys=ROUTED)
    before = held(sink)
    other = Rebase(before, replace(before, topic_id="third"))
    with pytest.raises(ConfigError, match=r"t-0 must go back from offset 40 to 20 \(the log has"):
        sink.rebase([other])
    assert held(warehouse.sink(keys=ROUTED)) == before


def test_tables_that_know_different_logs_take_the_records_of_the_ledgers_log(
    warehouse: Warehouse,
) -> None:
    """A table that was left out for a while learns late that the topic was created again."""
    sink = warehouse.sink(keys=BOTH)
    sink.commit([advance(0, 10)], values(0, 10))
    learn(warehouse, "db.a", PRESENT)
    learn(warehouse, "db.b", FORMER)
    sink = warehouse.sink(keys=BOTH)
    assert held(sink).log == PRESENT
    for log, outcome in ((PRESENT, Outcome.APPLIED), (PRESENT, Outcome.REPLAYED)):
        assert sink.commit([replace(advance(10, 20), log=log)], values(10, 20)) is outcome
    with pytest.raises(LedgerConflict, match="in another log"):
        sink.commit([replace(advance(20, 30), log=FORMER)], values(20, 30))
    logs = {name: learned_log(warehouse, name) for name in ("db.a", "db.b")}
    assert logs == {"db.a": PRESENT, "db.b": PRESENT}


def test_a_table_that_is_ahead_in_another_log_stops_the_connector(warehouse: Warehouse) -> None:
    """It was left out, and the topic created again meanwhile: it would take new offsets for those
    that it has."""
    sink = warehouse.sink(keys=BOTH)
    sink.commit([advance(0, 10)], values(0, 10))
    learn(warehouse, "db.a", PRESENT, position=4)
    learn(warehouse, "db.b", FORMER)
    sink = warehouse.sink(keys=BOTH)
    assert (held(sink).log, held(sink).position) == (PRESENT, 4)
    with pytest.raises(ConfigError, match=r"table .*db.b.* is at 10 .*offsets set FILE t-0=4$"):
        sink.commit([replace(advance(4, 8), log=PRESENT)], values(4, 8))
    sink.set_positions([replace(held(sink), **PRESENT._asdict())])
    sink = warehouse.sink(keys=BOTH)
    commit = [replace(advance(4, 8), log=PRESENT)]
    assert sink.commit(commit, values(4, 8)) is Outcome.APPLIED
