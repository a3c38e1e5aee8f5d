"""Ledger tables of versions that did not store log ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.errors import ConfigError
from semel.ledger import (
    DAMAGED,
    RECREATED,
    TRUNCATED,
    Advance,
    Hole,
    LedgerEntry,
    OffsetRange,
    Rebase,
    TopicPartition,
    first,
    firsts,
)
from semel.sinks.base import Sink
from tests.engine.harness import sql
from tests.sinks.target import Target

TP = TopicPartition("t", 0)
NEW = ("cluster_id", "topic_id", "leader_epoch", "epoch_offset", "epoch_position", "target")


@pytest.fixture
def target(database: str) -> Target:
    return Target(database)


@pytest.fixture
def old(database: str, target: Target) -> Target:
    """An old ledger with one entry."""
    sink = target.sink()
    sink.prepare([])
    sink.start(firsts({TP: 5}))
    sink.advance([Advance(OffsetRange(*TP, 5, 8), read=3, written=3)])
    sink.close()
    sql(
        database,
        "ALTER TABLE semel_offsets " + ", ".join(f"DROP COLUMN {column}" for column in NEW),
    )
    return target


def entry(sink: Sink) -> LedgerEntry:
    (found,) = sink.entries()
    return found


def test_it_is_read_as_it_is_and_gets_the_new_columns_when_a_run_prepares(old: Target) -> None:
    sink = old.sink()
    before = entry(sink)
    assert (before.position, before.topic_id, before.leader_epoch, before.target) == (8, "", -1, "")
    sink.prepare([])
    assert entry(sink) == before
    sink.advance([Advance(OffsetRange(*TP, 8, 9), read=1, leader_epoch=4, epoch_offset=9)])
    assert (entry(sink).leader_epoch, entry(sink).epoch_offset) == (4, 9)


def test_holes_get_the_new_columns_and_may_begin_at_one_offset(old: Target, database: str) -> None:
    sql(
        database,
        "ALTER TABLE semel_holes DROP COLUMN number, DROP COLUMN recorded_by, "
        "ADD PRIMARY KEY (connector, topic, partition, from_offset)",
    )
    sql(
        database,
        "INSERT INTO semel_holes SELECT connector, topic, partition, 5, 8, 'damaged in Kafka' "
        "FROM semel_offsets",
    )
    sink = old.sink()
    assert sink.holes() == [Hole(*TP, 5, 8, DAMAGED)]
    sink.prepare([])
    sink.set_positions(firsts({TP: 5}), "ann")
    assert sink.holes() == []  # they will be read again
    for reason in (RECREATED, TRUNCATED):
        new = replace(entry(sink), topic_id=reason)
        sink.rebase([Rebase(entry(sink), new, Hole(*TP, 5, 7, reason))])
    assert {h.reason for h in sink.holes()} == {RECREATED, TRUNCATED}


def test_who_may_not_alter_it_is_told_what_the_owner_can_run(old: Target, database: str) -> None:
    role = f"clerk_{database.rsplit('/', 1)[-1].split('?', maxsplit=1)[0]}"
    sql(database, f"CREATE ROLE {role} LOGIN PASSWORD 'clerk'")
    sql(database, f"GRANT SELECT, INSERT, UPDATE ON semel_offsets, semel_holes TO {role}")
    try:
        sink = old.sink(connection_user=role, connection_password="clerk")
        with pytest.raises(ConfigError, match=r"older semel.*ALTER TABLE semel_offsets ADD"):
            sink.prepare([])
        sink.close()
    finally:
        sql(database, f"DROP OWNED BY {role}")
        sql(database, f"DROP ROLE {role}")


def test_a_position_that_is_moved_without_its_epoch_has_none(target: Target, database: str) -> None:
    sink = target.sink()
    sink.prepare([])
    sink.start(firsts({TP: 0}))
    sink.advance([Advance(OffsetRange(*TP, 0, 5), read=5, leader_epoch=2, epoch_offset=5)])
    sink.advance([Advance(OffsetRange(*TP, 5, 7))])  # transaction markers
    assert (entry(sink).leader_epoch, entry(sink).epoch_offset) == (2, 5)
    sql(database, "UPDATE semel_offsets SET position = 9")  # as older versions do
    assert (entry(sink).leader_epoch, entry(sink).epoch_offset) == (-1, -1)
    sink.advance([Advance(OffsetRange(*TP, 9, 11))])
    assert entry(sink).leader_epoch == -1


def test_an_entry_is_rebased_once_and_the_hole_recorded(target: Target) -> None:
    sink, other = target.sink(), target.sink()
    sink.prepare([])
    sink.start([first(TP, 0)])
    sink.advance([Advance(OffsetRange(*TP, 0, 50), read=50)])
    old = entry(sink)
    new = replace(old, position=30, cluster_id="c", topic_id="i")
    hole = Hole(*TP, 30, 50, "log truncated")
    for each in (sink, other):  # the second finds it done
        each.rebase([Rebase(old, new, hole)])
    assert (entry(sink).position, entry(sink).topic_id, entry(sink).records_read) == (30, "i", 50)
    assert list(sink.snapshot([]).holes) == [hole]
