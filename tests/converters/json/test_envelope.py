"""JSON with schemas: types, defaults and what counts as an envelope."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.converters import create
from semel.converters.json.converter import JsonConverter
from semel.converters.json.merge import Part, apart
from semel.core.errors import ConfigError
from tests.converters.json import test_reference as plain

CONNECT = "org.apache.kafka.connect.data."
DEBEZIUM = "io.debezium."


def envelope(fields: list[dict[str, Any]], payload: Any, **schema: Any) -> bytes:
    return json.dumps(
        {"schema": {"type": "struct", "fields": fields, **schema}, "payload": payload}
    ).encode()


def field(field: str, type: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": type, "optional": True, **more}


def decode(*values: bytes | None) -> tuple[pa.Array, dict[int, str]]:
    found = JsonConverter().decode(pa.array(values, pa.binary()))
    assert len(found.values) == len(values)
    return found.values, {f.index: f.message for f in found.failures}


def number(unscaled: int) -> str:
    length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("schema", "value", "wanted", "decoded"),
    [
        ({"type": "int8"}, -128, pa.int8(), -128),
        ({"type": "int16"}, 1, pa.int16(), 1),
        ({"type": "int32"}, 1, pa.int32(), 1),
        ({"type": "int64"}, 2**63 - 1, pa.int64(), 2**63 - 1),
        ({"type": "float"}, 1.5, pa.float32(), 1.5),
        ({"type": "float32"}, 1.5, pa.float32(), 1.5),
        ({"type": "double"}, 1, pa.float64(), 1.0),
        ({"type": "boolean"}, True, pa.bool_(), True),
        ({"type": "string"}, "é", pa.string(), "é"),
        ({"type": "bytes"}, "AP8=", pa.binary(), b"\x00\xff"),
        (
            {"type": "array", "items": {"type": "int32", "optional": True}},
            [1, None],
            pa.list_(pa.int32()),
            [1, None],
        ),
        (
            {"type": "array", "items": {"type": "int32", "name": CONNECT + "Date"}},
            [1],
            pa.list_(pa.date32()),
            [date(1970, 1, 2)],
        ),
        ({"type": "array", "items": {"type": "struct", "fields": []}}, [{}], pa.json_(), "[{}]"),
        (
            {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}},
            {"a": 1},
            pa.json_(),
            '{"a":1}',
        ),
        ({"type": "struct", "fields": []}, {"y": None}, pa.json_(), '{"y":null}'),
        ({"type": "int32", "name": CONNECT + "Date"}, 1, pa.date32(), date(1970, 1, 2)),
        ({"type": "int32", "name": CONNECT + "Time"}, 1, pa.time32("ms"), time(0, 0, 0, 1000)),
        (
            {"type": "int64", "name": CONNECT + "Timestamp"},
            1,
            pa.timestamp("ms", "UTC"),
            datetime(1970, 1, 1, 0, 0, 0, 1000, UTC),
        ),
        ({"type": "int32", "name": DEBEZIUM + "time.Date"}, -1, pa.date32(), date(1969, 12, 31)),
        ({"type": "int32", "name": DEBEZIUM + "time.Time"}, 0, pa.time32("ms"), time()),
        (
            {"type": "int64", "name": DEBEZIUM + "time.MicroTime"},
            1,
            pa.time64("us"),
            time(0, 0, 0, 1),
        ),
        (
            {"type": "int64", "name": DEBEZIUM + "time.Timestamp"},
            1,
            pa.timestamp("ms"),
            datetime(1970, 1, 1, 0, 0, 0, 1000),
        ),
        (
            {"type": "int64", "name": DEBEZIUM + "time.MicroTimestamp"},
            1,
            pa.timestamp("us"),
            datetime(1970, 1, 1, 0, 0, 0, 1),
        ),
        (
            {"type": "string", "name": DEBEZIUM + "time.ZonedTimestamp"},
            "2013-01-01T02:00:00.5+02:00",
            pa.timestamp("us", "UTC"),
            datetime(2013, 1, 1, 0, 0, 0, 500_000, UTC),
        ),
        ({"type": "string", "name": DEBEZIUM + "data.Json"}, '{"a": 1}', pa.json_(), '{"a": 1}'),
        ({"type": "string", "name": DEBEZIUM + "data.Uuid"}, "u", pa.string(), "u"),
    ],
    ids=lambda p: json.dumps(p)[:60] if isinstance(p, dict) else "",
)
def test_connect_types_become_arrow_types(
    schema: dict[str, Any], value: Any, wanted: pa.DataType, decoded: Any
) -> None:
    fields = [{"field": "x", "optional": True, **schema}]
    found, failures = decode(envelope(fields, {"x": value}), envelope(fields, {"x": None}))
    assert failures == {}
    assert found.type.field("x").type == wanted
    assert found.to_pylist() == [{"x": decoded}, {"x": None}]


def test_nanosecond_timestamps_keep_their_digits() -> None:
    fields = [field("at", "int64", name=DEBEZIUM + "time.NanoTimestamp")]
    found, _ = decode(envelope(fields, {"at": 1}))
    assert found.field("at") == pa.array([1], pa.timestamp("ns"))


@given(st.integers(-(10**38) + 1, 10**38 - 1))
@settings(deadline=None)
def test_a_connect_decimal_is_its_unscaled_bytes(unscaled: int) -> None:
    fields = [field("d", "bytes", name=CONNECT + "Decimal", parameters={"scale": "2"})]
    found, failures = decode(envelope(fields, {"d": number(unscaled)}))
    assert failures == {}
    assert found.to_pylist() == [{"d": Decimal(f"{unscaled}E-2")}]


def test_decimals_written_as_numbers_and_as_bytes_may_alternate() -> None:
    fields = [field("d", "bytes", name=CONNECT + "Decimal", parameters={"scale": "2"})]
    written = [number(-5), 1.25, None, number(300), 7]
    found, failures = decode(*(envelope(fields, {"d": d}) for d in written))
    assert failures == {}
    assert found.field("d").to_pylist() == [
        Decimal("-0.05"),
        Decimal("1.25"),
        None,
        Decimal("3.00"),
        Decimal("7.00"),
    ]


def test_a_decimal_with_more_digits_than_its_scale_is_refused() -> None:
    fields = [field("d", "bytes", name=CONNECT + "Decimal", parameters={"scale": "2"})]
    found, failures = decode(envelope(fields, {"d": 1.255}))
    assert failures == {0: "field d: 1.255 does not fit decimal128(38, 2)"}
    assert found.to_pylist() == [None]


def test_the_decimal_precision_of_the_source_is_kept() -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    fields = [field("d", "bytes", name=CONNECT + "Decimal", parameters=parameters)]
    found, _ = decode(envelope(fields, {"d": number(1)}))
    assert found.type.field("d").type == pa.decimal128(10, 2)


def test_a_missing_or_null_field_takes_its_default() -> None:
    fields = [
        field("n", "int32", default=7, optional=False),
        field("s", "string", default="x"),
        field("t", "array", items={"type": "string"}, default=["a"]),
        field("d", "bytes", name=CONNECT + "Decimal", parameters={"scale": "1"}, default="ZA=="),
        field("m", "map", keys={"type": "string"}, values={"type": "int32"}, default={"k": 1}),
    ]
    found, failures = decode(envelope(fields, {"n": None}), envelope(fields, {"n": 1, "s": "y"}))
    assert failures == {}
    same = {"t": ["a"], "d": Decimal("10.0"), "m": '{"k":1}'}
    assert found.to_pylist() == [{"n": 7, "s": "x"} | same, {"n": 1, "s": "y"} | same]


def test_a_required_field_must_be_there() -> None:
    fields = [field("id", "int64", optional=False), field("x", "string")]
    found, failures = decode(
        envelope(fields, {"id": 1}), envelope(fields, {"x": "a"}), envelope(fields, {"id": None})
    )
    assert failures == dict.fromkeys((1, 2), "field id: required, but missing or null")
    assert found.to_pylist() == [{"id": 1, "x": None}, None, None]
    assert not found.type.field("id").nullable


def test_a_field_is_required_unless_its_schema_says_optional() -> None:
    _, failures = decode(envelope([{"field": "id", "type": "int64"}], {}))
    assert failures == {0: "field id: required, but missing or null"}


def test_an_item_of_a_list_is_required_unless_its_schema_says_optional() -> None:
    fields = [field("a", "array", items={"type": "int32"})]
    found, failures = decode(*(envelope(fields, {"a": a}) for a in ([1, None], [1], [], None)))
    assert failures == {0: "field a: an item is null, but required"}
    assert found.to_pylist() == [None, {"a": [1]}, {"a": []}, {"a": None}]


@pytest.mark.parametrize("optional", [True, False])
def test_a_null_item_of_a_list_takes_the_default_of_the_items(optional: bool) -> None:
    items = {"type": "int32", "optional": optional, "default": 42}
    rows = [envelope([field("a", "array", items=items)], {"a": a}) for a in ([1, None], None, [])]
    found, failures = decode(*rows)
    assert not failures
    assert found.to_pylist() == [{"a": [1, 42]}, {"a": None}, {"a": []}]


def test_primitive_payloads_decode_to_their_type() -> None:
    schema = b'{"schema":{"type":"int32","optional":false},"payload":%s}'
    found, failures = decode(schema % b"1", None, schema % b"x", schema % b"1.5", schema % b"null")
    assert found.type == pa.int32()
    assert found.to_pylist() == [1, None, None, None, None]
    assert sorted(failures) == [2, 3, 4]


@pytest.mark.parametrize(
    ("schema", "payload", "decoded"),
    [
        ({"type": "string"}, "a", "a"),
        ({"type": "bytes"}, "YQ==", b"a"),
        ({"type": "int64", "name": CONNECT + "Timestamp"}, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (
            {"type": "array", "items": {"type": "string", "optional": True}},
            ["a", None],
            ["a", None],
        ),
        ({"type": "map"}, {"a": 1}, '{"a":1}'),
    ],
)
def test_payloads_of_any_type_can_be_keys(schema: object, payload: object, decoded: object) -> None:
    found, failures = decode(json.dumps({"schema": schema, "payload": payload}).encode())
    assert failures == {}
    assert found.to_pylist() == [decoded]


def test_a_null_payload_and_a_tombstone_are_null() -> None:
    fields = [field("id", "int64")]
    values = [envelope(fields, payload, optional=True) for payload in (None, {"id": 1})]
    found, failures = decode(values[0], None, b'{"schema":null,"payload":null}', values[1])
    assert failures == {}
    assert found.to_pylist() == [None, None, None, {"id": 1}]


@pytest.mark.parametrize("optional", [{}, {"optional": False}])
def test_a_null_payload_of_a_required_schema_is_refused(optional: dict[str, bool]) -> None:
    fields = [field("id", "int64")]
    values = [envelope(fields, payload, **optional) for payload in ({"id": 1}, None, {"id": 2})]
    found, failures = decode(*values, values[1].replace(b"null}", b" null }"))
    assert found.to_pylist() == [{"id": 1}, None, {"id": 2}, None]
    assert failures == dict.fromkeys(
        (1, 3), "the payload is null, but its schema is a required struct"
    )


def test_floats_that_json_has_no_number_for_are_read_as_kafka_connect_writes_them() -> None:
    written = ["NaN", "Infinity", "-Infinity", 1.5, "1.5", "nan"]
    fields = [field("d", "double"), field("f", "float")]
    values = [envelope(fields, {"d": v, "f": v}) for v in written]
    found, failures = decode(*values)
    assert repr([v and v["d"] for v in found.to_pylist()]) == "[nan, inf, -inf, 1.5, None, None]"
    assert repr([v and v["f"] for v in found.to_pylist()]) == "[nan, inf, -inf, 1.5, None, None]"
    assert failures == {4: 'field d: "1.5" is not a number', 5: 'field d: "nan" is not a number'}
    assert sorted(decode(values[0], values[4])[1]) == [1]


def test_the_last_of_two_payloads_counts() -> None:
    schema = json.dumps({"type": "struct", "fields": [field("id", "int64")]})
    value = f'{{"schema":{schema},"payload":{{"id":1}},"payload":{{"id":2}}}}'.encode()
    found, failures = decode(value, value)
    assert failures == {}
    assert found.to_pylist() == [{"id": 2}, {"id": 2}]


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1}',
        b'{"schema":{"type":"int32"}}',
        b'{"payload":1}',
        b'{"schema":{"type":"int32"},"payload":1,"more":2}',
        b"null",
        b"",
        b"1",
    ],
)
def test_an_error_about_a_missing_envelope_names_the_setting_to_change(value: bytes) -> None:
    _, failures = decode(value)
    assert "schemas.enable" in failures[0] or failures[0].startswith("not JSON")
    assert value == b"" or "value.converter.schemas.enable=false" in failures[0]


def test_an_envelope_without_a_schema_says_so() -> None:
    _, failures = decode(b'{"schema":null,"payload":{"id":1}}')
    assert failures[0].startswith("the envelope has no schema")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "int7"}, 'unknown type "int7"'),
        ({"type": "struct"}, 'a struct needs "fields"'),
        ({"type": "struct", "fields": [{"type": "int8"}]}, 'needs a "field" name'),
        ({"type": "struct", "fields": [{"type": "array", "field": "x"}]}, "field x: the items"),
        ([], "the schema must be an object"),
        ({"type": "struct", "fields": 5}, 'a struct needs "fields"'),
        ({"type": "struct", "fields": {"a": 5}}, 'a struct needs "fields"'),
        ({"type": "int8", "parameters": 5, "doc": "x"}, "not a Kafka Connect schema"),
        ({"type": "array", "items": {"type": ["int8"]}}, "unknown type"),
        *(
            (
                {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": scale}},
                "needs a whole number from -38 to 38 as scale",
            )
            for scale in ("x", None, "39", "-39", "99999999999999999999", {})
        ),
        ({"type": "bytes", "name": CONNECT + "Decimal"}, "needs a whole number from -38 to 38"),
    ],
)
def test_a_schema_that_is_not_connects_fails_its_records(schema: object, problem: str) -> None:
    bad = json.dumps({"schema": schema, "payload": {"x": 1}}).encode()
    good = envelope([field("id", "int64")], {"id": 1})
    found, failures = decode(bad, good, bad)
    assert problem in failures[0]
    assert sorted(failures) == [0, 2]
    assert found.to_pylist() == [None, {"id": 1}, None]


def test_a_record_fails_once_even_if_its_schema_conflicts_as_well() -> None:
    texts = [envelope([field("id", "string")], {"id": "a"}) for _ in range(2)]
    texts.append(envelope([field("id", "int8")], {"id": 300}))
    found = JsonConverter().decode(pa.array(texts, pa.binary()))
    assert [failure.index for failure in found.failures] == [2]


def test_records_of_several_schema_versions_share_one_array() -> None:
    one = [field("id", "int32", optional=False)]
    two = [field("id", "int64", optional=False), field("note", "string")]
    found, failures = decode(
        envelope(one, {"id": 1}),
        None,
        envelope(two, {"id": 2, "note": "a"}),
        envelope(one, {"id": 3}),
    )
    assert failures == {}
    assert found.type == pa.struct(
        [pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]
    )
    assert found.to_pylist() == [
        {"id": 1, "note": None},
        None,
        {"id": 2, "note": "a"},
        {"id": 3, "note": None},
    ]


def test_a_schema_that_contradicts_the_others_fails_its_records() -> None:
    found, failures = decode(
        envelope([field("id", "int32")], {"id": 1}), envelope([field("id", "string")], {"id": "a"})
    )
    assert "schema conflicts" in failures[1]
    assert found.to_pylist() == [{"id": 1}, None]


def test_nested_fields_are_told_apart_whichever_schema_came_last() -> None:
    kinds = [("x", "int32", 1), ("y", "int32", 2), ("x", "string", "a")]
    values = [
        envelope(
            [{"field": "n", "type": "struct", "fields": [field(name, kind)]}], {"n": {name: value}}
        )
        for name, kind, value in kinds
    ]
    decoded = JsonConverter().decode(pa.array(values))
    assert decoded.apart is not None
    assert decoded.apart.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (pa.decimal128(10, 2), pa.decimal128(12, 2), True),
        (pa.int32(), pa.int64(), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 3), False),  # 1.00 and 1.000
        (pa.int64(), pa.float64(), False),  # 1 and 1.0
    ],
)
def test_types_that_write_a_value_alike_stay_together(
    one: pa.DataType, other: pa.DataType, *, together: bool
) -> None:
    parts = [
        Part(pa.array([row]), pa.array([{"n": None}], pa.struct([("n", kind)])))
        for row, kind in enumerate([one, other])
    ]
    assert (apart(parts, 2) is None) is together


def test_a_number_too_large_for_the_other_schemas_type_fails_alone() -> None:
    found, failures = decode(
        envelope([field("n", "double")], {"n": 0.5}),
        envelope([field("n", "int64")], {"n": 2**60 + 1}),
    )
    assert "schema conflicts" in failures[1]
    assert found.to_pylist() == [{"n": 0.5}, None]


@pytest.mark.parametrize("schemas", [50, pytest.param(200, marks=pytest.mark.long)])
def test_many_schemas_in_one_block_are_told_apart(schemas: int) -> None:
    numbers = range(3 * schemas)
    values = [envelope([field(n := f"f{i % schemas}", "int32")], {n: i}) for i in numbers]
    found, failures = decode(*values)
    assert failures == {}
    assert [{k: v for k, v in r.items() if v is not None} for r in found.to_pylist()] == [
        {f"f{i % schemas}": i} for i in numbers
    ]


def test_the_sinks_columns_do_not_matter() -> None:
    values = pa.array([envelope([field("id", "int32")], {"id": 1})])
    found = JsonConverter().decode(values, pa.schema([("other", pa.string())]))
    assert found.values.to_pylist() == [{"id": 1}]


def test_infer_takes_types_and_nullability_from_the_schema() -> None:
    fields = [field("id", "int32", optional=False), field("s", "string")]
    assert JsonConverter().infer(pa.array([envelope(fields, {"id": 1})])) == pa.schema(
        [pa.field("id", pa.int32(), nullable=False), pa.field("s", pa.string())]
    )


SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            field("a", "int64"),
            field("s", "string"),
            field("f", "double"),
            field("d", "map"),
            field("b", "boolean"),
        ],
    }
).encode()

shapes = st.sampled_from(
    [
        b'{"schema":%s,"payload":%s}',
        b'{"schema":%s,"payload":%s}',
        b'{"schema":%s,"payload":%s}',
        b'{"schema":%s,"payload": %s }\n',
        b' {"schema": %s, "payload": %s}',
        b'{"schema":%s,"payload":%s,"more":{}}',
        b'{"schema":%s,"payload":1,"payload":%s}',
    ]
)
payloads = plain.tricks.map(lambda v: v or b"null") | plain.written() | plain.damaged()


def reference(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        document = json.loads(value.decode(), parse_float=plain.finite, parse_int=plain.whole)
        if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
            return plain.FAILED
    except (ValueError, plain.Refused):
        return plain.FAILED
    if document["payload"] is None:
        return plain.FAILED  # the schema is required
    payload = document["payload"]
    if isinstance(payload, dict) and payload.get("f") in ("NaN", "Infinity", "-Infinity"):
        payload["f"] = float(payload["f"])  # Kafka Connect has no other way to write them
    return plain.fields_of(payload)


@settings(deadline=None)
@example([b'{"schema":%s,"payload":{"f":"NaN"}}' % SCHEMA])
@given(
    st.lists(
        st.none() | st.builds(lambda shape, payload: shape % (SCHEMA, payload), shapes, payloads),
        max_size=15,
    )
)
def test_decoding_envelopes_together_agrees_with_decoding_each(values: list[bytes | None]) -> None:
    converter = JsonConverter()
    plain.compare(
        values, [reference(v) for v in values], converter.decode(pa.array(values, pa.binary()))
    )


@pytest.mark.parametrize("optional", [True, False])
def test_one_schema_for_all_values(optional: bool) -> None:
    """KIP-1054: values have no envelope."""
    number = {"type": "int32", "optional": optional}
    schema = {"type": "struct", "fields": [{"field": "id", **number}]}
    converter = JsonConverter(content=json.dumps(schema))
    assert converter.has_schemas
    values = [b'{"id":1}', None, b'{"id":"x"}', b'{"id":2,"more":3}', b"\xff", b"7"]
    found = converter.decode(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [{"id": 1}, None, None, {"id": 2}, None, None]
    assert found.values.type == pa.struct([pa.field("id", pa.int32(), nullable=optional)])
    assert [f.index for f in found.failures] == [2, 4, 5]
    scalars = JsonConverter(content=json.dumps(number)).decode(pa.array([b"1", None], pa.binary()))
    assert (scalars.values.to_pylist(), list(scalars.failures)) == ([1, None], [])


def test_a_schema_in_the_configuration_is_checked() -> None:
    name = "org.apache.kafka.connect.json.JsonConverter"

    def make(**keys: str) -> None:
        config = {k.replace("_", "."): v for k, v in keys.items()}
        create(name, config, is_key=False, where="value.converter")

    for wrong in ("{", '{"type":"nope"}'):
        with pytest.raises(ConfigError, match=r"schema\.content is not a Kafka Connect schema"):
            make(schema_content=wrong)
    make(**{"schema_content": "{", "schemas.enable": "false"})  # has no effect then, as in Kafka
    with pytest.raises(ConfigError, match="both declare the fields"):
        make(schema_content='{"type":"int32"}', schema="id INT")


@pytest.mark.parametrize("depth", [101, 600, 900, 3000])
def test_a_schema_that_is_nested_without_end_is_refused(depth: int) -> None:
    items = '{"type":"array","items":' * depth + '{"type":"int32"}' + "}" * depth
    found, refused = decode(
        f'{{"schema":{items},"payload":[]}}'.encode(), b'{"schema":{"type":"int32"},"payload":1}'
    )
    assert "nested" in refused[0]
    assert found.is_valid().to_pylist() == [False, True]
