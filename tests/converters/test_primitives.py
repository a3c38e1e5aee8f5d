"""Numbers and booleans as Java's serializers write them."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.converters import create
from semel.core.errors import ConfigError

FORMATS = {
    "Short": ("h", pa.int16()),
    "Integer": ("i", pa.int32()),
    "Long": ("q", pa.int64()),
    "Float": ("f", pa.float32()),
    "Double": ("d", pa.float64()),
    "Boolean": ("?", pa.bool_()),
}


def make(name: str):
    full = f"org.apache.kafka.connect.converters.{name}Converter"
    return create(full, {}, is_key=False, where="value.converter")


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_bytes_are_big_endian_and_null_is_null(name: str, data: st.DataObject) -> None:
    letter, kind = FORMATS[name]
    one = st.binary(min_size=struct.calcsize(letter), max_size=struct.calcsize(letter))
    written = data.draw(
        st.lists(st.none() | (st.booleans().map(lambda b: bytes([b])) if letter == "?" else one))
    )
    values = pa.array([None, *written], pa.binary()).slice(1)
    decoded = make(name).decode(values)
    wanted = [None if v is None else struct.unpack(f">{letter}", v)[0] for v in written]
    assert decoded.values.type == kind
    assert not decoded.failures
    assert [repr(v) for v in decoded.values.to_pylist()] == [repr(v) for v in wanted]
    again = make(name).encode(decoded.values).to_pylist()
    nans = [repr(v) == "nan" for v in wanted]  # a float may lose their payload
    assert [a for a, n in zip(again, nans, strict=True) if not n] == [
        w for w, n in zip(written, nans, strict=True) if not n
    ]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("is_key", [True, False])
def test_strings_of_fractions_are_javas(kind: pa.DataType, is_key: bool) -> None:
    name = "org.apache.kafka.connect.storage.StringConverter"
    values = [1.0, 1e10, 1e-5, 0.5, -0.0, float("nan"), float("-inf"), None]
    written = create(name, {}, is_key=is_key, where="c").encode(pa.array(values, kind))
    wanted = [b"1.0", b"1.0E10", b"1.0E-5", b"0.5", b"-0.0", b"NaN", b"-Infinity", None]
    assert written.to_pylist() == wanted


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "Integer",
            b"\0\0\1",
            "Failed to deserialize integer: Size of data received by IntegerDeserializer is not 4",
        ),
        (
            "Long",
            b"",
            "Failed to deserialize long: Size of data received by LongDeserializer is not 8",
        ),
        (
            "Double",
            b"\0" * 9,
            "Failed to deserialize double: Size of data received by Deserializer is not 8",
        ),
        (
            "Boolean",
            b"\xff",
            "Failed to deserialize boolean: Unexpected byte received by BooleanDeserializer: -1",
        ),
    ],
)
def test_a_bad_value_fails_alone_in_javas_words(name: str, value: bytes, message: str) -> None:
    good = struct.pack(f">{FORMATS[name][0]}", 1)
    decoded = make(name).decode(pa.array([good, value, None, good], pa.binary()))
    assert decoded.values.to_pylist() == [1, None, None, 1]
    (failure,) = decoded.failures
    assert (failure.index, failure.message) == (1, message)
    assert failure.exception == "org.apache.kafka.connect.errors.DataException"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Integer",
            r"IntegerConverter writes int32, but was given int64 \(Failed to serialize to i",
        ),
        ("Boolean", "Invalid schema type for BooleanConverter: int64"),
    ],
)
def test_another_type_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name).encode(pa.array([1], pa.int64()))


def test_json_says_what_a_zero_byte_means() -> None:
    converter = create("JsonConverter", {}, is_key=True, where="key.converter")
    framed = b"\0\0\0\0\x2a\x02\xff"
    (failure,) = converter.decode(pa.array([framed, None], pa.binary())).failures
    assert failure.message.startswith(
        "this looks like Schema Registry framing (a zero byte, then schema id 42); set "
        "key.converter=io.confluent.connect.avro.AvroConverter"
    )


def test_bytes_that_are_no_text_are_refused_by_the_converter_of_strings() -> None:
    converter = create(
        "org.apache.kafka.connect.storage.StringConverter", {}, is_key=False, where="w"
    )
    with pytest.raises(ConfigError, match="writes UTF-8"):
        converter.encode(pa.array([b"\xff"]))
