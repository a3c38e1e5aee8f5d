"""Avro in columns against fastavro: any schema, any values, and damaged bytes."""

from __future__ import annotations

import decimal
import io
import json
import re
from collections.abc import Mapping
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.converters.avro import contents, rows
from semel.converters.avro.parse import SchemaError, parse
from semel.converters.avro.schema import Node, Union
from semel.converters.registry import framed, unframed

LONGS = st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: Mapping[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1) | st.integers(-70, 70),
    "long": LONGS | st.integers(-70, 70),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=70),
    "string": st.text(max_size=70),
}


class Names:
    """A new name for each type of a schema."""

    def __init__(self) -> None:
        self.count = 0

    def new(self) -> str:
        self.count += 1
        return f"t{self.count}"


@st.composite
def schemas(draw: st.DrawFn, names: Names, depth: int = 3) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and values of it."""
    kinds = [*PRIMITIVES, "fixed", "enum"]
    if depth:
        kinds += ["array", "map", "record", "record", "union", "nullable", "nullable"]
    kind = draw(st.sampled_from(kinds))
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    if kind == "fixed":
        size = draw(st.integers(1, 20))
        return {"type": kind, "name": names.new(), "size": size}, st.binary(
            min_size=size, max_size=size
        )
    if kind == "enum":
        symbols = [f"s{n}" for n in range(draw(st.integers(1, 70)))]
        named = {"type": kind, "name": names.new(), "symbols": symbols}
        return named, st.sampled_from(symbols)
    if kind == "array":
        items, values = draw(schemas(names, depth - 1))
        return {"type": kind, "items": items}, st.lists(values, max_size=5)
    if kind == "map":
        inner, values = draw(schemas(names, depth - 1))
        texts = st.text(max_size=5)
        return {"type": kind, "values": inner}, st.dictionaries(texts, values, max_size=4)
    if kind == "record":
        fields, columns = [], {}
        for number in range(draw(st.integers(0, 5))):
            schema, values = draw(schemas(names, depth - 1))
            fields.append({"name": f"f{number}", "type": schema})
            columns[f"f{number}"] = values
        named = {"type": kind, "name": names.new(), "fields": fields}
        return named, st.fixed_dictionaries(columns)
    if kind == "nullable":
        schema, values = draw(schemas(names, depth - 1).filter(_no_union))
        branches = draw(st.permutations(["null", schema]))
        return branches, st.none() | values
    kinds = draw(
        st.lists(st.sampled_from(["int", "string", "boolean", "bytes"]), unique=True, min_size=2)
    )
    return kinds, st.one_of([PRIMITIVES[k] for k in kinds])


def _no_union(made: tuple[Any, Any]) -> bool:
    return made[0] != "null" and not isinstance(made[0], list)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def by_fastavro(schema: Any, data: bytes) -> Any:
    source = io.BytesIO(data)
    found = fastavro.schemaless_reader(source, schema, None)
    if source.read(1):
        raise ValueError("bytes are left")
    return found


def in_arrow(node: Node, value: Any) -> Any:
    """What fastavro returns, as Arrow's ``to_pylist`` shows it."""
    if isinstance(node, Union):
        if value is None:
            return None
        branches = [node.branches[n] for n in node.values]
        if len(branches) == 1:
            return in_arrow(branches[0], value)
        kinds = {bool: "boolean", int: "int", str: "string", bytes: "bytes"}
        chosen = {node.names[n]: None for n in node.values}
        return chosen | {kinds[type(value)]: value}
    if isinstance(value, dict) and pa.types.is_struct(node.type):
        return {f.name: in_arrow(f.node, value[f.name]) for f in node.fields}  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return sorted((k, in_arrow(node.value, v)) for k, v in value.items())  # type: ignore[attr-defined]
    if isinstance(value, list):
        return [in_arrow(node.item, v) for v in value]  # type: ignore[attr-defined]
    return value


def sorted_maps(node: Node, value: Any) -> Any:
    """Maps have no order."""
    if value is None:
        return None
    if isinstance(node, Union):
        branches = [node.branches[n] for n in node.values]
        return sorted_maps(branches[0], value) if len(branches) == 1 else value
    if pa.types.is_struct(node.type):
        return {f.name: sorted_maps(f.node, value[f.name]) for f in node.fields}  # type: ignore[attr-defined]
    if pa.types.is_map(node.type):
        return sorted((k, sorted_maps(node.value, v)) for k, v in value)  # type: ignore[attr-defined]
    if pa.types.is_list(node.type):
        return [sorted_maps(node.item, v) for v in value]  # type: ignore[attr-defined]
    return value


