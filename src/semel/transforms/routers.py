"""Transforms that only change where records go: Kafka Connect's RegexRouter and TimestampRouter,
Confluent's MessageTimestampRouter, Debezium's ToLogicalTopicRouter, which sends the shards of a
table to one topic, and table names taken from the ``source`` of change events."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.facts import renamed
from semel.converters.semantic import milliseconds
from semel.core.errors import misconfigured
from semel.core.patterns import check, compiled
from semel.core.quoting import all_named
from semel.transforms.base import Batch, Refused, Router, Transform, each, reasons, refuse, valid
from semel.transforms.debezium import ENVELOPE_SUFFIX, are_events
from semel.transforms.structs import Column, Opener, column, columns, required, struct
from semel.transforms.texts import DateFormat, java_text

TABLE_NAME_KEYS = ("collection.name.format", "table.name.format")
"""The keys of Debezium's sinks that may name fields of ``source``."""
_SOURCE_FIELD = re.compile(r"\$\{source\.(.*?)\}")
_BETWEEN = "\0"
"""No time contains it. A topic that an earlier transform took from a field may."""


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
        topic, _, time = pair.rpartition(_BETWEEN)
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

    @property
    def fields_by_type(self) -> Sequence[str]:
        return self._fields

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
            numbers = array.cast(pa.int64(), safe=False)
            beyond = pa.types.is_uint64(array.type) and pc.less(numbers, 0)
            return pc.if_else(beyond, pa.scalar(None, pa.int64()), numbers)
        if pa.types.is_string(array.type) and self._format is not None:
            return self._format.parse(array)
        return pa.nulls(len(array), pa.int64())


@dataclass(frozen=True)
class ToLogicalTopicRouterConfig:
    """The keys of ToLogicalTopicRouter."""

    topic_regex: str = key("topic.regex", doc="Matches whole names of topics.", validator=check)
    topic_replacement: str = key("topic.replacement", doc="The new name; $1 is the first group.")
    unique: bool = key(
        "key.enforce.uniqueness", True, "Whether a field of the key says which topic it was."
    )
    key_regex: str = key(
        "key.field.regex",
        "",
        "Matches names of topics, for the value of that field.",
        validator=check,
    )
    key_replacement: str = key("key.field.replacement", "", "The value of that field.")
    key_field: str = key("key.field.name", "__dbz__sourceIdentifier", "Its name.")
    adjustment: str = key(
        "schema.name.adjustment.mode",
        "none",
        "How names of schemas are made fit for Avro: by underscores (avro), or by the characters' "
        "codes (avro_unicode).",
        choices=("none", "avro", "avro_unicode"),
    )
    cache: str = key(
        "logical.destination.cache.size",
        "16",
        "Has no effect here.",
        aliases=("logical.table.cache.size",),
    )

    def __post_init__(self) -> None:
        if self.key_regex and not self.key_replacement:
            raise misconfigured(
                "key.field.replacement",
                "key.field.replacement must be non-empty if key.field.regex is set.",
            )


@dataclass(frozen=True)
class ByLogicalTableRouterConfig(ToLogicalTopicRouterConfig):
    """The same with the older name of the key's field."""

    key_field: str = key("key.field.name", "__dbz__physicalTableIdentifier", "Its name.")


