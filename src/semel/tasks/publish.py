"""Positions copied to the consumer group, for lag tools.

The metadata of a copy names its ledger, and the run that has committed it: so that a run whose
place another one takes can say which one that is. A copy is not used as a position unless
``target.changed=continue`` asks for it: a connector whose ledger is gone would skip records that
its target never got.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping

from confluent_kafka import TopicPartition as KafkaPartition

from semel.config import ConnectorConfig
from semel.core.context import (
    BY,
    RUN,
)
from semel.core.ledger import QUERY, TopicPartition
from semel.kafka.clients import client_config
from semel.kafka.groups import Groups
from semel.sinks.base import Sink

log = logging.getLogger(__name__)

_MARK = "semel"
ENDED = ", and has ended"
_SAYS_IN, _LOOK = 5.0, 0.5
"""Seconds within which another run says who it is, and between two looks."""
_LONGEST = 1000
"""Characters of the metadata; brokers refuse more than 4,096 bytes unless told otherwise."""


def mark(sink: Sink, run: str = "") -> str:
    """The metadata of a copy; in a task, the driver has said which run it belongs to."""
    facts = {_MARK: sink.describe().get("ledger", "")[:_LONGEST]}
    by = run or os.environ.get(RUN, "")
    return json.dumps({**facts, BY: by[:_LONGEST]} if by else facts)


def other_run(
    connector: ConnectorConfig,
    topics: Mapping[str, int],
    own: str,
    wait: Callable[[float], bool] = lambda _seconds: True,
    *,
    later: bool | None = None,
) -> str:
    """Who has started the last other run that committed copies. If ``later`` is given, only runs
    count that began after this one (True) or before it (False). Empty if nobody has said so within
    a few seconds. ``wait`` waits, and says whether to stop."""
    groups = Groups(client_config(connector, "admin"))
    places = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    until = time.monotonic() + _SAYS_IN
    while True:
        committed, _ = groups.offsets(connector.group_id, places)
        others = {str(_facts(text).get(BY, "")) for _, text in committed.values()} - {"", own}
        runs = [r for r in others if later in (None, _started(r) >= _started(own))]
        if runs or time.monotonic() > until:
            return max(runs, key=_started, default="")
        if wait(_LOOK):
            return ""


def _started(run: str) -> str:
    return run.rpartition(" at ")[2]


def copies(mark: str, positions: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    """Positions as a consumer commits them; a query's is not one of Kafka's."""
    return [KafkaPartition(*tp, at, mark) for tp, at in positions.items() if tp != QUERY]


def is_copy(metadata: str) -> bool:
    """Whether an offset is semel's: a copy, or an entry of a ledger that Kafka holds."""
    facts = _facts(metadata)
    return _MARK in facts or {"start", "at"} <= facts.keys()


def ledger_of(metadata: str) -> str:
    """The ledger that an offset is a copy of."""
    return str(_facts(metadata).get(_MARK) or "the offsets of a Kafka sink")


def _facts(metadata: str) -> Mapping[str, object]:
    try:
        facts = json.loads(metadata)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
