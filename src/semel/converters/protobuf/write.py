"""Arrow to Protobuf: the schemas of types, as Kafka Connect's ProtobufData writes them, and
messages of one type.

Messages are written in columns: each field of all messages, then the fields are joined.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters import binary
from semel.converters.binary import SchemaMismatch, fitted, of_numbers, unscaled, varints
from semel.converters.json.columns import JSON
from semel.converters.json.text import place
from semel.converters.protobuf.schema import (
    BYTES,
    END_GROUP,
    FIRST_SECOND,
    GROUP,
    LAST_SECOND,
    SCALARS,
    VARINT,
    Enum,
    Field,
    LogicalMessage,
    Map,
    Message,
    Node,
    Oneof,
    Recursion,
    Scalar,
    Wrapper,
)
from semel.converters.semantic import plain_type
from semel.core.quoting import all_named, in_field, named, typed

_NAME = "ConnectDefault"
_VALID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WRAPPERS_FILE = "google/protobuf/wrappers.proto"
_META = "confluent/meta.proto"
_EMPTY = pa.scalar(b"", pa.binary())
_UNSIGNED = {"uint32": pa.uint32(), "fixed32": pa.uint32()}
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_POWERS = np.array([10**n for n in range(19)], np.int64)


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


def schema_of(kind: pa.DataType, options: WriteOptions) -> tuple[str, str]:
    """The schema of values of this type, and the full name of their message.

    Raises:
        ValueError: Protobuf has no such type, or allows no such name.
    """
    if pa.types.is_struct(kind):
        return _SchemaWriter(options).file(kind)
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
    return binary.scrubbed(name, string.digits + "_")


class _SchemaWriter:
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
            way = "Set scrub.invalid.names=true, or" if all(parts) else "Set"
            raise ValueError(
                f"schema name {named(self._options.name)}: Protobuf allows letters, digits and "
                f"underscores between dots only. {way} another name in SetSchemaMetadata"
            )
        return ".".join(parts)

    def _new_name(self) -> str:
        self._names += 1
        return f"{_NAME}{self._names}"

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
            name = scrubbed(name)
        if not _VALID.fullmatch(name):
            way = "Set scrub.invalid.names=true, or let" if name else "Let"
            raise ValueError(
                f"field {named(name)}: Protobuf allows letters, digits and underscores only. {way} "
                "a transform rename it"
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
    return None if logical else _SCALAR_NAMES.get(connect)


_SCALAR_NAMES = {"boolean": "bool", **dict.fromkeys(("int8", "int16", "int32"), "int32")}
_SCALAR_NAMES |= {"int64": "int64", "float32": "float", "float64": "double"}
_SCALAR_NAMES |= {"string": "string", "bytes": "bytes"}
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


def write(node: Node, values: pa.Array) -> pa.Array:
    """The bytes of each value, none of which is null.

    Raises:
        SchemaMismatch: names the field and what does not fit.
    """
    return _content(node, values, "")


def _content(node: Node, values: pa.Array, path: str) -> pa.Array:
    """The fields of messages."""
    match node:
        case Message() if pa.types.is_struct(values.type):
            return _message(node, values, path)
        case LogicalMessage():
            return _message(node.message, _known(node, values, path), path)
        case Wrapper():
            inner = pa.StructArray.from_arrays([values], names=[node.value.name])
            return _message(node.message, inner, path)
        case Recursion():
            raise SchemaMismatch(f"{in_field(path)}it contains itself, which cannot be written")
    raise SchemaMismatch(f"{in_field(path)}{typed(values.type)} cannot be written as {node.type}")


def _message(node: Message, values: pa.StructArray, path: str) -> pa.Array:
    names = [f.name for f in values.type]
    columns = values.flatten()
    by_name = dict(zip(map(scrubbed, names), columns, strict=True))
    by_name |= dict(zip(names, columns, strict=True))
    pieces: list[tuple[int, pa.Array]] = []
    for column in node.columns:
        if isinstance(column, Oneof):
            pieces += _oneof(column, by_name, path)
            continue
        array = by_name.get(column.name)
        if array is None:
            if column.required:
                raise SchemaMismatch(f"{in_field(_inner(path, column))}it is missing, but required")
            continue
        pieces.append((column.number, _field(column, array, _inner(path, column))))
    if not pieces:
        return pa.repeat(_EMPTY, len(values))
    arrays = [piece for _, piece in sorted(pieces, key=lambda pair: pair[0])]
    return arrays[0] if len(arrays) == 1 else pc.binary_join_element_wise(*arrays, _EMPTY)


def _inner(path: str, field: Field) -> str:
    return f"{path}.{field.name}".strip(".")


def _oneof(oneof: Oneof, by_name: Mapping[str, pa.Array], path: str) -> list[tuple[int, pa.Array]]:
    """The first member that is not null, as in Kafka Connect."""
    union = by_name.get(oneof.name)
    members = by_name
    if union is not None and pa.types.is_struct(union.type):
        names = [f.name for f in union.type]
        members = dict(zip(names, union.flatten(), strict=True))
    pieces: list[tuple[int, pa.Array]] = []
    taken: Any = None
    for field in oneof.fields:
        array = members.get(field.name)
        if array is None:
            continue
        if taken is not None:
            array = pc.if_else(taken, pa.scalar(None, array.type), array)
        pieces.append((field.number, _field(field, array, _inner(path, field))))
        valid = array.is_valid()
        taken = valid if taken is None else pc.or_(taken, valid)
    return pieces


def _field(field: Field, values: pa.Array, path: str) -> pa.Array:
    """The bytes of a field, none where it is absent."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if field.required and values.null_count:
        raise SchemaMismatch(f"{in_field(path)}null, but its schema requires a value")
    count = len(values)
    present = values.is_valid()
    if values.null_count:
        values = values.drop_null()
    if not len(values):
        return pa.repeat(_EMPTY, count)
    written = _repeated(field, values, path) if field.repeated else _single(field, values, path)
    if len(written) == count:
        return written
    return pc.fill_null(place(written, pc.indices_nonzero(present), count), _EMPTY)


