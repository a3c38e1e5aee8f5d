"""The Avro converter and its registry, which here is a dictionary."""

from __future__ import annotations

import datetime
import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from semel.converters import create
from semel.converters.avro import AvroConverter
from semel.converters.avro.parse import parse
from semel.converters.avro.write import write
from semel.converters.registry.client import Schema, UnknownSchema
from semel.core.errors import ConfigError, Unavailable

UTC = datetime.UTC
CONFLUENT = "io.confluent.connect.avro.AvroConverter"
ENTRY = "io.confluent.connect.avro.MapEntry"
APICURIO = "io.apicurio.registry.utils.converter.AvroConverter"


class Known:
    """Schemas by id, as a registry has them."""

    url = "http://registry"

    def __init__(self, schemas: dict[int, Schema]) -> None:
        self.schemas = schemas
        self.away = False

    def schema(self, schema_id: int) -> Schema:
        if self.away:
            raise Unavailable("the schema registry cannot be reached")
        if schema_id not in self.schemas:
            raise UnknownSchema("Schema not found")
        return self.schemas[schema_id]


def record(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Row", "fields": listed}


def schema(described: Any, number: int = 1) -> Schema:
    return Schema("AVRO", json.dumps(described), id=number)


def message(described: Any, value: Any, number: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(described), value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def converter(known: Known, **more: Any) -> AvroConverter:
    return AvroConverter(known, "value.converter", **more)  # type: ignore[arg-type]


def test_each_value_is_read_by_its_own_schema_and_they_are_united() -> None:
    old, new = record(id="int", name="string"), record(id="long", name="string", price="double")
    made = converter(Known({1: schema(old), 2: schema(new, 2)}))
    values = [
        message(old, {"id": 1, "name": "a"}),
        message(new, {"id": 2**40, "name": "b", "price": 0.5}, 2),
        None,
        message(old, {"id": 3, "name": "c"}),
    ]
    decoded = made.decode(pa.array(values, pa.binary()))
    assert not decoded.failures
    assert decoded.values.to_pylist() == [
        {"id": 1, "name": "a", "price": None},
        {"id": 2**40, "name": "b", "price": 0.5},
        None,
        {"id": 3, "name": "c", "price": None},
    ]
    assert decoded.values.type.field("id").type == pa.int64()


def test_nested_records_are_united_too() -> None:
    old, new = record(x="int"), record(y="string", x="long")
    for wrap in (
        lambda inner: inner,
        lambda inner: {"type": "array", "items": inner},
        lambda inner: {"type": "map", "values": inner},
    ):
        one, two = record(v=wrap({**old, "name": "In"})), record(v=wrap({**new, "name": "In"}))
        made = converter(Known({1: schema(one), 2: schema(two, 2)}))
        kind = wrap({})
        first, second = {"x": 1}, {"y": "a", "x": 2}
        if kind:
            first = [first] if kind["type"] == "array" else {"k": first}  # type: ignore[assignment]
            second = [second] if kind["type"] == "array" else {"k": second}  # type: ignore[assignment]
        decoded = made.decode(
            pa.array([message(one, {"v": first}), message(two, {"v": second}, 2)])
        )
        assert not decoded.failures
        text = json.dumps(decoded.values.to_pylist())
        assert '"x": 1' in text
        assert '"y": "a"' in text


def test_schemas_that_contradict_each_other_are_bad_records_of_the_later_one() -> None:
    one, two = record(id="int"), record(id="string")
    made = converter(Known({1: schema(one), 2: schema(two, 2)}))
    values = [message(one, {"id": 1}), message(two, {"id": "x"}, 2)]
    decoded = made.decode(pa.array(values))
    assert decoded.values.to_pylist() == [{"id": 1}, None]
    assert "its schema conflicts with other records'" in decoded.failures[0].message


def test_an_unknown_id_is_a_bad_record_and_a_registry_that_is_away_is_not() -> None:
    row = record(id="int")
    known = Known({1: schema(row)})
    made = converter(known)
    values = pa.array([message(row, {"id": 1}), message(row, {"id": 2}, 9), b"{}", b"\0\0"])
    decoded = made.decode(values)
    assert decoded.values.to_pylist() == [{"id": 1}, None, None, None]
    assert [f.index for f in decoded.failures] == [1, 2, 3]
    assert decoded.failures[0].message.startswith("schema id 9 is unknown to http://registry")
    assert "begins with byte 0x7b" in decoded.failures[1].message
    assert "2 bytes are too few" in decoded.failures[2].message
    known.away = True
    assert made.decode(values.slice(0, 1)).values.to_pylist() == [{"id": 1}]  # it is remembered
    with pytest.raises(Unavailable):
        made.decode(values.slice(1, 1))
    known.away, known.schemas[9] = False, schema(row, 9)
    assert made.decode(values.slice(1, 1)).values.to_pylist() == [{"id": 2}]


def test_a_schema_of_another_format_is_reported() -> None:
    made = converter(Known({1: Schema("PROTOBUF", "", id=1), 2: Schema("AVRO", '"x.Y"', id=2)}))
    decoded = made.decode(pa.array([b"\0\0\0\0\1\0", b"\0\0\0\0\2\0"]))
    assert (
        "schema 1 is of type PROTOBUF, not AVRO: set value.converter" in decoded.failures[0].message
    )
    assert decoded.failures[1].message == "schema 2: it refers to x.Y, which is not defined"


def test_a_damaged_record_is_bad_alone() -> None:
    row = record(id="int", name="string")
    values = [message(row, {"id": n, "name": "n" * n}) for n in range(5)]
    values[2] = values[2][:-1]
    decoded = converter(Known({1: schema(row)})).decode(pa.array(values))
    assert [v and v["id"] for v in decoded.values.to_pylist()] == [0, 1, None, 3, 4]
    assert [(f.index, f.message) for f in decoded.failures] == [
        (2, "schema 1: field name: the record ends 1 bytes too early")
    ]


def connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.name": name, "connect.version": 1, **more}


@pytest.mark.parametrize(
    ("kind", "written", "arrow", "wanted"),
    [
        ({"type": "int", "logicalType": "date"}, 1, pa.date32(), datetime.date(1970, 1, 2)),
        (
            connect(
                "long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"
            ),
            1500,
            pa.timestamp("ms", "UTC"),
            datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, UTC),
        ),
        ({"type": "int", "connect.type": "int8"}, -128, pa.int8(), -128),
        (
            connect("long", "io.debezium.time.MicroTimestamp"),
            1,
            pa.timestamp("us"),
            datetime.datetime(1970, 1, 1, 0, 0, 0, 1),
        ),
        (connect("int", "io.debezium.time.Date"), 0, pa.date32(), datetime.date(1970, 1, 1)),
        (
            connect("string", "io.debezium.time.ZonedTimestamp"),
            "2024-01-01T01:00:00.1234567+01:00",
            pa.timestamp("us", "UTC"),
            datetime.datetime(2024, 1, 1, 0, 0, 0, 123456, UTC),
        ),
        (connect("string", "io.debezium.data.Json"), '{"a": 1}', pa.json_(), '{"a": 1}'),
        (connect("string", "io.debezium.data.Enum"), "x", pa.string(), "x"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
            | {"connect.name": "org.apache.kafka.connect.data.Decimal"},
            Decimal("-1.50"),
            pa.decimal128(10, 2),
            Decimal("-1.50"),
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, 7, pa.int64(), 7),
        (
            {"type": "array", "items": record(key="int", value="string")}
            | {"items": {**record(key="int", value="string"), "connect.internal.type": "MapEntry"}},
            [{"key": 1, "value": "a"}],
            pa.map_(pa.int32(), pa.string()),
            [(1, "a")],
        ),
        (
            {"type": "array", "items": record(key="int", value="string")}
            | {"items": {**record(key="int", value="string"), "name": ENTRY}},
            [{"key": 1, "value": "a"}],
            pa.map_(pa.int32(), pa.string()),
            [(1, "a")],
        ),
    ],
)
def test_logical_types_of_connect_and_debezium(
    kind: Any, written: Any, arrow: pa.DataType, wanted: Any
) -> None:
    described = {"type": "record", "name": "Outer", "fields": [{"name": "v", "type": kind}]}
    plain = json.loads(json.dumps(described))
    decimal = isinstance(written, Decimal)
    if not decimal:
        for part in (plain["fields"][0]["type"],):
            part.pop("logicalType", None)
    made = converter(Known({1: schema(described)}))
    decoded = made.decode(pa.array([message(plain, {"v": written})] * 2))
    assert not decoded.failures
    assert decoded.values.type.field("v").type == arrow
    assert decoded.values.to_pylist()[1]["v"] == wanted


@pytest.mark.parametrize(
    ("kind", "fills", "null"),
    [
        ({"type": "string", "connect.default": "x"}, True, "x"),
        ({"type": "string", "connect.default": "x"}, False, None),
        ("string", True, None),  # Avro's own default is for readers whose schema is newer
    ],
)
def test_a_null_is_the_default_that_kafka_connect_has_declared(
    kind: Any, fills: bool, null: str | None
) -> None:
    described = record(v=[kind, "null"])
    described["fields"][0]["default"] = "x"
    value = pa.array([message(described, {"v": None}), message(described, {"v": "y"})])
    made = converter(Known({1: schema(described)}), defaults=fills)
    assert made.decode(value).values.to_pylist() == [{"v": null}, {"v": "y"}]


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("long", "0", 7),
        ("boolean", "false", True),
        (["null", "long"], "null", None),
    ],
)
def test_a_default_that_does_not_fit_is_ignored_when_records_are_read(
    kind: Any, default: Any, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    described = record(v=kind)
    values = pa.array([message(described, {"v": value})])
    described["fields"][0]["default"] = default
    made = converter(Known({1: schema(described)}))
    for _ in range(2):
        decoded = made.decode(values)
        assert not decoded.failures
        assert decoded.values.to_pylist() == [{"v": value}]
    (said,) = caplog.messages
    assert f"field v: its default {json.dumps(default)} does not fit its type" in said


def test_a_union_of_one_type_is_that_type() -> None:
    described = record(v=["string"], n="int")
    row = {"v": "a", "n": 1}
    decoded = converter(Known({1: schema(described)})).decode(pa.array([message(described, row)]))
    assert decoded.values.to_pylist() == [row]
    assert not decoded.values.type.field("v").nullable
    assert (
        write(parse(json.dumps(described)), decoded.values)[0].as_py()
        == (message(described, row)[5:])
    )


def test_a_union_of_several_types_is_a_struct_as_in_kafka_connect() -> None:
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    described = record(v=["null", "string", inner])
    known = Known({1: schema(described)})
    values = pa.array([message(described, {"v": v}) for v in ("a", {"x": 1}, None)])
    assert [v["v"] for v in converter(known).decode(values).values.to_pylist()] == [
        {"string": "a", "Inner": None},
        {"string": None, "Inner": {"x": 1}},
        None,
    ]
    named = converter(known, full_names=True).decode(values).values.to_pylist()
    assert named[1]["v"] == {"string": None, "a.Inner": {"x": 1}}


def test_json_of_a_record_inside_itself_says_what_a_struct_would() -> None:
    described = record(
        inner=["null", "Row"],
        at={"type": "long", "logicalType": "timestamp-millis"},
        price={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        x="double",
    )
    inner = {"inner": None, "at": 5, "price": Decimal("1.50"), "x": 0.5}
    row = {"inner": inner, "at": 0, "price": Decimal("0"), "x": math.nan}
    inside = [inner, {**inner, "at": 2**62}, {**inner, "x": math.nan}]
    made = converter(Known({1: schema(described)}))
    decoded = made.decode(pa.array([message(described, {**row, "inner": i}) for i in inside]))
    assert decoded.values[0].as_py()["inner"] == (
        '{"inner":null,"at":"1970-01-01T00:00:00.005Z","price":1.50,"x":0.5}'
    )
    assert [(f.index, f.message) for f in decoded.failures] == [
        (1, "schema 1: field inner: its year is beyond 32767, and no text can hold it"),
        (2, "schema 1: field inner: nan inside, which JSON does not have"),
    ]


@pytest.mark.parametrize("scale", [39, -39, 10**20, "x", None, [1]])
def test_a_decimal_of_a_scale_that_arrow_lacks_is_refused(scale: object) -> None:
    described = record(price={"type": "bytes", "logicalType": "decimal", "scale": scale})
    good = record(price={"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38})
    made = converter(Known({1: schema(described), 2: schema(good, 2)}))
    value = b"\0\0\0\0\1\4\1\2"
    decoded = made.decode(pa.array([value, message(good, {"price": Decimal("1E-38")}, 2)]))
    assert [f.index for f in decoded.failures] == [0]
    assert "schema 1" in decoded.failures[0].message
    assert decoded.values[1].as_py() == {"price": Decimal("1E-38")}


def test_a_number_beyond_all_ids_is_not_asked_for() -> None:
    known = Known({})
    known.away = True
    (failure,) = converter(known).decode(pa.array([b"\0\xff\xff\xff\xff\0"])).failures
    assert failure.message == "there is no schema id 4294967295: 2147483647 is the greatest"


def test_referenced_schemas_are_found_by_name() -> None:
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    outer = record(v="a.Inner")
    text = Schema("AVRO", json.dumps(outer), (("a.Inner", json.dumps(inner)),), 1)
    written = message(record(v=inner), {"v": {"x": 5}})
    decoded = converter(Known({1: text})).decode(pa.array([written]))
    assert decoded.values.to_pylist() == [{"v": {"x": 5}}]


def test_a_key_need_not_be_a_record() -> None:
    decoded = converter(Known({1: schema("long")})).decode(pa.array([message("long", 7), None]))
    assert decoded.values.to_pylist() == [7, None]
    assert decoded.values.type == pa.int64()


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (CONFLUENT, {}, "value.converter.schema.registry.url is required"),
        (
            CONFLUENT,
            {"schema.registry.url": ","},
            "value.converter.schema.registry.url is required",
        ),
        (
            CONFLUENT,
            {"schema.registry.url": "registry:8081"},
            "must begin with http:// or https://",
        ),
        (
            CONFLUENT,
            {"schema.registry.url": "http://r", "basic.auth.credentials.source": "SASL_INHERIT"},
            "basic.auth.credentials.source=SASL_INHERIT is not available: set it to USER_INFO",
        ),
        (
            CONFLUENT,
            {"schema.registry.url": "http://r", "basic.auth.credentials.source": "USER_INFO"},
            "value.converter.basic.auth.user.info must be user:password",
        ),
        (
            CONFLUENT,
            {
                "schema.registry.url": "https://r",
                "schema.registry.ssl.keystore.location": "/k.jks",
            },
            r"semel reads the keys of PEM files, not of JKS\. Convert it: keytool -importkeystore",
        ),
        (
            CONFLUENT,
            {"schema.registry.url": "http://r", "enhanced.avro.schema.support": "yes"},
            "enhanced.avro.schema.support='yes' must be true or false",
        ),
        (
            APICURIO,
            {"apicurio.registry.url": "http://r/apis/registry/v2"},
            "value.converter.apicurio.registry.as-confluent=true is needed",
        ),
    ],
)
def test_an_unusable_configuration_is_refused(
    name: str, config: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create(name, config, is_key=False, where="value.converter")


def test_apicurios_address_becomes_that_of_confluents_api() -> None:
    config = {
        "apicurio.registry.url": "http://r:8080/apis/registry/v2",
        "apicurio.registry.as-confluent": "true",
    }
    made = create(APICURIO, config, is_key=False, where="value.converter")
    assert isinstance(made, AvroConverter)
    assert made._registry.url == "http://r:8080/apis/ccompat/v7"


def test_several_addresses_and_a_login_in_one_of_them() -> None:
    config = {"schema.registry.url": "http://me:p%40ss@one:8081, http://two:8081"}
    made = create(CONFLUENT, config, is_key=False, where="value.converter")
    assert isinstance(made, AvroConverter)
    assert made._registry.url == "http://one:8081,http://two:8081"
    assert made._registry._settings["basic.auth.user.info"] == "me:p@ss"
