"""Avro schemas of Arrow types, as Kafka Connect's AvroData writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from semel.converters.json.columns import JSON
from semel.converters.semantic import CONNECT, DEBEZIUM, WRITTEN, plain_type, schema_in, suits
from semel.core.quoting import named
from semel.core.records import Facts

NAMESPACE, NAME = "io.confluent.connect.avro", "ConnectDefault"
ENTRY = "MapEntry"
_VALID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INVALID = re.compile(r"[^A-Za-z0-9_]")

Schema = Any
_NOTHING: Facts = {}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How schemas are written: with Kafka Connect's own properties (``connect.meta.data``), and
    with valid names in place of those that Avro does not allow (``scrub.invalid.names``).
    ``facts`` is what the top-level schema says of itself."""

    connect_properties: bool = True
    scrub: bool = False
    facts: Facts = field(default_factory=dict)


class Unnamed(ValueError):
    """A name that Avro does not allow."""


def schema_of(kind: pa.DataType, options: WriteOptions) -> Schema:
    """The schema of values of this type.

    Raises:
        ValueError: Avro has no such type, or allows no such name.
    """
    name = options.facts.get("name") or ""
    if pa.types.is_struct(kind) and name and not _is_name(name):
        raise Unnamed(
            f"schema name {named(name)}: Avro allows letters, digits and underscores between dots "
            "only. Set another in SetSchemaMetadata"
        )
    return _Writer(options).of(kind, options.facts)


def _is_name(full: str) -> bool:
    return all(_VALID.fullmatch(part) for part in full.split("."))


def scrubbed(name: str) -> str:
    """A name with underscores in place of characters that Avro does not allow."""
    cleaned = _INVALID.sub("_", name)
    return cleaned if _VALID.fullmatch(cleaned) else f"x{cleaned}"


class _Writer:
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._records = 0
        self._written: dict[str, pa.StructType] = {}

    def of(self, kind: pa.DataType, facts: Facts = _NOTHING) -> Schema:
        """The schema of a type; ``facts`` is what Kafka Connect's schema says of itself."""
        if pa.types.is_struct(kind):
            return self._record(kind, facts)
        if pa.types.is_map(kind):
            value = self._optional(kind.item_type)
            if pa.types.is_string(kind.key_type):
                return {"type": "map", "values": value}
            return self._entries(kind.key_type, value)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            items = self._optional(kind.value_type, facts.get("items", _NOTHING))
            return {"type": "array", "items": items, **self._facts(kind, facts)}
        if pa.types.is_dictionary(kind):
            return self.of(kind.value_type, facts)
        schema, properties = self._plain(kind), self._facts(kind, facts)
        if not properties:
            return schema
        return {**(schema if isinstance(schema, dict) else {"type": schema}), **properties}

    def _facts(self, kind: pa.DataType, facts: Facts) -> Facts:
        """Kafka Connect's properties of a schema, unless the type itself has a name."""
        name = facts.get("name")
        if not self._with_properties or name in WRITTEN or not suits(name, kind):
            return _NOTHING
        parts = {"version": facts.get("version"), "parameters": facts.get("parameters")}
        parts["name"] = name
        return {f"connect.{n}": part for n, part in parts.items() if part}

    def _optional(self, kind: pa.DataType, facts: Facts = _NOTHING) -> Schema:
        return ["null", self.of(kind, facts)]

    def _record(self, kind: pa.StructType, facts: Facts) -> Schema:
        """A record of its schema's name, which Avro defines once."""
        full = facts.get("name") or ""
        nested = bool(self._written)
        if nested and not ("." in full and _is_name(full)):
            full = ""
        if full in self._written:
            if self._written[full].equals(kind, check_metadata=True):
                return full
            full = ""
        if not full:
            self._records += 1
            full = f"{NAMESPACE}.{NAME}{self._records if self._records > 1 else ''}"
        self._written[full] = kind
        namespace, _, name = full.rpartition(".")
        return {
            "type": "record",
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "fields": [self._field(field) for field in kind],
            **self._facts(kind, facts),
        }

    def _field(self, field: pa.Field) -> Schema:
        name, facts = self._name(field.name), schema_in(field)
        if field.nullable:
            return {"name": name, "type": self._optional(field.type, facts), "default": None}
        return {"name": name, "type": self.of(field.type, facts)}

    def _name(self, name: str) -> str:
        if _VALID.fullmatch(name):
            return name
        if not self._options.scrub:
            raise Unnamed(
                f"field {named(name)}: Avro allows letters, digits and underscores only. Set "
                "scrub.invalid.names=true, or let a transform rename it"
            )
        return scrubbed(name)

    def _entries(self, key: pa.DataType, value: Schema) -> Schema:
        self._records += 1
        suffix = "" if self._records == 1 else str(self._records)
        return {
            "type": "array",
            "items": {
                "type": "record",
                "name": f"{ENTRY}{suffix}",
                "namespace": NAMESPACE,
                "fields": [{"name": "key", "type": self.of(key)}, {"name": "value", "type": value}],
                "connect.internal.type": ENTRY,
            },
        }

    def _plain(self, kind: pa.DataType) -> Schema:
        if kind == JSON:
            return self._named("string", DEBEZIUM + "data.Json")
        if pa.types.is_decimal(kind):
            return self._decimal(kind)
        connect, logical = plain_type(kind)
        if not connect:
            raise ValueError(f"Avro cannot represent {kind}. Let a transform convert it")
        primitive = _PLAIN[connect]
        if logical:
            return {**self._named(primitive, CONNECT + logical), "logicalType": _LOGICAL[logical]}
        if connect in ("int8", "int16") and self._with_properties:
            return {"type": primitive, "connect.type": connect}
        return primitive

    @property
    def _with_properties(self) -> bool:
        return self._options.connect_properties

    def _named(self, kind: str, name: str) -> Schema:
        if not self._with_properties:
            return {"type": kind}
        return {"type": kind, "connect.version": 1, "connect.name": name}

    def _decimal(self, kind: pa.DataType) -> Schema:
        schema = {"type": "bytes", "scale": kind.scale, "precision": kind.precision}
        if self._with_properties:
            parameters = {
                "scale": str(kind.scale),
                "connect.decimal.precision": str(kind.precision),
            }
            schema |= {"connect.version": 1, "connect.parameters": parameters}
            schema |= {"connect.name": CONNECT + "Decimal"}
        return {**schema, "logicalType": "decimal"}


_LOGICAL = {"Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis"}
_PLAIN = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
_PLAIN |= {"float32": "float", "float64": "double"}
_PLAIN |= {name: name for name in ("boolean", "bytes", "string")}
