"""Connector configuration: Kafka Connect's names and defaults, typed and checked.

A section of configuration is a frozen dataclass whose fields are declared with :func:`key`.
:func:`read` turns the user's strings into an instance and reports every mistake at once.
"""

from semel.config.checks import check_converter_keys, check_keys, check_refused
from semel.config.connector import GROUPS, ConnectorConfig, connector_of, group_of
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
from semel.config.loading import absolute, load, under
from semel.config.reading import read, title

__all__ = [
    "GROUPS",
    "HIGH",
    "LOW",
    "MEDIUM",
    "ConnectorConfig",
    "Definition",
    "Type",
    "absolute",
    "check_converter_keys",
    "check_keys",
    "check_refused",
    "connector_of",
    "default_text",
    "definitions",
    "group_of",
    "key",
    "load",
    "names",
    "read",
    "title",
    "under",
]
