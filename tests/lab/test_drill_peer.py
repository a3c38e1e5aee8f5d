"""The drill of both systems: what it counts, and a short one."""

from __future__ import annotations

import pytest

from semel.lab.drill.peer.checker import Checker, Findings
from semel.lab.drill.peer.run import KINDS, compare
from semel.lab.drill.peer.systems import KafkaConnect, Semel
from semel.lab.drill.plan import Kind

SERVERS = "127.0.0.1:1"


class Known(Checker):
    """A checker whose records and rows are given."""

    def __init__(
        self,
        records: dict[tuple[int, int], int],
        rows: list[tuple[int, int]],
        fired: int = 0,
        *,
        upsert: bool = False,
    ) -> None:
        super().__init__(SERVERS, "drill", 2, "", upsert=upsert)
        self._ids = records
        self._rows, self._fired = rows, fired

    def _query(self, sql: str) -> list[tuple[int, ...]]:
        if "FROM fired" in sql:
            return [(self._fired,)]
        if "max(" in sql:
            partitions = {p for p, _ in self._rows}
            return [(p, max(o for q, o in self._rows if q == p)) for p in partitions]
        return [(*row, self._rows.count(row)) for row in set(self._rows)]


RECORDS = {(0, 0): 1, (0, 1): 2, (0, 2): 1, (1, 0): 3}


@pytest.mark.parametrize(
    ("rows", "lost", "duplicated"),
    [
        ([*RECORDS], 0, 0),
        ([*RECORDS, (0, 1), (0, 1)], 0, 2),
        ([(0, 0), (1, 0)], 2, 0),
    ],
)
def test_inserts_leave_a_row_for_each_record(
    rows: list[tuple[int, int]], lost: int, duplicated: int
) -> None:
    assert Known(RECORDS, rows).compare() == Findings(4, lost, duplicated, 0)


@pytest.mark.parametrize(
    ("rows", "lost"),
    [([(0, 2), (0, 1), (1, 0)], 0), ([(0, 0), (0, 1), (1, 0)], 1), ([(1, 0)], 2)],
    ids=["the last of each key", "an older one came back", "two keys are missing"],
)
def test_upserts_leave_the_last_record_of_each_key(rows: list[tuple[int, int]], lost: int) -> None:
    assert Known(RECORDS, rows, fired=5, upsert=True).compare() == Findings(4, lost, 0, 5)


@pytest.mark.parametrize(("rows", "arrived"), [([*RECORDS], True), ([*RECORDS][:2], False)])
def test_a_system_has_caught_up_when_each_partition_s_last_record_is_there(
    rows: list[tuple[int, int]], arrived: bool
) -> None:
    assert Known(RECORDS, rows).caught_up() is arrived


@pytest.mark.integration
@pytest.mark.long
def test_a_killed_worker_inserts_again_and_semel_does_not() -> None:
    seen: list[Kind] = []
    results = compare(
        len(KINDS),
        1,
        modes=["insert"],
        observe=lambda _system, _mode, fault, _found: seen.append(fault.kind),
    )
    assert [r.system for r in results] == [KafkaConnect.name, Semel.name]
    assert set(seen) == set(KINDS)
    connect, own = (r.findings for r in results)
    assert connect.duplicated > 0
    assert own.records > 1000
    assert (own.lost, own.duplicated, own.fired_again) == (0, 0, 0)
