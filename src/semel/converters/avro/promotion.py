"""Whether values written with one schema can be read with another one."""

from __future__ import annotations

from collections.abc import Iterator

from semel.converters.avro.schema import Array, Map, Node, Primitive, Record, Union
from semel.core.quoting import named

_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def incompatible(reader: Node, writer: Node, path: str = "") -> Iterator[str]:
    """The reasons why a reader's schema cannot read what was written, part by part."""
    told = f"field {named(path)}: " if path else ""
    if isinstance(reader, Union) or isinstance(writer, Union):
        if _nullable(writer) and not _nullable(reader):
            yield f"{told}it may be null, but not in the latest version"
        for one in _types(writer):
            if all(list(incompatible(other, one, path)) for other in _types(reader)):
                yield f"{told}{one.type} is not one of its types"
        return
    match reader, writer:
        case Record(), Record():
            yield from _fields(reader, writer, path)
        case (Array(inner), Array(written)) | (Map(inner), Map(written)):
            yield from incompatible(inner, written, f"{path}[]")
        case _ if not _reads(reader, writer):
            yield f"{told}{writer.type} cannot be read as {reader.type}"


def _reads(reader: Node, writer: Node) -> bool:
    if isinstance(reader, Primitive) and isinstance(writer, Primitive):
        return reader.kind == writer.kind or reader.kind in _WIDER.get(writer.kind, ())
    return type(reader) is type(writer)


def _nullable(node: Node) -> bool:
    return isinstance(node, Union) and node.null is not None


def _types(node: Node) -> list[Node]:
    return [node.branches[n] for n in node.values] if isinstance(node, Union) else [node]


def _fields(reader: Record, writer: Record, path: str) -> Iterator[str]:
    written = {f.name: f.node for f in writer.fields}
    for field in reader.fields:
        inner = f"{path}.{field.name}".strip(".")
        if field.name in written:
            yield from incompatible(field.node, written[field.name], inner)
        elif field.given is None and not isinstance(field.node, Union):
            yield (
                f"field {named(inner)}: it is missing, and the latest version has no default for it"
            )
