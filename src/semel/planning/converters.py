"""Which converters are assumed where a configuration leaves them to Kafka Connect's worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from semel.config import ConnectorConfig
from semel.config.checks import VALUE_CONVERTER

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_OPENERS = tuple(
    f"{name}$Key"
    for name in ("ExtractField", "Flatten", "InsertField", "MaskField", "ReplaceField")
)
"""Transforms that take fields of keys."""
_MAKERS = ("ValueToKey", "HoistField$Key")
"""Transforms after which keys have fields, whatever they were."""


def with_assumed(connector: ConnectorConfig, raw: Mapping[str, str]) -> ConnectorConfig:
    """A sink connector with the key converter that is assumed if ``raw`` names none: JSON if it
    takes fields of keys."""
    if "key.converter" in raw or not _takes_fields(raw):
        return connector
    return replace(connector, key_converter=_JSON)


def _takes_fields(raw: Mapping[str, str]) -> bool:
    if raw.get("iceberg.tables.cdc-field", "").strip():
        return False  # the sink makes keys out of values
    for alias in (part.strip() for part in raw.get("transforms", "").split(",")):
        given = raw.get(f"transforms.{alias}.type", "").strip()
        if given.endswith(_MAKERS):
            return False
        if given.endswith(_OPENERS):
            return True
    if _given(raw, "pk.mode", "primary.key.mode").lower() != "record_key":
        return False
    # Their workers' keys are mostly JSON, which would pass for text. Text does not pass for JSON.
    fields = _given(raw, "pk.fields", "primary.key.fields", "iceberg.tables.default-id-columns")
    return ".jdbc." in raw.get("connector.class", "") or not fields


def _given(raw: Mapping[str, str], *names: str) -> str:
    return next((raw[n].strip() for n in names if raw.get(n, "").strip()), "")


def warnings_of(connector: ConnectorConfig, raw: Mapping[str, str], *, uses_key: bool) -> list[str]:
    """Warnings of the converters that a sink's configuration does not name."""
    warnings = [] if "value.converter" in raw else [VALUE_CONVERTER]
    if uses_key and "key.converter" not in raw:
        kind = "JSON" if connector.assumes_keys else "text"
        default = "Kafka Connect's worker may have another default; set key.converter to it"
        warnings.append(f"key.converter is not set: keys are {kind} here. {default}")
    return warnings
