"""What every ledger keeps when somebody sets or resets its positions."""

from __future__ import annotations

from collections.abc import Callable

from semel.core.ledger import RESET, SET_BACK, SKIPPED, Hole, TopicPartition, firsts
from semel.sinks.base import Sink
from tests.engine.harness import once_let_go


def check_keeps_what_was_read(
    make: Callable[[], Sink], tp: TopicPartition, *, restarts: bool = True
) -> None:
    """``make`` makes a sink whose ledger has read offsets 0 to 9."""

    def held() -> list[tuple[int, int, int]]:
        return [(e.position, e.start_position, e.records_read) for e in make().entries()]

    by_hand = make()
    once_let_go(lambda: by_hand.set_positions(firsts({tp: 15}), "ann"))
    assert held() == [(15, 0, 10)]
    (skipped,) = make().holes()
    assert (skipped, skipped.by) == (Hole(*tp, 10, 15, SKIPPED), "ann")
    assert skipped.at.startswith("20")
    once_let_go(lambda: by_hand.set_positions(firsts({tp: 4}), "bob"))
    assert held() == [(4, 0, 10)]
    (back,) = make().holes()
    assert (back, back.by) == (Hole(*tp, 4, 10, SET_BACK), "bob")
    once_let_go(lambda: by_hand.set_positions(None, "eve"))
    assert held() == []
    if restarts:
        make().start(firsts({tp: 7}))
        assert held() == [(7, 7, 0)]
    (reset,) = make().holes()
    assert (reset, reset.by) == (Hole(*tp, 0, 10, RESET), "eve")
