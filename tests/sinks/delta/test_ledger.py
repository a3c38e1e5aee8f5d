"""The ledger in a Delta table: one commit, one version, and what outlives the log."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler

from semel.core import failpoints
from semel.core.errors import ConfigError, LedgerConflict, ServiceError, TransientError
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit
from semel.sinks.delta import sink as module
from semel.sinks.delta.store import translated
from semel.sinks.delta.table import Table
from tests.sinks.delta.conftest import Lake
from tests.sinks.target import FIRST, advance, records, values


def test_rows_and_positions_are_one_commit(lake: Lake) -> None:
    sink = lake.sink()
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
    log = sorted((lake.path / "t" / "_delta_log").glob("*.json"))[-1].read_text()
    assert log.count('"add"') == 1
    assert '{"txn":{"appId":"semel:c:t:0","version":10}}' in log


def test_a_view_of_no_topics_shows_the_ledger_and_no_rows(lake: Lake) -> None:
    sink = lake.sink(keys={"provenance": "true"})
    sink.commit([advance(0, 10)], values(0, 10))
    with sink.viewing(["t"]) as (view,):
        found = view.snapshot(())
        assert [(e.topic_partition, e.position) for e in found.entries] == [(FIRST, 10)]
        assert (found.records, found.rows) == ({}, {})
        assert view.snapshot(["t"]).records["t"].num_rows == 10
        assert view.target("t") == "t"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('Error: Os { code: 13, kind: PermissionDenied, message: "Permission denied" }', True),
        ("Unable to open file /lake/t/part-0.parquet#1: Permission denied (os error 13)", True),
        ("Unable to open file /lake/t/part-0.parquet#1: No space left (os error 28)", False),
    ],
)
def test_denied_access_does_not_pass_by_itself(said: str, expected: bool) -> None:
    """These are delta-rs's words (1.6); a process that may write anywhere never hears them."""
    with pytest.raises((ServiceError, TransientError)) as failed, translated("/lake/t"):
        raise DeltaError(said)
    assert isinstance(failed.value, ServiceError) is expected
    assert ("access is denied" in str(failed.value)) is expected