class ToLogicalTopicRouter(Router):
    """See Debezium's class of this name."""

    section = ToLogicalTopicRouterConfig
    config: ToLogicalTopicRouterConfig

    def __init__(self, config: ToLogicalTopicRouterConfig) -> None:
        super().__init__(config)
        self._topics = compiled(config.topic_regex)
        self._topic = self._topics.template(config.topic_replacement)
        self._keys = compiled(config.key_regex) if config.key_regex else None
        if self._keys:
            self._key = self._keys.template(config.key_replacement)

    @property
    def needs_key(self) -> bool:
        return self.config.unique

    @property
    def changes_key(self) -> bool:
        return self.config.unique

    @property
    def changes_contents(self) -> bool:
        return self.config.unique

    def route(self, topic: str) -> str:
        if not self._topics.fullmatch(topic):
            return topic
        return self._topics.first_replaced(self._topic, topic) or topic

    def apply(self, batch: Batch) -> Batch:
        routed = super().apply(batch)
        topics = pc.unique(routed.topics).to_pylist()
        if len(topics) == 1 and self._topics.fullmatch(batch.topics[0].as_py()):
            routed = self._named(routed, topics[0])
        if not self.config.unique:
            return routed
        keys = routed.keys
        names = each(batch.topics, self._identifier)
        if names.null_count == len(names) or pa.types.is_null(keys.array.type):
            return routed
        array = required(keys, "Updating schema", nulls=True)
        field = self.config.key_field
        fields = columns(array)
        fields[field] = column(field, names, nullable=bool(names.null_count))
        return replace(routed, keys=keys.holding(struct(fields, array)))

    def _named(self, batch: Batch, topic: str) -> Batch:
        """The schemas of keys and events named after their new topic."""
        keys, values = batch.keys, batch.values
        if keys.has_schema and keys.is_struct:
            keys = replace(keys, facts={**keys.facts, "name": self._adjusted(f"{topic}.Key")})
        if values.has_schema and values.name and are_events(values):
            event = columns(values.array)
            for name in ("before", "after"):
                row = event[name]
                field = renamed(row.field, self._adjusted(f"{topic}.Value"))
                event[name] = Column(field, row.array, row.absent)
            facts = {**values.facts, "name": self._adjusted(f"{topic}{ENVELOPE_SUFFIX}")}
            values = replace(values, array=struct(event, values.array), facts=facts)
        return replace(batch, keys=keys, values=values)

    def _adjusted(self, name: str) -> str:
        """A name with which a schema can be written."""
        mode = self.config.adjustment.lower()
        if mode == "none":
            return name
        first, rest = (r"^[^A-Za-z_]", r"(?!^)[^A-Za-z0-9_.]")
        if mode == "avro":
            name = re.sub(r"^(?=[0-9])", "_", name)
            return re.sub(f"{first}|{rest}", "_", name)
        return re.sub(f"{first}|{rest}|_", lambda m: f"_u{ord(m[0]):04x}", name)

    def _identifier(self, topic: str) -> str | None:
        """The value that distinguishes a topic's keys from those of other topics in the same
        target; None for topics that are not routed."""
        if not self._topics.fullmatch(topic):
            return None
        if self._keys is None or not self._keys.fullmatch(topic):
            return topic
        return self._keys.first_replaced(self._key, topic)


class ByLogicalTableRouter(ToLogicalTopicRouter):
    """See Debezium's class of this name, the older one."""

    section = ByLogicalTableRouterConfig


class SourceNames(Transform):
    """Sends change events to the table that ``name`` yields for their topic and ``source``. Like
    Debezium's sink, it leaves out records without ``source``, such as tombstones."""

    changes_contents = False
    routes = True

    def __init__(self, name: str) -> None:
        self._parts = _SOURCE_FIELD.split(name)  # text and fields in turn
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        source = self._source(batch)
        if source is None:
            return batch.take(np.arange(0))
        there = valid(source)
        names = self._named(batch.topics, source)
        fields = ", ".join(f"source.{f}" for f in self._parts[1::2])
        refuse(there & ~valid(names), f"{fields} is to name the table, and is null or missing")
        return replace(batch, topics=names).only(there)

    def _source(self, batch: Batch) -> pa.Array | None:
        if not batch.values.is_struct:
            return None
        child = columns(batch.values.array).get("source")
        opened = child and self._opener.opened(child, "source")
        return opened.array if opened else None

    def _named(self, topics: pa.Array, source: pa.Array) -> pa.Array:
        fields = columns(source)
        pieces: list[pa.Array | str] = []
        for text, field in zip(self._parts[::2], [*self._parts[1::2], None], strict=True):
            for number, plain in enumerate(text.split("${topic}")):
                if number:
                    pieces.append(pc.replace_substring(topics, ".", "_"))
                pieces.append(plain)
            if field is not None:
                child = fields.get(field)
                missing = pa.nulls(len(source), pa.string())
                pieces.append(java_text(child.array) if child else missing)
        return pc.binary_join_element_wise(*pieces, "")


def table_name_key(raw: Mapping[str, str]) -> str:
    """The key whose value names fields of ``source``; empty if there is none."""
    return next((k for k in TABLE_NAME_KEYS if _SOURCE_FIELD.search(raw.get(k, ""))), "")


def without_source(name: str) -> str:
    """A format of names without its fields of ``source``."""
    return _SOURCE_FIELD.sub("", name)
