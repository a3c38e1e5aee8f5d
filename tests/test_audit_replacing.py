"""Which records' rows later records of the same key have replaced or deleted, without services."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.audit.replacing import KeyDifferences, LiveKeys, Replacements
from semel.audit.workspace import Workspace
from semel.core.ledger import TopicPartition
from semel.core.records import OFFSET, PARTITION, Records
from semel.sinks.base import Capabilities, StoredKeys

Change = tuple[Any, int, int, bool]
"""Key, partition, offset, and whether the record deletes the key's row."""


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    with closing(Workspace()) as made:
        yield made


def replacing(
    workspace: Workspace,
    changes: Sequence[Change],
    stored: pa.Schema | None = None,
    kind: pa.DataType | None = None,
) -> Replacements:
    sink = Mock(capabilities=Capabilities(replaces=True))
    made = Replacements(sink, workspace, {} if stored is None else {"t": stored})
    for deleted in (False, True):
        mine = [c for c in changes if c[3] == deleted]
        places = pa.table(
            {
                PARTITION: pa.array([c[1] for c in mine], pa.int32()),
                OFFSET: pa.array([c[2] for c in mine], pa.int64()),
            }
        )
        keys = pa.table({"Key": pa.array([c[0] for c in mine], kind or pa.string())})
        sink.key_of.return_value = (None, keys) if deleted else (keys, None)
        none = places.slice(0, 0)
        made.add("t", Records("t", none, places) if deleted else Records("t", places, none))
    return made


def held(keys: Any) -> StoredKeys:
    """The keys of a store."""
    return StoredKeys(pa.table({"Key": keys}).to_batches())


def told(found: Replacements) -> dict[int, tuple[list[int], list[int]]]:
    return {
        tp.partition: (sorted(gone.tolist()), sorted(unsure.tolist()))
        for tp, (gone, unsure) in found.gone().items()
    }


def test_keys_of_topics_in_one_target_replace_each_other_in_an_unknown_order(
    workspace: Workspace,
) -> None:
    sink = Mock(capabilities=Capabilities(replaces=True))
    found = Replacements(sink, workspace)
    keys = {"a": ["x", "y", "x"], "b": ["x", "z"], "c": ["x", "x"]}
    for topic, mine in keys.items():
        places = pa.table(
            {PARTITION: pa.array([0] * len(mine), pa.int32()), OFFSET: range(len(mine))}
        )
        sink.key_of.return_value = (pa.table({"Key": mine}), None)
        found.add(topic, Records(topic, places), "other" if topic == "c" else "one")
    gone = {tp.topic: (g.tolist(), u.tolist()) for tp, (g, u) in found.gone().items()}
    assert gone == {"a": ([0], [2]), "b": ([], [0]), "c": ([0], [])}
    found.keep(
        {TopicPartition("a", 0): np.array([1, 2]), TopicPartition("c", 0): np.array([], int)}
    )
    gone = {tp.topic: (g.tolist(), u.tolist()) for tp, (g, u) in found.gone().items()}
    assert gone == {"a": ([], [])}


def test_a_key_is_live_unless_its_last_record_deletes_it(workspace: Workspace) -> None:
    found = replacing(
        workspace,
        [("a", 0, 0, False), ("b", 0, 1, False), ("a", 0, 2, True), ("b", 0, 3, False)],
    )
    assert found.live("t") == LiveKeys(1, 1)
    assert told(found) == {0: ([0, 1, 2], [])}


def test_a_key_deleted_in_one_partition_only_may_be_live_or_not(workspace: Workspace) -> None:
    found = replacing(workspace, [("a", 0, 4, False), ("a", 0, 5, False), ("a", 1, 2, True)])
    assert found.live("t") == LiveKeys(0, 1)
    assert told(found) == {0: ([4], [5]), 1: ([], [2])}


def test_keys_that_a_store_may_take_for_the_same_widen_the_range(workspace: Workspace) -> None:
    found = replacing(
        workspace, [("bob", 0, 0, False), ("BOB", 0, 1, False), ("eve ", 0, 2, False)]
    )
    assert found.live("t") == LiveKeys(2, 3)


def test_keys_are_compared_one_by_one_where_the_store_shows_them(workspace: Workspace) -> None:
    changes = [("a", 0, 0, False), ("b", 0, 1, False), ("c", 0, 2, True), ("d", 0, 3, False)]
    stored = pa.schema([("Key", pa.string())])
    found = replacing(workspace, changes, stored)
    assert found.compare("t", held(["a", "b", "d"])) == KeyDifferences()
    assert found.compare("t", held(["a", "b", "x", None])) == KeyDifferences(1, 2)
    other = StoredKeys(pa.table({"other": ["a"]}).to_batches())
    with pytest.raises(ValueError, match="Key"):
        replacing(workspace, changes, other.schema).compare("t", other)


