"""JSON without schemas: declared, expected and found fields, and the messages of bad records."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.converters import Decoded
from semel.converters.json import duck
from semel.converters.json.columns import JSON
from semel.converters.json.converter import JsonConverter
from semel.converters.json.infer import of_one_kind

UTC_MICROS = pa.timestamp("us", "UTC")


def rows(*documents: Any) -> pa.Array:
    """Records: bytes and None as they are, anything else as JSON."""
    return pa.array(
        [
            d if d is None or isinstance(d, bytes) else json.dumps(d, ensure_ascii=False).encode()
            for d in documents
        ],
        pa.binary(),
    )


def decode(wanted: pa.DataType, *written: str) -> tuple[list[Any], dict[int, str]]:
    """Decode JSON values as the field x of a type."""
    values = rows(*(f'{{"x":{w}}}'.encode() for w in written))
    found = plain().decode(values, pa.schema([("x", wanted)]))
    decoded = [None if r is None else r["x"] for r in found.values.to_pylist()]
    return decoded, messages(found)


def plain(schema: pa.Schema | None = None, *, evolve: bool = False) -> JsonConverter:
    return JsonConverter(schemas_enable=False, schema=schema, evolve=evolve)


def messages(found: Decoded) -> dict[int, str]:
    return {f.index: f.message for f in found.failures}


def moment(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("wanted", "written", "decoded"),
    [
        (pa.int16(), "-5", -5),
        (pa.uint8(), "255", 255),
        (pa.float32(), "1", 1.0),
        (pa.float16(), "1.5", 1.5),
        (pa.large_string(), '"x"', "x"),
        (pa.string_view(), '"x"', "x"),
        (pa.dictionary(pa.int32(), pa.string()), '"x"', "x"),
        (pa.decimal128(10, 2), '"1.25"', Decimal("1.25")),
        (pa.decimal128(10, 2), "1.25", Decimal("1.25")),
        (pa.decimal256(50, 2), "1.25", Decimal("1.25")),
        (pa.binary(), '"AP8="', b"\x00\xff"),
        (pa.binary(2), '"AP8="', b"\x00\xff"),
        (pa.date32(), '"2013-01-31"', date(2013, 1, 31)),
        (pa.date32(), "1", date(1970, 1, 2)),
        (pa.time64("us"), '"10:20:30.5"', time(10, 20, 30, 500_000)),
        (pa.time32("s"), '"10:20"', time(10, 20)),
        (pa.time64("us"), "1500", time(0, 0, 1, 500_000)),
        (UTC_MICROS, '"2013-01-01T10:00:00Z"', moment(2013, 1, 1, 10)),
        (UTC_MICROS, '"2013-01-01 10:00:00.123456+02:00"', moment(2013, 1, 1, 8, 0, 0, 123456)),
        (UTC_MICROS, '"2013-01-01"', moment(2013, 1, 1)),
        (UTC_MICROS, '"2013-01-01T10:00:00.123456789Z"', moment(2013, 1, 1, 10, 0, 0, 123456)),
        (UTC_MICROS, "1357034400001", moment(2013, 1, 1, 10, 0, 0, 1000)),
        (pa.timestamp("us"), '"2013-01-01T10:00:00+02:00"', datetime(2013, 1, 1, 8)),
        (pa.timestamp("ms"), '"2013-01-01T10:00:00.1230"', datetime(2013, 1, 1, 10, 0, 0, 123_000)),
        (pa.timestamp("s"), "1357034400000", datetime(2013, 1, 1, 10)),
        (pa.time64("us"), '"10:20:30.123456789"', time(10, 20, 30, 123_456)),
        (pa.float64(), "9007199254740994", 9007199254740994.0),
        (pa.float64(), "100000000000000000000", 1e20),
        (pa.float64(), "12345678901234567000", 12345678901234567000.0),
        (pa.float64(), "1e23", 1e23),
        (pa.float64(), "0.1234567890123456789", 0.1234567890123456789),
        (pa.float64(), "0e-400", 0.0),
        (pa.float32(), "16777218", 16777218.0),
        (pa.float32(), "Infinity", float("inf")),
        (pa.list_(pa.float64()), "[1,null,1e20]", [1.0, None, 1e20]),
        (pa.decimal128(38, 18), "12345678901234567890.5", Decimal("12345678901234567890.5")),
        (pa.decimal128(10, 2), "1.5000000000", Decimal("1.50")),
        (pa.decimal128(10, 2), "1e3", Decimal("1000.00")),
        (pa.decimal128(10, 2), "150e-2", Decimal("1.50")),
        (pa.decimal128(20, 15), "0", Decimal(0)),
        (pa.decimal128(38, 37), "-1.5", Decimal("-1.5")),
        (pa.decimal256(65, 30), "0.0", Decimal(0)),
        (pa.list_(pa.decimal128(10, 2)), "[150e-2,null]", [Decimal("1.50"), None]),
        (UTC_MICROS, '"1969-12-31T23:59:59.0000001Z"', moment(1969, 12, 31, 23, 59, 59)),
        (pa.decimal256(60, 2), "1e57", Decimal("1e57")),
        (pa.list_(pa.int64()), "[1,null]", [1, None]),
        (pa.list_(pa.date32()), '["2013-01-01",null]', [date(2013, 1, 1), None]),
        (pa.list_(pa.binary()), '["AP8="]', [b"\x00\xff"]),
        (pa.list_(UTC_MICROS), "[0]", [moment(1970, 1, 1)]),
        (pa.list_(UTC_MICROS), '[null,"1970-01-01"]', [None, moment(1970, 1, 1)]),
        (pa.list_(pa.field("element", pa.int32())), "[]", []),
        (pa.json_(), '{"a": [1, null]}', '{"a":[1,null]}'),
        (pa.json_(), '"text"', '"text"'),
        (pa.struct([("a", pa.int32()), ("b", pa.int32())]), '{"a":1}', '{"a":1}'),
        (pa.map_(pa.string(), pa.int32()), '{"a":1}', '{"a":1}'),
        (pa.list_(pa.struct([("a", pa.int32())])), '[{"a":1}]', '[{"a":1}]'),
        (pa.list_(pa.list_(pa.int32())), "[[1]]", "[[1]]"),
    ],
    ids=str,
)
def test_every_type_is_read_from_the_usual_writing(
    wanted: pa.DataType, written: str, decoded: Any
) -> None:
    assert decode(wanted, written, "null", written) == ([decoded, None, decoded], {})


@pytest.mark.parametrize(
    ("wanted", "written", "problem"),
    [
        (pa.int64(), "1.5", "1.5 is not a whole number"),
        (pa.int64(), '"1"', '"1" is not a whole number'),
        (pa.int8(), "300", "300 is out of range for int8"),
        (pa.int64(), "9223372036854775808", "9223372036854775808 is out of range for int64"),
        (pa.float64(), '"1"', '"1" is not a number'),
        (pa.float64(), "1e400", "1e400 is out of range for double"),
        (pa.float64(), "9007199254740993", "9007199254740993 is not exact in double"),
        (pa.float64(), "9007199254740993.0", "9007199254740993.0 is not exact in double"),
        (pa.float64(), "1e-400", "1e-400 is out of range for double"),
        (pa.float64(), "0." + "0" * 330 + "1", None),
        (pa.float32(), "16777217", "16777217 is not exact in float"),
        (pa.float32(), "1e300", "1e300 is out of range for float"),
        (pa.float32(), "-1e-50", "-1e-50 is out of range for float"),
        (
            pa.list_(pa.float32()),
            "[1,1e39]",
            "[1,1e39] does not fit list<item: float>",
        ),
        (
            pa.decimal128(38, 18),
            "1" + "0" * 29,
            "1" + "0" * 29 + " does not fit decimal128(38, 18)",
        ),
        (pa.decimal128(38, 18), "1e30", "1e30 does not fit decimal128(38, 18)"),
        (pa.decimal128(10, 2), "999999999", "999999999 does not fit decimal128(10, 2)"),
        (pa.decimal128(10, 2), "1e9", "1e9 does not fit decimal128(10, 2)"),
        (pa.decimal128(10, 2), "1e-223", "1e-223 does not fit decimal128(10, 2)"),
        (pa.decimal128(10, 2), "1e-99999999", "1e-99999999 does not fit decimal128(10, 2)"),
        (pa.decimal128(10, 2), '"1\\u0065-99999999"', None),
        (pa.decimal128(10, 2), '"1e\\u002d99999999"', None),
        (pa.list_(pa.decimal128(10, 2)), "[1e-99]", None),
        (pa.list_(pa.decimal128(10, 2)), "[1,1e-99999999]", None),
        (pa.decimal256(60, 2), "1e58", "1e58 does not fit decimal256(60, 2)"),
        (pa.time64("us"), "86400000", "86400000 is neither a time of day nor milliseconds"),
        (pa.time32("ms"), "-1", "-1 is neither a time of day nor milliseconds"),
        (
            pa.timestamp("ms"),
            '"2013-01-01T10:00:00.1239"',
            '"2013-01-01T10:00:00.1239" is neither an ISO 8601 timestamp nor epoch milliseconds, '
            "or finer than the column",
        ),
        (
            pa.timestamp("s"),
            "1357034400999",
            "1357034400999 is neither an ISO 8601 timestamp nor epoch milliseconds, "
            "or finer than the column",
        ),
        (UTC_MICROS, '"2016-12-31T23:59:60Z"', None),
        (UTC_MICROS, '"2024-01-01T24:00:00Z"', None),
        (UTC_MICROS, '"10000-01-01"', None),
        (pa.date32(), '"2024-01-01T10:00"', None),
        (pa.json_(), '{"a":1e400}', '{"a":1e400} cannot be kept as JSON'),
        (pa.bool_(), "1", "1 is not a boolean"),
        (pa.string(), "1", "1 is not a string"),
        (pa.string(), '"\\ud800"', '"\\ud800" is not valid text'),
        (pa.decimal128(10, 2), "1.255", "1.255 does not fit decimal128(10, 2)"),
        (pa.decimal128(10, 2), "12345678901", "12345678901 does not fit decimal128(10, 2)"),
        (pa.binary(), '"!"', '"!" is not bytes as base64 text'),
        (
            pa.date32(),
            '"2013-02-30"',
            '"2013-02-30" is neither a date (YYYY-MM-DD) nor days since 1970',
        ),
        (pa.time64("us"), '"25:00"', '"25:00" is neither a time of day nor milliseconds'),
        (UTC_MICROS, '"soon"', '"soon" is neither an ISO 8601 timestamp nor epoch milliseconds'),
        (UTC_MICROS, "1.5", "1.5 is neither an ISO 8601 timestamp nor epoch milliseconds"),
        (pa.list_(pa.int64()), "[1,[2]]", "[1,[2]] does not fit list<item: int64>"),
        (pa.list_(pa.int64()), "1", "1 does not fit list<item: int64>"),
        (pa.json_(), '{"a":NaN}', '{"a":NaN} cannot be kept as JSON'),
    ],
    ids=str,
)
def test_a_bad_field_is_named_with_its_value(
    wanted: pa.DataType, written: str, problem: str | None
) -> None:
    decoded, failures = decode(wanted, "null", written, "null")
    assert decoded == [None, None, None]
    assert list(failures) == [1]
    assert problem is None or failures == {1: f"field x: {problem}"}


def test_a_long_value_is_cut_in_the_message() -> None:
    _, failures = decode(pa.int64(), '"' + "x" * 1000 + '"')
    assert len(failures[0]) < 150


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b'{"x":1', "not JSON: Expecting ',' delimiter at position 6"),
        (b'{"x":1}{"x":2}', "not JSON: Extra data at position 7"),
        (b'{"x":}', "not JSON: Expecting value at position 5"),
        (b"[1]", "[1] is an array, not an object"),
        (b"12", "12 is a number, not an object"),
        (b"\xff{}", "not UTF-8: byte 0xff at position 0"),
    ],
)
def test_what_is_not_a_json_object_says_why(value: bytes, problem: str) -> None:
    found = plain().decode(rows({"x": 1}, value, {"x": 2}), pa.schema([("x", pa.int64())]))
    assert found.values.to_pylist() == [{"x": 1}, None, {"x": 2}]
    assert messages(found)[1].startswith(problem)
    assert found.failures[0].exception == "org.apache.kafka.connect.errors.DataException"


def test_null_blank_and_absent_values_are_null() -> None:
    values = rows(None, b"null", b" null\n", b"", b" ", {"x": 1})
    found = plain().decode(values, pa.schema([("x", pa.int64())]))
    assert found.failures == []
    assert found.values.to_pylist() == [None] * 5 + [{"x": 1}]


def test_pretty_printed_json_is_read_without_losing_strictness() -> None:
    pretty = json.dumps({"x": "a b"}, indent=2).replace("\n", "\r\n").encode()
    found = plain().decode(rows(pretty, b'{"x":"a\nb"}'), pa.schema([("x", pa.string())]))
    assert found.values.to_pylist() == [{"x": "a b"}, None]
    assert "control character" in messages(found)[1]


def test_the_last_of_duplicate_fields_counts() -> None:
    values = rows(b'{"x":1,"x":2}', b'{"x":1,"x":null}')
    found = plain().decode(values, pa.schema([("x", pa.int64())]))
    assert found.values.to_pylist() == [{"x": 2}, {"x": None}]


def test_iso_text_and_epoch_numbers_may_alternate_in_one_block() -> None:
    written = ['"1970-01-01T00:00:01Z"', "2000", "null", '"1970-01-01T00:00:03.000000001Z"'] * 1000
    decoded, failures = decode(UTC_MICROS, *written)
    assert failures == {}
    second = [moment(1970, 1, 1, 0, 0, 1), moment(1970, 1, 1, 0, 0, 2), None]
    assert decoded == [*second, moment(1970, 1, 1, 0, 0, 3)] * 1000


def test_a_few_bad_records_in_a_large_block_are_all_found() -> None:
    bad = {0, 1, 777, 4095, 4096, 9_999}
    values = rows(*({"x": "?" if i in bad else i} for i in range(10_000)))
    found = plain().decode(values, pa.schema([("x", pa.int64())]))
    assert set(messages(found)) == bad
    assert [r and r["x"] for r in found.values.to_pylist()] == [
        None if i in bad else i for i in range(10_000)
    ]


def test_only_expected_fields_are_read_in_their_order() -> None:
    found = plain().decode(
        rows({"a": 1, "b": 2, "c": 3}), pa.schema([("c", pa.int64()), ("a", pa.int64())])
    )
    assert list(found.values.to_pylist()[0]) == ["c", "a"]


def test_an_expected_schema_without_fields_keeps_the_rows() -> None:
    found = plain().decode(rows({"a": 1}, None, {}), pa.schema([]))
    assert found.values.is_valid().to_pylist() == [True, False, True]


def test_a_declared_field_that_is_not_null_must_be_there() -> None:
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.string())])
    found = plain(declared).decode(rows({"id": 1}, {"x": "a"}, {"id": None}))
    assert messages(found) == dict.fromkeys((1, 2), "field id: required, but missing or null")


def test_declared_fields_win_over_what_the_sink_expects() -> None:
    converter = plain(pa.schema([("id", pa.int16())]))
    found = converter.decode(rows({"id": 1, "x": 2}), pa.schema([("x", pa.int64())]))
    assert found.values.to_pylist() == [{"id": 1}]


def test_a_sinks_not_null_column_may_be_missing_in_the_data() -> None:
    expected = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])
    found = plain().decode(rows({"x": 2}), expected)
    assert found.values.to_pylist() == [{"id": None, "x": 2}]


@pytest.mark.parametrize(
    "name", ["", "a b", 'q"', "a/b", "~", "x*", "$", "a.b", "é", "\\", "'", "0"]
)
def test_any_field_name_is_kept_as_json(name: str) -> None:
    value = {name: {"k": 1}, "other": 2}
    found = plain().decode(rows(value, {}, value), pa.schema([(name, pa.json_())]))
    assert found.values.field(0).to_pylist() == ['{"k":1}', None, '{"k":1}']


@pytest.mark.parametrize(
    "number",
    [
        "0.12345678901234567890",
        "12345678901234567890123",
        "1234567890123.4567",
        "1.5e300",
        "1e5",
        "1e-400",
        "-1.5E-330",
    ],
)
def test_numbers_in_kept_json_keep_their_value(number: str) -> None:
    decoded, failures = decode(pa.json_(), f'{{"n": {number}}}')
    assert failures == {}
    assert Decimal(decoded[0].split(":")[1].strip(" }")) == Decimal(number)


def test_evolve_adds_a_new_field_with_its_first_value() -> None:
    converter = plain(evolve=True)
    expected = pa.schema([("a", pa.int64())])
    decoded = [
        converter.decode(rows(*block), expected).values.to_pylist()
        for block in (
            [{"a": 1}],
            [{"a": 2, "new": None}],
            [{"a": 3, "new": 1.5}, {"a": 4}],
            [{"a": 5, "new": 2}],
            [{"a": 6}],
        )
    ]
    assert decoded == [
        [{"a": 1}],
        [{"a": 2}],
        [{"a": 3, "new": 1.5}, {"a": 4, "new": None}],
        [{"a": 5, "new": 2.0}],
        [{"a": 6, "new": None}],
    ]


def test_evolve_works_beside_kept_json_and_bad_records() -> None:
    converter = plain(evolve=True)
    expected = pa.schema([("a", pa.int64()), ("doc", pa.json_())])
    first = converter.decode(rows({"a": 1, "doc": {"x": 1}, "n": None}), expected)
    assert first.values.to_pylist() == [{"a": 1, "doc": '{"x":1}'}]
    found = converter.decode(rows({"a": "?", "n": 1}, b"{", {"a": 2, "n": {"y": [1]}}), expected)
    assert set(messages(found)) == {0, 1}
    assert found.values.to_pylist()[2] == {"a": 2, "doc": None, "n": '{"y":[1]}'}


def test_an_evolved_field_that_the_sink_took_keeps_the_sinks_type() -> None:
    converter = plain(evolve=True)
    converter.decode(rows({"a": 1, "new": 1}), pa.schema([("a", pa.int64())]))
    found = converter.decode(
        rows({"a": 1, "new": 1}), pa.schema([("a", pa.int64()), ("new", pa.decimal128(5, 1))])
    )
    assert found.values.to_pylist() == [{"a": 1, "new": Decimal("1.0")}]


def test_without_evolve_unknown_fields_are_ignored() -> None:
    found = plain().decode(rows({"a": 1, "b": 2}), pa.schema([("a", pa.int64())]))
    assert found.values.to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    ("values", "wanted", "decoded"),
    [
        ([b"1", None, b" 2 ", b"null", b"", b" "], pa.int64(), [1, None, 2, None, None, None]),
        ([b"1", b"1.5"], pa.json_(), ["1", "1.5"]),
        ([b'"a\\u00e9"', b'"2013-01-01"'], pa.string(), ["aé", "2013-01-01"]),
        ([b"true", b"false"], pa.bool_(), [True, False]),
        ([b"1", b'"a"'], pa.json_(), ["1", '"a"']),
        ([b"[1,2]"], pa.list_(pa.int64()), [[1, 2]]),
    ],
)
def test_keys_that_are_no_objects_decode_to_their_type(
    values: list[bytes | None], wanted: pa.DataType, decoded: list[Any]
) -> None:
    found = plain().decode(pa.array(values, pa.binary()))
    assert found.failures == []
    assert found.values.type == wanted
    assert found.values.to_pylist() == decoded


def test_keys_that_smuggle_in_more_than_a_value_are_refused() -> None:
    found = plain().decode(rows(b"1", b'1,"x":2', b"1}{2", b'"a"b', b"x", b"2"))
    assert found.values.to_pylist() == [1, None, None, None, None, 2]
    assert sorted(messages(found)) == [1, 2, 3, 4]


def test_a_tombstone_before_anything_else_is_null() -> None:
    converter = plain()
    assert converter.decode(rows(None, None)).values.null_count == 2
    assert converter.decode(rows({"a": 1})).values.to_pylist() == [{"a": 1}]


def test_one_stray_number_does_not_make_objects_bad() -> None:
    converter = plain()
    converter.decode(rows(b"5"))
    found = converter.decode(rows({"a": 1}, {"a": 2}, b"5"))
    assert found.values.to_pylist() == [{"a": 1}, {"a": 2}, None]


def test_slices_and_chunked_arrays_are_decoded_like_whole_ones() -> None:
    values = rows({"a": 0}, {"a": 1}, None, {"a": 2}, {"a": 3})
    expected = pa.schema([("a", pa.int64())])
    assert plain().decode(values[1:4], expected).values.to_pylist() == [{"a": 1}, None, {"a": 2}]
    chunked = pa.chunked_array([values[:1], values[3:]])
    assert len(plain().decode(chunked, expected).values) == 3
    assert len(plain().decode(values[:0], expected).values) == 0
    assert len(plain().decode(values[:0]).values) == 0


@pytest.mark.parametrize("evolve", [False, True])
def test_a_field_that_is_nested_deeply_is_found_and_kept_whole(evolve: bool) -> None:
    for opening, closing in (("[", "]"), ('{"k":', "}")):
        deep = opening * 2000 + "1" + closing * 2000
        found = plain(evolve=evolve).decode(rows(f'{{"id":1,"deep":{deep}}}'.encode()))
        assert found.values.to_pylist() == [{"id": 1, "deep": deep}]


def test_the_last_of_duplicate_fields_counts_beside_kept_json() -> None:
    expected = pa.schema([("a", pa.int64()), ("b", pa.json_())])
    found = plain().decode(rows(b'{"a":1,"a":2,"b":{"c":1,"c":2}}'), expected)
    assert found.values.to_pylist() == [{"a": 2, "b": '{"c":1,"c":2}'}]


def test_an_object_without_any_field_of_the_target_is_a_bad_record() -> None:
    """It would become a row of nulls. One whose values are null is not."""
    expected = pa.schema([("id", pa.int64()), ("text", pa.string())])
    texts = ['{"ID": 1, "Text": "a"}', "{}", '{"id": null, "more": 1}', '{"id": 2}', "null"]
    converter = JsonConverter(schemas_enable=False)
    for values in (texts, texts[:1]):
        decoded = converter.decode(pa.array(values, pa.string()), expected)
        (failure,) = decoded.failures
        assert failure.index == 0
        assert "none of its fields (ID, Text) is a column" in failure.message
        assert "(id, text)" in failure.message
    for other in (
        JsonConverter(schemas_enable=False, evolve=True),
        JsonConverter(schemas_enable=False, schema=expected),
    ):
        assert not other.decode(pa.array(texts, pa.string()), expected).failures


NAMES = st.sampled_from(["id", "text", "ID", "more", "caf\u00e9", 'a"b', "a.b"])
VALUES = st.sampled_from([None, 1, {"id": 1}, [{"id": 2}]])


@given(st.lists(st.dictionaries(NAMES, VALUES)), st.booleans())
def test_the_records_without_any_column_are_those_that_share_no_name_with_it(
    records: list[dict[str, Any]], ascii_only: bool
) -> None:
    expected = pa.schema([("id", pa.json_()), ("caf\u00e9", pa.json_())])
    texts = [json.dumps(r, ensure_ascii=ascii_only) for r in records]
    decoded = plain().decode(pa.array(texts, pa.string()), expected)
    assert [f.index for f in decoded.failures if "none of its fields" in f.message] == [
        n for n, r in enumerate(records) if r and r.keys().isdisjoint(expected.names)
    ]


def test_records_that_hold_nulls_alone_are_not_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = pa.schema([("id", pa.int64()), ("text", pa.string())])
    texts = ['{"id": null, "more": {"deep": 1}}', '{"more": {"id": 1}, "text": null}', "{}", "null"]
    monkeypatch.setattr(json, "loads", _refuses)
    assert not plain().decode(pa.array(texts * 1000, pa.string()), expected).failures


def _refuses(text: str) -> Any:
    raise AssertionError(f"read one by one: {text}")


def test_records_are_told_apart_only_by_the_fields_that_differ() -> None:
    fields = {f"f{n}": n for n in range(12)}
    converter = JsonConverter(schemas_enable=False, evolve=True)
    converter.decode(pa.array([json.dumps({"v": 1, **fields}).encode()]))
    given = [
        {"v": (1, "x", True)[n % 3], **{f: v for f, v in fields.items() if n >> v & 1}}
        for n in range(300)
    ]
    decoded = converter.decode(pa.array([json.dumps(value).encode() for value in given]))
    assert decoded.apart is not None
    assert decoded.apart.tolist() == [n % 3 for n in range(300)]


unknown = st.none() | st.integers(0, 9) | st.sampled_from(["x", 0.5, True, [1], ["a"], {"a": 1}])


@given(st.lists(st.lists(st.dictionaries(st.sampled_from("abc"), unknown), min_size=1), min_size=1))
def test_values_without_a_column_are_counted_exactly_in_every_batch(
    batches: list[list[dict[str, Any]]],
) -> None:
    converter = JsonConverter(schemas_enable=False)
    converter.count_unread()
    for batch in batches:
        values = pa.array([json.dumps({"id": 1, **fields}).encode() for fields in batch])
        found = converter.decode(values, pa.schema([("id", pa.int64())]))
        counts = {n: sum(fields.get(n) is not None for fields in batch) for n in "abc"}
        assert found.unread == {n: count for n, count in counts.items() if count}


def test_values_without_a_column_are_soon_counted_while_parsing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converter, target = JsonConverter(schemas_enable=False), pa.schema([("id", pa.int64())])
    converter.count_unread()
    values = pa.array([b'{"id":1,"n":2,"s":"x","l":[1]}', b'{"id":2,"n":0.5}'])
    first = converter.decode(values, target)
    monkeypatch.delattr(duck, "keys")
    monkeypatch.delattr(duck, "counts")
    assert converter.decode(values, target).unread == first.unread == {"n": 2, "s": 1, "l": 1}


KINDS: list[tuple[str, Any]] = [
    ("1", 1),
    ("-0.5", -0.5),
    ('"a\\"b"', 'a"b'),
    ("true", True),
    ("[1, null]", [1, None]),
    ("[1, 2.5]", [1.0, 2.5]),
    ('["a", "]"]', ["a", "]"]),
    ("[]", []),
    ("[true]", [True]),
]
STAY = ["12345678901234567890", "[12345678901234567890]", '{"a":1}', "[[1]]", '[1,"a"]', "1e999"]


@given(st.lists(st.sampled_from([*KINDS, *((text, text) for text in STAY), ("null", None)])))
def test_json_of_several_kinds_is_read_by_kind_and_only_the_rest_stays(
    given_: list[tuple[str, Any]],
) -> None:
    found = of_one_kind(pa.array([text for text, _ in given_], pa.string()))
    read = {
        row: value
        for rows, values in found
        for row, value in zip(rows.to_pylist(), values.to_pylist(), strict=True)
    }
    assert [read.get(n) for n in range(len(given_))] == [value for _, value in given_]
    kept = [row for rows, values in found if values.type == JSON for row in rows.to_pylist()]
    assert sorted(kept) == [n for n, (text, _) in enumerate(given_) if text in STAY]
