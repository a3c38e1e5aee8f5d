"""What the audit concludes from keys and offsets, without services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest

from semel.audit.auditor import Auditor
from semel.audit.referee import (
    RecordOffsets,
    beyond_kafka,
    copies,
    letters,
    mistimed,
    overwritten,
    placed,
    wants_times,
)
from semel.audit.replacing import LiveKeys, judge_number
from semel.audit.report import AuditReport, PartitionAudit
from semel.core.ledger import (
    DAMAGED,
    RECREATED,
    RESET,
    RETENTION,
    SET_BACK,
    TRUNCATED,
    Hole,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
)
from semel.kafka.damage import Damage
from semel.sinks.base import Capabilities, Snapshot

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("rows", "failed", "lost", "unknown"),
    [(50, 0, 0, 0), (0, 0, 50, 0), (47, 2, 1, 2), (51, 0, 0, 1)],
)
def test_missing_rows_are_lost_and_others_are_not_judged(
    rows: int, failed: int, lost: int, unknown: int
) -> None:
    verdict = judge_number(rows, LiveKeys(50, 50), failed)
    assert (verdict.lost, verdict.unknown) == (lost, unknown)
    assert bool(verdict.why) == bool(unknown)


@pytest.mark.parametrize(("rows", "lost", "unknown"), [(50, 0, 10), (45, 0, 10), (39, 1, 10)])
def test_keys_that_may_have_a_row_or_not_are_never_judged(
    rows: int, lost: int, unknown: int
) -> None:
    verdict = judge_number(rows, LiveKeys(40, 50), failed=0)
    assert (verdict.lost, verdict.unknown) == (lost, unknown)


def test_rows_beyond_one_for_each_record_are_copies() -> None:
    rows, kafka = np.array([0, 1, 2, 2, 3, 4]), np.array([0, 1, 2])
    found = copies(rows, kafka, np.array([1, 9]))
    assert found.tolist() == [False, True, False, True, True, True]  # 1 has failed
    assert beyond_kafka(rows, kafka) == 2


def test_a_row_with_another_time_than_its_record_is_mistimed() -> None:
    rows, kafka = np.array([2, 0, 1, 1, 9]), np.array([1, 2, 0])
    times, stamps = np.array([20, 0, 10, 11, 5]), np.array([10, 20, 0])
    found = mistimed(rows, times, kafka, stamps)
    assert found.tolist() == [False, False, False, True, False]


def test_what_was_not_judged_is_not_kept() -> None:
    good = PartitionAudit("t", 0, kafka=1, rows=1, lost=0, duplicated=0)
    assert AuditReport("c", "exactly-once", True, [good], broken=False).kept
    unsure = AuditReport("c", "exactly-once", False, [good], False, ("t: rows replace each other",))
    assert not unsure.kept
    assert not unsure.complete


def judged(
    snapshot: Snapshot,
    *,
    kafka: range = range(10),
    live: LiveKeys | None = None,
    only_updates: bool = False,
    converts: bool = True,
    **facts: Any,
) -> tuple[list[PartitionAudit], list[str]]:
    """One partition's audit, by counts where the snapshot has no records. ``live`` makes it an
    upsert; ``facts`` are of :class:`RecordOffsets`."""
    auditor, found = audited(
        snapshot, kafka=kafka, live=live, only_updates=only_updates, converts=converts, **facts
    )
    return found, auditor.not_judged


def audited(
    snapshot: Snapshot,
    *,
    kafka: range = range(10),
    live: LiveKeys | None = None,
    only_updates: bool = False,
    converts: bool = True,
    damaged: Sequence[OffsetRange] = (),
    **facts: Any,
) -> tuple[Auditor, list[PartitionAudit]]:
    cluster = Mock(compacted=Mock(return_value=set()))
    cluster.earliest.return_value = {TP: kafka.start}
    cluster.latest.return_value = {TP: kafka.stop}
    capabilities = Capabilities(replaces=live is not None, only_updates=only_updates)
    sink = Mock(capabilities=capabilities)
    auditor = Auditor(
        Mock(sink=sink, query=None, topology=None),
        cluster,
        snapshot,
        snapshot.entries,
        Mock(),
        {"t": 1},
        Mock(),
    )
    auditor._unreadable += [Damage(r, "failed CRC32C check") for r in damaged]
    seen = RecordOffsets()
    seen.offsets.append(np.array([o for o in kafka if not any(_holds(r, o) for r in damaged)]))
    for fact, value in facts.items():
        setattr(seen, fact, value)
    with (
        patch.object(auditor, "_kafka", return_value={TP: seen}),
        patch.object(auditor._replacing, "live", return_value=live),
    ):
        found = auditor.partitions(exact=bool(snapshot.records), converts=converts)
    return auditor, found


def _holds(range_: OffsetRange, offset: int) -> bool:
    return range_.from_offset <= offset < range_.until_offset


def snapshot(
    rows: int | None = None, places: list[tuple[int, int]] | None = None, **more: Any
) -> Snapshot:
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=10)
    records = {}
    if places is not None:
        columns = map(list, zip(*places, strict=True))
        records["t"] = pa.table(dict(zip(("partition", "offset"), columns, strict=True)))
    counted = {} if rows is None else {"x": rows}
    return Snapshot([entry], records=records, rows=counted, targets={"t": "x"}, **more)


def test_what_was_read_before_a_reset_is_named_also_where_the_ledger_has_no_position() -> None:
    reset = Hole("t", 1, 0, 5, RESET, "ann", "2026-01-01T00:00:00Z")
    _, why = judged(snapshot(places=HERE, holes=[reset]))
    assert why == []
    auditor, _ = audited(snapshot(places=HERE, holes=[reset]))
    assert auditor.gaps == [
        "t-1: offsets 0 to 4 were read before the positions were reset (by ann, "
        "2026-01-01T00:00:00Z)"
    ]


HERE = [(0, n) for n in range(10)]


def test_missing_rows_that_the_ledger_may_count_twice_are_named() -> None:
    """Half of the records were filtered, twice: the position was set back in between."""
    entry = LedgerEntry("t", 0, 10, 0, records_read=20, records_filtered=10, rows_written=10)
    back = Hole("t", 0, 0, 10, SET_BACK)
    rows = pa.table({"partition": [0], "offset": [0]}).slice(1)
    auditor, (found,) = audited(
        Snapshot([entry], records={"t": rows}, targets={"t": "x"}, holes=[back])
    )
    assert (found.lost, found.unknown) == (0, 10)
    assert auditor.gaps == [
        "t-0: as many as 10 missing rows, because the ledger may count that many records without "
        "a row twice"
    ]


@pytest.mark.parametrize(
    "given", [{"rows": 10}, {"places": HERE}, {"places": HERE[:5] + HERE[8:]}], ids=str
)
def test_records_that_cannot_be_read_any_more_are_not_judged(given: dict[str, Any]) -> None:
    """Whether their rows are there, or cannot be seen, or are missing."""
    damaged = [OffsetRange("t", 0, 5, 8)]
    _, (found,) = audited(snapshot(**given), damaged=damaged)
    assert (found.lost, found.duplicated, found.unknown) == (0, 0, 3)
    never_read = Hole("t", 0, 5, 8, DAMAGED)
    entry = LedgerEntry("t", 0, 10, 0, records_read=7, rows_written=7)
    passed_over = replace(snapshot(places=HERE[:5] + HERE[8:], holes=[never_read]), entries=[entry])
    _, (found,) = audited(passed_over, damaged=damaged)
    assert (found.lost, found.duplicated, found.unknown) == (0, 0, 0)


def test_rows_at_places_that_kafka_never_had_are_ghosts() -> None:
    found, _ = judged(snapshot(places=[*HERE, (0, 1000), (7, 3)]))
    assert [(p.partition, p.duplicated, p.ghosts) for p in found] == [(0, 1, 1), (7, 1, 1)]


def test_rows_without_provenance_that_no_record_accounts_for_are_not_judged() -> None:
    (found,), why = judged(snapshot(places=HERE, untraced={"x": 2}))
    assert (found.lost, found.duplicated, found.unknown) == (0, 0, 0)
    assert why == ["x: 2 rows have no provenance, and no record accounts for them"]
    (found,), why = judged(snapshot(places=HERE[2:], untraced={"x": 2}))
    assert (found.lost, found.unknown, why) == (0, 2, [])
    half = [*HERE[2:], (0, None), (None, 1)]
    (found,), why = judged(snapshot(places=half))
    assert (found.lost, found.unknown, why) == (0, 2, [])
    whole = snapshot(places=HERE)
    assert placed(whole).records["t"] is whole.records["t"]


@pytest.mark.parametrize(
    ("reason", "duplicated", "ghosts"), [(TRUNCATED, 0, 2), (RECREATED, 0, 2), (RETENTION, 2, 0)]
)
def test_rows_of_a_log_that_is_gone_are_ghosts_and_no_duplicates(
    reason: str, duplicated: int, ghosts: int
) -> None:
    hole = Hole("t", 0, 7, 10, reason)
    (found,), _ = judged(snapshot(places=[*HERE, (0, 8), (0, 9)], holes=[hole]))
    assert (found.lost, found.duplicated, found.ghosts) == (0, duplicated, ghosts)


def test_rows_of_a_log_that_is_gone_are_no_duplicates_before_the_new_one_is_read_that_far() -> None:
    hole = Hole("t", 0, 7, 13, TRUNCATED)
    (found,), _ = judged(snapshot(places=[*HERE, (0, 11), (0, 12)], holes=[hole]))
    assert (found.lost, found.duplicated, found.ghosts) == (0, 0, 2)
    (found,), _ = judged(snapshot(places=[*HERE, (0, 12), (0, 13)], holes=[hole]))
    assert (found.lost, found.duplicated) == (0, 1)


@pytest.mark.parametrize("timed", [True, False])
def test_a_row_that_a_record_replaced_before_it_was_cut_off_is_not_lost(timed: bool) -> None:
    """The record at 6 replaced the row of 3 before the log was cut at 5; other records are at 5 to
    9 now, and 9 has replaced the row of the new one at 6."""
    hole = Hole("t", 0, 5, 8, TRUNCATED)
    places = [(0, n) for n in (0, 1, 2, 4, 5, 6, 7, 8, 9)]
    entry = LedgerEntry("t", 0, 10, 0, records_read=13, rows_written=13)
    given = replace(snapshot(places=places, holes=[hole]), entries=[entry])
    times = {}
    if timed:
        stamps = [1 if place == (0, 6) else 5 for place in places]
        rows = given.records["t"].append_column("timestamp", pa.array(stamps))
        given, times = replace(given, records={"t": rows}), {"times": [np.full(10, 5)]}
    facts: dict[str, Any] = {"live": LiveKeys(9, 9), "replaced": np.array([6]), **times}
    (found,), _ = judged(given, **facts)
    assert (found.lost, found.duplicated, found.ghosts) == (0, 0, 1)
    assert found.unknown == (1 if timed else 2)  # the row at 6 may be the new record's, too
    (found,), _ = judged(replace(given, holes=[replace(hole, reason=RETENTION)]), **facts)
    assert (found.lost, found.duplicated) == (1, 1)  # nothing was cut off
    (found,), _ = judged(given, **(facts | {"live": None}))
    assert found.lost == 1  # plain inserts replace nothing


@pytest.mark.parametrize(("read", "lost"), [(10, 3), (11, 2), (13, 0), (20, 0)])
def test_each_record_that_was_cut_off_explains_one_missing_row_before_it(
    read: int, lost: int
) -> None:
    """It may have been a tombstone, which leaves no row. Offsets may have been a marker's."""
    entry = LedgerEntry("t", 0, 10, 0, records_read=read, rows_written=read)
    cut, facts = [Hole("t", 0, 5, 9, TRUNCATED)], {"live": LiveKeys(10, 10)}
    given = replace(snapshot(places=HERE[3:], holes=cut), entries=[entry])
    (found,), _ = judged(given, **facts)
    assert (found.lost, found.unknown) == (lost, 3 - lost)
    after = snapshot(places=HERE[:7], holes=cut)
    (found,), _ = judged(replace(after, entries=[entry]), **facts)
    assert (found.lost, found.unknown) == (3, 0)


