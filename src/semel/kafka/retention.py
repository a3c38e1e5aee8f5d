"""What a topic's retention does to records that keep an older timestamp.

A broker deletes by record timestamp. Dead letters and copies keep the timestamps of their records,
so a topic with the usual seven days deletes one at the next check if its record is older than that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from semel.config import ConnectorConfig
from semel.core.errors import ServiceError
from semel.core.quoting import named
from semel.kafka.cluster import Cluster

log = logging.getLogger(__name__)

DEAD_LETTERS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""The configuration of a dead letter topic that semel creates: it keeps everything."""

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
    target: str, there: Mapping[str, str], source: str, here: Mapping[str, str]
) -> str | None:
    """A warning if the target deletes records that the source still has."""
    kept = deletes_after(there)
    if kept is None:
        return None
    has = int(here["retention.ms"]) if "delete" in here["cleanup.policy"] else -1
    if 0 <= has <= kept and here["message.timestamp.type"] == there["message.timestamp.type"]:
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
