"""RegexRouter and TimestampRouter: change the topic of records."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.patterns import check, compiled
from semel.core.quoting import all_named
from semel.transforms.base import Batch, Refused, Router, Transform, each, reasons, refuse, valid
from semel.transforms.dates import DateFormat
from semel.transforms.structs import columns, required
from semel.transforms.texts import milliseconds

_BETWEEN = "\0"
"""Neither a topic nor a time contains it."""


def _date_format(text: str) -> None:
    DateFormat(text)


def _read_format(text: str) -> None:
    if text:
        DateFormat(text).check_it_reads()


@dataclass(frozen=True)
class RegexRouterConfig:
    """The keys of RegexRouter."""

    regex: str = key("regex", doc="Matches whole names of topics.", validator=check)
    replacement: str = key("replacement", doc="The new name; $1 stands for the first group.")


class RegexRouter(Router):
    """See Kafka Connect's RegexRouter."""

    section = RegexRouterConfig

    def __init__(self, config: RegexRouterConfig) -> None:
        super().__init__(config)
        self._regex = compiled(config.regex)
        self._replacement = self._regex.template(config.replacement)

    def route(self, topic: str) -> str:
        if not self._regex.fullmatch(topic):
            return topic
        return self._regex.first_replaced(self._replacement, topic)


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


class _TimeRouter(Transform):
    """Routes by the topic's name and a time of each record."""

    config: TimestampRouterConfig | MessageTimestampRouterConfig
    moves_numbers = True
    changes_contents = False
    routes = True

    def __init__(self, config: TimestampRouterConfig | MessageTimestampRouterConfig) -> None:
        super().__init__(config)
        self._date_format = DateFormat(config.timestamp_format)

    @abstractmethod
    def _times(self, batch: Batch) -> pa.Array:
        """Milliseconds since 1970. Raises Refused."""

    def apply(self, batch: Batch) -> Batch:
        stamps = self._date_format.format(self._times(batch))
        pairs = pc.binary_join_element_wise(batch.topics, stamps, _BETWEEN)
        return replace(batch, topics=each(pairs, self._named))

    def _named(self, pair: str) -> str:
        topic, time = pair.split(_BETWEEN)
        return self.config.topic_format.replace("${topic}", topic).replace("${timestamp}", time)


class TimestampRouter(_TimeRouter):
    """See Kafka Connect's TimestampRouter."""

    section = TimestampRouterConfig
    needs_timestamp = True

    def _times(self, batch: Batch) -> pa.Array:
        refuse(~valid(batch.timestamps), "Timestamp missing on record")
        return batch.timestamps.cast(pa.int64())


@dataclass(frozen=True)
class MessageTimestampRouterConfig:
    """The keys of MessageTimestampRouter."""

    fields: tuple[str, ...] = key(
        "message.timestamp.keys",
        doc="The fields of the value that may hold the time: the first that does is taken.",
    )
    message_format: str = key(
        "message.timestamp.format",
        "",
        "How the time is written there, as in java.text.SimpleDateFormat, in UTC. Times that are "
        "numbers are milliseconds since 1970.",
        validator=_read_format,
    )
    topic_format: str = key(
        "topic.format",
        "${topic}-${timestamp}",
        "The new name; ${topic} stands for the topic, ${timestamp} for the time.",
    )
    timestamp_format: str = key(
        "topic.timestamp.format",
        "yyyyMMdd",
        "How the time is written in the name.",
        validator=_date_format,
    )


class MessageTimestampRouter(_TimeRouter):
    """See Confluent's transform of this name."""

    section = MessageTimestampRouterConfig
    reads_contents = True

    def __init__(self, config: MessageTimestampRouterConfig) -> None:
        super().__init__(config)
        self._fields = config.fields
        self._format = DateFormat(config.message_format) if config.message_format else None

    def _times(self, batch: Batch) -> pa.Array:
        array = required(batch.values, "routing by a time in the value", nulls=False)
        fields = columns(array)
        arrays = [fields[name].array for name in self._fields if name in fields]
        there = [valid(a) for a in arrays]
        times = pc.coalesce(pa.nulls(len(array), pa.int64()), *map(self._milliseconds, arrays))
        unread = ~valid(times)
        if unread.any():
            names = all_named(self._fields)
            some = np.logical_or.reduce([np.zeros(len(array), bool), *there])
            why = reasons(np.flatnonzero(unread & ~some), f"none of {names} holds a time")
            wrong = f"no time of the format {self._format.pattern if self._format else '(none)'}"
            raise Refused(why | reasons(np.flatnonzero(unread & some), f"{names}: {wrong}"))
        return times

    def _milliseconds(self, array: pa.Array) -> pa.Array:
        """Null where it is no time."""
        if pa.types.is_temporal(array.type):
            return milliseconds(array)
        if pa.types.is_integer(array.type):
            return array.cast(pa.int64())
        if pa.types.is_string(array.type) and self._format is not None:
            return self._format.parse(array)
        return pa.nulls(len(array), pa.int64())
