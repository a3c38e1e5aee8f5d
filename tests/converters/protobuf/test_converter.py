"""The Protobuf converter and its registry, which here is a dictionary."""

from __future__ import annotations

import base64
import datetime
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from semel.converters import create
from semel.converters.protobuf import ApicurioProtobufConverter, ProtobufConverter, compiler, rows
from semel.converters.protobuf.link import ReadOptions
from semel.converters.registry.client import Schema
from semel.core.errors import ConfigError, Unavailable
from semel.core.quoting import named
from tests.converters.registries import Memory

UTC = datetime.UTC
CONFLUENT = "io.confluent.connect.protobuf.ProtobufConverter"
APICURIO = "io.apicurio.registry.utils.converter.ProtobufConverter"
HEAD = 'syntax = "proto3";\n'
T = descriptor_pb2.FieldDescriptorProto


def converter(schemas: dict[int, str], *references: tuple[str, str], **reading: Any) -> Any:
    return ProtobufConverter(
        known(schemas, references),
        "value.converter",
        read_options=ReadOptions(**reading),
    )


def known(schemas: dict[int, str], references: tuple[tuple[str, str], ...] = ()) -> Any:
    memory = Memory()
    for number, text in schemas.items():
        found = Schema("PROTOBUF", text, references, number)
        memory.subjects[f"s{number}"] = [found]
    return memory


def varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value % 2**64)


