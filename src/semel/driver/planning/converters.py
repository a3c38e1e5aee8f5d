"""Which converters are assumed where a configuration leaves them to Kafka Connect's worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from semel.config import ConnectorConfig
from semel.config.reading import VALUE_CONVERTER
from semel.sinks.base import Sink

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_OPENERS = tuple(
    f"{name}$Key"
    for name in ("ExtractField", "Flatten", "InsertField", "MaskField", "ReplaceField")
)
"""Transforms that take fields of keys."""
_MAKERS = ("ValueToKey", "HoistField$Key")
"""Transforms after which keys have fields, whatever they were."""


def with_assumed(connector: ConnectorConfig, sink: type[Sink] | None) -> ConnectorConfig:
    """A sink connector with the key converter that is assumed if it names none: JSON if fields of
    keys are taken."""
    raw = connector.originals
    if "key.converter" in raw:
        return connector
    takes = _chain_takes_fields(raw)
    if takes is None:
        takes = sink is not None and sink.takes_key_fields(raw)
    return replace(connector, key_converter=_JSON) if takes else connector


def _chain_takes_fields(raw: Mapping[str, str]) -> bool | None:
    """Whether transforms take fields of keys; None if they leave keys as they come."""
    for alias in (part.strip() for part in raw.get("transforms", "").split(",")):
        given = raw.get(f"transforms.{alias}.type", "").strip()
        if given.endswith(_MAKERS):
            return False
        if given.endswith(_OPENERS):
            return True
    return None


def warnings_of(connector: ConnectorConfig, *, uses_key: bool) -> list[str]:
    """Warnings of the converters that a sink's configuration does not name."""
    raw = connector.originals
    warnings = [] if "value.converter" in raw else [VALUE_CONVERTER]
    if uses_key and "key.converter" not in raw:
        kind = "JSON" if connector.assumes_keys else "text"
        default = "Kafka Connect's worker may have another default; set key.converter to it"
        warnings.append(f"key.converter is not set: keys are {kind} here. {default}")
    return warnings
