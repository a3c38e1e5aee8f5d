"""Where a partition's log diverges from the log that was read, by leader epochs (KIP-320)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.errors import SemelError, TransientError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.kafka.cluster import Cluster
from semel.kafka.errors import SEEK_AGAIN, UNREADABLE
from semel.tasks import expendable

log = logging.getLogger(__name__)

_PATIENCE = 20.0
_LIMITS = expendable.Limits(memory=1024 * 1024 * 1024, patience=2 * _PATIENCE)
_SILENT = "Kafka at {} does not say whether the log of {} was truncated"
_END = re.compile(r"broker end offset is (-?\d+)")
"""What librdkafka says if the log is not the one that was read; only the text shows it."""


def assignment(entry: LedgerEntry) -> KafkaPartition:
    """The assignment with which a consumer continues from an entry and notices a truncated log.

    It begins after the last record, whose epoch is known. The offsets between there and the
    position held no records. If one arrives, the log has diverged between the two.
    """
    if entry.leader_epoch < 0 or not 0 <= entry.epoch_offset <= entry.position:
        return KafkaPartition(*entry.topic_partition, entry.position)
    return KafkaPartition(
        *entry.topic_partition, entry.epoch_offset, leader_epoch=entry.leader_epoch
    )


def diverged(
    cluster: Cluster,
    entries: Collection[LedgerEntry],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, int]:
    """The :func:`forks` of these entries. Only a change of leaders truncates a log, and it raises
    the epoch; otherwise no broker is asked. The answer comes with a batch of records, so a process
    of its own takes it.

    Raises:
        TransientError: Kafka does not answer for all of them.
        SemelError: a batch holds too much.
    """
    asked = {
        e.topic_partition: e
        for e in entries
        if e.leader_epoch >= 0 and ends[e.topic_partition][1] not in (-1, e.leader_epoch)
    }
    if not asked:
        return {}
    where = ", ".join(map(str, sorted(asked)))
    try:
        return expendable.call(_LIMITS, forks, cluster.config, asked)
    except TimeoutError:
        raise TransientError(_SILENT.format(cluster.config["bootstrap.servers"], where)) from None
    except expendable.Died:
        raise SemelError(
            f"the process that asked whether the log of {where} was truncated has died: a batch "
            f"of records there holds more than {_LIMITS.memory:,} bytes once it is unpacked"
        ) from None


def forks(
    config: Mapping[str, Any], entries: Mapping[TopicPartition, LedgerEntry]
) -> dict[TopicPartition, int]:
    """The offsets from which the logs differ from those that were read, for partitions that have
    lost records; -1 if Kafka knows no epoch that is old enough.

    Raises:
        TransientError: Kafka does not answer for all of them.
    """
    consumer = Consumer(
        {
            **config,
            "group.id": "semel-epochs",  # it never joins
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 1024,
            "allow.auto.create.topics": False,
            "log_level": 0,
        },
        logger=log,
    )
    found: dict[TopicPartition, int] = {}
    left = set(entries)
    deadline = time.monotonic() + _PATIENCE
    try:
        consumer.assign([assignment(entries[tp]) for tp in sorted(left)])
        while left:
            message = consumer.poll(0.1)
            if message is None:
                if time.monotonic() > deadline:
                    where = ", ".join(map(str, sorted(left)))
                    raise TransientError(_SILENT.format(config["bootstrap.servers"], where))
                continue
            tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if tp not in left or (error is not None and error.code() not in _ANSWERS):
                continue  # damage before the position is an answer: the log has not diverged there
            left.remove(tp)
            consumer.incremental_unassign([KafkaPartition(*tp)])
            end = _END.search(error.str()) if error is not None else None
            if end is not None:
                found[tp] = int(end[1])
            elif error is None and int(message.offset() or 0) < entries[tp].position:
                found[tp] = int(message.offset() or 0)
    finally:
        consumer.close()
    return found


_ANSWERS = (*SEEK_AGAIN, *UNREADABLE, KafkaError._PARTITION_EOF)
