"""Ledger tables of versions that did not store log ids, in each database besides PostgreSQL."""

from __future__ import annotations

import pytest

from semel.ledger import Advance, LedgerEntry, OffsetRange, TopicPartition, firsts
from semel.sinks.sql.sink import SqlSink
from tests.sinks.sql.conftest import MakeSink, Query

TP = TopicPartition("t", 0)
KEPT = (
    'connector, topic, "partition", "position", start_position, records_read, '
    "rows_written, records_filtered, records_failed, records_lost, updated_at"
)


def entry(sink: SqlSink) -> LedgerEntry:
    (found,) = sink.entries()
    return found


@pytest.fixture
def old(make: MakeSink, query: Query, sql_url: str) -> MakeSink:
    """An old ledger with one entry."""
    sink = make()
    sink.prepare([])
    sink.start(firsts({TP: 5}))
    sink.advance([Advance(OffsetRange(*TP, 5, 8), read=3, written=3)])
    sink.close()
    if "sqlserver" in sql_url:
        query(f"SELECT {KEPT} INTO older FROM semel_offsets")
        query("DROP TABLE semel_offsets")
        query("EXEC sp_rename 'older', 'semel_offsets'")
    else:
        query(f"CREATE TABLE older AS SELECT {KEPT} FROM semel_offsets")
        query("DROP TABLE semel_offsets")
        query("ALTER TABLE older RENAME TO semel_offsets")
    return make


def test_it_is_read_as_it_is_and_gets_the_new_columns_when_a_run_prepares(
    old: MakeSink, query: Query
) -> None:
    before = entry(old())
    assert (before.position, before.topic_id, before.leader_epoch, before.target) == (8, "", -1, "")
    sink = old()
    sink.prepare([])
    assert entry(sink) == before
    sink.advance([Advance(OffsetRange(*TP, 8, 9), read=1, leader_epoch=4, epoch_offset=9)])
    assert (entry(sink).leader_epoch, entry(sink).epoch_offset) == (4, 9)


def test_a_position_that_an_older_version_moves_has_no_epoch(make: MakeSink, query: Query) -> None:
    sink = make()
    sink.prepare([])
    sink.start(firsts({TP: 0}))
    sink.advance([Advance(OffsetRange(*TP, 0, 5), read=5, leader_epoch=2, epoch_offset=5)])
    sink.advance([Advance(OffsetRange(*TP, 5, 7))])  # transaction markers
    assert (entry(sink).leader_epoch, entry(sink).epoch_offset) == (2, 5)
    sink.close()
    query('UPDATE semel_offsets SET "position" = 9')
    again = make()
    assert (entry(again).leader_epoch, entry(again).epoch_offset) == (-1, -1)
    again.advance([Advance(OffsetRange(*TP, 9, 11))])
    assert entry(again).leader_epoch == -1
