"""Protobuf in columns against the protobuf library: any schema, any values, and damaged bytes."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from semel.converters.protobuf import contents, rows, split_by_indexes
from semel.converters.protobuf.compiler import compiled
from semel.converters.protobuf.link import LinkedFile
from semel.converters.protobuf.schema import Node
from semel.converters.registry import framed, unframed
from tests.converters.protobuf.schemas import File, expected, files, filled, with_maps


def node_of(schema: File | str) -> Node:
    linked = LinkedFile(compiled(schema) if isinstance(schema, str) else schema.linked())
    return linked.root(linked.name_of((0,)))


def decode(node: Node, values: list[bytes]) -> tuple[dict[int, Any], dict[int, str]]:
    """Values by their rows, and why the others have none."""
    messages = framed(1, pa.array([b"\0" + value for value in values], pa.binary()))
    (group,), _ = unframed(messages)
    (only,) = split_by_indexes(group)
    found = contents(node, only)
    found.values.validate(full=True)
    assert found.values.type == node.type
    places = range(len(values)) if found.rows is None else found.rows.to_pylist()
    return dict(zip(places, found.values.to_pylist(), strict=True)), dict(found.refused or {})


def by_library(file: File, value: bytes) -> Any:
    """What the library and Kafka Connect's converter make of bytes; None if they refuse them."""
    try:
        found = file.root().FromString(value)
    except DecodeError:
        return None
    if not found.IsInitialized():
        return None
    try:
        return expected(file.types[-1], found, file.syntax)
    except UnicodeDecodeError:  # which the library lets pass in proto2
        return None


def compare(file: File, node: Node, values: list[bytes]) -> None:
    found, refused = decode(node, values)
    for row, value in enumerate(values):
        wanted = by_library(file, value)
        if wanted is None:
            assert row in refused, value
        elif file.syntax == "proto2" and "not UTF-8" in refused.get(row, ""):
            continue  # another value has taken the text's place
        else:
            assert row not in refused, (value, refused[row])
            shown = with_maps(file.types[-1], found[row])
            assert list(shown) == list(wanted)
            assert repr(shown) == repr(reordered(shown, wanted))


def reordered(like: Any, value: Any) -> Any:
    """A value whose maps are in the order of another one's."""
    if isinstance(value, dict) and isinstance(like, dict) and set(like) == set(value):
        return {k: reordered(v, value[k]) for k, v in like.items()}
    if isinstance(value, list) and isinstance(like, list) and len(like) == len(value):
        return [reordered(a, b) for a, b in zip(like, value, strict=True)]
    return value


@given(st.data())
def test_any_values_of_any_schema(data: st.DataObject) -> None:
    file = data.draw(files())
    root = file.types[-1]
    made = [data.draw(filled(root, file.root()())) for _ in range(data.draw(st.integers(1, 4)))]
    compare(file, node_of(file), [m.SerializeToString() for m in made])


@given(st.data())
def test_damaged_bytes_are_read_alike_or_refused_alike(data: st.DataObject) -> None:
    file = data.draw(files())
    made = data.draw(filled(file.types[-1], file.root()())).SerializeToString()
    other = data.draw(filled(file.types[-1], file.root()())).SerializeToString()
    damaged = bytearray(made)
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "join", "swap"]))
        at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        if kind == "flip" and damaged:
            damaged[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del damaged[at : at + data.draw(st.integers(1, 3))]
        elif kind == "insert":
            damaged[at:at] = data.draw(st.binary(max_size=4))
        elif kind == "join":  # fields that are twice there, in another order
            damaged += other
        else:
            damaged = damaged[at:] + damaged[:at]
    compare(file, node_of(file), [made, bytes(damaged), other])


@given(st.data())
def test_columns_and_rows_agree(data: st.DataObject) -> None:
    file = data.draw(files())
    node = node_of(file)
    made = [data.draw(filled(file.types[-1], file.root()())).SerializeToString() for _ in range(3)]
    alone, good, refused = rows.read(node, made)
    found, none = decode(node, made)
    assert not refused
    assert not none
    assert good == list(found)
    assert repr(alone.to_pylist()) == repr(list(found.values()))


@given(files())
def test_a_schema_reads_alike_as_text_and_serialized(file: File) -> None:
    serialized = base64.b64encode(file.descriptor(maps=True).SerializeToString()).decode()
    one, other = node_of(file.text), node_of(serialized)
    assert one.type == other.type
    assert _described(one) == _described(other)


def _described(node: Any) -> Any:
    return [
        (f.name, f.number, f.repeated, f.explicit, f.required, f.nullable, f.default, f.type)
        for f in node.fields
    ]
