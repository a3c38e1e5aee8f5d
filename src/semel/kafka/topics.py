"""Reliable answers about a topic: whether it exists, whether it can be written, and what its
retention does to records that keep an older timestamp.

A broker deletes by record timestamp. Dead letters and copies keep the timestamps of their records,
so a topic with the usual seven days deletes one at the next check if its record is older than that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic, TopicDescription

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.quoting import named
from semel.kafka.answers import MAY_NOT_DESCRIBE, MAY_PASS, answer_of, failure
from semel.kafka.cluster import Cluster, admin_client

log = logging.getLogger(__name__)

_TIMEOUT = 10.0
_AGREED_AFTER, _AGREED_TIMES = 3.0, 3
"""For how many seconds, and how often, brokers must deny a topic before they are believed without
the controller's word."""
_WAIT = 0.1
_COPIED = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
)
_DAY = 24 * 3600 * 1000


def is_there(client: Mapping[str, Any], name: str, *, expected: bool) -> bool:
    """Whether a topic exists.

    One broker's "unknown topic" proves nothing: it may not have heard of the topic yet. The
    controller knows all topics. Where it may not be asked, several brokers must agree for a while.

    Args:
        client: librdkafka's configuration.
        name: the topic.
        expected: it has been there, so that its absence is an error.

    Raises:
        ServiceError: it may not be described, or it is expected and gone.
        TransientError: it is expected, and no broker has reported it in time.
    """
    asked, looks = time.monotonic(), 0
    while True:
        admin = admin_client(client)  # a new client may ask another broker
        if describe(admin, client, name) is not None:
            return True
        looks += 1
        exists = _ask_controller(admin, client, name)
        agreed = looks >= _AGREED_TIMES and time.monotonic() - asked > _AGREED_AFTER
        if exists is False or (exists is None and agreed):
            if not expected:
                return False
            raise ServiceError(
                f"topic {named(name)} does not exist any more in Kafka at "
                f"{client['bootstrap.servers']}. Was it deleted?"
            )
        if time.monotonic() - asked > _TIMEOUT:
            raise TransientError(
                f"topic {named(name)} exists, but the brokers at {client['bootstrap.servers']} do "
                "not know of it yet"
            )
        time.sleep(_WAIT)


def describe(admin: AdminClient, client: Mapping[str, Any], name: str) -> TopicDescription | None:
    """What a broker says of a topic; None if it does not know it."""
    try:
        answer = admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT)
        topic: TopicDescription = answer_of(admin, answer[name], _TIMEOUT)
        return topic
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        if code in MAY_NOT_DESCRIBE:
            raise ServiceError(
                f"Kafka at {client['bootstrap.servers']} does not let this user describe topic "
                f"{named(name)}, so semel cannot tell whether it exists. Grant DESCRIBE on it"
            ) from None
        raise failure(str(client["bootstrap.servers"]), error) from None


def _ask_controller(admin: AdminClient, client: Mapping[str, Any], name: str) -> bool | None:
    """Whether the controller knows a topic, found out by validating a creation that is never
    carried out; None if this user may not ask."""
    topic = NewTopic(name, 1, -1)
    try:
        answer = admin.create_topics([topic], validate_only=True, request_timeout=_TIMEOUT)
        answer_of(admin, answer[name], _TIMEOUT)
        return False
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return True
        if error.args[0].retriable() or code in MAY_PASS:
            raise failure(str(client["bootstrap.servers"]), error) from None
        return None


def description(cluster: Cluster, name: str) -> TopicDescription | None:
    """What a broker says of a topic to a new client; None if it does not know the topic."""
    return describe(admin_client(cluster.config), cluster.config, name)


def check_replicas(where: str, cluster: Cluster, name: str) -> None:
    """Refuse a topic that no transaction could ever be written to.

    Raises:
        ConfigError: it demands more replicas in sync than it has.
    """
    config = cluster.topic_config(name)
    topic = description(cluster, name) if config else None
    if config is None or topic is None:
        return
    minimum = int(config["min.insync.replicas"])
    replicas = min((len(p.replicas) for p in topic.partitions), default=minimum)
    if replicas < minimum:
        raise ConfigError(
            f"{where} has min.insync.replicas={minimum}, but {replicas} "
            f"replica{'s' if replicas > 1 else ''}: its brokers would refuse every record. Raise "
            "its number of replicas (kafka-reassign-partitions.sh), or lower min.insync.replicas"
        )


DEAD_LETTERS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""The configuration of a dead letter topic that semel creates: it keeps everything."""


def like(source: Mapping[str, str]) -> dict[str, str]:
    """What a copy takes from its source's configuration."""
    return {name: source[name] for name in _COPIED if name in source}


def deletes_after(config: Mapping[str, str]) -> int | None:
    """How many milliseconds after its own timestamp a record is deleted; None if records are not
    deleted by age, or only by their time in this topic."""
    if "delete" not in config["cleanup.policy"]:
        return None
    if config["message.timestamp.type"] == "LogAppendTime":
        return None
    kept = int(config["retention.ms"])
    return None if kept < 0 else kept


def of_copy(
    target: str, target_config: Mapping[str, str], source: str, source_config: Mapping[str, str]
) -> str | None:
    """A warning if the target deletes records that the source still has."""
    kept = deletes_after(target_config)
    if kept is None:
        return None
    has = int(source_config["retention.ms"]) if "delete" in source_config["cleanup.policy"] else -1
    if (
        0 <= has <= kept
        and source_config["message.timestamp.type"] == target_config["message.timestamp.type"]
    ):
        return None
    return (
        f"topic {named(target)} deletes records {_shown(kept)} after their own timestamps, but "
        f"{source} keeps them {'forever' if has < 0 else 'for ' + _shown(has)}: a copy of an older "
        f"record is deleted soon after it was written. Set retention.ms of {target} to {has}"
    )


def of_dead_letters(topic: str, config: Mapping[str, str]) -> str | None:
    """A warning if the topic deletes dead letters by the age of their records."""
    kept = deletes_after(config)
    if kept is None:
        return None
    return (
        f"dead letter topic {named(topic)} deletes records {_shown(kept)} after their own "
        "timestamps: the dead letter of an older record is deleted soon after it was written. Set "
        "its retention.ms=-1, or message.timestamp.type=LogAppendTime"
    )


def _shown(milliseconds: int) -> str:
    if milliseconds and milliseconds % _DAY == 0:
        return f"{milliseconds // _DAY} days"
    return f"{milliseconds:,} ms"


def create_dead_letter_topic(connector: ConnectorConfig, cluster: Cluster) -> None:
    """Create the dead letter topic if it is missing, with one partition, as Connect does, and
    without retention. Warn of one that deletes dead letters.

    Raises:
        ServiceError: it cannot be created.
    """
    name = connector.dead_letter_topic
    try:
        cluster.create_topic(name, 1, connector.dead_letter_replication, DEAD_LETTERS)
    except ServiceError as error:
        raise ServiceError(
            f"connector {connector.name}: {error}. Create it for the dead letters, or set "
            "errors.deadletterqueue.topic.replication.factor to at most the number of brokers"
        ) from None
    config = cluster.topic_config(name)
    if config is not None and (warning := of_dead_letters(name, config)):
        log.warning("connector %s: %s", connector.name, warning)
