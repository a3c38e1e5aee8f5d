"""The ledger rule: pure, and as PostgreSQL keeps it, against a model of one screen."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semel.core.errors import LedgerConflict, TransientError
from semel.core.ledger import (
    RESET,
    SKIPPED,
    Advance,
    Hole,
    LedgerEntry,
    OffsetRange,
    Outcome,
    TopicPartition,
    firsts,
    forgotten,
    judge,
    set_by_hand,
)
from semel.core.records import Commit
from tests.engine.harness import once_let_go
from tests.patience import PATIENCE
from tests.sinks.otherlogs import FORMER, check_refuses_another_log
from tests.sinks.target import Target, backend, found_running, records, released_at_last

PARTITIONS = [TopicPartition(t, p) for t in ("a", "b'\"{}\\ä") for p in (0, 1)]
OFFSETS = st.integers(0, 6)


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


def span(tp: TopicPartition, from_offset: int, until_offset: int) -> OffsetRange:
    return OffsetRange(tp.topic, tp.partition, from_offset, until_offset)


@st.composite
def batches(draw: st.DrawFn, least: int = 1) -> list[OffsetRange]:
    """Ranges of different topic-partitions."""
    chosen = draw(st.lists(st.sampled_from(PARTITIONS), unique=True, min_size=least, max_size=3))
    ranges = []
    for tp in chosen:
        start = draw(OFFSETS)
        ranges.append(span(tp, start, start + draw(st.integers(1, 3))))
    return ranges


def expected(
    stored: Mapping[TopicPartition, int], ranges: Sequence[OffsetRange]
) -> tuple[str, dict[TopicPartition, int]]:
    """The rule in the words of the design: what a commit ends as, and the positions after it."""
    before = [stored.get(r.topic_partition) == r.from_offset for r in ranges]
    behind = [stored.get(r.topic_partition) == r.until_offset for r in ranges]
    if all(before):
        return "applied", {**stored, **{r.topic_partition: r.until_offset for r in ranges}}
    return ("replayed" if all(behind) else "conflict"), dict(stored)


def outcome_of(action: Callable[[], Outcome]) -> str:
    try:
        return action().value
    except LedgerConflict as conflict:
        assert "Nothing was written" in str(conflict)
        assert "connector c" in str(conflict)  # and what follows c in the stateful test
        return "conflict"


# The rule alone


def judged(stored: Mapping[TopicPartition, int], *ranges: OffsetRange) -> Outcome:
    entries = {e.topic_partition: e for e in firsts(stored)}
    return judge("c", entries, [Advance(r) for r in ranges])


@given(stored=st.dictionaries(st.sampled_from(PARTITIONS), OFFSETS), ranges=batches())
def test_judge_obeys_the_rule(stored: dict[TopicPartition, int], ranges: list[OffsetRange]) -> None:
    verdict, _ = expected(stored, ranges)
    assert outcome_of(lambda: judged(stored, *ranges)) == verdict


def test_a_conflict_states_the_facts_and_asks_the_question() -> None:
    tp = TopicPartition("orders", 3)
    with pytest.raises(LedgerConflict) as caught:
        judged({tp: 17}, span(tp, 10, 20))
    assert str(caught.value) == (
        "connector c: the ledger is at 17 for orders-3, but this commit holds offsets "
        "[10, 20). Nothing was written. Was a partition repeated after a failure, or does another "
        "run of c write too?"
    )


def test_a_mixture_of_applied_and_replayed_is_a_conflict() -> None:
    one, two = PARTITIONS[:2]
    with pytest.raises(LedgerConflict, match="some are not"):
        judged({one: 0, two: 5}, span(one, 0, 5), span(two, 0, 5))


def test_a_partition_that_the_ledger_has_never_seen_is_a_conflict() -> None:
    with pytest.raises(LedgerConflict, match="is at None"):
        judged({}, span(PARTITIONS[0], 0, 5))


def test_an_empty_batch_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one range"):
        judged({})


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_empty_and_negative_ranges_are_mistakes(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange("t", 0, start, end)


# The ledger in PostgreSQL


class Drivers(RuleBasedStateMachine):
    """Two runs of one connector, and a third connector that must not notice, in any order."""

    target: Target
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        name = f"c{next(self.numbers)}"
        self.sinks = [self.target.sink(name), self.target.sink(name)]
        self.other = self.target.sink(f"{name}-other")
        self.model: dict[TopicPartition, int] = {}
        self.counts: dict[TopicPartition, list[int]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.holes: list[Hole] = []

    def entries(self) -> dict[TopicPartition, LedgerEntry]:
        found = {}
        for tp, at in self.model.items():
            read, written, lost = self.counts.get(tp, [0, 0, 0])
            start = self.starts[tp]
            found[tp] = LedgerEntry(*tp, at, start, read, written, records_lost=lost)
        return found

    @initialize()
    def prepare(self) -> None:
        self.sinks[0].prepare([])
        self.other.start(firsts(dict.fromkeys(PARTITIONS, 3)))

    @rule(who=st.booleans(), positions=st.dictionaries(st.sampled_from(PARTITIONS), OFFSETS))
    def start(self, who: bool, positions: dict[TopicPartition, int]) -> None:
        if positions:
            self.model = {**positions, **self.model}
            self.starts = {**positions, **self.starts}
            held = self.sinks[who].start(firsts(positions))
            assert held == {tp: self.model[tp] for tp in positions}

    @rule(who=st.booleans(), ranges=batches(), how=st.sampled_from(["commit", "advance"]))
    def commit(self, who: bool, ranges: list[OffsetRange], how: str) -> None:
        advances = [Advance(r, r.until_offset - r.from_offset, 1, 0, 0) for r in ranges]
        verdict, after = expected(self.model, ranges)
        sink = self.sinks[who]
        if how == "commit":
            found = outcome_of(lambda: sink.commit(advances, Commit([])))
        else:
            found = outcome_of(lambda: sink.advance(advances))
        assert found == verdict
        self.model = after
        if verdict == "applied":
            for a in advances:
                held = self.counts.setdefault(a.range.topic_partition, [0, 0, 0])
                held[0] += a.read
                held[1] += a.written

    @rule(who=st.booleans(), ranges=batches())
    def continue_at_the_positions(self, who: bool, ranges: list[OffsetRange]) -> None:
        """What a well-behaved driver does; else almost every step would be a conflict."""
        known = [r for r in ranges if r.topic_partition in self.model]
        if known:
            at = [
                span(
                    r.topic_partition,
                    self.model[r.topic_partition],
                    self.model[r.topic_partition] + 2,
                )
                for r in known
            ]
            self.commit(who, at, "commit")
            assert outcome_of(lambda: self.sinks[not who].advance([Advance(r) for r in at])) == (
                "replayed"
            )

    @rule(who=st.booleans(), ranges=batches(), lost=st.integers(1, 3))
    def skip_what_retention_removed(self, who: bool, ranges: list[OffsetRange], lost: int) -> None:
        verdict, after = expected(self.model, ranges)
        advances = [Advance(r, lost=lost) for r in ranges]
        assert outcome_of(lambda: self.sinks[who].advance(advances)) == verdict
        self.model = after
        if verdict == "applied":
            for r in ranges:
                self.counts.setdefault(r.topic_partition, [0, 0, 0])[2] += lost
                self.holes.append(Hole(r.topic, r.partition, r.from_offset, r.until_offset))

    @rule(who=st.booleans(), ranges=batches())
    def guarded_write(self, who: bool, ranges: list[OffsetRange]) -> None:
        verdict, _ = expected(self.model, ranges)
        guard = [Advance(r) for r in ranges]
        assert outcome_of(lambda: self.sinks[who].write(Commit([]), guard)) == verdict

    @rule(who=st.booleans(), positions=st.dictionaries(st.sampled_from(PARTITIONS), OFFSETS))
    def set_by_hand(self, who: bool, positions: dict[TopicPartition, int]) -> None:
        self.sinks[who].set_positions(firsts(positions))
        moved, self.holes = set_by_hand(self.entries(), self.holes, firsts(positions))
        self.model.update(positions)
        for e in moved:
            counts = [e.records_read, e.rows_written, e.records_lost]
            self.counts[e.topic_partition] = counts
            self.starts[e.topic_partition] = e.start_position

    @rule(who=st.booleans())
    def forget(self, who: bool) -> None:
        self.sinks[who].set_positions(None)
        self.holes = forgotten(self.entries(), self.holes)
        self.model, self.counts, self.starts = {}, {}, {}

    @invariant()
    def stored_is_what_the_model_says(self) -> None:
        entries = self.sinks[0].entries()
        assert {e.topic_partition: e.position for e in entries} == self.model
        for e in entries:
            counts = self.counts.get(e.topic_partition, [0, 0, 0])
            assert [e.records_read, e.rows_written, e.records_lost] == counts
            assert e.start_position == self.starts[e.topic_partition]
        assert set(self.sinks[1].snapshot([]).holes) == set(self.holes)

    def teardown(self) -> None:
        others = self.other.entries()
        assert {e.topic_partition: e.position for e in others} == dict.fromkeys(PARTITIONS, 3)
        self.other.close()
        for sink in self.sinks:
            sink.close()


@pytest.mark.hypothesis
def test_the_stored_positions_are_those_of_the_model(target: Target) -> None:
    class Here(Drivers):
        pass

    Here.target = target
    case = Here.TestCase
    case.settings = settings(
        max_examples=settings.default.max_examples // 2,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()


def test_a_ledger_that_is_not_there_is_empty(target: Target) -> None:
    sink = target.sink()
    assert sink.entries() == []
    assert list(sink.snapshot([]).holes) == []


def test_records_of_the_former_log_are_refused_at_the_same_position(target: Target) -> None:
    sink = target.sink()
    sink.prepare([])
    one, two = PARTITIONS[:2]
    sink.start(firsts({one: 0, two: 0}))
    at = check_refuses_another_log(sink, one)
    late = Advance(span(one, at, at + 4), log=FORMER)
    with pytest.raises(LedgerConflict, match="in another log"):
        sink.write(Commit([]), [late])
    with pytest.raises(LedgerConflict, match="agrees with 1 of 2 ranges"):
        sink.commit([late, Advance(span(two, 0, 4))], Commit([]))
    assert {e.position for e in sink.entries()} == {0, at}


def test_the_time_of_an_entry_is_that_of_its_commit(target: Target) -> None:
    """Not that of a transaction that began earlier."""
    sink = target.sink()
    sink.prepare([])
    tp = PARTITIONS[0]
    sink.start(firsts({tp: 0}))
    before = target.values("SELECT clock_timestamp()")[0]
    sink.advance([Advance(span(tp, 0, 1))])
    assert target.values("SELECT updated_at FROM semel_offsets")[0] >= before


def test_a_hundred_partitions_move_together(target: Target) -> None:
    sink = target.sink()
    sink.prepare([])
    tps = [TopicPartition("t", p) for p in range(100)]
    sink.start(firsts(dict.fromkeys(tps, 0)))
    moves = [Advance(span(tp, 0, 5), 5, 5) for tp in tps]
    assert sink.advance(moves) is Outcome.APPLIED
    assert sink.advance(moves) is Outcome.REPLAYED
    with pytest.raises(LedgerConflict, match="agrees with 1 of 2 ranges"):
        sink.advance([Advance(span(tps[0], 5, 6)), Advance(span(tps[1], 0, 5))])
    assert {e.position for e in sink.entries()} == {5}


def race(count: int, action: Callable[[int], object]) -> list[object]:
    """Results or errors of ``action``, begun at once in as many threads."""
    barrier = threading.Barrier(count)
    results: list[object] = [None] * count

    def run(n: int) -> None:
        barrier.wait(PATIENCE)
        try:
            results[n] = action(n)
        except Exception as error:
            results[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def test_of_two_that_race_for_a_range_one_applies_and_writes(target: Target) -> None:
    target.execute("CREATE TABLE t (who int, step int)")
    sinks = [target.sink() for _ in range(2)]
    sinks[0].prepare(["t"])
    tp = TopicPartition("t", 0)
    sinks[0].start(firsts({tp: 0}))

    for step in range(30):
        move = [Advance(span(tp, step, step + 1), 1, 1)]

        def commit(n: int, step: int = step, move: list[Advance] = move) -> Outcome:
            batch = records([{"who": n, "step": step}], offsets=[step])
            return sinks[n].commit(move, Commit([batch]))

        found = race(2, commit)
        assert set(found) == {Outcome.APPLIED, Outcome.REPLAYED}
    assert target.values("SELECT step FROM t ORDER BY step") == list(range(30))


def test_of_two_that_race_with_different_ranges_one_is_refused(target: Target) -> None:
    target.execute("CREATE TABLE t (who int, step int)")
    sinks = [target.sink() for _ in range(2)]
    sinks[0].prepare(["t"])
    tp = TopicPartition("t", 0)
    sinks[0].start(firsts({tp: 0}))
    position = 0
    for _ in range(20):
        ends = (position + 1, position + 2)

        def commit(n: int, start: int = position, ends: tuple[int, int] = ends) -> Outcome:
            batch = records([{"who": n, "step": start}])
            return sinks[n].commit([Advance(span(tp, start, ends[n]), 1, 1)], Commit([batch]))

        found = race(2, commit)
        (winner,) = [n for n in range(2) if found[n] is Outcome.APPLIED]
        assert isinstance(found[1 - winner], LedgerConflict)
        position = ends[winner]
        assert sinks[0].entries()[0].position == position
    assert target.values("SELECT count(*) FROM t") == [20]


def test_several_drivers_may_create_the_ledger_at_once(target: Target) -> None:
    sinks = [target.sink(f"c{n}", errors_deadletterqueue_table="dead") for n in range(4)]
    assert race(4, lambda n: sinks[n].prepare([])) == [None] * 4
    assert target.values("SELECT to_regclass('semel_offsets')::text") == ["semel_offsets"]


def test_several_drivers_may_insert_first_positions_at_once(target: Target) -> None:
    sinks = [target.sink() for _ in range(4)]
    sinks[0].prepare([])
    found = race(4, lambda n: sinks[n].start(firsts(dict.fromkeys(PARTITIONS, n))))
    assert all(f == found[0] for f in found)
    assert len({(e.position) for e in sinks[0].entries()}) == 1


def test_no_environment_variable_switches_the_rule_off(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = target.sink()
    sink.prepare([])
    tp = PARTITIONS[0]
    sink.start(firsts({tp: 0}))
    monkeypatch.setenv("SEMEL_TEST_DISABLE_LEDGER_CHECK", "1")
    with pytest.raises(LedgerConflict, match="is at 0"):
        sink.advance([Advance(span(tp, 5, 6))])


# A claim


def test_positions_cannot_be_set_while_the_connector_is_claimed(target: Target) -> None:
    running, also, admin = (target.sink() for _ in range(3))
    running.prepare([])
    tp = PARTITIONS[0]
    running.start(firsts({tp: 3}))
    running.claim()
    also.claim()  # tasks and driver claim together
    for positions in ({tp: 0}, None):
        with found_running():
            admin.set_positions(positions and firsts(positions))
    running.close()
    with found_running():
        admin.set_positions(firsts({tp: 0}))
    target.sink("another").set_positions(firsts({tp: 0}))
    threading.Timer(0.2, also.close).start()  # whose lock the server lets go of later than that
    with released_at_last():
        admin.set_positions(firsts({tp: 0}))
    assert [e.position for e in running.entries()] == [0]


def test_a_claim_survives_a_lost_session(target: Target) -> None:
    running, admin = target.sink(), target.sink()
    running.prepare([])
    running.claim()
    running.claim()
    target.execute(f"SELECT pg_terminate_backend({backend(running)}, 600000)")
    admin.set_positions(None)  # nobody holds it at this instant
    with pytest.raises(TransientError, match=r"57P01|no SQLSTATE"):
        running.entries()
    running.entries()
    with found_running():
        admin.set_positions(None)


def test_a_claim_ends_when_its_sink_is_closed(target: Target) -> None:
    running = target.sink()
    running.prepare([])
    running.claim()
    running.close()
    running.close()
    admin = target.sink()
    once_let_go(lambda: admin.set_positions(None))


def test_what_is_set_by_hand_keeps_what_was_read_before(target: Target) -> None:
    sink = target.sink()
    sink.prepare([])
    one, two = PARTITIONS[:2]
    sink.start(firsts({one: 0, two: 0}))
    sink.advance([Advance(span(one, 0, 5), lost=5), Advance(span(two, 0, 5), read=5)])
    sink.set_positions(firsts({one: 2, two: 9}), by="ann")
    found = [(e.topic_partition, e.position, e.start_position) for e in sink.entries()]
    assert found == [(one, 2, 0), (two, 9, 0)]
    assert [(e.records_read, e.records_lost) for e in sink.entries()] == [(0, 2), (5, 0)]
    skipped = Hole(*two, 5, 9, SKIPPED)
    assert sink.holes() == [Hole(*one, 0, 2), skipped]
    assert [h.by for h in sink.holes()] == ["", "ann"]
    sink.set_positions(firsts({}))
    assert len(sink.entries()) == 2
    sink.set_positions(None, by="bob")
    assert sink.entries() == []
    assert sink.holes() == [Hole(*one, 0, 2, RESET), Hole(*two, 0, 9, RESET)]
    assert {h.by for h in sink.holes()} == {"bob"}
    assert all(h.at for h in sink.holes())