def inside(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def message(content: bytes, schema: int = 1, indexes: bytes = b"\0") -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + indexes + content


def read(made: Any, *values: bytes | None) -> list[Any]:
    decoded = made.decode(pa.array(values, pa.binary()))
    assert not decoded.failures, decoded.failures
    return decoded.values.to_pylist()


def test_each_value_is_read_by_its_own_schema_and_they_are_united() -> None:
    old = HEAD + "message Row { int32 id = 1; string name = 2; }"
    new = HEAD + "message Row { int64 id = 1; string name = 2; optional double price = 3; }"
    made = converter({1: old, 2: new})
    values = [
        message(number(1, 1) + inside(2, "a")),
        message(number(1, 2**40) + inside(2, "b"), 2),
        None,
        message(number(1, 3) + inside(2, "c")),
    ]
    decoded = made.decode(pa.array(values, pa.binary()))
    assert not decoded.failures
    assert decoded.values.to_pylist() == [
        {"id": 1, "name": "a", "price": None},
        {"id": 2**40, "name": "b", "price": None},
        None,
        {"id": 3, "name": "c", "price": None},
    ]
    assert decoded.values.type.field("id").type == pa.int64()


def test_bad_values_are_bad_alone() -> None:
    made = converter({1: HEAD + "message Row { int32 id = 1; string name = 2; }"})
    good = message(number(1, 5) + inside(2, "x"))
    values = [good, good[:-1], message(inside(2, b"\xff")), message(b"", 9), b"{}", good]
    values += [message(b"", indexes=b"\x02\x08"), message(b"", indexes=b"\xff" * 11), b"\0\0\0\0\1"]
    decoded = made.decode(pa.array(values))
    assert [bool(v) for v in decoded.values.to_pylist()] == [n in (0, 5) for n in range(9)]
    reasons = {f.index: f.message for f in decoded.failures}
    assert reasons[1] == "schema 1: field name: the record ends 1 bytes too early"
    assert reasons[2] == "schema 1: field name: not UTF-8: byte 0xff at position 0"
    assert reasons[3].startswith("schema id 9 is unknown to http://registry")
    assert "begins with byte 0x7b" in reasons[4]
    assert reasons[6] == "schema 1: it has no message with the indexes [4]"
    assert "message indexes before the value cannot be read" in reasons[7]
    assert "message indexes before the value cannot be read" in reasons[8]


def test_a_schema_that_cannot_be_used_is_reported() -> None:
    broken = {
        1: "message Row {",
        2: HEAD + 'import "other.proto"; message Row { Other o = 1; }',
        3: HEAD + "message Row { Other o = 1; }",
        4: HEAD + "message Row {\n  int32 id = x;\n}",
    }
    made = converter(broken)
    decoded = made.decode(pa.array([message(b"", n) for n in broken]))
    reasons = [f.message for f in decoded.failures]
    assert reasons[0] == (
        "schema 1: not a Protobuf schema: line 1: Reached end of input in message definition "
        "(missing '}')."
    )
    assert "it imports other.proto, which is not registered as a reference" in reasons[1]
    assert reasons[2] == 'schema 3: not a Protobuf schema: line 2: "Other" is not defined.'
    assert "line 3: Expected field number." in reasons[3]


def test_trouble_of_the_machine_is_neither_a_bad_record_nor_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = converter({1: HEAD + "message Here { int32 id = 1; }"})
    values = pa.array([message(number(1, 7))])
    with monkeypatch.context() as full:
        full.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        with pytest.raises(Unavailable, match="this machine cannot use schema 1: FileNotFound"):
            made.decode(values)
    with monkeypatch.context() as killed:
        killed.setattr(compiler, "_PROTOC", "import os; os.kill(os.getpid(), 9)")
        with pytest.raises(Unavailable, match=r"protoc was killed\. Does it lack memory"):
            made.decode(values)
    with monkeypatch.context() as unwritten:
        says = "import sys; sys.exit('../out.set: No space left on device')"
        unwritten.setattr(compiler, "_PROTOC", says)
        with pytest.raises(Unavailable, match="No space left on device"):
            made.decode(values)
    assert read(made, *values.to_pylist()) == [{"id": 7}]
    made._readers[1] = lambda _: pa.allocate_buffer(2**60)
    with pytest.raises(Unavailable, match="this machine cannot read a record of schema 1"):
        made.decode(values)


def test_a_schema_that_takes_too_long_is_the_schemas_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = compiler._PROTOC.replace('"CPU": 20', '"CPU": 1').partition("from grpc_tools")[0]
    monkeypatch.setattr(compiler, "_PROTOC", f"{limited}\nwhile True: pass")
    with pytest.raises(compiler.SchemaError, match="protoc ends with -24"):
        compiler.compiled(HEAD + "message Slow {}")


HOSTILE = {
    "slashes": ("/" * 200 + "\n") * 2000 + HEAD + "message Row { int32 id = }",
    "nested messages": HEAD + "message A {" * 100_000 + "}" * 100_000,
    "nested options": """
        import "google/protobuf/descriptor.proto";
        message A { optional A a = 1; }
        extend google.protobuf.FieldOptions { optional A o = 50000; }
        message R { optional int32 x = 1 [(o) = { %s }]; }
    """
    % ("a {" * 200_000 + "}" * 200_000),
    "a surrogate": HEAD + "message Row { int32 \udc80 = 1; }",
    "a NUL": HEAD + "message Row { int32 id\0 = 1; }",
    "a file of the machine": HEAD + 'import "/etc/passwd"; message Row {}',
    "a file outside": HEAD + 'import "../in.set"; message Row {}',
    "base64 of nothing": base64.b64encode(b"\xff" * 100).decode(),
    "nothing": "",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_refused_in_words(text: str) -> None:
    decoded = converter({1: text}).decode(pa.array([message(b"")]))
    (failure,) = decoded.failures
    assert failure.message.startswith("schema 1: ")
    assert len(failure.message) < 300


@pytest.mark.parametrize("name", ["../schema.proto", "/tmp/x.proto", "a//b.proto", "a\0b", ""])
def test_a_reference_names_a_file_of_its_own(name: str) -> None:
    made = converter({1: HEAD + "message Row { int32 id = 1; }"}, (name, HEAD))
    (failure,) = made.decode(pa.array([message(b"")])).failures
    assert f"a reference with the name {named(name)}" in failure.message


def test_a_reference_with_too_long_a_name_is_the_schemas_fault() -> None:
    made = converter({1: HEAD + "message Row { int32 id = 1; }"}, ("a" * 300, HEAD))
    (failure,) = made.decode(pa.array([message(b"")])).failures
    assert "has too long a name" in failure.message


VALID = {
    "slashes": "/" * 200 + "\n" + HEAD + "message Row { int32 id = 1; }",
    "a byte order mark": "\ufeff" + HEAD + "message Row { int32 id = 1; }",
    "edition 2024": 'edition = "2024"; message Row { int32 id = 1; }',
    "options": """
        syntax = "proto2";
        import "google/protobuf/descriptor.proto";
        import "google/protobuf/any.proto";
        message Facts { optional float f = 1; optional google.protobuf.Any any = 2; }
        extend google.protobuf.FieldOptions { optional Facts facts = 50000; }
        message Row {
          optional int32 id = 1 [(facts) = {  # a comment
            f: 1.5
            any { [type.googleapis.com/Facts] { f: 2 } }
          }];
          optional int32 other = 2 [( . facts ) . f = 3];
        }
    """,
    "Google's types": HEAD
    + """
        import "google/type/postal_address.proto";
        import "google/protobuf/api.proto";
        message Row { int32 id = 1; google.type.PostalAddress at = 2; }
    """,
}


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_any_text_that_protoc_takes_is_read(text: str) -> None:
    indexes = b"\x02\x02" if "message Facts" in text else b"\0"
    (value,) = read(converter({1: text}), message(number(1, 5), indexes=indexes))
    assert value["id"] == 5


def test_a_text_may_refer_to_a_serialized_schema() -> None:
    other = descriptor_pb2.FileDescriptorProto(name="o.proto", syntax="proto3", package="o")
    other.message_type.add(name="Other").field.add(name="x", number=1, type=5, label=1)
    serialized = base64.b64encode(other.SerializeToString()).decode()
    text = HEAD + 'import "dir/o.proto"; message Row { o.Other other = 1; }'
    made = converter({1: text}, ("dir/o.proto", serialized))
    assert read(made, message(inside(1, number(1, 7)))) == [{"other": {"x": 7}}]


def test_indexes_say_which_message_it_is() -> None:
    text = (
        HEAD
        + """
    message First {
      int32 a = 1;
      map<string, int32> not_counted = 2;
      message Inner { int32 b = 1; message Deep { int32 c = 1; } }
    }
    enum NotCounted { ZERO = 0; }
    message Second { int32 d = 1; }
    """
    )
    made = converter({1: text})
    values = [
        message(number(1, 1)),
        message(number(1, 2), indexes=b"\x04\x00\x00"),  # [0, 0]
        message(number(1, 3), indexes=b"\x06\x00\x00\x00"),  # [0, 0, 0]
        message(number(1, 4), indexes=b"\x02\x02"),  # [1]
        message(number(1, 5), indexes=b"\x02\x00"),  # [0], in full
    ]
    found = read(made, *values)
    assert [{k: v for k, v in row.items() if v} for row in found] == [
        *({"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}, {"a": 5})
    ]


def test_references_and_files_that_everybody_knows() -> None:
    shared = 'syntax = "proto3"; package x.y; message Shared { string s = 1; }'
    outer = (
        HEAD
        + """
    package x.z;
    import "dir/shared.proto";
    import "google/protobuf/timestamp.proto";
    message Row { y.Shared one = 1; .x.y.Shared two = 2; google.protobuf.Timestamp at = 3; }
    """
    )
    made = converter({1: outer}, ("dir/shared.proto", shared))
    (found,) = read(made, message(inside(1, inside(1, "a")) + inside(3, number(1, 5))))
    assert found["one"] == {"s": "a"}
    assert found["two"] is None
    assert found["at"] == datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_well_known_types() -> None:
    text = (
        HEAD
        + """
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    import "google/type/date.proto";
    import "google/type/timeofday.proto";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    message Row {
      google.protobuf.Timestamp at = 1;
      google.type.Date day = 2;
      google.type.TimeOfDay time = 3;
      confluent.type.Decimal price = 4 [(confluent.field_meta) = {
        params: [ { key: "precision", value: "9" }, { key: "scale", value: "2" } ] }];
      confluent.type.Decimal plain = 5;
      google.protobuf.Int64Value wrapped = 6;
      int32 small = 7 [(confluent.field_meta).params = { key: "connect.type", value: "int8" }];
    }
    """
    )
    price = inside(1, (-150).to_bytes(2, "big", signed=True)) + number(2, 3) + number(3, 2)
    coarse = inside(1, b"\x07") + number(2, 1) + number(3, 0)
    full = (
        inside(1, number(1, -1) + number(2, 999_999_999))
        + inside(2, number(1, 2024) + number(2, 2) + number(3, 29))
        + inside(3, number(1, 23) + number(4, 5_000_000))
        + inside(4, price)
        + inside(5, price)
        + inside(6, b"")
        + number(7, -128)
    )
    values = [message(full), message(b""), message(inside(4, coarse))]
    found = read(converter({1: text}), *values)
    assert found[0] == {
        "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
        "day": datetime.date(2024, 2, 29),
        "time": datetime.time(23, 0, 0, 5000),
        "price": Decimal("-1.50"),
        "plain": Decimal("-1.500000000"),
        "wrapped": {"value": 0},
        "small": -128,
    }
    assert set(found[1].values()) == {None, 0}
    assert found[2]["price"] == Decimal("7.00")
    kinds = converter({1: text}).decode(pa.array(values)).values.type
    assert kinds.field("price").type == pa.decimal128(9, 2)
    assert kinds.field("at").type == pa.timestamp("ms", "UTC")
    assert kinds.field("small").type == pa.int8()
    (unwrapped,) = read(converter({1: text}, wrapper_for_nullables=True), values[0])
    assert unwrapped["wrapped"] == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (inside(1, number(2, 10**9)), "field at: 0 seconds and 1000000000 nanoseconds are not a"),
        (inside(2, number(1, 2023) + number(2, 2) + number(3, 29)), "field day: year 2023, month"),
        (inside(2, b""), "field day: year 0, month 0, day 0 are not a date"),
        (inside(3, number(1, 24)), "field time: hours 24, minutes 0, seconds 0, nanos 0 are no"),
        (inside(4, inside(1, b"\x0f") + number(3, 3)), "field price: 0.015 does not fit decimal"),
        (inside(4, b""), "field price: a decimal of no bytes"),
        (number(5, 128), "field small: 128 is not within -128 and 127"),
    ],
)
def test_a_value_without_meaning_in_its_type_is_refused(content: bytes, reason: str) -> None:
    text = (
        HEAD
        + """
    import "google/protobuf/timestamp.proto";
    import "google/type/date.proto";
    import "google/type/timeofday.proto";
    import "confluent/type/decimal.proto";
    import "confluent/meta.proto";
    message Row {
      google.protobuf.Timestamp at = 1;
      google.type.Date day = 2;
      google.type.TimeOfDay time = 3;
      confluent.type.Decimal price = 4 [(confluent.field_meta) = {
        params: [ { key: "precision", value: "4" }, { key: "scale", value: "2" } ] }];
      int32 small = 5 [(confluent.field_meta).params = { key: "connect.type", value: "int8" }];
    }
    """
    )
    decoded = converter({1: text}).decode(pa.array([message(b""), message(content)]))
    assert decoded.values[0].is_valid
    (failure,) = decoded.failures
    assert failure.message.startswith(f"schema 1: {reason}")


KEYS_TEXT = (
    HEAD
    + """
import "google/protobuf/wrappers.proto";
message Row {
  int32 plain = 1;
  optional int32 maybe = 2;
  oneof choice { string text = 3; In in = 4; }
  google.protobuf.StringValue wrapped = 5;
  Kind kind = 6;
  In struct = 7;
  enum Kind { NONE = 0; SOME = 1; }
  message In { int32 x = 1; }
}
"""
)


@pytest.mark.parametrize(
    ("reading", "empty", "nullable"),
    [
        ({}, {}, "plain maybe choice_0 wrapped kind struct"),
        ({"index_unions": False}, {}, "plain maybe choice wrapped kind struct"),
        ({"flatten_unions": True}, {}, "text in plain maybe wrapped kind struct"),
        ({"optional_for_nullables": True}, {}, "maybe choice_0 wrapped kind struct"),
        ({"wrapper_for_nullables": True}, {}, "maybe choice_0 wrapped kind struct"),
        ({"int_for_enums": True}, {"kind": 0}, "plain maybe choice_0 wrapped kind struct"),
        (
            {"struct_for_nulls": True},
            {"struct": {"x": 0}, "wrapped": {"value": ""}},
            "plain maybe choice_0 wrapped kind struct",
        ),
    ],
)
def test_confluents_keys(reading: dict[str, Any], empty: dict[str, Any], nullable: str) -> None:
    made = converter({1: KEYS_TEXT}, **reading)
    decoded = made.decode(pa.array([message(b"")]))
    kinds = decoded.values.type
    assert {f.name for f in kinds if f.nullable} == set(nullable.split())
    wanted = dict.fromkeys([f.name for f in kinds]) | {"plain": 0, "kind": "NONE"} | empty
    assert decoded.values.to_pylist() == [wanted]


def test_a_oneof_is_a_struct_as_in_kafka_connect_and_its_last_member_counts() -> None:
    made = converter({1: KEYS_TEXT})
    values = [
        message(inside(3, "a")),
        message(inside(4, number(1, 5))),
        message(inside(3, "a") + inside(4, number(1, 5))),
        message(inside(4, number(1, 5)) + inside(3, "")),
    ]
    assert [row["choice_0"] for row in read(made, *values)] == [
        {"text": "a", "in": None},
        {"text": None, "in": {"x": 5}},
        {"text": None, "in": {"x": 5}},
        {"text": "", "in": None},
    ]


def test_optional_fields_of_proto2_are_null_or_their_defaults() -> None:
    text = """
    message Row {
      optional int32 id = 1 [default = 7];
      required string name = 2;
      optional Kind kind = 3 [default = B];
      optional bytes data = 4 [default = "\\001x"];
    }
    enum Kind { A = 1; B = 2; }
    """
    row = message(inside(2, "x"))
    assert read(converter({1: text}), row)[0] == {
        **{"id": None, "name": "x", "kind": None, "data": None}
    }
    made = converter({1: text}, optional_for_proto2=False)
    assert read(made, row)[0] == {"id": 7, "name": "x", "kind": "B", "data": b"\1x"}
    decoded = made.decode(pa.array([message(b""), message(inside(2, "x") + number(3, 9))]))
    assert decoded.failures[0].message == "schema 1: field name: required, but missing"
    assert decoded.values[1].as_py()["kind"] == "B"  # it knows no other numbers


GROUPS = """
syntax = "proto2";
message Row {
  optional group G = 1 { optional int32 a = 1; optional string b = 3; }
  repeated group H = 2 { required int32 a = 1; }
  optional int32 z = 20;
}
"""
DELIMITED = """
edition = "2023";
message Row {
  G g = 1 [features.message_encoding = DELIMITED];
  repeated G h = 2 [features.message_encoding = DELIMITED];
  int32 z = 20;
}
message G { int32 a = 1; }
"""


@pytest.mark.parametrize("text", [GROUPS, DELIMITED], ids=["groups", "delimited"])
def test_groups_are_read_and_written_like_messages(text: str) -> None:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto()
    compiler.compiled(text).CopyToProto(file)
    pool.Add(file)
    row = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))(z=7)
    row.g.a = 1
    row.h.add().a = 2
    row.h.add().a = 3
    made = converter({1: text})
    whole = row.SerializeToString()
    (found,) = read(made, message(whole))
    assert (found["g"]["a"], [h["a"] for h in found["h"]], found["z"]) == (1, [2, 3], 7)
    written = made._writer(Schema("PROTOBUF", text, (), 1))(
        made.decode(pa.array([message(whole)])).values
    )
    assert type(row).FromString(written[0].as_py()[1:]) == row
    begin, end = varint(1 << 3 | 3), varint(1 << 3 | 4)
    twice = begin + number(1, 4) + end + begin + end  # they are merged
    assert read(made, message(twice))[0]["g"]["a"] == 4
    damaged = [begin + number(1, 4), begin + varint(9 << 3 | 4), end, inside(1, number(1, 4))]
    decoded = made.decode(pa.array([message(whole), *map(message, damaged)]))
    assert [f.index for f in decoded.failures] == [1, 2, 3]
    assert decoded.values[4].as_py()["g"] is None, "a length instead of tags: an unknown field"


