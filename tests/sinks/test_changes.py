"""What is left of several changes, against doing them one after another."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.records import KEY, Records
from semel.sinks.changes import Changes, Survivors, all_of_each, last_by_key, last_of_each
from tests.engine.harness import some
from tests.sinks.target import metadata

Change = tuple[Any, bool, int | None]  # key, is it a row, the value of an optional column
KEYS = {
    "int64": (pa.int64(), st.integers(0, 3)),
    "text": (pa.string(), st.sampled_from(["a", "b", "", "ä"])),
    "timestamp": (pa.timestamp("us"), st.integers(0, 3)),
    "bytes": (pa.binary(2), st.sampled_from([b"aa", b"bb"])),
}
changes = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.none() | st.integers(0, 9)))


def _arranged(
    done: list[Change], kind: pa.DataType, order: list[int]
) -> tuple[Changes, list[Change], pa.ChunkedArray, list[int]]:
    """The changes as a sink gets them: rows, then tombstones, each in some order."""
    numbered = [(at, done[at]) for at in order]
    rows = [(at, c) for at, c in numbered if c[1]]
    gone = [(at, c) for at, c in numbered if not c[1]]
    keys = pa.chunked_array([pa.array([c[0] for _, c in [*rows, *gone]], kind)])
    offsets = pa.chunked_array([pa.array([at for at, _ in [*rows, *gone]], pa.int64())])
    partitions = pa.chunked_array([pa.array([0] * len(done), pa.int32())])
    optional = pa.chunked_array([pa.array([c[2] for _, c in rows], pa.int64())])
    arranged = Changes([keys], [partitions, offsets], len(rows))
    return arranged, [c for _, c in rows], optional, [at for at, _ in rows]


def _deleted(left: Survivors, arranged: Changes) -> set[Any]:
    keys = arranged.keys[0].to_pylist()
    return {keys[arranged.count + at] for at in left.tombstones.tolist()}


def _rows(left: Survivors, count: int) -> list[int]:
    return list(range(count)) if left.rows is None else left.rows.tolist()


@pytest.mark.parametrize("kind", some(KEYS, {"text", "bytes"}))
@given(data=st.data())
def test_upserts_end_as_if_done_one_by_one(kind: str, data: st.DataObject) -> None:
    arrow, key = KEYS[kind]
    done = data.draw(
        st.lists(st.tuples(key, st.booleans(), st.none() | st.integers(0, 9)), min_size=1)
    )
    order = data.draw(st.permutations(range(len(done))))
    existing = dict.fromkeys(data.draw(st.sets(key)), 100)
    arranged, rows, optional, _ = _arranged(done, arrow, order)
    left = last_of_each(arranged, {"o": optional.is_valid().to_numpy()}, revives=True)

    expected = dict(existing)
    for k, is_row, value in done:
        if not is_row:
            expected.pop(k, None)
        else:  # a null leaves alone what is there; a new row gets the default, -1
            expected[k] = value if value is not None else expected.get(k, -1)
    found = dict(existing)
    raw = {_plain(k, arrow): k for k, _, _ in done}
    for k in _deleted(left, arranged):
        found.pop(raw[k], None)
    values = optional.to_pylist()
    for at, latest in zip(_rows(left, len(rows)), left.latest["o"].tolist(), strict=True):
        k = rows[at][0]
        found[k] = values[latest] if latest >= 0 else found.get(k, -1)
    assert found == expected


def _plain(key: Any, kind: pa.DataType) -> Any:
    return pa.scalar(key, kind).as_py()


@given(done=changes.filter(bool), existing=st.sets(st.integers(0, 3)), data=st.data())
def test_updates_end_as_if_done_one_by_one(
    done: list[Change], existing: set[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(done))))
    arranged, rows, _, when = _arranged(done, pa.int64(), order)
    left = last_of_each(arranged, {}, revives=False)
    expected: dict[int, int] = dict.fromkeys(existing, -1)
    for at, (k, is_row, _) in enumerate(done):
        if not is_row:
            expected.pop(k, None)
        elif k in expected:
            expected[k] = at
    found: dict[int, int] = dict.fromkeys(existing, -1)
    for k in _deleted(left, arranged):
        found.pop(k, None)
    for at in _rows(left, len(rows)):
        if rows[at][0] in found:
            found[rows[at][0]] = when[at]
    assert found == expected


@given(done=changes.filter(bool), data=st.data())
def test_inserts_and_deletes_end_as_if_done_one_by_one(
    done: list[Change], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(done))))
    arranged, rows, _, when = _arranged(done, pa.int64(), order)
    left = all_of_each(arranged)
    expected: dict[int, list[int]] = {k: [-1] for k in range(4)}
    for at, (k, is_row, _) in enumerate(done):
        if is_row:
            expected[k].append(at)
        else:
            expected[k] = []
    found: dict[int, list[int]] = {k: [-1] for k in range(4)}
    for k in _deleted(left, arranged):
        found[k] = []
    for at in _rows(left, len(rows)):
        found[rows[at][0]].append(when[at])
    assert {k: sorted(v) for k, v in found.items()} == expected


@given(
    keys=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), min_size=1),
    partitions=st.data(),
)
def test_keys_of_several_columns_keep_their_last_row(
    keys: list[tuple[int, str]], partitions: st.DataObject
) -> None:
    columns = [
        pa.chunked_array([pa.array([k[0] for k in keys])]),
        pa.chunked_array([pa.array([k[1] for k in keys])]),
    ]
    left = last_of_each(Changes(columns, [], len(keys)), {}, revives=True)
    expected = {k: at for at, k in enumerate(keys)}
    assert sorted(_rows(left, len(keys))) == sorted(expected.values())


def test_rows_of_number_keys_come_in_key_order_and_others_in_the_order_of_changes() -> None:
    numbers = Changes([pa.chunked_array([[3, 1, 2, 1]])], [], 4)
    assert _rows(last_of_each(numbers, {}, revives=True), 4) == [3, 2, 0]
    texts = Changes([pa.chunked_array([["a", "b", "a", "c"]])], [], 4)
    assert _rows(last_of_each(texts, {}, revives=True), 4) == [1, 2, 3]


def test_ascending_unique_keys_are_left_as_they_are() -> None:
    ascending = Changes([pa.chunked_array([[1, 2, 5]])], [], 3)
    assert last_of_each(ascending, {}, revives=True).rows is None


@given(done=st.lists(st.tuples(st.sampled_from([b"a", b"b", b""]), st.booleans())))
def test_a_store_of_keys_and_values_ends_as_if_changed_one_by_one(
    done: list[tuple[bytes, bool]],
) -> None:
    def table(wanted: bool) -> pa.Table:
        at = [n for n, (_, row) in enumerate(done) if row is wanted]
        keys = pa.array([done[n][0] for n in at], pa.binary())
        return pa.table({"value": pa.array(at, pa.int64())} | metadata("t", at, keys))

    tombstones = table(False)
    gone, rows = last_by_key(Records("t", table(True), tombstones if tombstones.num_rows else None))
    store = dict.fromkeys([b"a", b"b", b""], -1)
    expected = dict(store)
    for n, (key, row) in enumerate(done):
        expected.pop(key, None)
        if row:
            expected[key] = n
    for key in gone.column(KEY).to_pylist():
        store.pop(key, None)
    keys, values = (rows.column(n).to_pylist() for n in (KEY, "value"))
    assert len(set(keys)) == len(keys)
    store.update(zip(keys, values, strict=True))
    assert store == expected


def _one_by_one(
    done: list[tuple[str, int, int, bool]],
) -> tuple[dict[str, int], dict[tuple[str, int], int]]:
    """Of changes (key, partition, timestamp, row?) in the order of offsets, the last of each key:
    a change counts as no earlier than those of its key before it in its partition."""
    latest: dict[tuple[str, int], int] = {}
    when: dict[str, tuple[int, int, int]] = {}
    last: dict[str, int] = {}
    for offset, (key, partition, timestamp, _) in enumerate(done):
        counts = max(timestamp, latest.get((key, partition), timestamp))
        latest[key, partition] = counts
        if key not in when or (counts, partition, offset) > when[key]:
            when[key], last[key] = (counts, partition, offset), offset
    return last, latest


@given(
    done=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(-1, 5), st.booleans()),
        min_size=1,
    ),
    data=st.data(),
)
def test_between_partitions_the_later_timestamp_wins_and_within_one_the_later_offset(
    done: list[tuple[str, int, int, bool]], data: st.DataObject
) -> None:
    at = data.draw(st.permutations(range(len(done))))
    at = [n for n in at if done[n][3]] + [n for n in at if not done[n][3]]
    count = sum(done[n][3] for n in at)
    key, partition, offset, timestamp = (
        pa.chunked_array([pa.array(values, kind)])
        for values, kind in (
            ([done[n][0] for n in at], pa.string()),
            ([done[n][1] for n in at], pa.int32()),
            (at, pa.int64()),
            ([done[n][2] for n in at], pa.timestamp("ms", "UTC")),
        )
    )
    left = last_of_each(Changes([key], [partition, offset], count, timestamp), {}, revives=True)
    expected, _ = _one_by_one(done)
    assert {at[n] for n in _rows(left, count)} == {n for n in expected.values() if done[n][3]}


def test_equal_floats_are_one_key() -> None:
    keys = pa.chunked_array([[0.0, -0.0, 1.0]])
    left = last_of_each(Changes([keys], [], 3), {}, revives=True)
    assert _rows(left, 3) == [1, 2]
