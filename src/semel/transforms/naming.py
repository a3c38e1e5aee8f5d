"""Names and versions that SetSchemaMetadata gives to the schemas of what is written."""

from __future__ import annotations

from collections.abc import Mapping

from semel.converters import Converter
from semel.transforms import known_chain
from semel.transforms.aiven import ConcatFields
from semel.transforms.base import Transform
from semel.transforms.debezium import ExtractNewRecordState
from semel.transforms.extract_field import ExtractField
from semel.transforms.hoist_field import HoistField
from semel.transforms.outbox import EventRouter
from semel.transforms.python import Python
from semel.transforms.set_schema_metadata import SetSchemaMetadata
from semel.transforms.sql import Sql
from semel.transforms.timestamp_converter import TimestampConverter
from semel.transforms.value_to_key import ValueToKey

_OF_KEYS = (ValueToKey, EventRouter)
_OF_VALUES = (ExtractNewRecordState, EventRouter, Sql, Python)


def named(converter: Converter, raw: Mapping[str, str], *, is_key: bool) -> Converter:
    """The converter, with the name and version that a connector's transforms set for all keys or
    values. Transforms with a predicate are ignored, and a later transform that makes a new schema
    discards what was set."""
    name, version = "", None
    for stage in known_chain(raw).stages:
        made = stage.transform
        if _makes_schema(made, is_key=is_key):
            name, version = "", None
        if isinstance(made, SetSchemaMetadata) and made.of_key is is_key and not stage.predicate:
            name = made.config.name or name
            version = version if made.config.version is None else made.config.version
    return converter.named(name, version) if name or version is not None else converter


def _makes_schema(made: Transform, *, is_key: bool) -> bool:
    """Whether keys or values have a new schema after it, with a name of its own or none."""
    if isinstance(made, (ConcatFields, HoistField, ExtractField)):
        return made.of_key is is_key
    if isinstance(made, TimestampConverter):
        return made.of_key is is_key and made.whole
    return isinstance(made, _OF_KEYS if is_key else _OF_VALUES)
