"""JSON with a JSON Schema, both directions."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.converters.jsonschema import JsonSchemaConverter, SchemaError, connect_schema, schema_of
from semel.converters.registry.converter import Registration
from semel.core.errors import ConfigError
from tests.converters.registries import ROW, VALUES, Memory, framed

CONNECT = "org.apache.kafka.connect.data."


def converter(registry: Memory, **more: Any) -> JsonSchemaConverter:
    made = JsonSchemaConverter(registry, "value.converter", **more).for_topic("orders")  # type: ignore[arg-type]
    assert isinstance(made, JsonSchemaConverter)
    return made


def one_of(*kinds: Any) -> dict[str, Any]:
    return {"oneOf": list(kinds)}


def decoded(schema: Any, *values: Any, references: Any = (), **more: Any) -> Any:
    registry = Memory()
    number = registry.add("JSON", json.dumps(schema), tuple(references))
    texts = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    return converter(registry, **more).decode(pa.array([framed(number, t) for t in texts]))


@pytest.mark.parametrize(
    ("schema", "value", "arrow", "wanted"),
    [
        ({"type": "integer"}, 7, pa.int64(), 7),
        ({"type": "integer", "connect.type": "int8"}, -7, pa.int8(), -7),
        ({"type": "number"}, 1.5, pa.float64(), 1.5),
        ({"type": "number", "connect.type": "float32"}, 1.5, pa.float32(), 1.5),
        ({"type": "boolean"}, True, pa.bool_(), True),
        ({"type": "string", "format": "date-time"}, "2024-01-01", pa.string(), "2024-01-01"),
        ({"type": "string", "connect.type": "bytes"}, "AP8=", pa.binary(), b"\0\xff"),
        ({"enum": ["a", "b"]}, "a", pa.string(), "a"),
        ({"type": "string", "enum": ["a"]}, "a", pa.string(), "a"),
        (one_of({"type": "null"}, {"type": "integer"}), None, pa.int64(), None),
        ({"type": ["string", "null"]}, "x", pa.string(), "x"),
        ({"type": "array", "items": {"type": "integer"}}, [1], pa.list_(pa.int64()), [1]),
        (
            {"type": "integer", "title": CONNECT + "Timestamp", "connect.type": "int64"},
            1500,
            pa.timestamp("ms", "UTC"),
            pa.scalar(1500, pa.timestamp("ms", "UTC")).as_py(),
        ),
        (
            {"type": "integer", "title": "io.debezium.time.MicroTimestamp"},
            1,
            pa.timestamp("us"),
            pa.scalar(1, pa.timestamp("us")).as_py(),
        ),
        (
            {"type": "number", "title": CONNECT + "Decimal", "connect.type": "bytes"}
            | {"connect.parameters": {"scale": "2"}},
            -1.5,
            pa.decimal128(38, 2),
            Decimal("-1.50"),
        ),
        (one_of({"type": "string"}, {"type": "integer"}), "x", pa.json_(), '"x"'),
        ({"type": "object"}, {"a": 1}, pa.json_(), '{"a":1}'),
        (True, [1], pa.json_(), "[1]"),
        (
            {"type": "object", "connect.type": "map", "additionalProperties": {"type": "integer"}},
            {"k": 1},
            pa.json_(),
            '{"k":1}',
        ),
        ({"$ref": "#/definitions/n"}, 5, pa.int64(), 5),
        ({"$ref": "other.json#/definitions/t"}, "x", pa.string(), "x"),
        (
            {"allOf": [{"type": "string"}, {"const": "x"}]},
            "x",
            pa.string(),
            "x",
        ),
    ],
)
def test_types_are_those_of_kafka_connect(
    schema: Any, value: Any, arrow: pa.DataType, wanted: Any
) -> None:
    document = {
        "type": "object",
        "properties": {"v": schema},
        "definitions": {"n": {"type": "integer"}},
    }
    other = {"definitions": {"t": {"type": "string"}}}
    found = decoded(document, {"v": value}, references=[("other.json", json.dumps(other))])
    assert not found.failures
    assert found.values.type.field("v").type == arrow
    assert found.values.to_pylist()[0]["v"] == wanted


def test_properties_are_in_the_order_of_their_index() -> None:
    schema = {
        "type": "object",
        "properties": {
            "b": {"type": "string", "connect.index": 1},
            "a": {"type": "string", "connect.index": 0},
        },
    }
    assert [f.name for f in decoded(schema, {"a": "", "b": ""}).values.type] == ["a", "b"]


def test_a_value_need_not_be_an_object() -> None:
    assert decoded({"type": "integer"}, 7, 8).values.to_pylist() == [7, 8]
    event = {"oneOf": [{"$ref": "#/definitions/a"}, {"type": "string"}], "definitions": {"a": True}}
    assert decoded(event, {"x": 1}, "y").values.to_pylist() == ['{"x":1}', '"y"']


def test_a_type_inside_itself_is_json() -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": one_of({"type": "null"}, {"$ref": "#"})},
    }
    found = decoded(node, {"v": 1, "next": {"v": 2, "next": None}})
    assert not found.failures
    assert found.values.to_pylist()[0]["v"] == 1
    assert json.loads(found.values.to_pylist()[0]["next"])["v"] == 2


def test_a_missing_property_is_null_only_if_that_is_wanted() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    schema["required"] = ["a"]
    found = decoded(schema, {"a": "x"}, {"a": "x", "b": "y"})
    assert found.values.to_pylist() == [None, {"a": "x", "b": "y"}]
    assert found.failures[0].message.endswith(
        "field b: required, but missing or null. If it may be missing, set "
        "value.converter.use.optional.for.nonrequired=true"
    )
    assert decoded(schema, {"a": "x"}, optional=True).values.to_pylist() == [{"a": "x", "b": None}]
    assert len(decoded(schema, {"b": "x"}, optional=True).failures) == 1


def test_damaged_values_are_bad_alone() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    values = [b'{"a":1}', b'{"a":', b'{"a":"x"}', b"\xff", b"[]", b'{"a":2}', b"null"]
    found = decoded(schema, *values)
    assert found.values.to_pylist() == [{"a": 1}, None, None, None, None, {"a": 2}, None]
    assert [f.index for f in found.failures] == [1, 2, 3, 4, 6]
    assert all(f.message.startswith("schema 1: ") for f in found.failures)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "not a JSON Schema: JSONDecodeError"),
        ('{"$ref": "#/definitions/x"}', "it refers to #/definitions/x, which does not exist"),
        ('{"$ref": "x.json"}', "it refers to x.json, which is not among its references"),
    ],
)
def test_a_schema_that_cannot_be_used_is_reported(schema: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        connect_schema(schema)


def test_columns_come_back_as_they_were() -> None:
    registry = Memory()
    made = converter(registry)
    found = made.decode(made.encode(pa.array([*VALUES, None], ROW)))
    assert not found.failures
    assert list(registry.subjects) == ["orders-value"]
    first, second, gone = found.values.to_pylist()
    assert gone is None
    nested = {"inner": {"x": 0.5}, "by_name": {"k": 1}, "by_number": [{"key": 7, "value": "v"}]}
    for name in [f.name for f in ROW]:
        if name in nested:
            assert json.loads(first[name]) == nested[name]
        else:
            assert first[name] == VALUES[0][name], name
    assert {k for k, v in second.items() if v is not None} == {"id", "tags"}
    assert found.values.type.field("small").type == pa.int8()
    assert not found.values.type.field("id").nullable


def test_the_schema_is_that_of_kafka_connect() -> None:
    properties = schema_of(ROW)["properties"]
    assert properties["id"] == {"type": "integer", "connect.type": "int64", "connect.index": 0}
    assert properties["day"] == {
        "oneOf": [
            {"type": "null"},
            {
                "type": "integer",
                "connect.type": "int32",
                "title": CONNECT + "Date",
                "connect.version": 1,
            },
        ],
        "connect.index": 3,
    }
    assert properties["by_number"]["oneOf"][1]["connect.type"] == "map"
    assert schema_of(ROW, additional=False)["additionalProperties"] is False


def test_decimals_are_base64_or_numbers() -> None:
    values = pa.array(
        [{"d": Decimal("-1.50")}, {"d": None}], pa.struct([("d", pa.decimal128(9, 2))])
    )
    as_bytes = converter(Memory()).encode(values).to_pylist()
    assert (
        as_bytes[0][5:]
        == b'{"d":"' + base64.b64encode((-150).to_bytes(2, "big", signed=True)) + b'"}'
    )
    assert as_bytes[1][5:] == b'{"d":null}'
    numbers = converter(Memory(), numeric=True)
    assert numbers.encode(values)[0].as_py()[5:] == b'{"d":-1.50}'
    assert numbers.decode(numbers.encode(values)).values.to_pylist() == values.to_pylist()


def test_what_the_latest_version_does_not_describe_is_refused() -> None:
    registry = Memory()
    latest = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "x": {"type": "string"}},
        "required": ["x"],
    }
    registry.id_of("orders-value", "JSON", json.dumps(latest), register=True)
    registration = Registration(is_key=False, registers=False, latest=True)
    made = converter(registry, registration=registration)
    with pytest.raises(
        ConfigError, match="field x: it is missing, and the latest version requires"
    ):
        made.encode(pa.array([{"id": 1}]))
    with pytest.raises(ConfigError, match="field id: string cannot be read as int64"):
        made.encode(pa.array([{"id": "a", "x": "b"}]))
    fields = [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("x", pa.string(), nullable=False),
    ]
    kind = pa.struct([*fields, ("more", pa.int64())])
    good = made.encode(pa.array([{"id": 1, "x": "b", "more": 2}], kind))
    assert good[0].as_py() == framed(1, b'{"id":1,"x":"b","more":2}')
    tried = Registration(is_key=False, registers=False, latest=True, strict=False)
    loose = converter(registry, registration=tried)
    assert loose.encode(pa.array([{"id": 1, "x": "b", "more": 2}])) == good
    with pytest.raises(ConfigError, match="field x: null, but its schema requires a value"):
        loose.encode(pa.array([{"id": 1, "x": None}]))


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=8)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.date32(), st.dates()),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> Any:
    """A type, and values of it as Python has them."""
    shape = draw(st.sampled_from(["leaf", "leaf", "struct", "list", "map"] if depth else ["leaf"]))
    if shape == "leaf":
        return draw(st.sampled_from(LEAVES))
    if shape == "struct":
        parts = draw(st.lists(kinds(depth - 1), min_size=1, max_size=3))
        kind = pa.struct([(f"f{n}", k) for n, (k, _) in enumerate(parts)])
        return kind, st.fixed_dictionaries(
            {f"f{n}": st.none() | v for n, (_, v) in enumerate(parts)}
        )
    inner, values = draw(kinds(depth - 1))
    if shape == "list":
        return pa.list_(inner), st.lists(st.none() | values, max_size=3)
    keys = st.dictionaries(st.text(max_size=3), st.none() | values, max_size=3)
    entries: st.SearchStrategy[Any] = keys.map(lambda d: list(d.items()))
    return pa.map_(pa.string(), inner), entries


def in_json(kind: pa.DataType, value: Any) -> Any:
    """What a JSON reader finds."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: in_json(f.type, value[f.name]) for f in kind}
    if pa.types.is_list(kind):
        return [in_json(kind.value_type, v) for v in value]
    if pa.types.is_map(kind):
        return {k: in_json(kind.item_type, v) for k, v in value}
    return pa.scalar(value, kind).cast(pa.int32()).as_py() if pa.types.is_date(kind) else value


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_columns_are_written_as_row_by_row_and_read_again(data: st.DataObject) -> None:
    kind, values = data.draw(kinds())
    rows = data.draw(st.lists(st.fixed_dictionaries({"v": st.none() | values}), min_size=1))
    array = pa.array(rows, pa.struct([("v", kind)]))
    made = converter(Memory())
    written = made.encode(array)
    found = [json.loads(text[5:]) for text in written.to_pylist()]
    assert found == [{"v": in_json(kind, row["v"])} for row in rows]
    again = made.decode(written)
    assert not again.failures
    if again.values.type.field("v").type == pa.json_():
        texts = [row["v"] for row in again.values.to_pylist()]
        assert [t and json.loads(t) for t in texts] == [in_json(kind, r["v"]) for r in rows]
    else:
        assert again.values.to_pylist() == rows


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"allOf": [{"$ref": "#/definitions/a"}], "definitions": {}}, "does not exist"),
        ({"allOf": [{"$ref": "#/d"}], "d": {"$ref": "#/d"}}, "more than 10000 parts"),
        (
            {
                "$ref": "#/d/39",
                "d": {
                    str(n): {
                        "type": "object",
                        "properties": {p: {"$ref": f"#/d/{n - 1}"} if n else {} for p in "ab"},
                    }
                    for n in range(40)
                },
            },
            "more than 10000 parts",
        ),
    ],
)
def test_a_schema_without_end_is_refused(schema: Any, why: str) -> None:
    (failure,) = decoded(schema, {"a": 1}).failures
    assert why in failure.message