def test_a_text_that_is_not_utf8_is_refused_alone_in_proto2_too() -> None:
    text = 'syntax = "proto2"; message Row { optional string s = 1; map<string, string> m = 2; }'
    values = [inside(1, "a"), inside(1, b"\xff"), inside(2, inside(1, b"\xed\xa0\x80"))]
    decoded = converter({1: text}).decode(pa.array(list(map(message, values))))
    assert [(f.index, f.message) for f in decoded.failures] == [
        (1, "schema 1: field s: not UTF-8: byte 0xff at position 0"),
        (2, "schema 1: field m.key: not UTF-8: byte 0xed at position 0"),
    ]
    assert decoded.values[0].as_py()["s"] == "a"


def test_the_largest_default_is_a_long_of_the_same_bits() -> None:
    text = """
    syntax = "proto2";
    message Row {
      optional uint64 u = 1 [default = 18446744073709551615];
      optional fixed64 f = 2 [default = 9223372036854775808];
      optional double d = 3 [default = nan];
      optional float h = 4 [default = -inf];
    }
    """
    made = converter({1: text}, optional_for_proto2=False)
    for values in ([b""], [b"", number(1, 3)]):
        found = read(made, *map(message, values))[0]
        assert (found["u"], found["f"], found["h"]) == (-1, -(2**63), float("-inf"))
        assert found["d"] != found["d"]


