"""Arrow to Protobuf: what is written is read back, by semel and by the protobuf library."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.converters import create
from semel.converters.protobuf import ProtobufConverter
from semel.converters.protobuf.link import ReadOptions
from semel.converters.protobuf.write import WriteOptions, schema_of, scrubbed, write
from semel.converters.registry.converter import Registration
from semel.core.errors import ConfigError
from tests.converters.protobuf.schemas import expected, files, filled
from tests.converters.protobuf.test_columns import decode, node_of, reordered
from tests.converters.registries import ROW, VALUES, Memory


def converter(registry: Memory, **more: Any) -> Any:
    registration = {k: more.pop(k) for k in ("registers", "latest", "strict") if k in more}
    scrub = more.pop("scrub", False)
    made = ProtobufConverter(
        registry,  # type: ignore[arg-type]
        "value.converter",
        read_options=ReadOptions(**more),
        registration=Registration(is_key=False, **registration),
        scrub=scrub,
    )
    return made.for_topic("orders")


def round_trip(values: pa.Array, **more: Any) -> pa.Array:
    made = converter(Memory(), **more)
    decoded = made.decode(made.encode(values))
    assert not decoded.failures
    return decoded.values


@given(st.data())
def test_what_was_read_is_written_as_the_library_writes_it(data: st.DataObject) -> None:
    file = data.draw(files())
    root = file.root()
    made = [data.draw(filled(file.types[-1], root())) for _ in range(3)]
    node = node_of(file)
    values, _ = decode(node, [m.SerializeToString() for m in made])
    again = write(node, pa.array(list(values.values()), node.type))
    for before, after in zip(made, again.to_pylist(), strict=True):
        wanted = expected(file.types[-1], before, file.syntax)
        found = expected(file.types[-1], root.FromString(after), file.syntax)
        assert repr(found) == repr(reordered(found, wanted))


def test_all_types_are_read_back() -> None:
    values = pa.array([{**VALUES[0], "tags": ["a", ""]}, VALUES[1], None], ROW)
    found = round_trip(values, optional_for_nullables=True)
    assert found.to_pylist()[0] == {
        **{k: values[0].as_py()[k] for k in ("id", "small", "price", "day", "tags", "inner")},
        "at": datetime.datetime(2024, 1, 2, 3, 4, 5, 678_000, datetime.UTC),
        "time": datetime.time(1, 2, 3, 4000),
        "by_name": [("k", 1)],
        "by_number": [(7, "v")],
        "data": b"\0\xff",
    }
    empty = {"tags": [], "by_name": [], "by_number": []}
    assert found.to_pylist()[1] == {f.name: None for f in ROW} | {"id": 2} | empty
    assert found.to_pylist()[2] is None
    for name in ("id", "small", "price", "day", "data"):
        assert found.type.field(name).type == ROW.field(name).type


def test_null_is_zero_unless_a_key_says_otherwise() -> None:
    values = pa.array(
        [{"a": None, "b": None}, {"a": 0, "b": ""}], pa.struct({"a": "int32", "b": "string"})
    )
    zero = {"a": 0, "b": ""}
    assert round_trip(values).to_pylist() == [zero, zero]
    kept = [{"a": None, "b": None}, zero]
    assert round_trip(values, optional_for_nullables=True).to_pylist() == kept
    assert round_trip(values, wrapper_for_nullables=True).to_pylist() == kept


def test_the_schema_is_kafka_connects() -> None:
    inner = pa.struct([("x", pa.float64())])
    kind = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("small", pa.int16()),
            ("price", pa.decimal128(9, 2)),
            ("inner", inner),
            ("items", pa.list_(inner)),
            ("by_name", pa.map_(pa.string(), pa.int32())),
            ("by_half", pa.map_(pa.float64(), pa.string())),
        ]
    )
    text, name = schema_of(kind, WriteOptions(optional=False))
    assert name == "ConnectDefault1"
    assert (
        text
        == """\
syntax = "proto3";

import "confluent/meta.proto";
import "confluent/type/decimal.proto";

