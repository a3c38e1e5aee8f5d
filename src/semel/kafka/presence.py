"""Reliable answers about a topic: whether it exists, and whether it can be written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic, TopicDescription

from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.core.quoting import named
from semel.kafka.answers import answer_of
from semel.kafka.cluster import Cluster, admin_client
from semel.kafka.errors import MAY_NOT_DESCRIBE, MAY_PASS, failure

_TIMEOUT = 10.0
_AGREED_AFTER, _AGREED_TIMES = 3.0, 3
"""For how many seconds, and how often, brokers must deny a topic before they are believed without
the controller's word."""
_WAIT = 0.1


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
        found: TopicDescription = answer_of(admin, answer[name], _TIMEOUT)
        return found
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
    found = description(cluster, name) if config else None
    if config is None or found is None:
        return
    wanted = int(config["min.insync.replicas"])
    replicas = min((len(p.replicas) for p in found.partitions), default=wanted)
    if replicas < wanted:
        raise ConfigError(
            f"{where} has min.insync.replicas={wanted}, but {replicas} "
            f"replica{'s' if replicas > 1 else ''}: its brokers would refuse every record. Raise "
            "its number of replicas (kafka-reassign-partitions.sh), or lower min.insync.replicas"
        )