def test_numbers_of_a_fixed_size_that_nobody_gives_are_read_in_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows.Reader, "whole", None)
    text = HEAD + "message Row { double d = 1; float f = 2; fixed32 u = 3; sfixed64 s = 4; }"
    assert read(converter({1: text}), message(b""))[0] == {"d": 0.0, "f": 0.0, "u": 0, "s": 0}


def test_json_of_a_message_inside_itself_says_what_a_struct_would() -> None:
    text = (
        HEAD
        + """
    import "google/protobuf/timestamp.proto";
    import "google/type/date.proto";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    message Row {
      Row inner = 1;
      google.protobuf.Timestamp at = 2;
      google.type.Date day = 3;
      confluent.type.Decimal price = 4;
      int64 micros = 5 [(confluent.field_meta) = {
        params: [{ key: "connect.name", value: "io.debezium.time.MicroTimestamp" }]
      }];
    }
    """
    )
    inner = inside(2, number(1, 1) + number(2, 5_000_000))
    inner += inside(3, number(1, 2024) + number(2, 2) + number(3, 29))
    inner += inside(4, inside(1, b"\x0f") + number(3, 1)) + number(5, 1_000_001)
    (found,) = read(converter({1: text}), message(inside(1, inner)))
    assert found["inner"] == (
        '{"inner":null,"at":"1970-01-01T00:00:01.005Z","day":"2024-02-29","price":1.500000000,'
        '"micros":"1970-01-01T00:00:01.000001"}'
    )