def test_other_writers_of_the_table_do_not_disturb(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    raced = []

    def race(place: str) -> None:
        if place == "sink.before_commit" and len(raced) < 3:
            raced.append(lake.table().optimize.compact())
            one = lake.table().to_pyarrow_table().slice(0, 1)
            write_deltalake(lake.table(), one, mode="append")

    monkeypatch.setattr(module, "hit", race)
    assert sink.commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED
    assert len(raced) == 3
    assert len(lake.rows()) == 23
    assert lake.stored() == 20


def test_positions_and_counts_outlive_checkpoints_and_log_cleanup(lake: Lake) -> None:
    sink = lake.sink()
    for n in range(25):
        sink.commit([advance(10 * n, 10 * n + 10)], values(10 * n, 10 * n + 10))
    table = lake.table()
    log = lake.path / "t" / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet")), "the table's checkpoint interval is kept"
    table.create_checkpoint()
    for old in log.glob("*.json"):  # as log cleanup does in time
        if int(old.stem) < table.version():
            old.unlink()
    (entry,) = lake.sink().entries()
    assert (entry.position, entry.records_read, entry.rows_written) == (250, 250, 250)
    assert entry.updated_at.startswith("20")
    again = lake.sink()
    assert again.commit([advance(250, 260)], values(250, 260)) is Outcome.APPLIED
    assert len(lake.rows()) == 260


def test_positions_are_held_until_the_first_row_makes_the_table(lake: Lake) -> None:
    sink = lake.sink()
    assert [e.position for e in sink.entries()] == [0]
    assert sink.commit([advance(0, 5)], Commit([])) is Outcome.APPLIED
    assert [e.position for e in sink.entries()] == [5]
    with pytest.raises(LedgerConflict):
        sink.commit([advance(0, 4)], Commit([]))
    assert sink.commit([advance(5, 10)], values(5, 10)) is Outcome.APPLIED
    (entry,) = lake.sink().entries()
    assert (entry.position, entry.start_position, entry.records_read) == (10, 0, 10)


def test_after_a_crash_between_two_tables_only_the_second_is_written(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"topics": "t,u"}

    def both() -> Commit:
        return Commit([records([{"id": i} for i in range(5)], topic=t) for t in ("t", "u")])

    sink = lake.sink(keys=keys)
    sink.start(firsts({TopicPartition("u", 0): 0}))
    sink.accommodate(both().records[0])
    sink.accommodate(both().records[1])
    seen = []

    def fail(place: str) -> None:
        seen.append(place)
        if seen.count("sink.before_commit") == 2:
            raise TransientError("the second table")

    monkeypatch.setattr(module, "hit", fail)
    advances = [advance(0, 5), advance(0, 5, topic="u")]
    with pytest.raises(TransientError):
        sink.commit(advances, both())
    monkeypatch.setattr(module, "hit", failpoints.hit)
    assert (lake.stored("t"), lake.stored("u")) == (5, 0)
    later = lake.sink(keys=keys)
    assert later.commit(advances, both()) is Outcome.APPLIED
    assert (len(lake.rows("t")), len(lake.rows("u"))) == (5, 5)


def test_at_most_once_writes_nothing_where_one_of_two_tables_has_moved_already(lake: Lake) -> None:
    keys = {"topics": "t,u", "delivery": "at-most-once"}
    sink, other = lake.sink(keys=keys), lake.sink(keys=keys)
    for each in (sink, other):
        each.start(firsts({TopicPartition("u", 0): 0}))
        each.accommodate(records([{"id": 1}]))
        each.accommodate(records([{"id": 1}], topic="u"))
    advances = [advance(0, 5), advance(0, 5, topic="u")]
    assert other.advance(advances[1:]) is Outcome.APPLIED
    assert sink.advance(advances) is Outcome.REPLAYED
    assert (lake.stored("t"), lake.stored("u")) == (5, 5)


def test_tables_that_cannot_be_written_safely_are_refused(lake: Lake) -> None:
    lake.sink().commit([advance(0, 10)], values(0, 10))
    properties = {
        "delta.setTransactionRetentionDuration": ("interval 7 days", "forgets transaction"),
        "delta.appendOnly": ("true", "append-only"),
    }
    for name, (value, why) in properties.items():
        lake.table().alter.set_table_properties({name: value})
        keys = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
        with pytest.raises(ConfigError, match=f"{why}.*{re.escape(name)}"):
            lake.sink(keys=keys)
        lake.table().alter.set_table_properties({name: "false"})
    lake.table().alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(ConfigError, match="CHECK constraints"):
        lake.sink()


def test_a_store_that_cannot_be_written_is_a_transient_error(lake: Lake) -> None:
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    (lake.path / "t" / "_delta_log" / f"{lake.table().version() + 1:020}.json").mkdir()
    with pytest.raises(TransientError, match="Delta table"):
        sink.commit([advance(10, 20)], values(10, 20))


def test_a_store_that_does_not_say_whether_a_staged_file_is_there_is_a_transient_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    staged = sink.stage(values(10, 20))

    def lost(*_arguments: object) -> None:
        raise OSError("503 Slow Down")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaStorageHandler, "get_file_info", lost)
        with pytest.raises(TransientError, match="503 Slow Down"):
            sink.commit_staged([advance(10, 20)], staged)
    assert sink.commit_staged([advance(10, 20)], staged) is Outcome.APPLIED


def test_a_conflict_where_nothing_is_judged_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_arguments: object, **_named: object) -> None:
        raise CommitFailedError("the log cannot be written")

    monkeypatch.setattr(DeltaTable, "create", lost)
    with pytest.raises(TransientError, match="log cannot be written"):
        Table.create(str(tmp_path / "t"), {}, [pa.field("id", pa.int64())])


def test_another_application_of_the_same_name_in_the_log_is_not_overwritten(lake: Lake) -> None:
    """The property that the design rests on: a commit that moves an identifier fails if another
    commit has moved it since the table was read."""
    lake.sink().commit([advance(0, 10)], values(0, 10))
    first, second = lake.table(), lake.table()
    for table, moved in ((first, True), (second, False)):
        properties = CommitProperties(app_transactions=[Transaction("x", 1)], max_commit_retries=5)
        try:
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=properties
            )
        except Exception as error:
            assert not moved
            assert "Concurrent transaction" in str(error)
        else:
            assert moved


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"no Delta table at {tmp_path}/t for topic t.*auto.cre"):
        Lake(tmp_path).sink(keys={"auto.create": "false"})


def test_a_store_that_does_not_answer_is_named_on_one_line() -> None:
    options = {
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_allow_http": "true",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_region": "here",
        "max_retries": "0",
    }
    with pytest.raises(TransientError, match=r"Delta table s3://bucket/t: .*S3 error: Error perf"):
        Table.open("s3://bucket/t", options)
