"""Debezium's ByLogicalTableRouter: routes the shards of a table to one topic."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.facts import renamed
from semel.core.errors import misconfigured
from semel.core.patterns import check, compiled
from semel.transforms.base import Batch, Router, each
from semel.transforms.debezium import ENVELOPE_SUFFIX, are_events
from semel.transforms.structs import Column, column, columns, required, struct


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
