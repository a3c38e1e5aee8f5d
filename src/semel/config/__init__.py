"""Connector configuration: Kafka Connect's names and defaults, typed and checked.

A section of configuration is a frozen dataclass whose fields are declared with :func:`key`.
:func:`read` turns the user's strings into an instance and reports every mistake at once.
"""

from semel.config.connector import (
    GROUPS,
    CommonConfig,
    ConnectorConfig,
    connector_class_key,
    connector_of,
    group_of,
)
from semel.config.definition import (
    HIGH,
    LOW,
    MEDIUM,
    Definition,
    Type,
    default_text,
    definitions,
    key,
    names,
)
from semel.config.loading import BROKERS, absolute, load, under, with_brokers
from semel.config.providers import ResolvedConfig, resolved, unresolved
from semel.config.reading import (
    HINTS,
    NoKeys,
    below,
    check_converter_keys,
    check_keys,
    read,
    section_of,
    title,
    unknown_keys,
    whole,
)
from semel.config.source_connector import SourceConnectorConfig, TopicCreation, TopicGroup

__all__ = [
    "BROKERS",
    "GROUPS",
    "HIGH",
    "HINTS",
    "LOW",
    "MEDIUM",
    "CommonConfig",
    "ConnectorConfig",
    "Definition",
    "NoKeys",
    "ResolvedConfig",
    "SourceConnectorConfig",
    "TopicCreation",
    "TopicGroup",
    "Type",
    "absolute",
    "below",
    "check_converter_keys",
    "check_keys",
    "connector_class_key",
    "connector_of",
    "default_text",
    "definitions",
    "group_of",
    "key",
    "load",
    "names",
    "read",
    "resolved",
    "section_of",
    "title",
    "under",
    "unknown_keys",
    "unresolved",
    "whole",
    "with_brokers",
]
