"""Protobuf schemas of Arrow types, as Kafka Connect's ProtobufData writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus

import pyarrow as pa

from semel.converters.json.columns import JSON
from semel.converters.semantic import plain_type
from semel.core.quoting import named

NAME = "ConnectDefault"
_VALID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INVALID = re.compile(r"[^A-Za-z0-9_]")
_WRAPPERS_FILE = "google/protobuf/wrappers.proto"
_META = "confluent/meta.proto"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How schemas are written: nullable fields as ``optional`` (``optional.for.nullables``) or as
    wrappers (``wrapper.for.nullables``), and with valid names in place of names that Protobuf does
    not allow (``scrub.invalid.names``). ``name`` is the full name of the top-level message, with
    its package."""

    optional: bool = False
    wrappers: bool = False
    scrub: bool = False
    name: str = ""


class Unnamed(ValueError):
    """A name that Protobuf does not allow."""


def schema_of(kind: pa.DataType, options: WriteOptions) -> tuple[str, str]:
    """The schema of values of this type, and the full name of their message.

    Raises:
        ValueError: Protobuf has no such type, or allows no such name.
    """
    if pa.types.is_struct(kind):
        return _Writer(options).file(kind)
    return _WRAPPER_MESSAGES, wrapper_of(kind)


def wrapper_of(kind: pa.DataType) -> str:
    """The wrapper of a value that is not a message.

    Raises:
        ValueError: it has none.
    """
    scalar = _scalar(kind)
    if scalar is None:
        raise ValueError(
            f"Protobuf cannot represent {kind} as a whole value. Let a transform put it into a "
            "field"
        )
    return _WRAPPERS[scalar]


def scrubbed(name: str) -> str:
    """A name with characters that Protobuf allows, as Kafka Connect's converter makes it."""
    if _VALID.fullmatch(name) and not name.startswith("_"):
        return name
    encoded = quote_plus(name, safe="*-._").replace("~", "%7E")
    if encoded[:1].isdigit() or encoded.startswith("_"):
        encoded = f"x{encoded}"
    return _INVALID.sub("_", encoded)


