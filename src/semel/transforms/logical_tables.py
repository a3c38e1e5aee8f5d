"""Debezium's ByLogicalTableRouter: routes the shards of a table to one topic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from semel.config import key
from semel.errors import ConfigError, Problem
from semel.patterns import check, compiled
from semel.transforms.base import Batch, Router, each
from semel.transforms.structs import column, columns, required, struct


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
    adjustment: str = key("schema.name.adjustment.mode", "none", "Has no effect here.")
    cache: str = key(
        "logical.destination.cache.size",
        "16",
        "Has no effect here.",
        aliases=("logical.table.cache.size",),
    )

    def __post_init__(self) -> None:
        if self.key_regex and not self.key_replacement:
            raise ConfigError(
                Problem(
                    "key.field.replacement",
                    "key.field.replacement must be non-empty if key.field.regex is set.",
                )
            )


@dataclass(frozen=True)
class ByLogicalTableRouterConfig(ToLogicalTopicRouterConfig):
    """The same with the older name of the key's field."""

    key_field: str = key("key.field.name", "__dbz__physicalTableIdentifier", "Its name.")


class ToLogicalTopicRouter(Router):
    """See Debezium's class of this name."""

    section = ToLogicalTopicRouterConfig

    def __init__(self, config: ToLogicalTopicRouterConfig) -> None:
        self._config = config
        self._topics = compiled(config.topic_regex)
        self._topic = self._topics.template(config.topic_replacement)
        self._keys = compiled(config.key_regex) if config.key_regex else None
        if self._keys:
            self._key = self._keys.template(config.key_replacement)

    @property
    def needs_key(self) -> bool:
        return self._config.unique

    @property
    def changes_key(self) -> bool:
        return self._config.unique

    @property
    def changes_contents(self) -> bool:
        return self._config.unique

    def route(self, topic: str) -> str:
        if not self._topics.fullmatch(topic):
            return topic
        return self._topics.first_replaced(self._topic, topic) or topic

    def apply(self, batch: Batch) -> Batch:
        routed = super().apply(batch)
        if not self._config.unique:
            return routed
        keys = batch.keys
        names = each(batch.topics, self._identifier)
        if names.null_count == len(names) or pa.types.is_null(keys.array.type):
            return routed
        array = required(keys, "Updating schema", nulls=True)
        field = self._config.key_field
        found = {**columns(array), field: column(field, names)}
        return replace(routed, keys=keys.holding(struct(found, array)))

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
