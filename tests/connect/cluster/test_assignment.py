"""Which worker runs which connector."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from semel.connect.cluster.assignment import assign

names = st.sets(st.sampled_from("abcdefghij"))
workers = st.sets(st.sampled_from(["A", "B", "C", "D"]))


def moved(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name, worker in before.items() if after.get(name, worker) != worker}


def test_connectors_are_spread_evenly() -> None:
    assert Counter(assign("abcdef", {"A", "B", "C"}, {}).values()) == {"A": 2, "B": 2, "C": 2}


def test_a_worker_that_is_added_takes_no_more_than_its_share() -> None:
    before = assign("abcdef", {"A", "B"}, {})
    after = assign("abcdef", {"A", "B", "C"}, before)
    assert Counter(after.values()) == {"A": 2, "B": 2, "C": 2}
    assert len(moved(before, after)) == 2


def test_a_worker_that_has_died_loses_what_it_had_and_nothing_else_moves() -> None:
    before = assign("abcdef", {"A", "B", "C"}, {})
    after = assign("abcdef", {"A", "B"}, before)
    assert moved(before, after) == {name for name, worker in before.items() if worker == "C"}


def test_a_worker_that_is_awaited_keeps_its_connectors_and_gets_no_new_ones() -> None:
    before = assign("abcd", {"A", "B"}, {})
    after = assign("abcde", {"A"}, before, awaited={"B"})
    assert moved(before, after) == set()
    assert after["e"] == "A"


@given(
    names,
    workers.filter(bool),
    st.dictionaries(
        st.sampled_from("abcdefghij"), workers.map(lambda some: min(some, default="E"))
    ),
)
def test_everything_is_assigned_evenly_and_stays_so(
    connectors: set[str], there: set[str], before: dict[str, str]
) -> None:
    found = assign(connectors, there, before)
    assert set(found) == connectors
    load = Counter(dict.fromkeys(there, 0))
    load.update(found.values())
    assert set(load) == there
    assert max(load.values()) - min(load.values()) <= 1
    assert assign(connectors, there, found) == found
