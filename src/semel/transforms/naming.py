"""Names and versions that SetSchemaMetadata gives to the schemas of what is written."""

from __future__ import annotations

from collections.abc import Mapping

from semel.converters import Converter
from semel.transforms import known_chain
from semel.transforms.set_schema_metadata import SetSchemaMetadata


def named(converter: Converter, raw: Mapping[str, str], *, is_key: bool) -> Converter:
    """The converter, with the name and version that a connector's transforms set for all keys or
    values. Those that a predicate chooses records for are left out."""
    name, version = "", None
    for stage in known_chain(raw).stages:
        made = stage.transform
        if isinstance(made, SetSchemaMetadata) and made.of_key is is_key and not stage.predicate:
            name = made.config.name or name
            version = version if made.config.version is None else made.config.version
    return converter.named(name, version) if name or version is not None else converter
