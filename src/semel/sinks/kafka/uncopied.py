"""Partitions without a position: was nothing copied from them yet, or has their offset expired?"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from semel.core.ledger import TopicPartition
from semel.kafka.answers import answers_of
from semel.kafka.cluster import Cluster, admin_client

_TIMEOUT = 20.0
_RETENTION = "offsets.retention.minutes"
_CLOCKS = 600.0
"""Seconds by which this machine's clock and the brokers' may differ."""
_ANY = 2**62
"""A limit of this many milliseconds is no limit: before Kafka 4.0 it is 2^63 - 1 unless set."""


def never_copied(
    source: Cluster, group_client: Mapping[str, Any], partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Those of the partitions that certainly lack an offset because nothing was copied from them.

    An offset expires once it is older than ``offsets.retention.minutes``. A partition whose first
    record still exists and is younger than that cannot have had an offset that has expired by now,
    unless the offset was before that record. The record's timestamp tells when it was appended if
    the broker sets it or limits how far ahead it may be; otherwise it is whatever a producer set.

    Args:
        source: the cluster of the partitions.
        group_client: client settings for the cluster that holds the group's offsets.
        partitions: those without an offset.
    """
    earliest = source.earliest(partitions)
    ends = source.latest(partitions, committed=False)
    whole = {tp for tp in partitions if earliest[tp] == 0}
    empty = {tp for tp in whole if ends[tp] == 0}
    written = whole - empty
    retention = _retention(group_client) if written else None
    if retention is None:
        return empty
    oldest = int((time.time() - retention + _CLOCKS) * 1000)
    ahead = {topic: _ahead(source.topic_config(topic)) for topic in {tp.topic for tp in written}}
    request = {
        KafkaPartition(*tp): OffsetSpec.for_timestamp(oldest + most)
        for tp in written
        if (most := ahead[tp.topic]) is not None
    }
    if not request:
        return empty
    admin = admin_client(source.config)
    try:
        answers = admin.list_offsets(request, request_timeout=_TIMEOUT)
        first = {
            TopicPartition(p.topic, p.partition): found.offset
            for p, found in answers_of(admin, answers, _TIMEOUT).items()
        }
    except KafkaException:
        return empty
    return empty | {tp for tp in written if first.get(tp) == 0}


def _ahead(config: Mapping[str, str] | None) -> int | None:
    """Milliseconds by which a topic's timestamps may be later than their records were appended;
    None if the broker takes any."""
    if config is None:
        return None
    if config.get("message.timestamp.type") == "LogAppendTime":
        return 0
    most = int(config.get("message.timestamp.after.max.ms", _ANY))
    return most if most < _ANY else None


def _retention(client: Mapping[str, Any]) -> float | None:
    """The shortest time for which a broker keeps offsets, in seconds; None if unknown."""
    admin = admin_client(client)
    try:
        ids = admin.list_topics(timeout=_TIMEOUT).brokers
        brokers = [ConfigResource(ConfigResource.Type.BROKER, str(n)) for n in ids]
        # One request each: it must go to the broker that it asks about.
        asked = {b: admin.describe_configs([b], request_timeout=_TIMEOUT)[b] for b in brokers}
        configs = answers_of(admin, asked, _TIMEOUT).values()
        return min(float(str(config[_RETENTION].value)) for config in configs) * 60
    except (KafkaException, KeyError, ValueError):
        return None
