"""What each mode guarantees, and what its queries cannot see."""

from __future__ import annotations

from collections.abc import Mapping

from semel.sources.jdbc.config import BOTH, BULK, INCREMENTING, TIMESTAMP

WHY: Mapping[str, str] = {
    INCREMENTING: "rows and the last number are committed in one Kafka transaction; numbers must "
    "grow in the order in which rows are committed",
    BOTH: "rows and the last time and number are committed in one Kafka "
    "transaction; rows must be committed within timestamp.delay.interval.ms of their time",
    TIMESTAMP: "all rows that have the same time are committed in one Kafka transaction, with that "
    "time; rows must be committed within timestamp.delay.interval.ms of their time",
    BULK: "all rows of a query are committed in one Kafka transaction, with its time",
}
"""By mode, why a delivery is exactly-once."""

_LATE = (
    "rows that commit more than {delay} ms (timestamp.delay.interval.ms) after their time, which "
    "nothing can tell; deletes; changes between two queries"
)
NOT_READ: Mapping[str, str] = {
    INCREMENTING: "rows that commit after one with a larger number was read; updates; deletes",
    BOTH: _LATE,
    TIMESTAMP: _LATE,
    BULK: "changes between two queries",
}
"""By mode, what it does not read."""
