"""The Kafka sink: topic to topic, results and positions in one Kafka transaction.

A transaction alone does not compare and set. So a commit is judged by positions that nobody else
can have moved since they were read:

- The task's producer is created before they are read, so that an older one with the same
  ``transactional.id``, its predecessor's, is fenced and its open transaction is aborted.
- They are read once no transaction is pending on them.
- In the cluster that the connector reads from, the broker accepts offsets only from members of the
  group's current generation; partitions that have moved belong to another generation.
- Another cluster does not know the group. There, a task that is assigned partitions fences the
  producers of all tasks that are not in the group. It also checks that the group still assigns it
  these partitions: after creating its own producer, and in each commit once its offsets are
  pending. If two tasks believe that they own a partition, either the later one has fenced the
  earlier one, or the earlier one finds out that it no longer owns it.
- A driver moves positions only while no task is in the group. It is not a member, and brokers
  accept its offsets all the same. So it checks again, once they are pending, that the group has no
  members and that nobody has moved the positions since it read them.

After an error whose outcome is unknown, the producer is discarded and all of this is repeated.
Positions are stored in a compacted topic and also in the group's offsets: see
:mod:`semel.sinks.kafka.ledger`.
"""

from semel.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