def test_a_message_inside_itself_is_json() -> None:
    text = (
        HEAD
        + """
    message Tree { string name = 1; repeated Tree children = 2; map<int32, bytes> data = 3; }
    """
    )
    leaf = inside(1, "leaf") + inside(3, number(1, 7) + inside(2, b"\0"))
    (found,) = read(converter({1: text}), message(inside(1, "root") + inside(2, leaf)))
    assert found == {
        "name": "root",
        "children": ['{"name":"leaf","children":[],"data":[[7,"AA=="]]}'],
        "data": [],
    }


def test_a_map_is_known_by_its_entries() -> None:
    text = (
        HEAD
        + """
    message Row {
      map<string, In> by_name = 1;
      repeated PairEntry pairs = 2;
      message PairEntry { double key = 1; string value = 2; }
      message In { int32 x = 1; }
    }
    """
    )
    one = inside(1, inside(1, "a") + inside(2, number(1, 5)))
    two = inside(1, inside(1, "b"))
    again = inside(1, inside(1, "a") + inside(2, number(1, 6)))
    made = converter({1: text})
    assert read(made, message(one + two + inside(2, inside(2, "v"))))[0] == {
        "by_name": [("a", {"x": 5}), ("b", {"x": 0})],
        "pairs": [(0.0, "v")],
    }
    (found,) = read(made, message(one + two + again))
    assert dict(found["by_name"]) == {"a": {"x": 6}, "b": {"x": 0}}


