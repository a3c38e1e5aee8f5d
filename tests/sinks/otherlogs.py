"""What every ledger does with the records of a log that its position no longer belongs to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.core.errors import LedgerConflict
from semel.core.ledger import (
    UNKNOWN_LOG,
    Advance,
    LedgerEntry,
    LogId,
    OffsetRange,
    Outcome,
    Rebase,
    TopicPartition,
)
from semel.sinks.base import Sink

FORMER, PRESENT = LogId("k", "former"), LogId("k", "present")


def check_refuses_another_log(sink: Sink, tp: TopicPartition) -> int:
    """A commit of a run that was frozen while its topic was created again: the position is still
    where the commit begins, but in the new topic. Returns the position at the end."""

    def held() -> LedgerEntry:
        (entry,) = [e for e in sink.entries() if e.topic_partition == tp]
        return entry

    def step(log: LogId) -> Advance:
        at = held().position
        return Advance(OffsetRange(*tp, at, at + 5), read=5, written=5, log=log)

    assert held().log == UNKNOWN_LOG
    assert sink.advance([step(FORMER)]) is Outcome.APPLIED, "the entry's log is not known"
    for log in (FORMER, PRESENT):
        sink.rebase([Rebase(held(), replace(held(), **log._asdict()))])
    begin = held().position
    late, rightful = step(FORMER), step(PRESENT)
    for other in (FORMER, LogId("another", "present")):
        with pytest.raises(LedgerConflict, match=r"in another log .*Nothing was written\.$"):
            sink.advance([step(other)])
    assert held().position == begin
    assert sink.advance([rightful]) is Outcome.APPLIED
    assert sink.advance([rightful]) is Outcome.REPLAYED
    with pytest.raises(LedgerConflict, match="in another log"):
        sink.advance([late])  # no replay, though the position is where it ends
    for partly in (UNKNOWN_LOG, LogId("k", "")):
        assert sink.advance([step(partly)]) is Outcome.APPLIED
    return held().position