def test_several_cuts_explain_only_what_each_of_them_may_have_replaced() -> None:
    cuts = [Hole("t", 0, 100, 101, TRUNCATED), Hole("t", 0, 5, 8, TRUNCATED)]
    assert overwritten(np.array([50, 60, 70]), cuts) == 1
    assert overwritten(np.array([1, 2, 3, 4, 60]), cuts) == 4
    assert overwritten(np.array([1]), [Hole("t", 0, 5, 8, RECREATED)]) == 0


@pytest.mark.parametrize("reason", [TRUNCATED, RECREATED])
def test_a_former_row_at_the_offset_of_a_record_that_failed_is_no_duplicate(reason: str) -> None:
    """Also where neither rows nor dead letters have times."""
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_failed=1)
    letters = {"t": pa.table({"partition": [0], "offset": [8]})}
    given = snapshot(places=HERE, holes=[Hole("t", 0, 7, 8, reason)], dead=letters)
    (found,), _ = judged(replace(given, entries=[entry]))
    assert (found.lost, found.duplicated) == (0, 1)  # offset 8 is not of the former log
    given = replace(given, holes=[Hole("t", 0, 7, 10, reason)], entries=[entry])
    (found,), _ = judged(given)
    assert (found.lost, found.duplicated, found.ghosts) == (0, 0, 1)


