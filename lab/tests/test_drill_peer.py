"""The drill of both systems: what it counts, and a short one."""

from __future__ import annotations

import pytest
from adbc_driver_postgresql import dbapi

from semel_lab.drill.peer.checker import OFFSET, PARTITION, TABLE, Checker, Findings
from semel_lab.drill.peer.run import KINDS, compare
from semel_lab.drill.peer.systems import KafkaConnect, Semel
from semel_lab.drill.plan import Kind

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


@pytest.mark.integration
def test_a_system_has_caught_up_when_each_partition_s_last_record_was_written(
    database: str,
) -> None:
    """Even if a zombie has overwritten it with an older one since: it would never come back."""

    def write(partition: int, offset: int) -> None:
        identity = RECORDS[partition, offset]
        with dbapi.connect(database, autocommit=True) as connection:
            connection.execute(
                f"INSERT INTO {TABLE} (id, {PARTITION}, {OFFSET}) "
                f"VALUES ({identity}, {partition}, {offset}) ON CONFLICT (id) DO UPDATE "
                f"SET {PARTITION} = EXCLUDED.{PARTITION}, {OFFSET} = EXCLUDED.{OFFSET}"
            ).close()

    checker = Checker(SERVERS, "drill", 2, database, upsert=True)
    checker._ids = RECORDS
    checker.create_tables()
    for place in [(0, 0), (0, 1), (0, 2)]:
        write(*place)
    assert not checker.caught_up()
    write(1, 0)
    assert checker.caught_up()
    assert checker.compare() == Findings(4, 0, 0, 0)
    write(0, 0)
    assert checker.caught_up()
    assert checker.compare() == Findings(4, 1, 0, 1)


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