def test_a_wrapper_alone_is_its_value() -> None:
    text = HEAD + "package google.protobuf; message X {} message StringValue { string value = 1; }"
    wrapped = message(inside(1, "a"), indexes=b"\x02\x02")
    assert read(converter({1: text}), wrapped) == ["a"]
    made = converter({1: text}, wrapper_for_raw_primitives=False)
    assert read(made, wrapped) == [{"value": "a"}]


def test_a_schema_that_was_registered_serialized() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    row = file.message_type.add(name="Row")
    row.field.add(name="id", number=1, type=T.TYPE_INT32, label=T.LABEL_OPTIONAL)
    text = base64.b64encode(file.SerializeToString()).decode()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Row"))
    assert read(converter({1: text}), message(kind(id=5).SerializeToString())) == [{"id": 5}]


def test_apicurios_serializer_names_the_message() -> None:
    text = HEAD + "package a; message First { int32 x = 1; } message Second { int32 y = 1; }"
    config = {"apicurio.registry.url": "http://registry", "apicurio.registry.as-confluent": "true"}
    made: Any = create(APICURIO, config, is_key=False, where="value.converter")
    assert isinstance(made, ApicurioProtobufConverter)
    made._registry = known({1: text})
    values = [
        message(number(1, 1), indexes=b"\x08\n\x06Second"),
        message(number(1, 2), indexes=b"\x07\n\x05First"),
    ]
    assert read(made, *values) == [{"y": 1, "x": None}, {"y": None, "x": 2}]
    decoded = made.decode(pa.array([message(b"", indexes=b"\x06\n\x04None"), message(b"")]))
    assert decoded.failures[0].message == "schema 1: it has no message None"
    assert len(decoded.failures) == 2
    config |= {"apicurio.registry.serde.read-type-ref": "false"}
    config |= {"apicurio.registry.serde.read-indexes": "true"}
    plain: Any = create(APICURIO, config, is_key=False, where="value.converter")
    plain._registry = known({1: text})
    assert read(plain, message(number(1, 1), indexes=b"\x02\x02")) == [{"y": 1}]


