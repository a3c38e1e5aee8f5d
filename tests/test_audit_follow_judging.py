"""What the continuous audit concludes from intervals, and what it keeps, without services."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semel.audit.follow import Totals, pause
from semel.audit.follow.progress import (
    FollowState,
    Mark,
    MissingRecords,
    PartitionProgress,
    begun,
    broken_off,
    default_path,
    load,
    save,
    too_early,
)
from semel.audit.referee import Interval, judge
from semel.audit.report import IntervalReport, spelled
from semel.core.errors import ConfigError
from semel.core.ledger import (
    DAMAGED,
    RECREATED,
    RETENTION,
    TRUNCATED,
    Hole,
    LedgerEntry,
    TopicPartition,
)

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def interval(rows: list[int], kafka: list[int] | None = None, **more: Any) -> Interval:
    arrays = {
        k: np.array(v, np.int64) if k != "holes" and isinstance(v, list) else v
        for k, v in more.items()
    }
    offsets = np.arange(10, 20) if kafka is None else np.array(kafka, np.int64)
    return Interval(offsets, np.array(rows, np.int64), **arrays)


def found(judged: Interval) -> tuple[list[int], list[int], int, int]:
    findings = judge(judged)
    return (
        findings.missing.tolist(),
        findings.surplus.tolist(),
        findings.ghosts,
        findings.unknown,
    )


HERE = list(range(10, 20))


def test_an_interval_names_what_is_missing_duplicated_and_a_ghost() -> None:
    assert found(interval(HERE)) == ([], [], 0, 0)
    assert found(interval([*HERE[1:], 12, 12])) == ([10], [12, 12], 0, 0)
    assert found(interval(HERE, HERE[:-1])) == ([], [19], 1, 0)


def test_dead_letters_and_replaced_rows_are_not_missing_and_may_not_be_there() -> None:
    assert found(interval(HERE[3:], dead=[10], replaced=[11, 12])) == ([], [], 0, 0)
    assert found(interval(HERE, dead=[10])) == ([], [10], 0, 0)
    assert found(interval(HERE, replaced=[11])) == ([], [11], 0, 0)


def test_a_record_that_may_have_failed_is_not_held_against_the_row_before_it() -> None:
    assert found(interval(HERE, replaced=[11], budget=1)) == ([], [], 0, 1)


def test_keys_of_several_partitions_are_not_judged() -> None:
    assert found(interval(HERE[1:], unsure=[10, 11])) == ([], [], 0, 2)


def test_rows_that_compaction_or_a_cut_log_account_for_are_no_findings() -> None:
    assert found(interval(HERE, HERE[1:], compacted=True)) == ([], [], 0, 1)
    cut = [Hole(*TP, 15, 20, TRUNCATED)]
    assert found(interval(HERE, HERE[:5], holes=cut)) == ([], [], 0, 0)


def test_a_former_row_at_the_offset_of_a_record_that_failed_is_no_finding() -> None:
    cut = [Hole(*TP, 15, 20, TRUNCATED)]
    assert found(interval(HERE, dead=[14, 16], holes=cut)) == ([], [14], 0, 0)
    times = np.array([0] * 6 + [1] + [0] * 3)  # of the former log
    judged = interval(HERE, dead=[16, 17], holes=cut, times=times, stamps=[0] * 10)
    assert found(judged) == ([], [17], 0, 0)
    damaged = Hole(*TP, 16, 17, DAMAGED)
    assert found(interval(HERE, dead=[16], holes=[*cut, damaged])) == ([], [], 0, 0)


def test_a_row_of_a_record_that_was_cut_off_is_no_surplus() -> None:
    """The one at 16 replaced the row of 13; 19 has replaced the row of the new record at 16. The
    audit of the whole topic judges the missing row."""
    cut, rows = [Hole(*TP, 15, 18, TRUNCATED)], [p for p in HERE if p != 13]
    judged = interval(rows, replaced=[16], holes=cut)
    assert found(judged) == ([13], [], 0, 1)  # or 16 should have replaced the row there
    assert found(replace(judged, holes=[])) == ([13], [16], 0, 0)
    times = np.array([1 if p == 16 else 0 for p in rows])
    assert found(replace(judged, times=times, stamps=np.zeros(10))) == ([13], [], 0, 0)


def test_rows_above_the_position_are_too_early_unless_a_log_that_is_gone_left_them() -> None:
    ahead = np.array([20, 21, 22, 23])
    assert too_early(ahead, []).tolist() == [20, 21, 22, 23]
    assert too_early(ahead, [Hole(*TP, 15, 22, TRUNCATED)]).tolist() == [22, 23]
    assert too_early(ahead, [Hole(*TP, 0, 23, RECREATED)]).tolist() == [23]
    assert too_early(ahead, [Hole(*TP, 15, 22, RETENTION)]).tolist() == [20, 21, 22, 23]


def test_a_row_of_another_time_than_its_record_is_a_ghost_and_its_record_lost() -> None:
    times = np.array([1] + [0] * 9)
    assert found(interval(HERE, times=times, stamps=[0] * 10)) == ([10], [10], 1, 0)


def entry(position: int = 20, **counts: Any) -> LedgerEntry:
    counts = {"records_read": position, **counts}
    return LedgerEntry("t", 0, position, 0, cluster_id="c", topic_id="x", **counts)


def after(at: int, due: list[int], mark: int = 0) -> PartitionProgress:
    return PartitionProgress(Mark(0, mark), at, due=np.array(due, np.int64))


def test_missing_rows_are_lost_beyond_those_that_the_ledger_counts_as_filtered_or_failed() -> None:
    none = np.array([], np.int64)
    assert after(20, [3, 4, 5]).settle(entry(), none)[0] == 3
    assert after(20, [3, 4, 5]).settle(entry(records_filtered=2), none)[0] == 1
    progress = after(20, [3, 4])
    assert progress.settle(entry(records_filtered=1, records_failed=1), none)[0] == 0
    assert progress.mark == Mark(0, 20, 20, 2, "c", "x")
    named = entry(records_failed=2)  # by dead letters, so that these two are known
    assert after(20, [3]).settle(named, np.array([8, 9]))[0] == 1


def test_short_of_the_position_the_mark_moves_only_if_no_record_is_without_a_row() -> None:
    none = np.array([], np.int64)
    progress = after(10, [])
    progress.settle(entry(), none)
    assert progress.mark.offset == 10
    progress = after(10, [3])
    assert progress.settle(entry(records_filtered=1), none)[0] == 0
    assert (progress.mark.offset, progress.due.tolist()) == (0, [3])
    progress.at = 20
    assert progress.settle(entry(records_filtered=1), none)[0] == 0
    assert (progress.mark.offset, progress.due.tolist()) == (20, [])


def test_an_upserted_row_is_missed_only_when_all_that_may_have_replaced_it_is_read() -> None:
    progress = after(10, [])
    progress.open.append(MissingRecords(np.array([3, 4]), {TP: 20, OTHER: 7}))
    progress.ripen({TP: 20, OTHER: 5})
    assert not len(progress.due)
    assert progress.settle(entry(10), np.array([], np.int64))[0] == 0
    assert progress.mark.offset == 0  # a restart reads it again
    assert progress.drop_replaced(np.array([4]), np.array([], np.int64)) == 0
    progress.ripen({TP: 20, OTHER: 7})
    assert progress.due.tolist() == [3]
    assert progress.drop_replaced(np.array([], np.int64), np.array([3])) == 1
    assert not len(progress.owed())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"position": 30, "records_read": 30}, ""),
        ({"position": 5}, "is at 5, but 20 was judged"),
        ({"topic_id": "y"}, "created again"),
        ({"topic_id": ""}, ""),
        ({"cluster_id": "d"}, "cluster is d"),
        ({"position": 40, "start_position": 40}, "begins at 40 instead of 0"),
        ({"records_read": 3}, "counts are lower"),
    ],
)
def test_a_ledger_that_does_not_follow_what_was_judged_is_noticed(
    change: dict[str, Any], why: str
) -> None:
    mark = Mark(0, 20, 20, 0, "c", "x")
    told = broken_off(replace(entry(), **change), mark, 20)
    assert (why in told) if why else not told


def test_judging_begins_where_the_connector_did() -> None:
    assert begun(LedgerEntry("t", 0, 9, 4)) == Mark(4, 4)


def test_state_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    assert load(path, "c", "here") == FollowState("c", "here")
    marks = {TP: Mark(0, 20, 18, 2, "c", "x"), OTHER: Mark(3, 3)}
    state = FollowState("c", "here", marks, 100, 1, 2, {"t": -3}, {TP: 20, OTHER: 0})
    save(path, state)
    assert load(path, "c", "here") == state
    assert [p.name for p in path.parent.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00\xff", "is not a state"),
        (b"[]", "is not a state"),
        (b'{"version": 1}', "is not a state"),
        (b'{"version": 2}', "newer version of semel"),
    ],
)
def test_a_state_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as told:
        load(path, "c", "here")
    assert str(path) in str(told.value)


def test_a_state_with_impossible_numbers_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save(path, FollowState("c", "here", {TP: Mark(0, 20)}))
    facts = json.loads(path.read_text())
    facts["topics"]["t"]["0"]["offset"] = -1
    path.write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="-1 is negative"):
        load(path, "c", "here")


def test_a_state_of_another_connector_or_target_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save(path, FollowState("c", "here"))
    with pytest.raises(ConfigError, match="belongs to connector c, not to d"):
        load(path, "d", "here")
    with pytest.raises(ConfigError, match="belongs to target here, not to there"):
        load(path, "c", "there")
    with pytest.raises(ConfigError, match="cannot be written"):
        save(path / "below", FollowState("c", "here"))


def test_states_are_kept_apart_by_connector_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    paths = {default_path(c, t) for c in ("a/b", "a_b") for t in ("x", "y")}
    assert len(paths) == 4
    assert {p.parent for p in paths} == {Path("/var/state/semel")}


def test_the_store_is_left_alone_for_most_of_the_time() -> None:
    assert pause(10, 0.1, behind=False) == 10
    assert pause(10, 2.0, behind=False) == pytest.approx(78)
    assert pause(10, 2.0, behind=True) == 2.0
    assert pause(10, 0.0, behind=True) == 0.0


def test_what_is_judged_again_counts_once() -> None:
    """Without delivery=exactly-once, a finding does not end the audit, and is found each hour."""
    totals = Totals()
    first, second = (
        IntervalReport("t", 0, 0, 50, 100, 50, 50, lost=2),
        IntervalReport("t", 0, 50, 100, 100, 50, 50),
    )
    other = IntervalReport("t", 1, 0, 9, 9, 9, 10, duplicated=1)
    assert [totals.add(j) for j in (first, second, other)] == [True, False, True]
    for _ in range(3):  # hours
        assert [totals.add(j) for j in (first, second, other)] == [False, False, False]
    assert (totals.lost, totals.duplicated) == (2, 1)
    assert totals.add(first) is False
    assert totals.add(replace(second, lost=1))  # which was not lost before
    assert totals.lost == 3


def test_findings_name_offsets_and_how_many_of_them() -> None:
    assert spelled([3, 7, 8, 9]) == "3, 7-9"
    assert spelled(range(0, 20, 2), most=2) == "0, 2 and 8 more"
    one = IntervalReport("t", 0, 0, 10, 10, 10, 9, lost=1, lost_offsets=(4,))
    assert str(one) == "t-0: 1 lost (offset 4)"
    among = replace(one, lost_offsets=(4, 5), duplicated=2, ghosts=1, duplicated_offsets=(7, 7))
    assert str(among) == (
        "t-0: 1 lost, among offsets 4-5; 2 duplicated (offset 7), 1 of them ghosts"
    )
