"""Which worker runs which tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from semel.worker.cluster.leader import assign

shares = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(1, 5))
workers = st.sets(st.sampled_from(["A", "B", "C", "D"]))
owners = st.lists(st.sampled_from(["A", "B", "C", "D", "E"]), min_size=1, max_size=5)
before = st.dictionaries(st.sampled_from("abcdefghij"), owners)

Owners = Mapping[str, Sequence[str]]


def load(of: Owners) -> Counter[str]:
    return Counter(worker for each in of.values() for worker in each)


def moved(old: Owners, new: Owners) -> set[tuple[str, int]]:
    return {
        (name, n)
        for name, each in old.items()
        for n, (was, now) in enumerate(zip(each, new.get(name, ()), strict=False))
        if was != now
    }


def test_connectors_are_spread_evenly() -> None:
    assert load(assign(dict.fromkeys("abcdef", 1), {"A", "B", "C"}, {})) == {"A": 2, "B": 2, "C": 2}


def test_thousands_of_tasks_are_divided_in_seconds() -> None:
    wanted = dict.fromkeys("abcde", 2000)
    old = assign(wanted, {"A", "B"}, {})
    began = time.process_time()
    assert set(load(assign(wanted, {"A", "B", "C"}, old)).values()) == {3333, 3334}
    assert time.process_time() - began < 10


def test_the_tasks_of_each_connector_are_spread() -> None:
    found = assign({"a": 3, "b": 3}, {"A", "B", "C"}, {})
    assert {name: set(each) for name, each in found.items()} == {
        "a": {"A", "B", "C"},
        "b": {"A", "B", "C"},
    }


def test_a_worker_that_is_added_takes_no_more_than_its_share() -> None:
    wanted = {"a": 4, "b": 1, "c": 1}
    old = assign(wanted, {"A", "B"}, {})
    new = assign(wanted, {"A", "B", "C"}, old)
    assert load(new) == {"A": 2, "B": 2, "C": 2}
    assert len(moved(old, new)) == 2


def test_first_tasks_are_divided_evenly_too() -> None:
    wanted = {"a": 3, "b": 3, "c": 3}
    old = assign(wanted, {"A", "B"}, {})
    new = assign(wanted, {"A", "B", "C"}, old)
    assert Counter(each[0] for each in new.values()) == {"A": 1, "B": 1, "C": 1}
    assert len(moved(old, new)) == 3


def test_a_worker_that_has_died_loses_what_it_had_and_nothing_else_moves() -> None:
    wanted = {"a": 2, "b": 3, "c": 1}
    old = assign(wanted, {"A", "B", "C"}, {})
    new = assign(wanted, {"A", "B"}, old)
    lost = {(name, n) for name, each in old.items() for n, worker in enumerate(each)}
    assert moved(old, new) == {(name, n) for name, n in lost if old[name][n] == "C"}


def test_a_worker_that_is_awaited_keeps_its_tasks_and_gets_no_new_ones() -> None:
    old = assign({"a": 2, "b": 2}, {"A", "B"}, {})
    new = assign({"a": 2, "b": 2, "c": 1}, {"A"}, old, awaited={"B"})
    assert moved(old, new) == set()
    assert new["c"] == ("A",)


@given(shares, workers.filter(bool), before)
def test_everything_is_assigned_evenly_and_stays_so(
    wanted: dict[str, int], there: set[str], old: dict[str, list[str]]
) -> None:
    found = assign(wanted, there, old)
    assert {name: len(each) for name, each in found.items()} == wanted
    loads = Counter(dict.fromkeys(there, 0))
    loads.update(load(found))
    assert set(loads) == there
    assert max(loads.values()) - min(loads.values()) <= 1
    assert assign(wanted, there, found) == found


@given(shares, workers.filter(bool), st.sampled_from(["A", "B", "C", "D"]))
def test_a_worker_that_comes_takes_from_those_that_have_more(
    wanted: dict[str, int], there: set[str], new: str
) -> None:
    old = assign(wanted, there, {})
    found = assign(wanted, {*there, new}, old)
    moves = moved(old, found)
    taken = 0 if new in there else load(found)[new]
    firsts = sum(n == 0 for _, n in moves)  # are divided on their own, and others then make up
    assert taken <= len(moves) <= taken + firsts
