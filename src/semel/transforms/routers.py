"""RegexRouter and TimestampRouter: where records go."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.transforms.base import Batch, Refused, Router, Transform, each, reasons
from semel.transforms.dates import DateFormat
from semel.transforms.patterns import compiled, first_replaced, replacement

_BETWEEN = "\0"
"""Neither a topic nor a time contains it."""


def _regex(text: str) -> None:
    compiled(text)


def _date_format(text: str) -> None:
    DateFormat(text)


@dataclass(frozen=True)
class RegexRouterConfig:
    """The keys of RegexRouter."""

    regex: str = key("regex", doc="Matches whole names of topics.", validator=_regex)
    replacement: str = key("replacement", doc="The new name; $1 stands for the first group.")


class RegexRouter(Router):
    """See Kafka Connect's RegexRouter."""

    section = RegexRouterConfig

    def __init__(self, config: RegexRouterConfig) -> None:
        self._regex = compiled(config.regex)
        self._replacement = replacement(config.replacement, self._regex)

    def route(self, topic: str) -> str:
        if not self._regex.fullmatch(topic):
            return topic
        return first_replaced(self._regex, self._replacement, topic)


@dataclass(frozen=True)
class TimestampRouterConfig:
    """The keys of TimestampRouter."""

    topic_format: str = key(
        "topic.format",
        "${topic}-${timestamp}",
        "The new name; ${topic} stands for the topic, ${timestamp} for the record's time.",
    )
    timestamp_format: str = key(
        "timestamp.format",
        "yyyyMMdd",
        "How the time is written, as in java.text.SimpleDateFormat, in UTC.",
        validator=_date_format,
    )


class TimestampRouter(Transform):
    """See Kafka Connect's TimestampRouter."""

    section = TimestampRouterConfig

    def __init__(self, config: TimestampRouterConfig) -> None:
        self._topic_format = config.topic_format
        self._date_format = DateFormat(config.timestamp_format)

    @property
    def needs_timestamp(self) -> bool:
        return True

    @property
    def changes_contents(self) -> bool:
        return False

    @property
    def routes(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        times = batch.timestamps
        if times.null_count:
            missing = np.flatnonzero(np.asarray(times.is_null()))
            raise Refused(reasons(missing, "Timestamp missing on record"))
        stamps = self._date_format.format(times.cast(pa.int64()))
        pairs = pc.binary_join_element_wise(batch.topics, stamps, _BETWEEN)
        return replace(batch, topics=each(pairs, self._named))

    def _named(self, pair: str) -> str:
        topic, time = pair.split(_BETWEEN)
        return self._topic_format.replace("${topic}", topic).replace("${timestamp}", time)
