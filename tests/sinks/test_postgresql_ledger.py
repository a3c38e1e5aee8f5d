"""Ledger tables in PostgreSQL: epochs, rebases, and formats of later versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.core.errors import ServiceError
from semel.core.ledger import Advance, Hole, LedgerEntry, OffsetRange, Rebase, TopicPartition, first
from semel.sinks.base import Sink
from tests.engine.harness import sql
from tests.sinks.target import Target

TP = TopicPartition("t", 0)


@pytest.fixture
def target(database: str) -> Target:
    return Target(database)


def entry(sink: Sink) -> LedgerEntry:
    (found,) = sink.entries()
    return found


def test_a_position_that_moves_past_markers_alone_keeps_its_epoch(target: Target) -> None:
    sink = target.sink()
    sink.prepare([])
    sink.start([first(TP, 0)])
    sink.advance([Advance(OffsetRange(*TP, 0, 5), read=5, leader_epoch=2, epoch_offset=5)])
    sink.advance([Advance(OffsetRange(*TP, 5, 7))])  # transaction markers
    assert (entry(sink).leader_epoch, entry(sink).epoch_offset) == (2, 5)


@pytest.mark.parametrize("table", ["semel_offsets", "semel_holes"])
def test_rows_of_a_later_version_are_refused(target: Target, database: str, table: str) -> None:
    sink = target.sink()
    sink.prepare([])
    sink.start([first(TP, 0)])
    sink.advance([Advance(OffsetRange(*TP, 0, 5), lost=5)])
    sql(database, f"UPDATE {table} SET format = 2")
    with pytest.raises(ServiceError, match=rf"table {table} was written by a later version"):
        sink.snapshot([])


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
