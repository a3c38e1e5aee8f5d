"""The continuous audit: judge what a connector commits, interval by interval, while it runs.

Each round looks at the store at one instant and compares the offsets that were committed since the
last round with Kafka's records, by the rules of the whole audit. A record without a row is lost
once nothing can account for it: no later record of its key up to the positions of that instant, no
dead letter, and none of the records that the ledger counts as filtered or failed. With upserts the
whole audit has the last word before anything is called lost.

With inserts, the number of the table's rows is compared with the ledger's in each round. If it has
changed by itself, rows of earlier intervals have come or gone, and all of them are judged again.
"""

from __future__ import annotations

from semel.audit.follow.loop import follow
from semel.audit.follow.report import Followed, Judged

__all__ = ["Followed", "Judged", "follow"]
