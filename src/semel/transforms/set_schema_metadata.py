"""SetSchemaMetadata: sets the name or version of the schema."""

from __future__ import annotations

from dataclasses import dataclass, replace

from semel.config import Type, key
from semel.errors import ConfigError, Problem
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.fields import Defaults
from semel.transforms.structs import refuse_all


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
        version = contents.version if self.config.version is None else self.config.version
        return replace(contents, name=self.config.name or contents.name, version=version)
