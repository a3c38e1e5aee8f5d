"""Values are compared by hashes: what differs is found and named, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.audit.hashes import ExpectedRows
from semel.audit.report import ChangedRow
from semel.audit.workspace import Workspace
from semel.core.errors import TransientError
from semel.core.records import OFFSET, PARTITION, TIMESTAMP

VALUES = {
    "n": pa.array([1, 2, None, 4]),
    "s": pa.array(["a", "b", "c", None]),
    "d": pa.array([Decimal("1.50"), None, Decimal(0), Decimal(-3)], pa.decimal128(10, 2)),
    "x": pa.array([0.1, float("nan"), float("inf"), None]),
    "l": pa.array([[1, None], [], None, [3]]),
    "o": pa.array([{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None, {"a": 2, "b": []}]),
    "topic": pa.array(["a", "b", None, "d"]),  # named like the places of rows
    "at": pa.array([1, None, 3, 4]),
    "N": pa.array([4, 5, 6, 7]),  # another column than n
    "^n": pa.array(["w", "x", "y", "z"]),
    "t": pa.array([0, -(2**63), 2**63 - 1, None]).cast(pa.timestamp("us")),
}


def places(*offsets: int, partition: int = 0) -> pa.Table:
    partitions = pa.array([partition] * len(offsets), pa.int32())
    return pa.table({PARTITION: partitions, OFFSET: pa.array(offsets, pa.int64())})


def stored(values: Any, *offsets: int) -> Iterator[pa.RecordBatch]:
    """Rows with their places, two a batch, in another order than they were written in."""
    table = values if isinstance(values, pa.Table) else pa.table(values)
    if offsets:
        found = places(*offsets)
        table = table.add_column(0, PARTITION, found.column(0))
        table = table.add_column(1, OFFSET, found.column(1))
    return iter(table.take(list(reversed(range(table.num_rows)))).to_batches(2))


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    made = Workspace()
    yield made
    path = made.path
    made.close()
    assert not path.exists()


def expected(
    workspace: Workspace, values: Any, key: Sequence[str] = (), *, replaces: bool = False
) -> ExpectedRows:
    made = ExpectedRows(workspace, key=key, replaces=replaces)
    table = pa.table(values)
    made.add("t", places(*range(table.num_rows)), table, ())
    return made


def test_values_of_every_type_are_themselves(workspace: Workspace) -> None:
    wanted = expected(workspace, VALUES)
    assert wanted.columns == list(VALUES)
    assert not wanted.by_place(stored(VALUES, 0, 1, 2, 3)).counts
    assert wanted.by_count(stored(VALUES)) == (0, 0, [])


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_differs_is_found_by_its_column(workspace: Workspace, name: str) -> None:
    wanted = expected(workspace, VALUES)
    other = {**VALUES, name: VALUES[name].take(pa.array([0, 1, 3, 3]))}
    found = wanted.by_place(stored(other, 0, 1, 2, 3))
    assert found.counts == {("t", 0): 1}
    assert found.first == [ChangedRow("t", 0, 2, (name,))]
    assert wanted.by_count(stored(other)) == (1, 1, [ChangedRow("t", 0, 2)])


def test_null_is_another_value_than_0_and_empty(workspace: Workspace) -> None:
    for value in (0, 0.0, "", b"", False, Decimal(0)):
        empty = pa.array([value, None])
        swapped = {"v": empty.take(pa.array([1, 0]))}
        found = expected(workspace, {"v": empty}).by_place(stored(swapped, 0, 1))
        assert found.counts == {("t", 0): 2}


def test_a_null_in_an_upsert_is_a_value_unless_columns_may_have_been_added(
    workspace: Workspace,
) -> None:
    for evolves in (False, True):
        made = ExpectedRows(workspace, replaces=True, evolves=evolves)
        made.add("t", places(0, 1), pa.table({"n": [None, 1], "m": [1, None]}), ())
        found = made.by_place(stored({"n": [5, 1], "m": [1, None]}, 0, 1))
        assert found.counts == ({} if evolves else {("t", 0): 1})
        assert found.left_alone == ({"n": 1} if evolves else {})


def test_the_pairs_that_were_compared_are_counted(workspace: Workspace) -> None:
    made = expected(workspace, {"n": [1, 2, 3]})
    assert made.by_place(stored({"n": [1, 2, 2]}, 0, 1, 7)).compared == 2
    assert made.by_place(stored({"n": [1]}, 9)).compared == 0
    keys = pa.table({"k": ["a", "b", "c"]})
    made = ExpectedRows(workspace, key=["k"], replaces=True)
    made.add("t", places(0, 1, 2), keys.append_column("n", pa.array([0, 1, 2])), ())
    made.change("t", keys, places(0, 1, 2), deleted=False)
    assert made.by_key(stored({"k": ["a", "c", "d"], "n": [0, 2, 3]})).compared == 2


def test_rows_that_no_record_makes_and_those_of_another_time_are_not_changed(
    workspace: Workspace,
) -> None:
    made = ExpectedRows(workspace, replaces=False)
    timed = places(0, 1).append_column(TIMESTAMP, pa.array([10, 11], pa.timestamp("ms", "UTC")))
    made.add("t", timed, pa.table({"n": [1, 2]}), ())
    rows = pa.table({"n": [-1, -1, -1], TIMESTAMP: pa.array([99, None, 5], pa.int64())})
    assert made.by_place(stored(rows, 0, 1, 7)).first == [ChangedRow("t", 0, 1, ("n",))]


def test_a_null_that_leaves_a_value_alone_is_not_judged(workspace: Workspace) -> None:
    for replaces in (False, True):
        made = ExpectedRows(workspace, replaces=replaces)
        made.add("t", places(0, 1), pa.table({"n": [None, 1], "m": [0, 0]}), {"n"})
        made.add("t", places(2, 3), pa.table({"m": [0, 0], "late": [None, 1]}), {"n"})
        rows = {"n": [5, 5, 5, 5], "m": [0, 0, 0, 0], "late": [5, 5, 5, 5]}
        found = made.by_place(stored(rows, 0, 1, 2, 3))
        late = () if replaces else (ChangedRow("t", 0, 2, ("late",)),)
        assert found.first == [
            ChangedRow("t", 0, 1, ("n",)),
            *late,
            ChangedRow("t", 0, 3, ("late",)),
        ]
        assert found.left_alone == ({"late": 3} if replaces else {})
        assert made.uncompared == ["n", "late"]
        assert made.by_count(stored(rows)) == (0, 0, [])


def test_by_key_only_the_last_record_of_each_counts(workspace: Workspace) -> None:
    made = ExpectedRows(workspace, key=["k"], replaces=True)
    keys = pa.table({"k": ["a", "b", "a", "c", "d"]})
    made.add(
        "t",
        places(0, 1, 2, 3, 4),
        keys.append_column("n", pa.array([0, 1, 2, 3, 4])),
        (),
    )
    made.change("t", keys, places(0, 1, 2, 3, 4), deleted=False)
    made.change("t", pa.table({"k": ["c"]}), places(5), deleted=True)
    made.change("t", pa.table({"k": ["d"]}), places(0, partition=1), deleted=True)
    rows = {"k": ["a", "b", "c", "d", "z"], "n": [2, 1, -1, -1, -1]}
    found = made.by_key(stored(rows))
    assert (found.counts, found.unsure) == ({}, 1)
    found = made.by_key(stored({**rows, "n": [0, 1, -1, -1, -1]}))
    assert found.first == [ChangedRow("t", 0, 2, ("n",))]


def test_keys_that_differ_only_in_case_are_two(workspace: Workspace) -> None:
    made = ExpectedRows(workspace, key=["K", "k"], replaces=True)
    keys = pa.table({"K": [0, 1], "k": [1, 0]})
    made.add("t", places(0, 1), keys.append_column("n", pa.array([0, 1])), ())
    made.change("t", keys, places(0, 1), deleted=False)
    assert made.columns == ["K", "k", "n"]
    assert not made.by_key(stored({"K": [0, 1], "k": [1, 0], "n": [0, 1]})).counts
    found = made.by_key(stored({"K": [0, 1], "k": [1, 0], "n": [0, 7]}))
    assert found.first == [ChangedRow("t", 0, 1, ("n",))]


def test_an_error_in_reading_rows_leaves_as_it_is(workspace: Workspace) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from stored({"n": [1]}, 0)
        raise TransientError("the store went away")

    with pytest.raises(TransientError, match="went away"):
        expected(workspace, {"n": [1]}).by_place(broken())