def test_a_dead_letter_of_a_damaged_batch_says_nothing_of_the_record_that_is_there_now() -> None:
    holes = [Hole("t", 0, 0, 10, RECREATED), Hole("t", 0, 4, 6, DAMAGED)]
    letters = {"t": pa.table({"partition": [0], "offset": [4]})}
    (found,), _ = judged(snapshot(places=HERE, holes=holes, dead=letters))
    assert (found.lost, found.duplicated, found.ghosts) == (0, 0, 0)
    dated = {"t": pa.table({"partition": [0], "offset": [14], "timestamp": [1]})}
    holes = [Hole("t", 0, 0, 20, RECREATED), Hole("t", 0, 14, 15, DAMAGED)]
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_filtered=1)
    given = replace(snapshot(places=HERE[:-1], holes=holes, dead=dated), entries=[entry])
    (found,), _ = judged(given, times=[np.full(10, 5)])
    assert (found.lost, found.duplicated) == (0, 0)  # the filtered record has no row
    letters = {"t": pa.table({"partition": [0], "offset": [0], "timestamp": [-1]})}
    given = snapshot(places=HERE, holes=[Hole("t", 0, 0, 10, RECREATED)], dead=letters)
    (found,), _ = judged(given, times=[np.full(10, 5)])  # SQL keeps one of two such holes
    assert (found.lost, found.duplicated, found.ghosts) == (0, 0, 0)


