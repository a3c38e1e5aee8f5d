"""Schemas that programs register as a ``FileDescriptorProto`` in base64, as Confluent's serializer
of Python does, instead of as a text."""

from __future__ import annotations

import base64
import binascii
from functools import cache
from typing import Any

from semel.converters.protobuf.files import Enum, Field, File, Message, SchemaError
from semel.converters.protobuf.link import Linked
from semel.converters.protobuf.objects import plain
from semel.converters.protobuf.rows import Damaged, Reader
from semel.converters.protobuf.schema import Node
from semel.converters.protobuf.text import parse

_DESCRIPTOR = """
syntax = "proto2";
message File {
  optional string package = 2;
  repeated string dependency = 3;
  repeated Message message_type = 4;
  repeated Enum enum_type = 5;
  optional string syntax = 12;
}
message Message {
  optional string name = 1;
  repeated Field field = 2;
  repeated Message nested_type = 3;
  repeated Enum enum_type = 4;
  optional Options options = 7;
  repeated Oneof oneof_decl = 8;
  message Options { optional bool map_entry = 7; }
  message Oneof { optional string name = 1; }
}
message Field {
  optional string name = 1;
  optional int32 number = 3;
  optional int32 label = 4;
  optional int32 type = 5;
  optional string type_name = 6;
  optional string default_value = 7;
  optional Options options = 8;
  optional int32 oneof_index = 9;
  optional bool proto3_optional = 17;
  message Options { optional Meta meta = 1088; }
  message Meta { map<string, string> params = 2; }
}
message Enum {
  optional string name = 1;
  repeated Value value = 2;
  message Value { optional string name = 1; optional int32 number = 2; }
}
"""
_TYPES = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("group", "", "bytes", "uint32", "", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_LABELS = ("", "optional", "required", "repeated")


def file_of(text: str) -> File:
    """The file of a schema, in either form.

    Raises:
        SchemaError: it is in neither.
    """
    try:
        return parse(text)
    except SchemaError as error:
        try:
            data = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            raise error from None
    node = _descriptor()
    try:
        return _file(plain(node, Reader().whole(node, data)))
    except Damaged as error:
        raise SchemaError(f"not a Protobuf schema: {error}") from None


@cache
def _descriptor() -> Node:
    return Linked(parse(_DESCRIPTOR), {}).root("File")


def _file(found: dict[str, Any]) -> File:
    return File(
        found["package"] or "",
        found["syntax"] or "proto2",
        found["dependency"],
        [_message(m, found["syntax"] or "proto2") for m in found["message_type"]],
        [_enum(e) for e in found["enum_type"]],
    )


def _message(found: dict[str, Any], syntax: str) -> Message:
    fields = [_field(f, syntax) for f in found["field"]]
    used = {f.oneof for f in fields}
    oneofs = [o["name"] for n, o in enumerate(found["oneof_decl"]) if n in used]
    return Message(
        found["name"],
        fields,
        oneofs,
        [_message(m, syntax) for m in found["nested_type"]],
        [_enum(e) for e in found["enum_type"]],
        bool((found["options"] or {}).get("map_entry")),
    )


def _field(found: dict[str, Any], syntax: str) -> Field:
    kind = _TYPES[found["type"]] or found["type_name"]
    if kind == "group":
        raise SchemaError(f"field {found['name']}: groups are not read. Make it a message")
    label = _LABELS[found["label"] or 0]
    synthetic = bool(found["proto3_optional"])
    if label == "optional" and syntax != "proto2" and not synthetic:
        label = ""
    meta = (found["options"] or {}).get("meta") or {}
    oneof = None if synthetic else found["oneof_index"]
    default = found["default_value"]
    return Field(
        *(found["name"], found["number"], kind, label, oneof, default), meta.get("params") or {}
    )


def _enum(found: dict[str, Any]) -> Enum:
    return Enum(found["name"], [(v["name"], v["number"] or 0) for v in found["value"]])
