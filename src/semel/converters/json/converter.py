"""JSON: Kafka Connect's JsonConverter, with and without schemas."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from json import JSONDecodeError
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import HIGH, LOW, key
from semel.converters import ddl
from semel.converters.base import Converter, Decoded, Failure
from semel.converters.json import write
from semel.converters.json.columns import JSON
from semel.converters.json.connect_schema import SchemaError
from semel.converters.json.envelope import EnvelopeReader, PayloadReader
from semel.converters.json.plain import PlainReader
from semel.converters.json.text import as_text, hidden, without_mark
from semel.core.errors import ConfigError, Problem, misconfigured
from semel.core.records import Facts


@dataclass(frozen=True)
class JsonKeys(write.DecimalKeys):
    """The keys of JsonConverter."""

    schemas_enable: bool = key(
        "schemas.enable",
        True,
        "Values are objects of a schema and a payload, as in Kafka Connect.",
        importance=HIGH,
        group="Schemas",
    )
    schema: str = key(
        "schema",
        "",
        "The fields of plain JSON, as in Spark: id BIGINT, price DECIMAL(10,2), at TIMESTAMP.",
        importance=LOW,
    )
    content: str = key(
        "schema.content",
        "",
        "Kafka Connect's schema of all values, which are then read without an envelope. Needs "
        "schemas.enable=true.",
        importance=HIGH,
    )
    replace_nulls: bool = key(
        "replace.null.with.default",
        True,
        "Whether a null field takes the default of its schema, if there is one.",
        importance=LOW,
        group="Schemas",
        display="Replace null with default",
    )


class JsonConverter(Converter):
    """JSON objects to struct arrays; other JSON values to arrays of their type.

    With schemas, each record carries Kafka Connect's schema and types come from there. Without,
    they come from ``schema``, or from what the sink expects, or from the data (see
    :mod:`semel.converters.json.infer`). A field of the wrong type fails its record. Fractions
    become the nearest float, and times lose digits finer than a microsecond: docs/converters.md
    has the whole rule.
    Literal ``null`` and blank values are null; missing fields are null. Objects inside objects,
    and lists of them, are kept as JSON text.

    Args:
        schemas_enable: values are ``{"schema": ..., "payload": ...}``. A declared schema means
            they are not.
        schema: the fields to read from plain JSON; others are ignored.
        evolve: also read fields that neither the schema nor the sink knows.
        where: the setting that chose this converter, for messages.
        numeric: write decimals as numbers (``decimal.format=NUMERIC``). Both are read.
        content: Kafka Connect's schema of all values, which are then read without an envelope, but
            written in one (``schema.content``, KIP-1054).
        replace_nulls: a null stands for the default of its schema, if there is one.

    Raises:
        SchemaError: ``content`` is not a schema.
    """

    section: ClassVar[type] = JsonKeys

    def __init__(
        self,
        schemas_enable: bool = True,
        schema: pa.Schema | None = None,
        evolve: bool = False,
        where: str = "value.converter",
        numeric: bool = False,
        content: str = "",
        replace_nulls: bool = True,
    ) -> None:
        self._where = where
        self._numeric = numeric
        self._known = PayloadReader(content, defaults=replace_nulls) if content else None
        enveloped = schemas_enable and schema is None
        self._envelopes = EnvelopeReader(defaults=replace_nulls) if enveloped else None
        self._plain = PlainReader(schema, evolve=evolve)
        self._declares = schema is not None
        self._facts: Facts = {}

    @classmethod
    def configured(
        cls, config: Mapping[str, str], *, is_key: bool, where: str, evolve: bool = False
    ) -> JsonConverter:
        keys = cls.keys(config, where)
        declared, enable = keys.schema, keys.schemas_enable
        if declared and enable and config.get("schemas.enable", "").strip():
            raise misconfigured(
                f"{where}.schema",
                f"{where}.schema declares the fields of plain JSON, but {where}.schemas.enable="
                "true says that each record carries its own: set it to false, or remove the schema",
            )
        schema = ddl.parse(declared, where=f"{where}.schema") if declared else None
        content = keys.content if enable else ""
        if content and declared:
            raise misconfigured(
                f"{where}.schema.content",
                f"{where}.schema and {where}.schema.content both declare the fields: remove one",
            )
        try:
            return cls(enable, schema, evolve, where, keys.numeric, content, keys.replace_nulls)
        except (SchemaError, JSONDecodeError) as error:
            name = f"{where}.schema.content"
            raise ConfigError(
                Problem(name, f"{name} is not a Kafka Connect schema: {error}")
            ) from None

    @property
    def has_schemas(self) -> bool:
        return self._envelopes is not None

    @property
    def fills_fields(self) -> bool:
        return self._declares

    def keep_text(self) -> None:
        self._plain.dates = False

    def expect_others(self) -> None:
        self._plain.guesses = True

    def take_any(self) -> None:
        self._plain.takes_any = True

    def tell_names_apart(self) -> None:
        if self._envelopes is not None:
            self._envelopes.by_name = True

    def tell_fields_apart(self) -> None:
        if self._envelopes is not None:
            self._envelopes.by_fields = True

    def keep_numbers(self) -> None:
        self._plain.keeps_numbers = True

    def tell_absence(self) -> None:
        self._plain.tells_absence = True

    def count_unread(self) -> None:
        self._plain.counts = True

    def encode(self, values: pa.Array) -> pa.Array:
        envelope = self._envelopes is not None
        return write.encode(values, envelope=envelope, numeric=self._numeric, facts=self._facts)

    def describing(self, facts: Facts) -> Converter:
        converter = copy.copy(self)
        converter._facts = facts
        return converter

    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        facts: Facts = {}
        text, failures = as_text(values)
        text = without_mark(text)
        if self._known is not None:
            decoded, more = self._known.read(text.fill_null("null"))
            more = [f for f in more if text[f.index].is_valid]
            facts = self._known.facts
        elif self._envelopes is not None:
            decoded, more = self._envelopes.read(text)
            facts = self._envelopes.facts
        else:
            if names := hidden(text):  # elsewhere a schema names the fields
                failures += names
                rows = np.isin(np.arange(len(text)), [f.index for f in names])
                text = pc.if_else(pa.array(rows), None, text)
            decoded, more = self._plain.read(text, expected)
        all_failures = sorted([*failures, *more], key=lambda f: f.index)
        explained = [self._explained(f, values[f.index].as_py()) for f in all_failures]
        labels = self._plain.apart if self._envelopes is None else self._envelopes.apart
        return Decoded(decoded, explained, labels, self._plain.unread, facts)

    def as_written(self, values: pa.Array, decoded: pa.Array) -> pa.Array:
        has_types = self._known is not None or self._envelopes is not None
        if has_types and not (pa.types.is_nested(decoded.type) or decoded.type == JSON):
            return decoded
        text = without_mark(as_text(values)[0])
        if self._known is None and self._envelopes is not None:
            text = self._envelopes.payloads(text)
        text = pc.if_else(decoded.is_valid(), text, pa.scalar(None, pa.string()))
        return pa.ExtensionArray.from_storage(JSON, text)

    def _explained(self, failure: Failure, value: bytes) -> Failure:
        """Explain a value that cannot be JSON by what it most likely is."""
        if value[:1] != b"\0":
            return failure
        schema = int.from_bytes(value[1:5], "big")
        return replace(
            failure,
            message="this looks like Schema Registry framing (a zero byte, then schema id "
            f"{schema}); set {self._where}=io.confluent.connect.avro.AvroConverter, "
            "...protobuf.ProtobufConverter or ...json.JsonSchemaConverter, as it was written",
        )