def _single(field: Field, values: pa.Array, path: str) -> pa.Array:
    node = field.node
    if not isinstance(node, (Scalar, Enum)):
        return _inner_messages(field, _content(node, values, path))
    values = _physical(node, values, path)
    written = _behind(_tag(field, node.wire), _payload(node, values))
    if field.explicit or field.required:
        return written
    return pc.if_else(_is_default(field, values), _EMPTY, written)


def _is_default(field: Field, values: pa.Array) -> pa.Array:
    """Which values an absent field stands for, so that they are not written."""
    if pa.types.is_floating(values.type) and not field.default:  # -0.0 is another value
        bits = np.ascontiguousarray(values.to_numpy()).view(f"i{values.type.bit_width // 8}")
        return pa.array(bits == 0)
    return pc.equal(values, pa.scalar(field.default, values.type))


def _tag(field: Field, wire: int) -> pa.Scalar:
    number = varints(np.array([field.number << 3 | wire], np.uint64))
    return number[0]


def _behind(tag: pa.Scalar, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(tag, values, _EMPTY)


def _inner_messages(field: Field, content: pa.Array) -> pa.Array:
    if not field.group:
        return _behind(_tag(field, BYTES), _sized(content))
    return pc.binary_join_element_wise(_tag(field, GROUP), content, _tag(field, END_GROUP), _EMPTY)


def _sized(content: pa.Array) -> pa.Array:
    sizes = pc.binary_length(content).to_numpy().astype(np.uint64)
    return pc.binary_join_element_wise(varints(sizes), content, _EMPTY)


def _physical(node: Node, values: pa.Array, path: str) -> pa.Array:
    """Values of the type that is written."""
    if isinstance(node, Enum):
        return _numbers_of(node, values, path)
    assert isinstance(node, Scalar)
    if values.type == JSON:
        values = values.storage
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if values.type == pa.uint64() and node.kind in ("uint64", "fixed64"):
        return values.view(pa.int64())  # the same bits
    target = node.narrow or _UNSIGNED.get(node.kind, SCALARS[node.kind][1])
    return fitted(values, target, path)


def _numbers_of(node: Enum, values: pa.Array, path: str) -> pa.Array:
    if pa.types.is_integer(values.type):
        return fitted(values, pa.int32(), path)
    names = [name for name, _ in node.values]
    indices = pc.index_in(fitted(values, pa.string(), path), pa.array(names))
    if indices.null_count:
        other = values.filter(indices.is_null())[0]
        raise SchemaMismatch(f"{in_field(path)}{other} is not one of {all_named(names)}")
    return pa.array([number for _, number in node.values], pa.int32()).take(indices)


def _payload(node: Node, values: pa.Array) -> pa.Array:
    kind = node.kind if isinstance(node, Scalar) else "int32"
    if node.wire == BYTES:
        return _sized(values.cast(pa.binary()))
    if node.wire == VARINT:
        return varints(_bits(kind, values))
    numbers = values.to_numpy()
    return of_numbers(numbers, numbers.dtype.itemsize)


def _bits(kind: str, values: pa.Array) -> npt.NDArray[np.uint64]:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    signed: npt.NDArray[np.int64] = values.to_numpy().astype(np.int64)
    if kind.startswith("s"):
        signed = (signed << 1) ^ (signed >> 63)
    return signed.view(np.uint64)


def _repeated(field: Field, values: pa.Array, path: str) -> pa.Array:
    node = field.node
    if isinstance(node, Map):
        if not pa.types.is_map(values.type):
            raise SchemaMismatch(
                f"{in_field(path)}{typed(values.type)} cannot be written as {node.type}"
            )
        offsets = values.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        pairs = [values.keys[first:last], values.items[first:last]]
        entries = pa.StructArray.from_arrays(pairs, names=["key", "value"])
        written = _sized(_message(node.entry, entries, path))
        return _joined(_behind(_tag(field, BYTES), written), offsets)
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise SchemaMismatch(
            f"{in_field(path)}{typed(values.type)} cannot be written as {field.type}"
        )
    offsets = values.offsets.to_numpy()
    items = values.flatten()
    if pa.types.is_dictionary(items.type):
        items = items.dictionary_decode()
    if items.null_count:
        raise SchemaMismatch(f"{in_field(path)}a list holds null, which Protobuf lists cannot hold")
    if not isinstance(node, (Scalar, Enum)):
        return _joined(_inner_messages(field, _content(node, items, path)), offsets)
    payload = _payload(node, _physical(node, items, path))
    if node.wire == BYTES:
        return _joined(_behind(_tag(field, BYTES), payload), offsets)
    packed = _behind(_tag(field, BYTES), _sized(_joined(payload, offsets)))
    return pc.if_else(pa.array(np.diff(offsets) > 0), packed, _EMPTY)


def _joined(items: pa.Array, offsets: npt.NDArray[Any]) -> pa.Array:
    """Concatenate the items of each list."""
    places = pa.array((offsets - offsets[0]).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(places, items), _EMPTY)


def _known(node: LogicalMessage, values: pa.Array, path: str) -> pa.StructArray:
    """The fields of the message that represents each value.

    Raises:
        SchemaMismatch: no message can represent it.
    """
    kind, prefix = values.type, in_field(path)
    if node.kind == "Timestamp" and pa.types.is_timestamp(kind):
        seconds, nanos = _split(values, kind.unit)
        if ((seconds < FIRST_SECOND) | (seconds > LAST_SECOND)).any():
            raise SchemaMismatch(f"{prefix}a timestamp that is not within the years 1 to 9999")
        return _struct(seconds=seconds, nanos=nanos.astype(np.int32))
    if node.kind == "Date" and pa.types.is_date(kind):
        return _dates(values.cast(pa.date32()), prefix)
    if node.kind == "TimeOfDay" and pa.types.is_time(kind):
        seconds, nanos = _split(values, kind.unit)
        return _struct(
            hours=(seconds // 3600).astype(np.int32),
            minutes=(seconds // 60 % 60).astype(np.int32),
            seconds=(seconds % 60).astype(np.int32),
            nanos=nanos.astype(np.int32),
        )
    if node.kind == "Decimal" and (pa.types.is_decimal(kind) or pa.types.is_integer(kind)):
        return _decimals(fitted(values, node.type, path))
    raise SchemaMismatch(f"{prefix}{kind} cannot be written as {node.type}")


def _struct(**columns: object) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array(c) for c in columns.values()], names=list(columns))


def _split(values: pa.Array, unit: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Whole seconds and nanoseconds."""
    if values.type.bit_width == 32:
        values = values.cast(pa.int32())
    numbers = values.cast(pa.int64()).to_numpy()
    per = _PER_SECOND[unit]
    seconds = numbers // per
    return seconds, (numbers - seconds * per) * (_PER_SECOND["ns"] // per)


def _dates(values: pa.Array, prefix: str) -> pa.StructArray:
    days = values.cast(pa.int32()).to_numpy().astype("M8[D]")
    years, months = days.astype("M8[Y]"), days.astype("M8[M]")
    year = years.astype(np.int64) + 1970
    if ((year < 1) | (year > 9999)).any():
        raise SchemaMismatch(f"{prefix}a date that is not within the years 1 to 9999")
    return _struct(
        year=year.astype(np.int32),
        month=((months - years.astype("M8[M]")).astype(np.int64) + 1).astype(np.int32),
        day=((days - months.astype("M8[D]")).astype(np.int64) + 1).astype(np.int32),
    )


def _decimals(values: pa.Array) -> pa.StructArray:
    digits = unscaled(values)
    content = values.buffers()[1]
    halves = np.frombuffer(content, "<i8")[2 * values.offset :][: 2 * len(values)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    small = (high == np.where(low < 0, -1, 0)) & (low > np.iinfo(np.int64).min)
    precision = np.searchsorted(_POWERS, np.abs(np.where(small, low, 0)), side="right")
    precision = np.maximum(precision, 1)
    for row in np.flatnonzero(~small).tolist():
        number = int.from_bytes(digits[row].as_py(), "big", signed=True)
        precision[row] = len(str(abs(number)))
    return _struct(
        value=digits,
        precision=precision.astype(np.uint32),
        scale=np.full(len(values), values.type.scale, np.int32),
    )