@pytest.mark.parametrize("length", [117, 118, 125, 126, 127, 128, 500])
def test_apicurios_name_of_a_message_may_be_long(length: int) -> None:
    name = "M" * length
    config = {"apicurio.registry.url": "http://registry", "apicurio.registry.as-confluent": "true"}
    made: Any = create(APICURIO, config, is_key=False, where="value.converter")
    made._registry = known({1: HEAD + f"message First {{}} message {name} {{ int32 y = 1; }}"})
    inner = b"\n" + varint(length) + name.encode()
    assert read(made, message(number(1, 1), indexes=varint(len(inner)) + inner)) == [{"y": 1}]
    cut = message(number(1, 1), indexes=varint(len(inner)) + inner[:1] + b"\x01" + inner[2:])
    assert len(made.decode(pa.array([cut])).failures) == 1


def test_keys_are_checked() -> None:
    config = {"schema.registry.url": "http://registry", "flatten.unions": "maybe"}
    with pytest.raises(ConfigError, match=r"value\.converter\.flatten\.unions='maybe' must be"):
        create(CONFLUENT, config, is_key=False, where="value.converter")


def test_a_schema_with_more_parts_than_fit_into_memory_is_refused() -> None:
    """Each message has two fields of the next."""
    parts = [f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40)]
    made = converter({1: HEAD + "\n".join([*parts, "message M40 { int32 a = 1; }"])})
    (failure,) = made.decode(pa.array([b"\0\0\0\0\1\0"])).failures
    assert "more than 10000 fields" in failure.message
    chain = [f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(150)]
    made = converter({1: HEAD + "\n".join([*chain, "message M150 { int32 a = 1; }"])})
    (failure,) = made.decode(pa.array([b"\0\0\0\0\1\0"])).failures
    assert "more than 100 levels deep" in failure.message
