"""What the ledger and the audit know after positions were moved in any order, without services."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.audit import holes as judging
from semel.core.ledger import (
    MOVED,
    RECREATED,
    RESET,
    SET_BACK,
    SKIPPED,
    TAKEN_OVER,
    UNKNOWN,
    UNREAD,
    Advance,
    Hole,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
    first,
    firsts,
    forgotten,
    outside,
    set_by_hand,
)

TP = TopicPartition("t", 0)
END = 12
SPAN = st.integers(1, END)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["read", "lose"]), SPAN),
        st.tuples(st.sampled_from(["set", "reset", "forget"]), st.integers(0, END)),
    ),
    max_size=8,
)


class Life:
    """One partition's ledger, and which offsets were read at any time."""

    def __init__(self) -> None:
        self.entry: LedgerEntry | None = first(TP, 0)
        self.holes: list[Hole] = []
        self.read: set[int] = set()

    @property
    def stored(self) -> dict[TopicPartition, LedgerEntry]:
        return {} if self.entry is None else {TP: self.entry}

    def step(self, what: str, number: int) -> None:
        if what in ("read", "lose"):
            self.advance(number, lost=what == "lose")
        elif what == "set":
            wanted = [LedgerEntry(*TP, number, 0)]
            (self.entry,), self.holes = set_by_hand(self.stored, self.holes, wanted)
        else:
            self.holes = forgotten(self.stored, self.holes)
            self.entry = first(TP, number) if what == "reset" else None

    def advance(self, count: int, *, lost: bool) -> None:
        if self.entry is None or self.entry.position >= END:
            return
        at = self.entry.position
        until = min(END, at + count)
        move = Advance(OffsetRange(*TP, at, until), lost=until - at if lost else 0)
        self.entry = self.entry.after(move, "")
        self.holes += [move.hole] if move.hole else []
        if not lost:
            self.read |= set(range(at, until))

    def judged(self) -> set[int]:
        """The offsets whose records must have rows."""
        assert self.entry is not None
        unread = [h for h in self.holes if h.reason in UNREAD]
        spans = outside(self.entry.start_position, self.entry.position, unread)
        return {offset for span in spans for offset in range(*span)}


@given(steps=STEPS)
def test_what_was_ever_read_is_judged_or_named_and_nothing_else_is_expected(
    steps: list[tuple[str, int]],
) -> None:
    life = Life()
    for step in steps:
        life.step(*step)
    if life.entry is None:  # an audit says that there is nothing to audit
        return
    open_ = judging.unjudged(life.entry, life.holes, former=True)
    named = {o for h in open_ for o in range(h.from_offset, h.until_offset)}
    assert life.judged() <= life.read
    assert life.read <= life.judged() | named


@given(steps=STEPS)
def test_an_untouched_position_leaves_nothing_unjudged(steps: list[tuple[str, int]]) -> None:
    life = Life()
    for what, number in steps:
        if what in ("read", "lose"):
            life.step(what, number)
    assert life.entry is not None
    assert judging.unjudged(life.entry, life.holes, former=True) == []


@pytest.mark.parametrize(
    ("old", "wanted", "holes", "start"),
    [
        pytest.param(10, 15, [(10, 15, SKIPPED)], 2, id="forward"),
        pytest.param(10, 6, [(6, 10, SET_BACK)], 2, id="back"),
        pytest.param(10, 0, [(2, 10, SET_BACK)], 0, id="before the first position"),
        pytest.param(10, 10, [], 2, id="confirmed"),
    ],
)
def test_a_position_that_is_set_leaves_a_hole_and_keeps_its_counts(
    old: int, wanted: int, holes: list[tuple[int, int, str]], start: int
) -> None:
    entry = LedgerEntry(*TP, old, 2, records_read=8, rows_written=7, target="x")
    (moved,), left = set_by_hand({TP: entry}, [], firsts({TP: wanted}), "ann")
    assert (moved.position, moved.start_position) == (wanted, start)
    assert (moved.records_read, moved.rows_written, moved.target) == (8, 7, "x")
    assert left == [Hole(*TP, *hole) for hole in holes]
    assert all(h.by == "ann" and h.at for h in left)


def test_a_position_in_another_log_leaves_the_former_one_as_a_hole() -> None:
    entry = LedgerEntry(*TP, 10, 2, records_read=8, topic_id="old")
    there = LedgerEntry(*TP, 10, 0, topic_id="new")
    (confirmed,), left = set_by_hand({TP: entry}, [], [there])
    assert (confirmed.start_position, confirmed.topic_id, left) == (2, "new", [])
    (moved,), left = set_by_hand({TP: entry}, [], [replace(there, position=0)])
    assert (moved.position, moved.start_position, moved.records_read) == (0, 0, 8)
    assert left == [Hole(*TP, 2, 10, RECREATED)]


def test_a_position_where_the_ledger_has_none_leaves_what_kafka_has_before_it() -> None:
    (entry,), left = set_by_hand({}, [], [LedgerEntry(*TP, 10, 4)])
    assert (entry.position, entry.start_position, left) == (10, 10, [Hole(*TP, 4, 10, UNKNOWN)])
    (_,), left = set_by_hand({}, [], firsts({TP: 10}))
    assert left == []


@pytest.mark.parametrize(
    ("holes", "facts", "expected"),
    [
        ([], {"kafka": 10, "read": 10}, (0, 0, 0)),
        ([], {"kafka": 10, "read": 7}, (3, 0, 0)),
        ([(0, 5, RECREATED)], {"kafka": 10, "read": 15}, (0, 0, 5)),
        ([(5, 10, SET_BACK)], {"kafka": 10, "read": 15}, (0, 5, 0)),
        ([(5, 10, SET_BACK)], {"kafka": 10, "read": 15, "replaces": True}, (0, 0, 0)),
        ([(10, 15, SET_BACK)], {"kafka": 10, "read": 15}, (0, 0, 5)),
    ],
)
def test_records_are_counted_beside_what_holes_explain(
    holes: list[tuple[int, int, str]], facts: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    entry = LedgerEntry(*TP, 10, 0)
    assert judging.by_reading(entry, [Hole(*TP, *h) for h in holes], **facts) == expected


@pytest.mark.parametrize(
    ("hole", "surplus", "expected"),
    [
        ((0, 5, TAKEN_OVER), 3, (0, 0, 3)),
        ((0, 5, TAKEN_OVER), 7, (0, 2, 5)),
        ((0, 5, TAKEN_OVER), -3, (3, 0, 0)),
        ((0, 5, MOVED), -3, (0, 0, 3)),
        ((0, 5, RESET), 3, (0, 3, 0)),  # it was read again
        ((10, 15, RESET), 3, (0, 0, 3)),
        ((0, 5, SKIPPED), 3, (0, 3, 0)),
    ],
)
def test_rows_are_counted_beside_what_holes_explain(
    hole: tuple[int, int, str], surplus: int, expected: tuple[int, int, int]
) -> None:
    entry = LedgerEntry(*TP, 10, 0)
    assert judging.by_number([entry], [Hole(*TP, *hole)], surplus) == expected
