"""Entries in a Delta table name the log that they point at."""

from __future__ import annotations

from dataclasses import fields, replace

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from semel.core.errors import LedgerConflict, ServiceError
from semel.core.ledger import (
    RECREATED,
    TRUNCATED,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    TopicPartition,
)
from semel.core.records import Commit, DeadLetter
from semel.sinks.delta.ledger import text_numbers, text_of
from semel.sinks.delta.table import Table
from tests.sinks.delta.conftest import Lake
from tests.sinks.otherlogs import check_refuses_another_log
from tests.sinks.target import advance, held, values

CLUSTER, TOPIC = "MkU3OEVBNTcwNTJENDM2Qk", "k7cGmTbFQn2T1oKVPsx_9A"


def known(position: int = 0, topic_id: str = TOPIC) -> LedgerEntry:
    return LedgerEntry("t", 0, position, position, cluster_id=CLUSTER, topic_id=topic_id)


def test_an_entry_keeps_its_log_and_the_epoch_of_its_last_record(lake: Lake) -> None:
    sink = lake.made()
    sink.start([known()])
    sink.commit([replace(advance(0, 10), leader_epoch=0, epoch_offset=9)], values(0, 10))
    sink.commit([replace(advance(10, 20), leader_epoch=3, epoch_offset=18)], values(10, 20))
    sink.advance([replace(advance(20, 30), read=0, written=0)])  # a marker, and no record
    entry = held(lake.made())
    assert (entry.cluster_id, entry.topic_id) == (CLUSTER, TOPIC)
    assert (entry.leader_epoch, entry.epoch_offset) == (3, 18)
    assert (entry.position, entry.rows_written) == (30, 20)


def test_an_entry_learns_its_log_in_place(lake: Lake) -> None:
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    old = held(sink)
    assert (old.cluster_id, old.topic_id, old.leader_epoch) == ("", "", -1)
    new = replace(old, cluster_id=CLUSTER, topic_id=TOPIC)
    sink.rebase([Rebase(old, new)])
    assert held(lake.made()) == new
    version = lake.table().version()
    lake.made().rebase([Rebase(old, new)])
    assert lake.table().version() == version, "what is there already is not written again"
    assert sink.commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED


def test_every_field_of_an_entry_is_stored(lake: Lake) -> None:
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    old = held(sink)
    numbers = {f.name: n for n, f in enumerate(fields(LedgerEntry), start=11) if f.type == "int"}
    texts = {f.name: f.name for f in fields(LedgerEntry) if f.type == "str"}
    texts |= {"topic": "t", "target": "", "updated_at": ""}  # the table is the target
    new = LedgerEntry(**{**texts, **numbers, "partition": 0})  # type: ignore[arg-type]
    sink.rebase([Rebase(old, new)])
    assert held(lake.made()) == new


def test_a_rebase_moves_back_and_records_what_the_former_log_left(lake: Lake) -> None:
    sink = lake.made()
    sink.start([known()])
    sink.commit([replace(advance(0, 10), leader_epoch=2, epoch_offset=9)], values(0, 10))
    old = held(sink)
    shorter = replace(
        old, position=0, start_position=0, topic_id="other", leader_epoch=-1, epoch_offset=-1
    )
    sink.rebase([Rebase(old, shorter, Hole("t", 0, 0, 10, RECREATED))])
    assert held(lake.made()) == shorter
    sink.commit([advance(0, 6)], values(0, 6))
    after = held(sink)
    cut = replace(after, position=4)
    sink.rebase([Rebase(after, cut, Hole("t", 0, 4, 6, TRUNCATED))])
    found = lake.made().snapshot(["t"])
    assert list(found.holes) == [Hole("t", 0, 0, 10, RECREATED), Hole("t", 0, 4, 6, TRUNCATED)]
    assert sink.commit([advance(4, 8)], values(4, 8)) is Outcome.APPLIED
    assert len(lake.rows()) == 20


def test_of_two_that_rebase_or_commit_one_is_in_conflict(lake: Lake) -> None:
    sink, other = lake.sink(), lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    old = held(sink)
    other.commit([advance(10, 20)], values(10, 20))
    with pytest.raises(LedgerConflict, match="position 10 before, now 20"):
        sink.rebase([Rebase(old, replace(old, position=0, topic_id="other"))])
    assert lake.stored() == 20