def test_letters_in_a_hole_that_was_never_read_are_left_out() -> None:
    given = snapshot(
        places=HERE[2:],
        holes=[Hole("t", 0, 0, 2, RETENTION)],
        dead={"t": pa.table({"partition": [0, 0], "offset": [0, 5]})},
    )
    dead, former = letters(given, TP, np.arange(10), np.full(10, 5))
    assert (dead.tolist(), former.tolist()) == ([5], [])


def test_a_hole_of_a_log_that_is_gone_does_not_hide_letters_of_the_records_there_now() -> None:
    """One letter was committed before its record was counted, and then the topic was recreated."""
    letters = {"partition": [0] * 3, "offset": [2, 4, 4], "timestamp": [1, 1, 5]}
    holes = [Hole("t", 0, 0, 10, RECREATED), Hole("t", 0, 3, 6, RETENTION)]
    entry = LedgerEntry("t", 0, 10, 0, records_read=20, rows_written=18, records_failed=2)
    rows = {"partition": [0] * 10, "offset": [*range(10)], "timestamp": [5] * 4 + [1] + [5] * 5}
    given = snapshot(places=HERE, holes=holes, dead={"t": pa.table(letters)})
    given = replace(given, records={"t": pa.table(rows)}, entries=[entry])
    stamps = [np.full(10, 5)]
    (found,), _ = judged(given, times=stamps)
    assert (found.lost, found.duplicated) == (0, 0)
    lost = {name: [*values[:7], *values[8:]] for name, values in rows.items()}
    (found,), _ = judged(replace(given, records={"t": pa.table(lost)}), times=stamps)
    assert (found.lost, found.duplicated) == (1, 0)  # the row at 7