class _Writer:
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._imports: set[str] = set()
        self._names = 0

    def file(self, kind: pa.StructType) -> tuple[str, str]:
        """The schema, and the full name of its message."""
        full = self._full_name() or self._new_name()
        package, _, message = full.rpartition(".")
        lines = self._message(message, list(kind))
        imports = [f'import "{name}";' for name in sorted(self._imports)]
        head = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
        return "\n".join([*head, *imports, *([""] if imports else []), *lines, ""]), full

    def _full_name(self) -> str:
        parts = self._options.name.split(".") if self._options.name else []
        if self._options.scrub:
            parts = [scrubbed(part) for part in parts]
        if not all(map(_VALID.fullmatch, parts)):
            raise Unnamed(
                f"schema name {named(self._options.name)}: Protobuf allows letters, digits and "
                "underscores between dots only. Set scrub.invalid.names=true, or another name in "
                "SetSchemaMetadata"
            )
        return ".".join(parts)

    def _new_name(self) -> str:
        self._names += 1
        return f"{NAME}{self._names}"

    def _message(self, name: str, fields: Sequence[pa.Field]) -> list[str]:
        lines, inner = [], []
        for number, field in enumerate(fields, 1):
            line, more = self._field(field, number)
            lines.append(line)
            inner += more
        return [f"message {name} {{", *(f"  {line}" for line in [*lines, *inner]), "}"]

    def _field(self, field: pa.Field, number: int) -> tuple[str, list[str]]:
        name, kind = self._name(field.name), _plain(field.type)
        if pa.types.is_map(kind):
            return self._map(name, kind, number)
        label = ""
        nullable = field.nullable
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            label, kind = "repeated ", _plain(kind.value_type)
            nullable = False
            if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
                raise ValueError(
                    f"field {named(field.name)}: Protobuf has no lists of lists or maps. Let a "
                    "transform change it"
                )
        elif nullable and self._options.optional:
            label = "optional "
        written, options, inner = self._type(field.name, kind, nullable)
        return f"{label}{written} {name} = {number}{_options(options)};", inner

    def _name(self, name: str) -> str:
        if self._options.scrub:
            return scrubbed(name)
        if not _VALID.fullmatch(name):
            raise Unnamed(
                f"field {named(name)}: Protobuf allows letters, digits and underscores only. Set "
                "scrub.invalid.names=true, or let a transform rename it"
            )
        return name

    def _map(self, name: str, kind: pa.MapType, number: int) -> tuple[str, list[str]]:
        key, value = (
            pa.field("key", _plain(kind.key_type), False),
            pa.field("value", kind.item_type),
        )
        inner = _plain(value.type)
        if pa.types.is_list(inner) or pa.types.is_large_list(inner) or pa.types.is_map(inner):
            raise ValueError(
                f"field {named(name)}: Protobuf has no maps of lists or maps. Let a transform "
                "change it"
            )
        allowed = pa.types.is_integer(key.type) or key.type in (pa.string(), pa.bool_())
        if allowed and not self._options.optional:
            written, options, more = self._type(name, inner, value.nullable)
            if not options:
                keyed = _scalar(key.type)
                return f"map<{keyed}, {written}> {name} = {number};", more
        entry = f"{self._new_name()}Entry"
        lines = self._message(entry, [key, value])
        return f"repeated {entry} {name} = {number};", lines

    def _type(
        self, field: str, kind: pa.DataType, nullable: bool
    ) -> tuple[str, dict[str, str], list[str]]:
        """The type as it is written, its options, and the types nested inside."""
        if pa.types.is_struct(kind):
            name = self._new_name()
            name = f"{name}Message" if name == field else name
            return name, {}, self._message(name, list(kind))
        for matches, written, file in _MESSAGES:
            if matches(kind):
                self._imports.add(file)
                options = {}
                if pa.types.is_decimal(kind):
                    options = {"precision": str(kind.precision), "scale": str(kind.scale)}
                    self._imports.add(_META)
                return written, options, []
        scalar = _scalar(kind)
        if scalar is None:
            raise ValueError(f"field {named(field)}: Protobuf cannot represent {kind}")
        options = {}
        if kind in (pa.int8(), pa.int16()):
            options = {"connect.type": str(kind)}
            self._imports.add(_META)
        if nullable and self._options.wrappers:
            self._imports.add(_WRAPPERS_FILE)
            return _WRAPPERS[scalar], options, []
        return scalar, options, []


def _options(options: dict[str, str]) -> str:
    if not options:
        return ""
    pairs = ", ".join(f'{{ key: "{key}", value: "{value}" }}' for key, value in options.items())
    return f" [(confluent.field_meta) = {{ params: [{pairs}] }}]"


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _scalar(kind: pa.DataType) -> str | None:
    if kind == JSON:
        return "string"
    connect, logical = plain_type(kind)
    return None if logical else _SCALARS.get(connect)


_SCALARS = {"boolean": "bool", **dict.fromkeys(("int8", "int16", "int32"), "int32")}
_SCALARS |= {"int64": "int64", "float32": "float", "float64": "double"}
_SCALARS |= {"string": "string", "bytes": "bytes"}
_MESSAGES = (
    (pa.types.is_decimal, "confluent.type.Decimal", "confluent/type/decimal.proto"),
    (pa.types.is_date, "google.type.Date", "google/type/date.proto"),
    (pa.types.is_time, "google.type.TimeOfDay", "google/type/timeofday.proto"),
    (pa.types.is_timestamp, "google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
)
_WRAPPERS = {
    "bool": "google.protobuf.BoolValue",
    "int32": "google.protobuf.Int32Value",
    "int64": "google.protobuf.Int64Value",
    "float": "google.protobuf.FloatValue",
    "double": "google.protobuf.DoubleValue",
    "string": "google.protobuf.StringValue",
    "bytes": "google.protobuf.BytesValue",
}
_WRAPPER_MESSAGES = """syntax = "proto3";
package google.protobuf;
message DoubleValue { double value = 1; }
message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; }
message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; }
message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
"""
