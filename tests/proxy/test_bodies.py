"""What stands in bodies: streams of JSON, Avro's JSON encoding, and media types."""

from __future__ import annotations

import io
import json
import math
import time
from typing import Any
from unittest.mock import Mock

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.converters.avro.parse import parse
from semel.converters.avro.rows import Damaged
from semel.converters.registry.client import JSON, PROTOBUF, Schema
from semel.proxy import formats
from semel.proxy.avro_json import JsonReader, encoded
from semel.proxy.bodies import EmbeddedFormat, Splitter, loaded, preferred, written
from semel.proxy.errors import Refusal
from semel.proxy.formats import Formats, RequestSchema, _codec, _indexes
from tests.proxy.test_v2 import AVRO, ORDER

OBJECTS = st.dictionaries(st.text(), st.recursive(st.text() | st.integers(), st.lists), max_size=4)


@given(st.lists(OBJECTS, max_size=6), st.integers(1, 7), st.sampled_from(["", " ", "\r\n"]))
def test_a_stream_is_cut_into_its_objects(objects: list[Any], step: int, gap: str) -> None:
    text = gap.join(json.dumps(each, ensure_ascii=False) for each in objects).encode()
    splitter = Splitter(1_000_000)
    found = []
    for begin in range(0, len(text), step):
        found += splitter.feed(text[begin : begin + step])
    splitter.finish()
    assert [json.loads(each) for each in found] == objects


@pytest.mark.parametrize("text", [b"1", b"[{}]", b"{} x", b"x", b'"{}"'])
def test_a_stream_of_other_things_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="object"):
        list(Splitter(100).feed(text))


def test_a_stream_that_ends_too_early_or_never_is_refused() -> None:
    splitter = Splitter(100)
    assert list(splitter.feed(b'{"a": "}\\')) == []
    with pytest.raises(ValueError, match="within"):
        splitter.finish()
    with pytest.raises(OverflowError):
        list(splitter.feed(b"x" * 100))


@pytest.mark.parametrize(
    "text",
    [
        *(b"NaN", b"-Infinity", b"1e999", b"[" * 99_999, b"9" * 5000, b"\xff", b""),
        *(b'"\\ud800"', b'"\xed\xa0\x80"', '"\\ud800"'.encode("utf-16")),
    ],
)
def test_what_no_program_could_read_again_is_not_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        loaded(text)


def test_a_stream_of_many_small_objects_is_cut_in_linear_time() -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        assert sum(1 for _ in Splitter(10_000_000).feed(b"{}" * count)) == count
        return time.process_time() - began

    few = seconds(20_000)
    assert seconds(400_000) < 3 * 20 * few


@pytest.mark.parametrize("value", [{}, "", [], {"a": "x"}])
def test_a_message_without_what_it_requires_is_refused(value: Any) -> None:
    encode, _ = _codec(Schema(PROTOBUF, 'syntax = "proto2"; message M { required int32 a = 1; }'))
    with pytest.raises(ValueError):
        encode(value)


@pytest.mark.parametrize("value", ["", []])
def test_a_message_is_an_object(value: Any) -> None:
    encode, _ = _codec(Schema(PROTOBUF, 'syntax = "proto3"; message M { int32 a = 1; }'))
    assert encode({}) == b"\0"
    with pytest.raises(ValueError, match="object"):
        encode(value)


MESSAGE = """syntax = "proto3";
message M {
  bytes raw_key = 1;
  repeated M inner = 2;
  map<string, bytes> by_name = 3;
  optional int32 o = 4;
}
"""


def test_messages_are_shown_as_by_confluent() -> None:
    """With the names of Protobuf's JSON mapping, and with the fields that have no value."""
    encode, decode = _codec(Schema(PROTOBUF, MESSAGE))
    empty = {"rawKey": "", "inner": [], "byName": {}}
    assert decode(encode({})) == empty
    given = {"raw_key": "_-8", "inner": [{"o": 0}], "byName": {"a": "YQ"}}
    shown = {"rawKey": "/+8=", "inner": [{**empty, "o": 0}], "byName": {"a": "YQ=="}}
    assert decode(encode(given)) == decode(encode(shown)) == shown


@pytest.mark.parametrize(
    "value",
    [
        {"rawKey": "a!YQ"},
        {"raw_key": "YQ=a"},
        {"inner": [{"rawKey": "+_"}]},
        {"byName": {"a": "\n"}},
    ],
)
def test_bytes_of_a_message_are_base64(value: Any) -> None:
    encode, _ = _codec(Schema(PROTOBUF, MESSAGE))
    with pytest.raises(ValueError, match="not base64"):
        encode(value)


