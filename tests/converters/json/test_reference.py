"""Decoding many records at once must agree with json.loads on each of them."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from semel.converters.base import Decoded
from semel.converters.json import read
from semel.converters.json.converter import JsonConverter
from tests.engine.harness import some

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("d", pa.json_()),
        ("b", pa.bool_()),
    ]
)
FAILED = object()


class Refused(Exception):
    pass


def reference(value: bytes | None) -> Any:
    """What one record must decode to: a dict, None or FAILED."""
    if value is None:
        return None
    try:
        text = value.decode().removeprefix("\ufeff").strip(" \t\r\n")
        if text in ("null", ""):
            return None
        document = json.loads(text, parse_float=finite, parse_int=whole)
        text.encode("utf-8")
    except (ValueError, Refused):
        return FAILED
    if isinstance(document, dict) and document and document.keys().isdisjoint(SCHEMA.names):
        return FAILED  # nothing of it would be left
    return fields_of(document)


def fields_of(document: Any) -> Any:
    """What a parsed value must decode to."""
    try:
        json.dumps(document, ensure_ascii=False).encode()  # no lone surrogates
        if not isinstance(document, dict):
            return FAILED
        return {name: CHECKS[name](document.get(name)) for name in SCHEMA.names}
    except (ValueError, Refused):
        return FAILED


class Fractional(float):
    """A number that is written with a point or an exponent, and how it is written."""

    text: str


def finite(text: str) -> float:
    if math.isinf(float(text)):
        raise Refused
    number = Fractional(text)
    number.text = text
    return number


def whole(text: str) -> int:
    finite(text)
    return int(text)


def as_double(value: Any) -> Any:
    """A fraction may be rounded; a whole number must stay what it is, and nothing becomes zero."""
    if value is None or not checked(is_number(value), True):
        return value
    text = getattr(value, "text", str(value))
    if text in ("nan", "inf", "-inf"):
        return value
    near = float(text)
    if near == 0:
        return checked(Decimal(text) == 0, value)
    if "e" in text.lower() or Fraction(text).denominator != 1:
        return value
    return checked(Fraction(text) in (Fraction(near), Fraction(repr(near))), value)


def checked(condition: bool, value: Any) -> Any:
    if value is None or condition:
        return value
    raise Refused


def json_document(value: Any) -> Any:
    if value is None:
        return None
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except ValueError:
        raise Refused from None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CHECKS = {
    "a": lambda v: checked(isinstance(v, int) and is_number(v) and -(2**63) <= v < 2**63, v),
    "s": lambda v: checked(isinstance(v, str), v),
    "f": as_double,
    "d": json_document,
    "b": lambda v: checked(isinstance(v, bool), v),
}


def agrees(values: list[bytes | None]) -> None:
    converter = JsonConverter(schemas_enable=False)
    decoded = converter.decode(pa.array(values, pa.binary()), SCHEMA)
    compare(values, [reference(v) for v in values], decoded)


def compare(values: list[bytes | None], wanted: list[Any], decoded: Decoded) -> None:
    decoded.values.validate(full=True)
    failed = [i for i, w in enumerate(wanted) if w is FAILED]
    assert [f.index for f in decoded.failures] == failed, decoded.failures
    found = decoded.values.to_pylist()
    assert len(found) == len(values)
    for one, other in zip(found, wanted, strict=True):
        if other is None or other is FAILED:
            assert one is None
            continue
        if one["d"] is not None:
            one["d"] = json.loads(one["d"])
        if other["f"] is not None:
            other["f"] = float(other["f"])
        assert repr(one) == repr({n: other[n] for n in one})


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-100, 100)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["NaN", 'a"d": 1', "\x00", "}\n{", "\ud800", "Infinity", "2013-01-01"])
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "d", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
good_fields = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=6),
        "f": st.none() | st.floats() | st.integers(-5, 5) | st.integers(-(2**60), 2**60),
        "d": anything,
        "b": st.none() | st.booleans(),
        "other": anything,
    },
).filter(lambda fields: fields.keys() != {"other"})
any_fields = st.dictionaries(st.sampled_from(["a", "s", "f", "d", "b", "z", ""]), anything)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    document = draw(st.one_of(good_fields, good_fields, any_fields, anything))
    ascii_only = draw(st.booleans())
    text = json.dumps(document, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    value = draw(written())
    at = draw(st.integers(0, len(value)))
    dirt = draw(
        st.sampled_from([b"", b"\n", b"\r", b"\t", b" ", b"\0", b'"', b"{", b"}", b"\\", b","])
        | st.binary(min_size=1, max_size=2)
    )
    return value[:at] + dirt + value[at + draw(st.integers(0, 1)) :]


tricks = st.sampled_from(
    [
        None,
        b"",
        b" ",
        b"null",
        b"\nnull ",
        b"{}",
        b"{}{}",
        b"{} {}",
        b"{}\n{}",
        b"{}\0{}",
        b"{}\0}",
        b"{}\r{}",
        b"{",
        b"}",
        b'{"a":"}',
        b'{"}',
        b'{"s":"',
        b'"}',
        b'{"d":{}',
        b'{"d":[{}',
        b'{"a":1}}',
        b'{"a":1},"a":{}',
        b'{"a":1,"a":2}',
        b'{"d":1,"d":2}',
        b'{"d":1,"d":null}',
        b'{"d":{"d":1}}',
        b'{"s":"x\ny"}',
        b'{"s":"x\\ny"}',
        b'{"f":NaN}',
        b'{"d":NaN}',
        b'{"d":[1,-Infinity]}',
        b'{"z":NaN}',
        b'{"f":1e400}',
        b'{"f":1e-400}',
        b'{"f":0e-400}',
        b'{"f":9007199254740993}',
        b'{"f":9007199254740993.0}',
        b'{"f":9007199254740994}',
        b'{"f":100000000000000000000}',
        b'{"f":12345678901234567000,"s":"1234567890123456"}',
        b'{"d":1e-400}',
        b'{"z":1e400}',
        b'{"f":1.}',
        b'{"f":.5}',
        b'{"f":+5}',
        b'{"a":01}',
        b'{"a":-0}',
        b'{"a":1e2}',
        b'{"a":1,}',
        b'{"a":1 /*c*/}',
        b"[1]",
        b"1",
        b'"x"',
        b"\xff",
        b'{"s":"\xff"}',
        b'{"z":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"s":"\\ud800"}',
        b'{"d":"\\ud800"}',
        b'{"s":"\\ud83d\\ude00"}',
        b'{"\\u0061":5}',
        b'{"d":0.12345678901234567890123}',
        b'{"d":12345678901234567890123456789}',
        b'{"d":' + b"[" * 500 + b"]" * 500 + b"}",
    ]
)
values = st.lists(st.one_of(tricks, written(), written(), damaged()), max_size=20)


@pytest.fixture(params=some([1, 1024], {1}), ids=["halving", "careful"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "CAREFUL", request.param)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=values)
@example(values=[b'{"a":"}', b'{"}'])
@example(values=[b'{"s":"', b'"}', b'{"a":1}'])
@example(values=[b'{"d":{}', b"{}}", b"{}"])
@example(values=[b"null", b'{"a":1}'])
@example(values=[b"{}{}", b"{}\0}", b"{}"])
@example(values=[b'{"a":1}{}\0}', b"{}"])
def test_decoding_a_block_agrees_with_decoding_each_record(
    values: list[bytes | None], path: None
) -> None:
    agrees(values)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(good_fields.map(lambda d: json.dumps(d).encode()), max_size=10))
def test_good_records_are_never_refused(values: list[bytes | None], path: None) -> None:
    agrees(values)


@pytest.mark.parametrize("opening,closing", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("evolve", [False, True])
def test_deep_nesting_does_not_crash(opening: bytes, closing: bytes, evolve: bool) -> None:
    depth = 200_000
    deep = opening * depth + b"1" + closing * depth
    values = pa.array([b'{"a":1}', b'{"z":' + deep + b"}", b'{"d":' + deep + b"}"])
    found = JsonConverter(schemas_enable=False, evolve=evolve).decode(values, SCHEMA)
    assert found.values[0].as_py()["a"] == 1
    JsonConverter(schemas_enable=False).decode(values)
    JsonConverter().decode(values)
    JsonConverter(schemas_enable=False).decode(pa.array([deep]))


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_finding_fields_never_raises_and_loses_no_good_object(
    blocks: list[list[bytes | None]], evolve: bool, expected: bool
) -> None:
    converter = JsonConverter(schemas_enable=False, evolve=evolve)
    for values in blocks:
        array = pa.array(values, pa.binary())
        found = converter.decode(array, SCHEMA.remove(3) if expected else None)
        assert len(found.values) == len(values)
        found.values.validate(full=True)
        failed = {f.index for f in found.failures}
        for row, value in enumerate(found.values.is_valid().to_pylist()):
            assert not (value and row in failed)
            if not value and row not in failed:
                assert values[row] is None or values[row].strip(b" \t\r\n") in (b"", b"null")
