"""Ledger tables and dead letters of a later version, in each database besides PostgreSQL."""

from __future__ import annotations

import pytest

from semel.core.errors import ServiceError
from semel.core.ledger import Advance, OffsetRange, TopicPartition, first
from semel.core.records import Commit, DeadLetter
from tests.sinks.sql.conftest import MakeSink, Query

TP = TopicPartition("t", 0)


def test_a_position_that_moves_past_markers_alone_keeps_its_epoch(make: MakeSink) -> None:
    sink = make()
    sink.prepare([])
    sink.start([first(TP, 0)])
    sink.advance([Advance(OffsetRange(*TP, 0, 5), read=5, leader_epoch=2, epoch_offset=5)])
    sink.advance([Advance(OffsetRange(*TP, 5, 7))])  # transaction markers
    (entry,) = sink.entries()
    assert (entry.leader_epoch, entry.epoch_offset) == (2, 5)


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("semel_offsets", "the ledger in table semel_offsets"),
        ("semel_holes", "the ledger in table semel_holes"),
        ("dead", "a dead letter"),
    ],
)
def test_rows_of_a_later_version_are_refused(
    make: MakeSink, query: Query, table: str, what: str
) -> None:
    keys = {"errors_deadletterqueue_table": "dead", "errors_tolerance": "all"}
    sink = make(**keys)
    sink.prepare([])
    sink.start([first(TP, 0)])
    letter = DeadLetter("t", 0, 4, None, b"bad", (), None, "VALUE_CONVERTER", "E", "why")
    step = Advance(OffsetRange(*TP, 0, 5), read=4, written=3, failed=1, lost=1)
    sink.commit([step], Commit([], dead_letters=[letter]))
    sink.close()
    query(f"UPDATE {table} SET format = 2")
    with pytest.raises(ServiceError, match=rf"{what} was written by a later version .*format 2"):
        make(**keys).snapshot([])
