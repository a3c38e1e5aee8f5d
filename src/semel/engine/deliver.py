"""The one place that decides the order of results and positions."""

from __future__ import annotations

from collections.abc import Sequence

from semel.delivery import Delivery, Guarantee, Mechanism
from semel.failpoints import hit
from semel.ledger import Advance, Outcome
from semel.records import Commit
from semel.sinks.base import Sink


def deliver(
    sink: Sink, guarantee: Guarantee, advances: Sequence[Advance], commit: Commit
) -> Outcome:
    """Commit results and positions as the guarantee demands. Safe to call again after any error.

    Raises:
        LedgerConflict, RowsRejected, TransientError, ServiceError: see the sink's contract.
    """
    if guarantee.mechanism is Mechanism.TRANSACTIONAL:
        return sink.commit(advances, commit)
    if guarantee.delivery is Delivery.AT_MOST_ONCE:
        outcome = sink.advance(advances)
        hit("deliver.between")
        if outcome is Outcome.APPLIED:  # a replay may have written already: never again
            sink.write(commit)
        return outcome
    # The guard keeps a zombie from writing older rows over newer ones.
    if sink.write(commit, advances) is Outcome.REPLAYED:
        return Outcome.REPLAYED
    hit("deliver.between")
    return sink.advance(advances)