@pytest.mark.parametrize("holes", [[], [Hole("t", 0, 0, 5, RECREATED)]])
def test_letters_of_a_former_log_that_its_hole_does_not_hold_say_nothing_of_the_records_there_now(
    holes: list[Hole],
) -> None:
    """They were committed, and the run was killed before their records' rows were."""
    letters = {"partition": [0] * 3, "offset": [6, 7, 8], "timestamp": [1, 1, 5]}
    entry = LedgerEntry("t", 0, 10, 0, 10, rows_written=8, records_filtered=1, records_failed=1)
    rows = {"partition": [0] * 8, "offset": [0, 1, 2, 3, 4, 5, 6, 7], "timestamp": [5] * 8}
    given = snapshot(places=HERE, holes=holes, dead={"t": pa.table(letters)})
    given = replace(given, entries=[entry])
    for lost in (0, 1):
        there = {"t": pa.table({name: values[: 8 - lost] for name, values in rows.items()})}
        (found,), _ = judged(replace(given, records=there), times=[np.full(10, 5)])
        assert (found.lost, found.duplicated) == (lost, 0)  # 8 has failed, and 9 was filtered
    assert wants_times(given, {})  # search keeps times for letters only


def test_a_letter_of_a_former_log_does_not_take_the_place_of_a_record_that_was_filtered() -> None:
    """No position counts the record of the letter at 6, which a later hole holds."""
    letters = {"t": pa.table({"partition": [0] * 2, "offset": [6, 8], "timestamp": [1, 5]})}
    entry = LedgerEntry("t", 0, 10, 0, 10, rows_written=8, records_filtered=1, records_failed=1)
    hole = Hole("t", 0, 0, 9, RECREATED)
    given = snapshot(places=HERE[:8], holes=[hole], dead=letters)
    (found,), _ = judged(replace(given, entries=[entry]), times=[np.full(10, 5)])
    assert (found.lost, found.duplicated) == (0, 0)


def test_a_dead_letter_of_a_record_that_is_filtered_out_by_now_excuses_no_other() -> None:
    """It was read again with another configuration, and was not counted as failed."""
    dead = {"t": pa.table({"partition": [0], "offset": [8], "timestamp": [5]})}
    entry = LedgerEntry("t", 0, 10, 0, 10, rows_written=9, records_filtered=1)
    given = replace(snapshot(places=HERE[:8], dead=dead), entries=[entry])
    (found,), _ = judged(given, times=[np.full(10, 5)])
    assert (found.lost, found.duplicated) == (1, 0)  # the row at 9


def test_a_letter_of_a_record_without_a_time_may_have_any_time() -> None:
    letters = {"t": pa.table({"partition": [0], "offset": [9], "timestamp": [7]})}
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_failed=1)
    holes = [Hole("t", 0, 0, 10, RECREATED)]
    given = replace(snapshot(places=HERE[:-1], holes=holes, dead=letters), entries=[entry])
    times = [np.array([5] * 9 + [-1])]
    (found,), _ = judged(replace(given, restamps=True), times=times)
    assert (found.lost, found.duplicated) == (0, 0)
    (found,), _ = judged(given, times=times)
    assert (found.lost, found.duplicated) == (1, 0)  # where letters keep their record's time


@pytest.mark.parametrize("reason", [TRUNCATED, RECREATED])
def test_dead_letters_of_a_log_that_is_gone_say_nothing_of_the_records_there_now(
    reason: str,
) -> None:
    letters = {"partition": [0, 0], "offset": [8, 9], "timestamp": [1, 5]}
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_failed=2)
    hole = Hole("t", 0, 7, 10, reason)
    given = snapshot(places=HERE[:-1], holes=[hole], dead={"t": pa.table(letters)})
    stamps = [np.full(10, 5)]
    (found,), _ = judged(replace(given, entries=[entry]), times=stamps)
    assert (found.lost, found.duplicated) == (0, 0)  # 8 has a row, and 9 has failed
    rows = {"partition": [0] * 10, "offset": [*range(10)], "timestamp": [5] * 9 + [1]}
    beside = replace(given, records={"t": pa.table(rows)}, entries=[entry])
    (found,), _ = judged(beside, times=stamps)
    assert (found.lost, found.duplicated) == (0, 0)  # the row at 9 is of the former log
    letters["timestamp"] = [1, 1]
    given = replace(given, dead={"t": pa.table(letters)}, entries=[entry])
    (found,), _ = judged(given, times=stamps)
    assert (found.lost, found.duplicated) == (1, 0)  # both letters are of records that are gone