def read(node: Node, messages: list[bytes]) -> tuple[list[Any], set[int]]:
    """The values, and the rows that were refused."""
    values = framed(7, pa.array(messages, pa.binary()))
    (group,), others = unframed(values)
    assert not len(others)
    found = contents(node, group)
    found.values.validate(full=True)
    assert found.values.type == node.type
    at = range(len(messages)) if found.rows is None else found.rows.to_pylist()
    values_at = dict(zip(at, found.values.to_pylist(), strict=True))
    refused = set(found.refused or {})
    assert refused | set(values_at) == set(range(len(messages)))
    assert not refused & set(values_at)
    return [values_at.get(n) for n in range(len(messages))], refused


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_columns_are_what_fastavro_reads(data: st.DataObject) -> None:
    schema, values = data.draw(schemas(Names()))
    parsed = fastavro.parse_schema(schema)
    given_values = data.draw(st.lists(values, min_size=1, max_size=20))
    messages = [written(parsed, v) for v in given_values]
    node = parse(json.dumps(schema))
    found, refused = read(node, messages)
    assert not refused
    wanted = [in_arrow(node, by_fastavro(parsed, m)) for m in messages]
    assert [sorted_maps(node, v) for v in found] == wanted


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_refused_alone_or_reads_as_it_does_row_by_row(data: st.DataObject) -> None:
    schema, values = data.draw(schemas(Names()))
    parsed = fastavro.parse_schema(schema)
    messages = [written(parsed, v) for v in data.draw(st.lists(values, min_size=1, max_size=8))]
    row = data.draw(st.integers(0, len(messages) - 1))
    messages[row] = data.draw(_damaged(messages[row]))
    node = parse(json.dumps(schema))
    found, refused = read(node, messages)
    assert refused <= {row}
    one, good, why = rows.read(node, [messages[row]])
    assert (row in refused) == bool(why)
    if good:
        assert repr(found[row]) == repr(one.to_pylist()[0])
    if row in refused:
        return  # fastavro takes any number of items for granted, and all memory for them
    try:
        wanted = by_fastavro(parsed, messages[row])
    except Exception:
        return  # it has its own reasons to refuse: see the cases below
    if _is_comparable(wanted):
        assert sorted_maps(node, found[row]) == in_arrow(node, wanted)


def _is_comparable(value: Any) -> bool:
    text = repr(value)
    return "nan" not in text


@st.composite
def _damaged(draw: st.DrawFn, message: bytes) -> bytes:
    how = draw(st.sampled_from(["cut", "flip", "more", "any"]))
    if how == "cut":
        return message[: draw(st.integers(0, max(len(message) - 1, 0)))]
    if how == "more":
        return message + draw(st.binary(min_size=1, max_size=9))
    if how == "any" or not message:
        return draw(st.binary(max_size=40))
    place = draw(st.integers(0, len(message) - 1))
    return message[:place] + bytes([draw(st.integers(0, 255))]) + message[place + 1 :]


@given(
    values=st.lists(st.lists(LONGS, max_size=9) | st.lists(st.just(1), max_size=700), max_size=6)
)
def test_long_lists_and_their_blocks(values: list[list[int]]) -> None:
    """Also in the form that names a block's size, and in several blocks."""

    def zigzag(number: int) -> bytes:
        number = (number << 1) ^ (number >> 63)
        number &= 2**64 - 1
        out = bytearray()
        while number >= 0x80:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    def blocks(numbers: list[int]) -> bytes:
        middle = len(numbers) // 2
        out = b""
        for part in (numbers[:middle], numbers[middle:]):
            if part:
                content = b"".join(map(zigzag, part))
                out += zigzag(-len(part)) + zigzag(len(content)) + content
        return out + b"\0"

    node = parse('{"type": "array", "items": "long"}')
    found, refused = read(node, [b"\0", *(blocks(v) for v in values)])
    assert (found[1:], refused) == (values, set())
    texts = parse('{"type": "array", "items": "string"}')
    message = zigzag(600) + b"\2a" * 600 + b"\0"
    found, refused = read(texts, [b"\0", message, b"\0"])
    assert (found, refused) == ([[], ["a"] * 600, []], set())