def test_all_keys_are_missing_from_an_empty_table_whatever_its_types(workspace: Workspace) -> None:
    found = replacing(workspace, [("a", 0, 0, False), ("b", 0, 1, False), ("b", 0, 2, True)])
    assert found.compare("t", held([])) == KeyDifferences(missing=1)
    assert found.compare("unread", held(["a"])) == KeyDifferences(stray=1)


def test_stored_keys_are_compared_without_being_in_memory(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [(f"{n:01000}", 0, n, False) for n in range(200)]
    found = replacing(workspace, changes, pa.schema([("Key", pa.string())]))
    batches = ([f"{n:01000}" for n in range(at, at + 1_000)] for at in range(0, 100_000, 1_000))
    stored = StoredKeys(pa.record_batch([pa.array(b)], ["Key"]) for b in batches)
    read, before, highest = stored.batches, pa.total_allocated_bytes(), 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal highest
        for batch in read():
            yield batch
            highest = max(highest, pa.total_allocated_bytes() - before)

    monkeypatch.setattr(stored, "batches", watched)
    assert found.compare("t", stored) == KeyDifferences(stray=100_000 - 200)
    assert highest < 50e6  # of 100 MB of keys


def test_a_key_that_may_have_a_row_or_not_is_counted_as_not_judged(workspace: Workspace) -> None:
    changes = [("a", 0, 4, False), ("a", 1, 2, True), ("b", 0, 5, False)]
    found = replacing(workspace, changes, pa.schema([("Key", pa.string())]))
    for there in (["a", "b"], ["b"]):
        assert found.compare("t", held(there)) == KeyDifferences(unsure=1)


def test_keys_are_compared_in_the_types_of_the_store(workspace: Workspace) -> None:
    changes = [(1_000, 0, 0, False), (2_000, 0, 1, False)]
    stored = held(pa.array([1_000_000, 3], pa.timestamp("us", "UTC")))
    found = replacing(workspace, changes, stored.schema, pa.timestamp("ms", "UTC"))
    assert found.compare("t", stored) == KeyDifferences(1, 1)
    small = held(pa.array([1], pa.int8()))
    with pytest.raises(ValueError, match="1000"):
        replacing(workspace, changes, small.schema, pa.int64()).compare("t", small)


def test_all_but_some_records_can_be_forgotten(workspace: Workspace) -> None:
    changes = [("a", 0, 0, False), ("b", 1, 0, False), ("a", 0, 1, False), ("c", 0, 2, False)]
    found = replacing(workspace, changes)
    found.keep({TopicPartition("t", 0): np.array([0, 1]), TopicPartition("t", 1): np.array([])})
    assert told(found) == {0: ([0], [])}
    found.keep({})
    assert told(found) == {}
    assert found.live("t") is None


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from([None, "", "a", "A"]), st.integers(0, 2), st.booleans()),
        max_size=12,
    )
)
def test_any_history_is_judged_as_applying_it_would(
    workspace: Workspace, history: list[tuple[str | None, int, bool]]
) -> None:
    changes = [(key, p, offset, gone) for offset, (key, p, gone) in enumerate(history)]
    last = {(key, p): (offset, gone) for key, p, offset, gone in changes}
    several = {key for key, _ in last if len([k for k, _ in last if k == key]) > 1}
    rows = {o for (key, _), (o, gone) in last.items() if not gone and key not in several}
    unsure = {o for (key, _), (o, _) in last.items() if key in several}
    found = told(replacing(workspace, changes))
    assert {o for _, either in found.values() for o in either} == unsure
    assert {o for gone, _ in found.values() for o in gone} == set(
        range(len(history))
    ) - rows - unsure


def test_keys_of_many_records_are_not_held_in_memory(workspace: Workspace) -> None:
    sink = Mock(capabilities=Capabilities(replaces=True))
    found = Replacements(sink, workspace)
    before = pa.total_allocated_bytes()
    highest = 0
    for start in range(0, 100_000, 5_000):
        offsets = pa.array(range(start, start + 5_000), pa.int64())
        places = pa.table({PARTITION: pa.repeat(pa.scalar(0, pa.int32()), 5_000), OFFSET: offsets})
        keys = pc.binary_join_element_wise("k" * 2_000, offsets.cast(pa.string()), "-")
        sink.key_of.return_value = pa.table({"k": keys}), None
        found.add("t", Records("t", places))
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert highest < 150e6  # of 200 MB of keys
    assert found.live("t") == LiveKeys(100_000, 100_000)