def test_a_dead_letter_beyond_the_position_excuses_no_record_before_it() -> None:
    """Letters are committed first, and are read after the ledger."""
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_filtered=1)
    letters = {"t": pa.table({"partition": [0, 0], "offset": [10, 12]})}
    given = replace(snapshot(places=HERE[:-1], dead=letters), entries=[entry])
    (found,), _ = judged(given)
    assert (found.lost, found.duplicated) == (0, 0)  # the filtered record has no row
    (found,), _ = judged(replace(given, records={"t": given.records["t"].slice(1)}))
    assert (found.lost, found.duplicated) == (1, 0)


@pytest.mark.parametrize(("offset", "lost"), [(12, 0), (9, 1)])
def test_a_dead_letter_beyond_the_position_names_no_record_that_has_failed(
    offset: int, lost: int
) -> None:
    """Without provenance, a failed record without a letter may be the one that has no row."""
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_failed=1)
    letters = {"t": pa.table({"partition": [0], "offset": [offset]})}
    given = replace(snapshot(rows=9, dead=letters), entries=[entry])
    assert judged(given, live=LiveKeys(10, 10))[0][0].lost == lost


def test_a_row_that_a_record_left_out_now_may_have_replaced_is_not_lost() -> None:
    """Record 7 has a row, and the transform leaves it out now: it has replaced record 2's row."""
    here = [place for place in HERE if place[1] != 2]
    (found,), _ = judged(snapshot(places=here), unmade=[np.array([7])])
    assert (found.lost, found.unknown) == (0, 1)
    (found,), _ = judged(snapshot(places=here[:-1]), unmade=[np.array([7])])
    assert (found.lost, found.unknown) == (1, 1)
    (found,), _ = judged(snapshot(places=here), unmade=[np.array([2])])  # it may have had no row
    assert (found.lost, found.unknown) == (1, 0)


def test_a_record_that_was_left_out_has_not_replaced_the_row_before_it() -> None:
    """Record 7 was left out when it was written, and is not now: record 2's row is still there."""
    here = [place for place in HERE if place[1] != 7]
    entry = LedgerEntry("t", 0, 10, 0, records_read=10, rows_written=9, records_filtered=1)
    filtered = replace(snapshot(places=here), entries=[entry])
    (found,), _ = judged(filtered, replaced=np.array([2]))
    assert (found.lost, found.duplicated, found.unknown) == (0, 0, 1)
    (found,), _ = judged(snapshot(places=HERE), replaced=np.array([2]))
    assert (found.lost, found.duplicated) == (0, 1)


def test_upserts_without_provenance_are_held_to_their_keys() -> None:
    assert judged(snapshot(rows=5), live=LiveKeys(5, 5))[0][0].lost == 0
    assert judged(snapshot(rows=0), live=LiveKeys(5, 5))[0][0].lost == 5


def test_a_table_that_is_gone_or_cannot_be_counted_is_not_judged() -> None:
    (why,) = judged(snapshot())[1]
    assert "does the target exist?" in why
    (why,) = judged(snapshot(unjudged={"t": "bytes show no count"}))[1]
    assert why == "x: bytes show no count"
    (why,) = judged(snapshot(rows=5), live=LiveKeys(5, 5), only_updates=True)[1]
    assert "updates add no rows" in why
    (why,) = judged(snapshot(rows=5), live=LiveKeys(5, 5), converts=False)[1]
    assert "a DataFrame transform makes them" in why


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "counts"])
def test_records_that_are_back_after_retention_removed_them_are_not_lost(exact: bool) -> None:
    """A broker that dies within a minute can forget that it has removed records."""
    hole = Hole("t", 0, 3, 5, RETENTION)
    entry = LedgerEntry("t", 0, 10, 0, records_read=8, rows_written=8, records_lost=2)
    here = pa.table({"partition": [0] * 8, "offset": [0, 1, 2, 5, 6, 7, 8, 9]})
    records = {"t": here} if exact else {}
    store = Snapshot([entry], records=records, rows={"x": 8}, targets={"t": "x"}, holes=[hole])
    (found,), why = judged(store)
    assert (found.lost, found.duplicated, found.retention, why) == (0, 0, 2, [])
    (found,), _ = judged(replace(store, holes=[]))
    assert found.lost == 2
