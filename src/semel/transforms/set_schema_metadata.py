"""SetSchemaMetadata: sets the name or version of the schema."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config import Type, key
from semel.core.errors import ConfigError, Problem
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.fields import Defaults
from semel.transforms.structs import columns, refuse_all, struct


@dataclass(frozen=True)
class SetSchemaMetadataConfig(Defaults):
    """The keys of SetSchemaMetadata."""

    name: str = key("schema.name", "", "The schema's new name.")
    version: int | None = key("schema.version", None, "Its new version.", type=Type.INT)

    def __post_init__(self) -> None:
        if not self.name and self.version is None:
            raise ConfigError(Problem("schema.name", "Neither schema name nor version configured"))


class SetSchemaMetadata(ContentsTransform):
    """See Kafka Connect's SetSchemaMetadata."""

    section = SetSchemaMetadataConfig

    def __init__(self, config: SetSchemaMetadataConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self.config = config

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        if not contents.has_schema:
            refuse_all(contents.array, "Schema required for [updating schema metadata]")
        given = {"name": self.config.name or None, "version": self.config.version}
        facts = {**contents.facts, **{n: v for n, v in given.items() if v is not None}}
        array = contents.array
        if contents.is_struct:
            array = struct(columns(array, defaults=self.config.replace_nulls), array)
        return Contents(array, contents.has_schema, facts)
