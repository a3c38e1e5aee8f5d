"""A table that went back: RESTORE takes rows back, and leaves transaction identifiers."""

from __future__ import annotations

import datetime as dt
import os
import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError, RolledBack
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, DeadLetter
from semel.sinks.delta.ledger import Setback, setback
from semel.sinks.delta.sink import DeltaSink
from semel.sinks.delta.table import Operation, operation_of
from tests.sinks.delta.conftest import Lake
from tests.sinks.target import FIRST, advance, values


def made(lake: Lake, **keys: str) -> DeltaSink:
    """A sink that has not looked at the store yet."""
    raw = lake.config(keys=keys)
    return DeltaSink(read(ConnectorConfig, raw))


def filled(lake: Lake) -> tuple[DeltaSink, int]:
    """A sink with two commits, and the table's version after the first one."""
    sink = lake.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    first = lake.table().version()
    sink.commit([advance(10, 20)], values(10, 20))
    return sink, first


def test_a_restored_table_is_refused_with_the_facts_and_the_ways_out(lake: Lake) -> None:
    sink, first = filled(lake)
    last = lake.table().version()
    lake.table().restore(first)
    facts = (
        rf"version {last + 1} restored the table to version {first}, after version {last}.*"
        rf"the positions remain \(t-0 at 20\).*restore the table to version {last}\. .*"
        "semel offsets set FILE t-0=10$"
    )
    with pytest.raises(RolledBack, match=facts):
        sink.commit([advance(20, 30)], values(20, 30))
    with pytest.raises(RolledBack, match=facts):
        made(lake).prepare(["t"])
    with pytest.raises(RolledBack, match=facts):
        made(lake).start(firsts({TopicPartition("t", 1): 0}))
    assert len(lake.rows()) == 10


def test_a_restore_that_is_undone_leaves_nothing_to_refuse(lake: Lake) -> None:
    sink, first = filled(lake)
    last = lake.table().version()
    lake.table().restore(first)
    lake.table().restore(last)
    made(lake).prepare(["t"])
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
    assert len(lake.rows()) == 30


def test_positions_that_are_set_by_hand_are_right_for_the_restored_table(lake: Lake) -> None:
    _, first = filled(lake)
    lake.table().restore(first)
    made(lake).set_positions(firsts({FIRST: 10}))
    assert lake.sink().commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED
    assert len(lake.rows()) == 20


def test_positions_of_a_restored_table_are_set_together(lake: Lake) -> None:
    sink = lake.sink()
    sink.start(firsts({TopicPartition("t", 1): 0}))
    sink.commit([advance(0, 10), advance(0, 5, partition=1)], values(0, 10))
    lake.table().restore(lake.table().version() - 1)
    with pytest.raises(ConfigError, match="Name the others too: t-1=5"):
        made(lake).set_positions(firsts({FIRST: 0}))
    made(lake).set_positions(firsts({FIRST: 0, TopicPartition("t", 1): 0}))
    made(lake).prepare(["t"])


def test_a_restored_table_can_be_read_anew_from_the_start(lake: Lake) -> None:
    _, first = filled(lake)
    lake.table().restore(first)
    made(lake).set_positions(None)
    assert lake.sink().commit([advance(0, 20)], values(0, 20)) is Outcome.APPLIED


def test_a_restore_is_still_known_once_its_log_entry_is_cleaned_up(lake: Lake) -> None:
    _, first = filled(lake)
    table = lake.table()
    table.restore(first)
    table.create_checkpoint()
    for old in (lake.path / "t" / "_delta_log").glob("*.json"):
        old.unlink()
    with pytest.raises(RolledBack, match=r"nobody can tell.*offsets set FILE t-0=OFFSET; or"):
        made(lake).prepare(["t"])


def test_log_cleanup_alone_stops_nobody(lake: Lake) -> None:
    sink, _ = filled(lake)
    lake.table().create_checkpoint()
    log = lake.path / "t" / "_delta_log"
    for old in log.glob("*.json"):
        if int(old.stem) < lake.table().version():
            old.unlink()
    made(lake).prepare(["t"])
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED


def cleaned_up(lake: Lake, *, after: bool = True) -> None:
    """As another writer's checkpoint does once the retention of the log has passed."""
    if after:
        write_deltalake(str(lake.path / "t"), pa.table({"id": [-1]}), mode="append")
    lake.table().create_checkpoint()
    for old in (lake.path / "t" / "_delta_log").glob("*.json"):
        if int(old.stem) < lake.table().version():
            old.unlink()


def test_an_idle_run_needs_no_log_of_versions_that_it_has_checked(lake: Lake) -> None:
    sink, _ = filled(lake)
    sink.claim()
    for _ in range(3):
        write_deltalake(str(lake.path / "t"), pa.table({"id": [-1]}), mode="append")
        assert sink.entries()[0].position == 20
        cleaned_up(lake)
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED


def test_what_an_idle_run_has_checked_is_known_to_the_next_run(lake: Lake) -> None:
    sink, _ = filled(lake)
    sink.claim()
    write_deltalake(str(lake.path / "t"), pa.table({"id": [-1]}), mode="append")
    sink.entries()
    cleaned_up(lake)
    sink.entries()
    cleaned_up(lake, after=False)
    made(lake).prepare(["t"])


