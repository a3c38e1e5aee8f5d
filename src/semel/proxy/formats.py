"""The formats of embedded keys and values: between JSON in a body and bytes in Kafka."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from semel.config import section_of
from semel.config.extras import require
from semel.config.proxy import REGISTRY, ProxyConfig
from semel.converters.registry import HEADER
from semel.converters.registry.client import AVRO, JSON, PROTOBUF, Registry, Schema, UnknownSchema
from semel.converters.registry.config import RegistryKeys, registry
from semel.core.errors import ConfigError, ServiceError, Unavailable
from semel.core.quoting import named
from semel.proxy.bodies import EmbeddedFormat, loaded, written
from semel.proxy.errors import (
    Refusal,
    not_convertible,
    not_registered,
    schema_missing,
    wrong_payload,
    wrong_schema,
)
from semel.proxy.json_schema import checker, is_quick

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]

TYPES = {
    EmbeddedFormat.AVRO: AVRO,
    EmbeddedFormat.JSONSCHEMA: JSON,
    EmbeddedFormat.PROTOBUF: PROTOBUF,
}
"""What a registry calls the formats that have schemas."""
LONGEST = 30.0
"""Seconds that the records of one request may take to be written: a thread cannot be stopped."""
FEW = 200
"""Records of a request that are encoded in the event loop."""
SMALL, _LONGER = 16 * 1024, 4
"""Bytes of a body with a schema that is encoded in the event loop, and how many times as long its
values may be when they are written: 1e15, for example."""
_LARGEST_SCHEMA = 1024 * 1024
_WELL_KNOWN, _BYTES_VALUE = "google.protobuf.", "google.protobuf.BytesValue"
_BASE64 = re.compile(r"[A-Za-z0-9+/]*|[A-Za-z0-9_-]*")
_MOST_KNOWN, _LARGE, _MOST_LARGE = 1000, 16 * 1024, 20
"""How many schemas are kept ready, from how many characters on a schema is large, and how many
large ones are kept: one of JSON Schema takes 25 times its text."""
_DEEP, _OUTER = 500, 100
"""How deep a text may be nested without a look whether it fits into an answer, and how many levels,
and calls, are outside it there."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """How the keys or values of a request are written, and with which schema."""

    encode: Encode
    schema_id: int | None = None
    subject: str | None = None
    kind: str = ""

    def bytes_of(self, value: Any) -> bytes | None:
        """A key or a value; null stays null.

        Raises:
            Refusal: it does not fit.
        """
        try:
            return None if value is None else self.encode(value)
        except (ValueError, RecursionError) as error:
            raise not_convertible(str(error)) from None


@dataclass(frozen=True, slots=True)
class RequestSchema:
    """The schema that a request names: its text, or its id, or where to find it in the registry."""

    text: str | None = None
    id: int | None = None
    subject: str | None = None
    version: int | None = None

    @property
    def is_there(self) -> bool:
        return self != RequestSchema()


class Formats:
    """Encoders and decoders of one proxy. Those with schemas may block: call them in a
    thread, unless :meth:`needs_time` says otherwise."""

    def __init__(self, config: ProxyConfig) -> None:
        self._registry: Registry | None = None
        self._made: dict[int, tuple[Schema, Encode]] = {}
        """By the id of the schema."""
        if config.registry_url:
            settings = {REGISTRY: ",".join(config.registry_url)}
            settings |= {
                k: v for k, v in config.originals.items() if k.startswith("schema.registry.")
            }
            keys = section_of(RegistryKeys, settings, "", otherwise=REGISTRY)
            require("jsonschema", "rest", {"jsonschema_rs": "jsonschema-rs"}, key=REGISTRY)
            self._registry = registry(keys, "schema.registry")

    def encoder(
        self, embedded: EmbeddedFormat | None, topic: str, given: RequestSchema, *, is_key: bool
    ) -> Encoder:
        """How to write keys or values. Without a format, the schema tells it.

        Raises:
            Refusal: there is no schema, or it cannot be used.
        """
        if embedded is EmbeddedFormat.BINARY:
            return Encoder(_of_base64)
        if embedded is EmbeddedFormat.JSON:
            return Encoder(written)
        if not given.is_there:
            raise schema_missing(is_key=is_key)
        if [given.text, given.id, given.version].count(None) < 2:
            part = "key" if is_key else "value"
            raise Refusal(400, f"{part}: name its schema once, by text, id or version")
        subject = given.subject or f"{topic}-{'key' if is_key else 'value'}"
        kind = None if embedded is None else TYPES[embedded]
        cached = None if given.id is None else self._made.get(given.id)
        schema, encode = cached or self._make(kind, subject, given)
        if kind is not None and schema.type != kind:
            raise wrong_schema(f"schema {schema.id} is of type {schema.type}, not {kind}")
        header = b"\0" + schema.id.to_bytes(4, "big")
        name = next(each.name for each, kind in TYPES.items() if kind == schema.type)
        return Encoder(lambda value: header + encode(value), schema.id, subject, name)

    def decoded(self, embedded: EmbeddedFormat, value: bytes | None) -> Any:
        """A key or a value as a body has it; null stays null.

        Raises:
            ValueError: it is not in this format.
            Refusal: the registry does not answer.
        """
        if value is None:
            return None
        if embedded is EmbeddedFormat.BINARY:
            return base64.b64encode(value).decode()
        if embedded is EmbeddedFormat.JSON:
            return _embeddable(value)
        if len(value) < HEADER or value[0]:
            raise ValueError("it was not written with a schema registry")
        schema = self._registered(
            lambda known: known.schema(int.from_bytes(value[1:HEADER], "big"))
        )
        if schema.type != TYPES[embedded]:
            raise ValueError(f"schema {schema.id} is of type {schema.type}")
        if embedded is EmbeddedFormat.JSONSCHEMA:  # its schema need not be understood for that
            return _embeddable(value[HEADER:])
        _, decode = _codec(schema)
        return decode(value[HEADER:])

    def needs_time(self, given: RequestSchema) -> bool:
        """Whether an encoder for this schema takes time: the registry is asked, or it is made."""
        return given.is_there and given.id not in self._made

    def _make(self, kind: str | None, subject: str, given: RequestSchema) -> tuple[Schema, Encode]:
        schema = self._schema(kind, subject, given)
        try:
            encode, _ = _codec(schema)
        except (ValueError, RecursionError) as error:
            raise wrong_schema(str(error)) from None
        if given.id is not None and _is_quick(schema):
            if len(self._made) >= _MOST_KNOWN:
                self._made.clear()
            self._made[given.id] = schema, encode
        return schema, encode

    def _schema(self, kind: str | None, subject: str, given: RequestSchema) -> Schema:
        """Raises Refusal: there is none, or it is of another type."""

        def find(known: Registry) -> Schema:
            if given.id is not None:
                return known.schema(given.id)
            if given.text is not None:
                if kind is None:
                    raise Refusal(400, "a schema needs a type: AVRO, JSONSCHEMA or PROTOBUF")
                _check(kind, given.text)
                number = known.id_of(subject, kind, given.text, register=True)
                return Schema(kind, given.text, id=number)
            if given.version is not None:
                return known.version(subject, given.version)
            schema = known.latest(subject)
            if schema is None:
                raise UnknownSchema(f"subject {named(subject)} has no schema")
            return schema

        return self._registered(find)

    def _registered(self, ask: Callable[[Registry], Schema]) -> Schema:
        if self._registry is None:
            raise wrong_payload(f"the proxy has no schema registry: set {REGISTRY}")
        try:
            return ask(self._registry)
        except UnknownSchema as error:
            raise not_registered(str(error)) from None
        except Unavailable as error:
            raise Refusal(503, str(error), 50302) from None
        except (ConfigError, ServiceError) as error:
            raise not_registered(str(error)) from None


def _check(kind: str, text: str) -> None:
    """Raises Refusal: a text is no schema, so it is not even registered."""
    if len(text) > _LARGEST_SCHEMA:
        raise wrong_schema(f"it has more than {_LARGEST_SCHEMA} characters")
    try:
        _codec(Schema(kind, text))
    except (ValueError, RecursionError) as error:
        raise wrong_schema(str(error)) from None


def _codec(schema: Schema) -> tuple[Encode, Decode]:
    """How values of a schema are written and read. Raises ValueError: it is not a schema."""
    return (_codec_of_large if _is_large(schema) else _codec_of_small)(schema)


def _is_quick(schema: Schema) -> bool:
    """Whether its encoder may be kept, and is fast enough for the event loop."""
    return not _is_large(schema) and (schema.type != JSON or is_quick(schema, _LONGER * SMALL))


def _is_large(schema: Schema) -> bool:
    return len(schema.text) + sum(len(text) for _, text in schema.references) > _LARGE


def _made(schema: Schema) -> tuple[Encode, Decode]:
    factory = {AVRO: _avro, JSON: _json, PROTOBUF: _protobuf}.get(schema.type)
    if factory is None:
        raise ValueError(f"schemas of type {schema.type} are not supported")
    return factory(schema)


_codec_of_small = lru_cache(maxsize=_MOST_KNOWN)(_made)
_codec_of_large = lru_cache(maxsize=_MOST_LARGE)(_made)


def _avro(schema: Schema) -> tuple[Encode, Decode]:
    from semel.converters.avro.parse import parse
    from semel.converters.avro.rows import Damaged
    from semel.proxy.avro_json import JsonReader, encoded

    node = parse(schema.text, [text for _, text in schema.references], full_names=True)

    def decode(value: bytes) -> Any:
        try:
            return JsonReader(value).whole(node)
        except Damaged as error:
            raise ValueError(str(error)) from None

    return lambda value: encoded(node, value), decode


def _json(schema: Schema) -> tuple[Encode, Decode]:
    check = checker(schema)

    def encode(value: Any) -> bytes:
        text = written(value)
        check(value, text)
        return text

    return encode, _embeddable


def _protobuf(schema: Schema) -> tuple[Encode, Decode]:
    from google.protobuf import json_format, message_factory
    from google.protobuf.message import DecodeError, EncodeError

    from semel.converters.protobuf.compiler import compiled

    file = compiled(schema.text, schema.references)
    messages = list(file.message_types_by_name.values())
    if not messages:
        raise ValueError("it has no message")
    first = message_factory.GetMessageClass(messages[0])
    has_bytes = _has_bytes(messages[0], set())
    unfit = json_format.ParseError, EncodeError, TypeError, AttributeError, OverflowError

    def encode(value: Any) -> bytes:
        if value in ("", []):  # ParseDict() takes them for a message without fields
            raise ValueError("a message must be an object")
        try:
            message = json_format.ParseDict(value, first(), max_recursion_depth=100)
            if has_bytes:
                _check_bytes(messages[0], value)
            return b"\0" + bytes(message.SerializeToString())
        except unfit as error:
            raise ValueError(str(error)) from None

    def decode(value: bytes) -> Any:
        path, rest = _indexes(value)
        kind = messages[path[0]] if path[0] < len(messages) else None
        for index in path[1:]:
            inner = [] if kind is None else kind.nested_types
            kind = inner[index] if index < len(inner) else None
        if kind is None:
            raise ValueError("it is of a message that its schema does not have")
        try:
            message = message_factory.GetMessageClass(kind).FromString(rest)
            return json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
        except (DecodeError, json_format.Error, TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None

    return encode, decode


def _has_bytes(kind: Any, seen: set[str]) -> bool:
    """Whether a message, or one that it may hold, has a field of bytes."""
    if kind.full_name in seen:
        return False
    seen.add(kind.full_name)
    return any(
        field.type == field.TYPE_BYTES
        or (field.message_type is not None and _has_bytes(field.message_type, seen))
        for field in kind.fields
    )


def _check_bytes(kind: Any, value: Any) -> None:
    """Raises ValueError: a field of bytes is not base64. The parser leaves out what is not."""
    if kind.full_name == _BYTES_VALUE:
        _check_base64(kind.full_name, value)
    if kind.full_name.startswith(_WELL_KNOWN) or not isinstance(value, dict):
        return
    for each in kind.fields:
        inner, field = value.get(each.json_name, value.get(each.name)), each
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            field = each.message_type.fields_by_name["value"]
            inner = list((inner or {}).values())
        for item in inner if isinstance(inner, list) else [inner]:
            if field.message_type is not None:
                _check_bytes(field.message_type, item)
            elif field.type == field.TYPE_BYTES:
                _check_base64(field.full_name, item)


def _check_base64(name: str, value: Any) -> None:
    """As with Confluent, it may be the one for URLs, and the padding may be left out."""
    if isinstance(value, str):
        text = value.rstrip("=")
        if len(text) % 4 == 1 or not _BASE64.fullmatch(text):
            raise ValueError(f"{name}: {named(value)} is not base64")


def _indexes(value: bytes) -> tuple[Sequence[int], bytes]:
    """Which message follows, and the message."""
    numbers: list[int] = []
    count, at = 1, 0
    while len(numbers) < count:
        encoded = shift = 0
        while True:
            if at >= len(value) or shift > 28:
                raise ValueError("its message indexes are damaged")
            byte = value[at]
            encoded |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        number = (encoded >> 1) ^ -(encoded & 1)
        if number < 0 or number > 100:
            raise ValueError("its message indexes are damaged")
        if count == 1 and not numbers and number:
            numbers, count = [number], number + 1
        else:
            numbers.append(number)
    return (numbers[1:] or [0]), value[at:]


def _embeddable(text: bytes) -> Any:
    """What a JSON text says. Raises ValueError: it cannot be written again within an answer."""
    value = loaded(text)
    if text.count(b"[") + text.count(b"{") > _DEEP:
        inner = value
        for _ in range(_OUTER):
            inner = [inner]
        written(inner)
    return value


def _of_base64(value: Any) -> bytes:
    """As with Confluent, the padding may be left out."""
    if not isinstance(value, str):
        raise ValueError("binary keys and values are base64 strings")
    padding = "" if "=" in value else "=" * (-len(value) % 4)
    try:
        return base64.b64decode(value + padding, validate=True)
    except ValueError:
        raise ValueError("not base64") from None
