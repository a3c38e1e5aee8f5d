"""What every ledger does with the records of a log that its position no longer belongs to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.errors import LedgerConflict
from semel.ledger import UNKNOWN_LOG, Advance, OffsetRange, Outcome, Rebase, TopicPartition
from semel.sinks.base import Sink


def check_refuses_another_log(sink: Sink, tp: TopicPartition) -> None:
    """A commit of a run that was frozen while its topic was created again: the position is still
    where the commit begins, but in the new topic."""
    (bare,) = [e for e in sink.entries() if e.topic_partition == tp]
    former, present = (replace(bare, cluster_id="k", topic_id=i) for i in ("former", "present"))
    sink.rebase([Rebase(bare, former)])
    sink.rebase([Rebase(former, present)])
    begin = bare.position
    late = Advance(OffsetRange(*tp, begin, begin + 5), read=5, written=5, log=former.log)
    with pytest.raises(LedgerConflict, match=r"was created again.* of the former one"):
        sink.advance([late])
    assert [e.position for e in sink.entries() if e.topic_partition == tp] == [begin]
    rightful = replace(late, log=present.log)
    assert sink.advance([rightful]) is Outcome.APPLIED
    assert sink.advance([rightful]) is Outcome.REPLAYED
    with pytest.raises(LedgerConflict, match="of the former one"):
        sink.advance([late])  # no replay, though the position is where it ends
    assert sink.advance([replace(late, log=UNKNOWN_LOG)]) is Outcome.REPLAYED
