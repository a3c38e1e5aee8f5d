"""Creates the readers of a connector's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.converters.json.nested import nested_as
from semel.core.errors import misconfigured
from semel.core.quoting import all_named, named
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.csvrows import CsvFormat
from semel.sources.directory.schemas import Field, Parser, fields_of
from semel.sources.directory.texts import Format, JsonFormat, TextFormat


@dataclass(frozen=True, slots=True)
class Formats:
    """The format of a connector's files; each file gets a reader of its own."""

    name: str
    config: DirectoryConfig
    fields: Sequence[Field]
    parser: Parser
    as_text: bool

    def format(self) -> Format:
        """The reader of one file."""
        match self.name:
            case "csv":
                return CsvFormat(self.config, self.fields, self.parser)
            case "json":
                return JsonFormat(self.config, self.fields, self.parser, as_text=self.as_text)
            case "text":
                return TextFormat(self.config)
        from semel.sources.directory.tables import AvroFormat, ParquetFormat

        return ParquetFormat(self.config) if self.name == "parquet" else AvroFormat(self.config)

    @property
    def key_fields(self) -> Sequence[str]:
        """The fields of the value that make the key."""
        if self.config.key_schema.strip():
            return [f.name for f in fields_of(self.config.key_schema)]
        return self.config.key_fields


def formats_of(config: DirectoryConfig, connector_class: str) -> Formats:
    """Raises ConfigError: a schema is invalid, missing or useless."""
    name = config.format_of(connector_class)
    fields: list[Field] = []
    for key, text in (("key.schema", config.key_schema), ("value.schema", config.value_schema)):
        try:
            fields = fields_of(text) if text.strip() else []
        except ValueError as error:
            raise misconfigured(key, f"{key} {error}") from None
    if config.generated:
        fields = []
    try:
        parser = Parser(config.date_formats, config.timezone)
    except ValueError as error:
        key = str(error).split("=", maxsplit=1)[0].split(" ", maxsplit=1)[0]
        raise misconfigured(key, str(error)) from None
    if name == "csv" and not fields and not config.header:
        raise misconfigured(
            "value.schema",
            "value.schema is required, or csv.first.row.as.header=true: nothing else names "
            "the columns",
        )
    as_text = connector_class.endswith("SpoolDirSchemaLessJsonSourceConnector")
    formats = Formats(name, config, fields, parser, as_text)
    _check_fields(formats)
    return formats


def _check_fields(formats: Formats) -> None:
    names = [f.name for f in formats.fields]
    config = formats.config
    if formats.name == "text" and (formats.key_fields or config.timestamp_mode == "field"):
        key = "timestamp.field" if config.timestamp_mode == "field" else "key.schema"
        raise misconfigured(key, f"{key}: lines of text have no fields. Remove it")
    if config.metadata_location == "field" and (
        formats.name == "text" or (formats.name == "json" and not names)
    ):
        raise misconfigured(
            "metadata.location",
            "metadata.location=field: lines of text have no fields, nor has JSON without "
            "value.schema. Set it to headers or none",
        )
    for field in formats.fields:
        if not _can_be_read(field.type, formats.name):
            raise misconfigured(
                "value.schema",
                f"value.schema: field {named(field.name)} cannot be read from {formats.name}: "
                f"{field.type}. "
                + (
                    "A column of CSV holds one value: make it STRING"
                    if formats.name == "csv"
                    else "A STRUCT needs fieldSchemas whose names differ by more than their case"
                ),
            )
    if not names:
        return
    missing = [n for n in formats.key_fields if n not in names]
    if missing:
        raise misconfigured(
            "key.schema" if config.key_schema else "schema.generation.key.fields",
            f"the key's field {named(missing[0])} must be one of value.schema: {all_named(names)}",
        )
    if config.timestamp_mode == "field":
        of = next((f for f in formats.fields if f.name == config.timestamp_field), None)
        if of is None or not of.is_time:
            raise misconfigured(
                "timestamp.field",
                f"timestamp.field={config.timestamp_field} must be a Timestamp of value.schema",
            )


def _can_be_read(kind: pa.DataType, format_name: str) -> bool:
    """Whether values of a type can be read from CSV or JSON; other formats have their own types."""
    if not pa.types.is_nested(kind) or format_name not in ("csv", "json"):
        return True
    if format_name == "csv":
        return False
    is_plain_list = pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type)
    return is_plain_list or nested_as(kind) is not None