def test_few_large_schemas_are_kept() -> None:
    small = formats._codec_of_small.cache_info().currsize
    for number in range(30):
        _codec(Schema(JSON, json.dumps({"title": str(number), "description": "x" * 20_000})))
    assert formats._codec_of_large.cache_info().currsize == 20
    assert formats._codec_of_small.cache_info().currsize == small


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (RequestSchema("{}", id=1), "once"),
        (RequestSchema("{}", version=1), "once"),
        (RequestSchema(id=1, version=1), "once"),
        (RequestSchema('{"type": "string"}'), "needs a type"),
    ],
)
def test_a_schema_is_named_once_and_its_text_has_a_type(given: RequestSchema, why: str) -> None:
    known = Formats(read(ProxyConfig, {}))
    known._registry = Mock()
    with pytest.raises(Refusal, match=why) as refused:
        known.encoder(None, "t", given, is_key=False)
    assert refused.value.status == 400


def test_json_that_was_read_can_be_written_within_an_answer() -> None:
    known, refused = object.__new__(Formats), 0
    for depth in range(800, 1000):
        try:
            value = known.decoded(EmbeddedFormat.JSON, b"[" * depth + b"]" * depth)
        except ValueError:
            refused += 1
        else:
            assert written({"records": [{"value": value}]})
    assert 0 < refused < 200


def test_json_is_written_as_it_was_read() -> None:
    text = '{"a":[1,1.5,null,true,"é\\n"],"b":{"":12345678901234567890}}'.encode()
    assert written(loaded(text)) == text


def test_avro_is_what_others_write() -> None:
    node = parse(AVRO, full_names=True)
    binary = encoded(node, ORDER)
    out = io.BytesIO()
    plain = {
        **ORDER,
        "note": "é",
        "code": b"\xff\0",
        "tags": {"x": 0.5, "y": math.nan},
        "lines": [-7, None, {**ORDER["lines"][2]["shop.order"], "code": b"ab"}],
    }
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), plain)
    assert binary == out.getvalue()
    assert JsonReader(binary).whole(node) == ORDER


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": 2**63}, "field id"),
        ({"id": 1.5}, "whole number"),
        ({"id": True}, "whole number"),
        ({"note": {"int": 1}}, "field note: must be a string"),
        ({"code": "abc"}, "its size is 2"),
        ({"code": "\u0100a"}, "Latin-1"),
        ({"size": "XL"}, "not one of S, L"),
        ({"tags": []}, "an object"),
        ({"tags": {"x": "nan"}}, "field tags.x"),
        ({"lines": [{"int": "1"}]}, "field lines"),
        ({"more": 1}, "no field more"),
    ],
)
def test_avro_names_the_field_that_does_not_fit(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encoded(parse(AVRO, full_names=True), {**ORDER, **change})


def test_a_nullable_text_needs_no_name() -> None:
    node = parse('["null", "string"]', full_names=True)
    assert encoded(node, "a") == encoded(node, {"string": "a"}) == b"\x02\x02a"
    assert encoded(node, None) == b"\x00"


def test_recursion_is_bounded() -> None:
    text = '{"type": "record", "name": "r", "fields": [{"name": "r", "type": ["null", "r"]}]}'
    node = parse(text, full_names=True)
    value: Any = {"r": None}
    for _ in range(500):
        value = {"r": {"r": value}}
    with pytest.raises(ValueError, match="levels deep"):
        encoded(node, value)
    with pytest.raises(Damaged, match="levels deep"):
        JsonReader(b"\x02" * 5000).whole(node)


@pytest.mark.parametrize(("value", "path"), [(b"\0x", [0]), (b"\2\4x", [2]), (b"\4\2\0x", [1, 0])])
def test_message_indexes_are_read(value: bytes, path: list[int]) -> None:
    assert _indexes(value) == (path, b"x")


@pytest.mark.parametrize("value", [b"", b"\xff" * 9, b"\1", b"\4\2", b"\xff\xff\xff\x7f"])
def test_damaged_message_indexes_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        _indexes(value)


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        ("", [""]),
        ("a/b;q=0.5, c/d", ["c/d", "a/b"]),
        ("a/b;q=0, c/d;q=x", []),
        ("A/B ; q=1.000 ;x=y", ["a/b"]),
        ("a/b;q=.2, c/d;q=0.33333, e/f;q=, g/h;q=.", ["c/d", "a/b"]),
    ],
)
def test_types_are_taken_by_preference(accept: str, found: list[str]) -> None:
    assert preferred(accept) == found
