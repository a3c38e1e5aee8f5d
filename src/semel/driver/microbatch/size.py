"""The number of records that a micro-batch may hold, so that its tasks stay within a limit of
bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow.compute as pc

from semel.core.errors import SemelError
from semel.core.ledger import TopicPartition
from semel.driver import sampler
from semel.driver.base import Run

log = logging.getLogger(__name__)

_LOOKS = 20
"""A query samples at most this many records of each partition before it starts."""
_BYTES = 4 * 1024 * 1024
_SHARES = 2
_SLACK = 2
"""A query ends if a batch is larger than its limit by this factor."""


class BatchSize:
    """Spark limits records, not bytes: ``maxOffsetsPerTrigger`` is lowered to as many as fit,
    judging by the size of the next ones. Each partition's part of a batch may have half of
    ``max.poll.bytes``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._most = run.connector.max_offsets_per_trigger
        self._room = run.connector.max_poll_bytes // _SHARES
        self._smallest = False
        self.outgrown = False

    def records(self, positions: Mapping[TopicPartition, int]) -> int:
        """The most records that a batch may hold in a query that starts there."""
        self.outgrown = False
        try:
            average = self._average(positions)
        except SemelError as error:  # the query will meet the same error and be retried
            log.info("the size of the records is not known: %s", error)
            return self._most
        fitting = fits(self._room, len(positions), average, self._most)
        self._smallest = fitting <= len(positions)
        if fitting < self._most:
            log.info("records of %d bytes: %d of them in each batch", average, fitting)
        return fitting

    def note(self, size: int) -> None:
        """Note the bytes of a partition's part of a batch."""
        self.outgrown |= size > _SLACK * self._room and not self._smallest

    def _average(self, positions: Mapping[TopicPartition, int]) -> int:
        run = self._run
        latest = run.cluster.latest(positions)
        ends = {tp: min(latest[tp], at + _LOOKS) for tp, at in positions.items()}
        if not any(positions[tp] < end for tp, end in ends.items()):
            return 0
        read = sampler.read(run.connector, positions, ends, _BYTES)
        values = [table.column("value") for table in read.tables.values()]
        if not values:  # the first one is too large
            return self._room if read.cut else 0
        size = sum(pc.sum(pc.binary_length(each)).as_py() or 0 for each in values)
        return int(size // sum(map(len, values)))


def fits(room: int, partitions: int, average: int, most: int) -> int:
    """How many records of this size ``partitions`` times ``room`` bytes hold: at least one for each
    partition, at most ``most``."""
    return min(most, max(partitions, partitions * room // max(1, average)))