message ConnectDefault1 {
  int64 id = 1;
  int32 small = 2 [(confluent.field_meta) = { params: [{ key: "connect.type", value: "int16" }] }];
  confluent.type.Decimal price = 3 [(confluent.field_meta) = { params: \
[{ key: "precision", value: "9" }, { key: "scale", value: "2" }] }];
  ConnectDefault2 inner = 4;
  repeated ConnectDefault3 items = 5;
  map<string, int32> by_name = 6;
  repeated ConnectDefault4Entry by_half = 7;
  message ConnectDefault2 {
    double x = 1;
  }
  message ConnectDefault3 {
    double x = 1;
  }
  message ConnectDefault4Entry {
    double key = 1;
    string value = 2;
  }
}
"""
    )
    optional, _ = schema_of(
        pa.struct([("a", pa.int8()), ("b", inner)]), WriteOptions(optional=True)
    )
    assert "  optional int32 a = 1 [" in optional
    assert "  optional ConnectDefault2 b = 2;" in optional
    wrapped, _ = schema_of(pa.struct([("a", pa.string())]), WriteOptions(wrappers=True))
    assert "  google.protobuf.StringValue a = 1;" in wrapped


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [1, None, 0, -5]),
        (pa.int64(), [2**40]),
        (pa.string(), ["a", "", None]),
        (pa.binary(), [b"\0"]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [0.5, -0.0]),
        (pa.float32(), [0.5]),
    ],
)
def test_a_value_alone_is_a_wrapper(kind: pa.DataType, values: list[Any]) -> None:
    found = round_trip(pa.array(values, kind))
    assert found.type == kind
    assert repr(found.to_pylist()) == repr(values)


@pytest.mark.parametrize(
    ("price", "digits"),
    [("0.00", 1), ("-1.50", 3), ("9.99", 3), ("10.00", 4), ("9999999999999999999999.99", 24)],
)
def test_a_decimal_says_how_many_digits_it_has(price: str, digits: int) -> None:
    kind = pa.struct([("p", pa.decimal128(30, 2))])
    text, _ = schema_of(kind, WriteOptions())
    (written,) = write(node_of(text), pa.array([{"p": Decimal(price)}], kind)).to_pylist()
    assert bytes([16, digits, 24, 2]) in written
    found = round_trip(pa.array([{"p": Decimal(price)}], kind))
    assert found.to_pylist() == [{"p": Decimal(price)}]


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        (pa.list_(pa.int32()), [[1, None]], "field v: a list holds null"),
        (pa.list_(pa.list_(pa.int32())), [[[1]]], "field v: Protobuf has no lists of lists"),
        (pa.map_(pa.string(), pa.list_(pa.int32())), [[]], "field v: Protobuf has no maps of"),
        (pa.uint64(), [1], "field v: Protobuf cannot represent uint64"),
    ],
)
def test_what_has_no_place_is_refused(kind: pa.DataType, values: list[Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"value.converter: {reason}"):
        converter(Memory()).encode(pa.array([{"v": v} for v in values], pa.struct([("v", kind)])))


def test_names_are_scrubbed_as_kafka_connect_does() -> None:
    values = pa.array([{"first name": 1, "ä": 2, "1": 3, "_x": 4, "a.b": 5}])
    with pytest.raises(ConfigError, match=r"field 'first name'.*scrub\.invalid\.names=true"):
        converter(Memory()).encode(values)
    found = round_trip(values, scrub=True)
    assert found.to_pylist() == [{"first_name": 1, "_C3_A4": 2, "x1": 3, "x_x": 4, "a_b": 5}]
    assert scrubbed("fine_1") == "fine_1"
    with pytest.raises(ConfigError, match=r"field '': Protobuf allows .* only\. Let a transform"):
        converter(Memory(), scrub=True).encode(pa.array([{"": 1}]))


LATEST = """
syntax = "proto3";
message Orders {
  message Inner { int32 not_this = 1; }
  sint64 id = 5;
  Kind kind = 2;
  oneof choice { string text = 3; int32 number = 4; }
  fixed32 size = 6;
}
enum Kind { NONE = 0; SOME = 7; }
"""


def test_the_latest_version_is_written_with() -> None:
    registry = Memory()
    registry.id_of("orders-value", "PROTOBUF", LATEST, register=True)
    made = converter(registry, registers=False, latest=True)
    choice = pa.struct([("text", pa.string()), ("number", pa.int32())])
    kind = pa.struct(
        [("id", pa.int32()), ("kind", pa.string()), ("choice_0", choice), ("other", pa.int32())]
    )
    values = [
        {"id": -1, "kind": "SOME", "choice_0": {"text": "", "number": None}, "other": 5},
        {"id": 2, "kind": "NONE", "choice_0": None},
        {"id": 3, "kind": None, "choice_0": {"text": None, "number": 0}},
    ]
    with pytest.raises(ConfigError, match=r"field .*kind|choice|latest"):
        converter(registry, registers=False, latest=True).encode(
            pa.array([{"kind": 1.5}], pa.struct([("kind", pa.float64())]))
        )
    written = made.encode(pa.array(values, kind))
    assert written[0].as_py() == b"\0\0\0\0\1\0" + b"\x10\x07" + b"\x1a\x00" + b"\x28\x01"
    assert made.decode(written).values.to_pylist() == [
        {"choice_0": {"text": "", "number": None}, "id": -1, "kind": "SOME", "size": 0},
        {"choice_0": None, "id": 2, "kind": "NONE", "size": 0},
        {"choice_0": {"text": None, "number": 0}, "id": 3, "kind": "NONE", "size": 0},
    ]
    with pytest.raises(ConfigError, match="field kind: OTHER is not one of NONE, SOME"):
        made.encode(pa.array([{"kind": "OTHER"}]))
    with pytest.raises(ConfigError, match="field size: int64 does not fit uint32"):
        loose = converter(registry, registers=False, latest=True, strict=False)
        loose.encode(pa.array([{"size": -1}]))


def test_the_converter_of_the_name_writes_what_the_strategy_says() -> None:
    config = {
        "schema.registry.url": "http://registry",
        "value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
    }
    name = "io.confluent.connect.protobuf.ProtobufConverter"
    made: Any = create(name, config, is_key=False, where="value.converter")
    made._registry = Memory()
    made.encode(pa.array([{"x": 1}]))
    assert list(made._registry.subjects) == ["ConnectDefault1"]


def test_apicurios_converter_writes_the_name_of_the_message() -> None:
    config = {"apicurio.registry.url": "http://registry", "apicurio.registry.as-confluent": "true"}
    name = "io.apicurio.registry.utils.converter.ProtobufConverter"
    made: Any = create(name, config, is_key=False, where="value.converter")
    made._registry = Memory()
    written = made.encode(pa.array([{"x": 1}]))
    assert written[0].as_py() == b"\0\0\0\0\1\x11\n\x0fConnectDefault1\x08\x01"
    assert made.decode(written).values.to_pylist() == [{"x": 1}]
