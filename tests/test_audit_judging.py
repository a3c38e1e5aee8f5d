"""What the audit concludes from keys and offsets, without services."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest

from semel.audit.auditor import Auditor
from semel.audit.keys import LiveKeys, judge
from semel.audit.offsets import Seen, beyond_kafka, copies, strangers
from semel.audit.report import AuditReport, PartitionAudit
from semel.ledger import RECREATED, RETENTION, TRUNCATED, Hole, LedgerEntry, TopicPartition
from semel.sinks.base import Snapshot
from semel.sinks.capabilities import Capabilities

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("rows", "failed", "lost", "unknown"),
    [(50, 0, 0, 0), (0, 0, 50, 0), (47, 2, 1, 2), (51, 0, 0, 1)],
)
def test_missing_rows_are_lost_and_others_are_not_judged(
    rows: int, failed: int, lost: int, unknown: int
) -> None:
    verdict = judge(rows, LiveKeys(50, 50), failed)
    assert (verdict.lost, verdict.unknown) == (lost, unknown)
    assert bool(verdict.why) == bool(unknown)


def test_rows_beyond_one_for_each_record_are_copies() -> None:
    rows, kafka = np.array([0, 1, 2, 2, 3, 4]), np.array([0, 1, 2])
    assert copies(rows, kafka).tolist() == [False, False, False, True, True, True]
    assert beyond_kafka(rows, kafka) == 2


def test_a_row_of_another_time_than_its_record_is_a_stranger() -> None:
    rows, kafka = np.array([2, 0, 1, 1, 9]), np.array([1, 2, 0])
    times, stamps = np.array([20, 0, 10, 11, 5]), np.array([10, 20, 0])
    found = strangers(rows, times, kafka, stamps)
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
) -> tuple[list[PartitionAudit], list[str]]:
    """One partition's audit, by counts where the snapshot has no records. ``live`` makes it an
    upsert."""
    cluster = Mock(compacted=Mock(return_value=set()))
    cluster.earliest.return_value = {TP: kafka.start}
    cluster.latest.return_value = {TP: kafka.stop}
    capabilities = Capabilities(replaces=live is not None, only_updates=only_updates)
    sink = Mock(capabilities=capabilities)
    auditor = Auditor(
        Mock(sink=sink), cluster, snapshot, snapshot.entries, Mock(), {"t": 1}, Mock()
    )
    seen = Seen()
    seen.offsets.append(np.array(kafka))
    with (
        patch.object(auditor, "_kafka", return_value={TP: seen}),
        patch.object(auditor._replacing, "live", return_value=live),
    ):
        found = auditor.partitions(exact=bool(snapshot.records), converts=converts)
    return found, auditor.not_judged


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


HERE = [(0, n) for n in range(10)]


def test_rows_at_places_that_kafka_never_had_are_ghosts() -> None:
    found, _ = judged(snapshot(places=[*HERE, (0, 1000), (7, 3)]))
    assert [(p.partition, p.duplicated, p.ghosts) for p in found] == [(0, 1, 1), (7, 1, 1)]


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


def test_upserts_without_provenance_are_held_to_their_keys() -> None:
    assert judged(snapshot(rows=5), live=LiveKeys(5, 5))[0][0].lost == 0
    assert judged(snapshot(rows=0), live=LiveKeys(5, 5))[0][0].lost == 5


def test_a_table_that_is_gone_or_not_to_be_told_is_not_judged() -> None:
    (why,) = judged(snapshot())[1]
    assert "is it there?" in why
    (why,) = judged(snapshot(rows=5), live=LiveKeys(5, 5), only_updates=True)[1]
    assert "updates add no rows" in why
    (why,) = judged(snapshot(rows=5), live=LiveKeys(5, 5), converts=False)[1]
    assert "a DataFrame transform makes them" in why
