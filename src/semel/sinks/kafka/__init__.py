"""The Kafka sink: topic to topic, results and positions in one Kafka transaction.

A transaction alone does not compare and set. So a commit is judged by positions that nobody else
can have moved since they were read:

- The task's producer is made before they are read, so that an older one of the same
  ``transactional.id``, its own predecessor's, is fenced and its open transaction is aborted.
- They are read when no transaction is pending on them.
- In the cluster that the connector reads from, the broker takes offsets from a member of the
  group's present generation only; partitions that have moved are another generation's.
- Another cluster does not know the group. There a task that takes partitions fences the producers
  of all tasks that are not in the group, and looks whether the group still gives it these
  partitions after it has made its own producer: if two tasks believe that they own a partition,
  either the later one has fenced the earlier one, or the earlier one finds out that it no longer
  owns it.

After an error whose outcome is unknown the producer is thrown away, and all of this is done again.
Positions stand in a compacted topic and, beside it, in the group's offsets: see
:mod:`semel.sinks.kafka.ledger`.
"""

from semel.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