@pytest.mark.parametrize(
    ("schema", "message", "why"),
    [
        ('"boolean"', b"\2", "a boolean of 2"),
        ('"int"', b"\x80\x80\x80\x80\x20", "4294967296 is not within"),
        ('"long"', b"\x80" * 10 + b"\1", "a number of more than ten bytes"),
        ('"long"', b"\x80" * 9 + b"\2", "a number of more than 64 bits"),
        ('"string"', b"\4\xff\xfe", "not UTF-8: byte 0xff at position 0"),
        ('"string"', b"\x01", "a length of -1 bytes"),
        ('"double"', b"\0\0\0", "the record ends 5 bytes too early"),
        ('["null", "int"]', b"\4\0", "there is no branch 2"),
        ('{"type": "enum", "name": "e", "symbols": ["a"]}', b"\2", "there is no symbol 1"),
        (
            '{"type": "array", "items": "int"}',
            b"\xf0\xff\xff\xff\x0f",
            "a block of .* items, but only 0",
        ),
        (
            '{"type": "array", "items": "null"}',
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0",
            "a block of 4611686018427387903 items that take no bytes",
        ),
        (
            '{"type": "array", "items": {"type": "record", "name": "r", "fields": []}}',
            b"\x82\1\0",
            "a block of 65 items that take no bytes",
        ),
        ('"int"', b"\2\0\0", "2 bytes are left after the value"),
        (
            '{"type": "bytes", "logicalType": "decimal", "precision": 2}',
            b"\4\1\0",
            "more than 2 digits",
        ),
        (
            '{"type": "bytes", "logicalType": "decimal", "precision": 2}',
            b"\0",
            "a decimal of no bytes",
        ),
        ('{"type": "int", "logicalType": "time-millis"}', b"\1", "-1 is not within 0 and 86399999"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "record",'
            ' "name": "s", "fields": [{"name": "b", "type": {"type": "array", "items": "int"}}]}'
            "}]}",
            b"\4\2\xff",
            r"field a\.b\[\]: the record ends 1 bytes too early",
        ),
    ],
)
def test_a_damaged_record_is_reported_with_its_field(schema: str, message: bytes, why: str) -> None:
    node = parse(schema)
    _, refused = read(node, [message])
    assert refused == {0}
    _, _, reasons = rows.read(node, [message])
    assert re.search(why, reasons[0]), reasons[0]


@settings(deadline=None)
@given(
    numbers=st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-300, 300), min_size=1),
    size=st.sampled_from([None, 16, 17]),
)
def test_decimals_of_any_length(numbers: list[int], size: int | None) -> None:
    def message(number: int) -> bytes:
        least = size or (number if number >= 0 else ~number).bit_length() // 8 + 1
        data = number.to_bytes(least, "big", signed=True)
        return data if size else bytes([2 * len(data)]) + data

    described = {"logicalType": "decimal", "precision": 38, "scale": 3}
    kind = {"type": "fixed", "name": "f", "size": size} if size else {"type": "bytes"}
    found, refused = read(parse(json.dumps(kind | described)), [message(n) for n in numbers])
    assert not refused
    assert [int(v.scaleb(3, context=decimal.Context(prec=60))) for v in found] == numbers


def test_an_invalid_avro_schema_is_refused() -> None:
    for text, why in (
        ('{"type": "record"}', "name"),
        ('{"type": "x.Other"}', r"it refers to x.Other, which is not defined"),
        ("{", "not an Avro schema"),
        ('["int", "int"]', "two branches of one type"),
        ('{"type": "enum", "name": ["e"], "symbols": ["a"]}', "not an Avro schema"),
    ):
        with pytest.raises(SchemaError, match=why):
            parse(text)


def test_values_of_a_recursive_type_are_json_below_the_first_level() -> None:
    schema = {
        "type": "record",
        "name": "node",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "node"]}],
    }
    parsed = fastavro.parse_schema(schema)
    value = {"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}}
    found, refused = read(parse(json.dumps(schema)), [written(parsed, value)])
    assert not refused
    assert found[0]["v"] == 1
    assert json.loads(found[0]["next"]) == value["next"]
    schema["fields"][1] = {"name": "next", "type": {"type": "array", "items": "node"}}
    value = {"v": 1, "next": [{"v": n, "next": []} for n in range(1000)]}
    found, refused = read(parse(json.dumps(schema)), [written(schema, value)])
    assert not refused
    assert [json.loads(text) for text in found[0]["next"]] == value["next"]


def test_slices_and_nulls_of_a_batch() -> None:
    node = parse('"long"')
    values = pa.array([b"x", b"\0\0\0\0\1\2", None, b"\0\0\0\0\2\4", b"\0\0", b"\0\0\0\0\1\6"])
    groups, others = unframed(values.slice(1))
    assert [(g.schema_id, g.rows.tolist()) for g in groups] == [(1, [0, 4]), (2, [2])]
    assert others.tolist() == [3]
    assert contents(node, groups[0]).values.to_pylist() == [1, 3]
    assert np.array_equal(unframed(values.slice(0, 1))[1], [0])


def test_a_schema_with_more_parts_than_fit_into_memory_is_refused() -> None:
    """Each record has two fields of the one before."""
    record: Any = {"type": "record", "name": "r0", "fields": [{"name": "a", "type": "int"}]}
    for n in range(1, 40):
        twice = [{"name": "a", "type": record}, {"name": "b", "type": f"r{n - 1}"}]
        record = {"type": "record", "name": f"r{n}", "fields": twice}
    with pytest.raises(SchemaError, match="more than 10000 fields"):
        parse(json.dumps(record))
    deep = '"int"'
    for _ in range(150):
        deep = f'{{"type": "array", "items": {deep}}}'
    with pytest.raises(SchemaError, match="more than 100 levels deep"):
        parse(deep)
