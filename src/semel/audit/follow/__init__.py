"""The continuous audit: judges what a connector commits while it runs, interval by interval.

Each round reads the store at one instant and compares the offsets that were committed since the
last round with Kafka's records, by the rules of the whole audit. A record without a row is lost if
nothing can account for it: no later record of its key up to the positions at that instant, no dead
letter, and no record that the ledger counts as filtered or failed. The whole audit confirms it
before the record is reported as lost.

With inserts, rounds also compare the number of the table's rows with the ledger's. If the number
has changed by itself, rows of earlier intervals have come or gone, and all intervals are judged
again.
"""

from __future__ import annotations

from semel.audit.follow.loop import follow
from semel.audit.follow.report import Followed, Judged

__all__ = ["Followed", "Judged", "follow"]
