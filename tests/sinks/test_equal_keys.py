"""Keys that differ but that a database considers equal: the table ends up the same, however the
batches are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from semel.core.records import Commit, Records
from tests.sinks.systems import System
from tests.sinks.target import changes, records

Step = tuple[Any, Mapping[str, Any] | None]

# What a key's column is, and two values that are equal in it
COLUMNS = {
    "postgresql": [
        ("citext", "bob", "BOB"),
        ("char(5)", "bob", "bob "),
        ("double precision", 0.0, -0.0),
        ("numeric", "1.0", "1.00"),
        ("uuid", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "{f47ac10b58cc4372a5670e02b2c3d479}"),
    ],
    "sqlite": [("TEXT COLLATE NOCASE", "bob", "BOB"), ("TEXT COLLATE RTRIM", "bob", "bob ")],
    "mariadb": [
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "bob", "BOB"),
        ("VARCHAR(9) COLLATE utf8mb4_bin", "bob", "bob "),
        ("CHAR(9) COLLATE utf8mb4_nopad_bin", "bob", "bob "),
    ],
}
HISTORIES: Sequence[Sequence[tuple[int, int | None]]] = (
    [(0, 1), (1, None)],
    [(1, None), (0, 1)],
    [(0, 1), (1, 2)],
    [(0, 1), (1, None), (0, 3)],
    [(0, 1), (1, 2), (0, None), (1, 4), (0, 5)],
)
"""Which of the two keys, and its value; None deletes."""


class Database(System):
    def __init__(self, url: str) -> None:
        keys = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "k"}
        super().__init__(url, {"topics": "t", "delete.enabled": "true", **keys})
        if self.system == "postgresql":
            self.execute("CREATE EXTENSION citext")

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        key = "k::text" if self.system == "postgresql" else "k"
        return [(*r.values(),) for r in self.query(f"SELECT {key}, n FROM {table} ORDER BY n")]


@pytest.fixture
def database_(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.close()


def cuts(steps: Sequence[Step]) -> Iterator[list[Sequence[Step]]]:
    """All ways to cut changes into commits."""
    for count in range(len(steps)):
        for places in itertools.combinations(range(1, len(steps)), count):
            ends = [0, *places, len(steps)]
            yield [steps[a:b] for a, b in itertools.pairwise(ends)]


def test_the_table_does_not_depend_on_where_batches_are_cut(database_: Database) -> None:
    problems = []
    number = 0
    for kind, *keys in COLUMNS.get(database_.system, ()):
        for history in HISTORIES:
            steps: list[Step] = [
                (keys[which], None if value is None else {"n": value}) for which, value in history
            ]
            found = []
            for commits in cuts(steps):
                table, number = f"t{number}", number + 1
                database_.execute(f"CREATE TABLE {table} (k {kind} PRIMARY KEY, n int)")
                for commit in commits:
                    database_.sink.write(Commit([changes(*commit, topic=table)]))
                found.append(database_.rows(table))
            last = history[-1]
            values = [] if last[1] is None else [last[1]]
            if any(f != found[0] for f in found) or [r[1] for r in found[0]] != values:
                problems.append(f"{kind}: {history}: {found}")
    assert not problems, "\n".join(problems)


def test_of_one_key_in_two_partitions_the_later_record_is_kept(database_: Database) -> None:
    if not COLUMNS.get(database_.system):
        pytest.skip("no such server")
    database_.execute("CREATE TABLE t (k int PRIMARY KEY, n int)")

    def of(partition: int, *rows: tuple[int, int, int]) -> Records:
        return records(
            [{"n": n} for _, n, _ in rows],
            keys=[k for k, _, _ in rows],
            offsets=[o for _, _, o in rows],
            partition=partition,
        )

    # Timestamps rise with offsets: partition 0 holds the later record of key 1, though it is lower.
    parts = [of(0, (1, 10, 500), (2, 20, 1)), of(1, (1, 11, 100), (2, 21, 2))]
    whole = Records("t", pa.concat_tables([p.rows for p in parts]))
    database_.sink.write(Commit([whole]))
    assert sorted(r[1] for r in database_.rows("t")) == [10, 21]
