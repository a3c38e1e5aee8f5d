"""Whether values that one schema describes can be written with another one."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from semel.converters.protobuf.link import Linked
from semel.converters.protobuf.schema import Enum, Field, Known, Map, Message, Node, Scalar, Wrapped
from semel.core.quoting import named

_WIDER = {
    "int32": ("int64", "sint32", "sint64", "sfixed32", "sfixed64", "float", "double"),
    "int64": ("sint64", "sfixed64", "double"),
    "float": ("double",),
}


def incompatible(reader: Linked, writer: Linked) -> Iterator[str]:
    """The reasons why the first message of a schema cannot hold that of another schema, field by
    field."""
    names = [linked.name_of((0,)) for linked in (reader, writer)]
    yield from _messages(reader.root(names[0]), writer.root(names[1]), "")


def _messages(reader: Node, writer: Node, path: str) -> Iterator[str]:
    told = f"field {named(path)}: " if path else ""
    match reader, writer:
        case Message(), Message():
            yield from _fields(reader, writer, path)
        case (Map(), Map()):
            yield from _fields(reader.entry, writer.entry, path)
        case (Wrapped(), Wrapped()):
            yield from _messages(reader.value.node, writer.value.node, path)
        case _ if not _takes(reader, writer):
            yield f"{told}{_name(writer)} cannot be read as {_name(reader)}"


def _takes(reader: Node, writer: Node) -> bool:
    match reader, writer:
        case Scalar(), Scalar():
            return reader.kind == writer.kind or reader.kind in _WIDER.get(writer.kind, ())
        case Enum(), Scalar():
            return writer.kind in ("string", "int32")
        case Known(), Known():
            return reader.kind == writer.kind
    return False


def _name(node: Node) -> str:
    kind: pa.DataType = node.type
    return node.kind if isinstance(node, Scalar) else str(kind)


def _fields(reader: Message, writer: Message, path: str) -> Iterator[str]:
    written = {f.name: f for f in writer.fields}
    for field in reader.fields:
        inner = f"{path}.{field.name}".strip(".")
        if field.name in written:
            yield from _field(field, written[field.name], inner)
        elif field.required:
            yield f"field {named(inner)}: it is missing, and the latest version requires it"


def _field(reader: Field, writer: Field, path: str) -> Iterator[str]:
    if reader.repeated != writer.repeated:
        yield f"field {named(path)}: only one of them is a list"
    else:
        yield from _messages(reader.node, writer.node, path)