def test_what_is_held_before_there_is_a_table_is_rebased_too(lake: Lake) -> None:
    sink = lake.made()
    sink.start([replace(known(), topic_id="")])
    sink.rebase([Rebase(replace(known(), topic_id=""), known())])
    sink.commit([advance(0, 10)], values(0, 10))
    assert held(lake.made()).topic_id == TOPIC


def test_dead_letters_of_the_new_log_are_taken_at_the_same_offsets(lake: Lake) -> None:
    def letter(value: bytes, time: int) -> DeadLetter:
        return DeadLetter("t", 0, 3, None, value, (), time, "VALUE_CONVERTER", "E", "no JSON")

    sink = lake.sink(keys={"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"})
    sink.commit([advance(0, 10)], Commit(values(0, 10).records, [letter(b"old", 5)]))
    old = held(sink)
    sink.rebase([Rebase(old, replace(old, position=0, topic_id="other"))])
    sink.commit([advance(0, 10)], Commit(values(0, 10).records, [letter(b"new", 6)]))
    assert sorted(r["value"] for r in lake.rows("dead")) == [b"new", b"old"]
    dead = sink.snapshot(["t"]).dead["t"]
    assert sorted(dead.column("timestamp").to_pylist()) == [5, 6]


def test_dead_letters_whose_records_no_position_counts_do_not_hide_those_of_a_new_log(
    lake: Lake,
) -> None:
    """The position was at the beginning when the run was killed, and it is again."""
    dead = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    sink = lake.made(keys=dead)
    sink.prepare(["t"])
    sink.start([known()])
    assert sink._letters is not None
    sink._letters.keep([DeadLetter("t", 0, 3, None, b"old", (), 5, "STAGE", "E", "why")])
    sink.rebase([Rebase(known(), known(topic_id="other"))])
    new = DeadLetter("t", 0, 2, None, b"new", (), 6, "STAGE", "E", "why")
    sink.commit([advance(0, 10)], Commit(values(0, 9).records, [new]))
    assert sorted(r["value"] for r in lake.rows("dead")) == [b"new", b"old"]


def test_positions_set_by_hand_hold_what_they_are_given(lake: Lake) -> None:
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    lake.made().set_positions([known(4, "other")])
    found = held(lake.made())
    assert (found.position, found.log, found.records_read) == (4, known(4, "other").log, 10)


@pytest.mark.parametrize("text", ["", "a", "1234567", "12345678", CLUSTER, "größer als sieben"])
def test_text_is_held_by_numbers(text: str) -> None:
    stored = text_numbers("x", text)
    assert text_of("x", stored.get) == text
    assert all(0 < n < 1 << 63 for n in stored.values())


def test_a_shorter_text_replaces_a_longer_one() -> None:
    stored = text_numbers("x", CLUSTER) | text_numbers("x", "b")
    assert text_of("x", stored.get) == "b"
    assert text_of("y", stored.get) == ""


@pytest.mark.parametrize("created", [True, False], ids=["table", "no table yet"])
def test_records_of_the_former_log_are_refused_at_the_same_position(
    lake: Lake, created: bool
) -> None:
    sink = lake.sink()
    if created:
        sink.commit([advance(0, 10)], values(0, 10))
    check_refuses_another_log(sink, TopicPartition("t", 0))


def test_the_ids_of_logs_are_read_once_for_each_commit_of_the_connector(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lookup replays the table's log, and commits of others leave the ids alone."""
    sink = lake.made()
    sink.start([known()])
    sink.commit([advance(0, 10)], values(0, 10))
    looked: list[str] = []
    transaction = Table.transaction

    def look(table: Table, app_id: str) -> int | None:
        looked.append(app_id)
        return transaction(table, app_id)

    monkeypatch.setattr(Table, "transaction", look)
    for start in (10, 20):
        lake.sink("another").advance([advance(0, 10)])
        looked.clear()
        assert sink.commit([advance(start, start + 10)], values(start, 10)) is Outcome.APPLIED
        assert not [name for name in looked if ":topic:" in name or ":cluster:" in name]


def test_a_table_of_a_later_version_is_refused(lake: Lake) -> None:
    lake.sink().commit([advance(0, 10)], values(0, 10))
    later = CommitProperties(app_transactions=[Transaction("semel:c::format", 2)])
    one = pa.table({"id": [12]})
    write_deltalake(str(lake.path / "t"), one, mode="append", commit_properties=later)
    with pytest.raises(ServiceError, match=r"in Delta table .* was written by a later version"):
        lake.made().entries()