def test_a_run_that_has_nothing_to_commit_notices_a_restore_too(lake: Lake) -> None:
    sink, first = filled(lake)
    sink.claim()
    sink.entries()
    lake.table().restore(first)
    with pytest.raises(RolledBack):
        sink.entries()


def test_dead_letters_that_were_restored_away_are_missed(lake: Lake) -> None:
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "dead"}
    sink = lake.sink(keys=keys)

    def bad(offset: int) -> Commit:
        letter = DeadLetter("t", 0, offset, None, b"", [], 0, "STAGE", "E", "why")
        return Commit(values(offset, offset + 1).records, [letter])

    for offset in range(2):
        sink.commit([advance(offset, offset + 1)], bad(offset))
    dead = lake.table("dead")
    last = dead.version()
    dead.restore(last - 1)
    facts = f"dead, which holds dead letters: version .*restore the table to version {last}"
    with pytest.raises(RolledBack, match=facts):
        sink.commit([advance(2, 3)], bad(2))
    with pytest.raises(RolledBack, match=facts):
        lake.made(keys=keys).prepare(["t"])
    lake.made(keys=keys).set_positions(firsts({FIRST: 2}))
    assert lake.sink(keys=keys).commit([advance(2, 3)], bad(2)) is Outcome.APPLIED


def test_a_table_that_is_replaced_in_place_is_refused(lake: Lake) -> None:
    sink, _ = filled(lake)
    fields = lake.table().schema()
    DeltaTable.create(str(lake.path / "t"), fields, mode="overwrite")
    for attempt in (
        lambda: sink.commit([advance(20, 30)], values(20, 30)),
        lambda: made(lake).prepare(["t"]),
    ):
        with pytest.raises(RolledBack, match="the table was replaced: it has another id"):
            attempt()


@pytest.mark.parametrize("more", [0, 30])
def test_a_table_that_is_removed_and_made_again_is_not_written_by_a_run_that_knew_the_old_one(
    lake: Lake, more: int
) -> None:
    sink, _ = filled(lake)
    shutil.rmtree(lake.path / "t")
    one = pa.table({"id": [1]})
    for _ in range(1 + more):
        write_deltalake(str(lake.path / "t"), one, mode="append")
    with pytest.raises(RolledBack, match="was removed, and another one was created there"):
        sink.commit([advance(20, 30)], values(20, 30))
    assert len(lake.rows()) == 1 + more
    shutil.rmtree(lake.path / "t")
    with pytest.raises(RolledBack, match="is gone"):
        sink.advance([advance(20, 30)])


def test_upserts_notice_a_restore(lake: Lake) -> None:
    keys = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
    sink = lake.sink(keys=keys)
    for n in range(3):
        sink.commit([advance(10 * n, 10 * n + 10)], values(10 * n, 10 * n + 10))
    lake.table().restore(lake.table().version() - 1)
    with pytest.raises(RolledBack, match="restored the table"):
        sink.commit([advance(30, 40)], values(30, 40))


def _log(*names: Operation | str) -> dict[int, Operation]:
    return {
        n: name if isinstance(name, Operation) else Operation(name)
        for n, name in enumerate(names, start=6)
    }


def _to(version: object) -> Operation:
    return Operation("RESTORE", {"version": version})


@pytest.mark.parametrize(
    ("log", "base"),
    [
        (_log(), 5),
        (_log("WRITE", "OPTIMIZE", "VACUUM END"), 5),
        (_log("WRITE", _to(5)), 5),
        (_log("WRITE", _to("6")), 5),
        (_log(_to("3")), 3),
        (_log(_to("3"), "WRITE"), 3),
        (_log(_to("3"), _to("5")), 5),
        (_log(_to("3"), "WRITE", _to("6")), 3),
        (_log(_to("3"), _to("2"), _to("6")), 3),
        (_log(Operation("RESTORE", {"version": None, "timestamp": "2026-01-01"})), None),
        (_log("CREATE OR REPLACE TABLE AS SELECT"), None),
        (_log("CLONE", "WRITE"), None),
    ],
)
def test_what_later_versions_did_tells_which_state_the_table_has(
    log: dict[int, Operation], base: int | None
) -> None:
    found = setback(5, 5 + len(log), log)[5 + len(log)]
    assert (5 if found is None else found.base) == base


def test_a_version_that_is_not_in_the_log_any_more_is_never_guessed() -> None:
    found = setback(5, 8, {8: Operation("WRITE")})[8]
    assert isinstance(found, Setback)
    assert "version 7 has been cleaned up" in found.said


def test_entries_of_the_log_say_what_they_did_or_nothing() -> None:
    spark = b'{"commitInfo":{"operation":"RESTORE","operationParameters":{"version":"3"}}}\n{}'
    assert operation_of(spark) == Operation("RESTORE", {"version": "3"})
    assert operation_of(b'{"add":{}}\n') == Operation("")


def test_a_restore_to_a_time_is_refused_too(lake: Lake) -> None:
    sink, first = filled(lake)
    entries = sorted((lake.path / "t" / "_delta_log").glob("*.json"))
    for version, entry in enumerate(entries):
        os.utime(entry, (1_700_000_000 + version,) * 2)
    moment = dt.datetime.fromtimestamp(1_700_000_000 + first, dt.UTC)
    lake.table().restore(moment.isoformat())
    with pytest.raises(RolledBack, match="restored the table to time"):
        sink.commit([advance(20, 30)], values(20, 30))
    lake.table().restore(lake.table().version() - 1)
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
