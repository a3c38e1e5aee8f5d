"""What every engine does before it reads."""

from __future__ import annotations

from semel.core.ledger import LedgerEntry, TopicPartition
from semel.driver.base import Run
from semel.driver.first_positions import first_positions
from semel.driver.key_check import check_keys
from semel.kafka.groups import Groups
from semel.kafka.retention import create_dead_letter_topic
from semel.tasks import ranges


def enter(run: Run) -> None:
    """Claim the connector's ledger, and enter every partition into it.

    Raises:
        SemelError: another run holds the ledger, or the connector must not begin here; see
            :func:`semel.driver.first_positions.first_positions`.
    """
    run.sink.claim()
    if run.connector.dead_letter_topic and not run.sink.capabilities.takes_dead_letters:
        create_dead_letter_topic(run.connector, run.cluster)
    groups = run.groups or Groups(run.cluster.config)
    if run.assignment.has_first:
        lenient = not run.assignment.is_whole
        first_positions(run.connector, run.sink, run.cluster, run.topics, groups, lenient=lenient)
        if run.connector.assumes_keys:
            check_keys(run.connector, run.cluster, _entries(run))
    groups.disconnect()  # a client takes memory, and is not needed any more


def _entries(run: Run) -> list[LedgerEntry]:
    """The entries of partitions that exist now."""
    present = set(ranges.partitions(run.topics))
    return [e for e in run.sink.entries() if e.topic_partition in present]


def targets(run: Run) -> dict[TopicPartition, int]:
    """The positions at which the run is caught up; none if it continues until it is stopped."""
    if not run.until_caught_up:
        return {}
    return run.cluster.latest(ranges.partitions(run.topics))
