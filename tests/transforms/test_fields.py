"""Transforms of fields, as the unit tests of Kafka Connect's classes have it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.transforms import chain_of
from tests.transforms.records import KAFKA, STAMP, applied, batch, refusals, stage, values

ROWS = [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}]
NO_MAP = "Only Map objects supported in absence of schema for [{}], found: {}"


def of_json(*texts: bytes) -> pa.Array:
    """Values of JSON without schemas, as transforms see them."""
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    return converter.decode(pa.array(texts)).values


class TestInsertField:
    def test_inserts_where_a_record_was_read_and_when_and_a_constant(self) -> None:
        config = stage(
            "InsertField$Value",
            topic_field="t",
            partition_field="p!",
            offset_field="o?",
            timestamp_field="at",
            static_field="s",
            static_value="v",
        )
        own = {"t": "orders", "p": 3, "at": datetime.fromtimestamp(STAMP / 1000, UTC), "s": "v"}
        assert values(config, batch(ROWS, has_schema=True)) == [
            {"a": 1, "b": "x", **own, "o": 10},
            None,
            {"a": 2, "b": None, **own, "o": 12},
        ]

    def test_without_schema_the_time_is_a_number(self) -> None:
        found = values(stage("InsertField$Value", timestamp_field="at"), batch([{"a": 1}]))
        assert found == [{"a": 1, "at": STAMP}]

    def test_a_time_that_kafka_does_not_know_is_not_inserted(self) -> None:
        config, unknown = stage("InsertField$Value", timestamp_field="at"), [-1, 0, -2]
        assert [v.get("at") for v in values(config, batch([{}] * 3, timestamps=unknown))] == [
            None,
            0,
            -2,
        ]

    def test_inserts_into_keys(self) -> None:
        config = stage("InsertField$Key", static_field="s", static_value="v")
        outcome = applied(config, batch(ROWS, [{"k": 1}, None, {"k": 3}]))
        assert outcome.batch.keys.array.to_pylist() == [
            {"k": 1, "s": "v"},
            None,
            {"k": 3, "s": "v"},
        ]
        assert outcome.batch.values.array.to_pylist() == ROWS

    def test_a_schema_has_no_field_twice_but_a_map_has_the_later_one(self) -> None:
        config = stage("InsertField$Value", topic_field="a")
        assert values(config, batch([{"a": 1}])) == [{"a": "orders"}]
        (why,) = refusals(config, batch([{"a": 1}], has_schema=True))
        assert why == "transforms.t: Cannot create field because of field name duplication a"

    def test_refuses_what_has_no_fields(self) -> None:
        (why,) = refusals(stage("InsertField$Value", topic_field="t"), batch(["x"]))
        assert why.endswith(NO_MAP.format("field insertion", "java.lang.String"))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "No field insertion configured"),
            ({"static_field": "s"}, "No value specified for static field: s"),
        ],
    )
    def test_refuses_a_configuration_that_inserts_nothing(
        self, options: dict[str, str], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            chain_of(stage("InsertField$Value", **options))


class TestReplaceField:
    @pytest.mark.parametrize(
        ("options", "left"),
        [
            ({"exclude": "dont"}, {"xyz": 1, "abc": 2, "etc": 3}),
            ({"blacklist": "dont,etc"}, {"xyz": 1, "abc": 2}),
            ({"include": "abc,etc"}, {"abc": 2, "etc": 3}),
            ({"whitelist": "abc,dont", "exclude": "dont"}, {"abc": 2}),
            ({"exclude": "dont", "renames": "xyz:new,etc:other"}, {"new": 1, "abc": 2, "other": 3}),
            ({"include": "xyz,abc", "renames": "xyz:abc2,abc:xyz2"}, {"abc2": 1, "xyz2": 2}),
        ],
    )
    def test_drops_keeps_and_renames(self, options: dict[str, str], left: dict[str, int]) -> None:
        row = {"dont": "whatever", "xyz": 1, "abc": 2, "etc": 3}
        for has_schema in (True, False):
            records = batch([row, None], has_schema=has_schema)
            assert values(stage("ReplaceField$Value", **options), records) == [left, None]

    def test_dropping_every_field_leaves_records_without_fields(self) -> None:
        assert values(stage("ReplaceField$Value", exclude="a,b"), batch(ROWS)) == [{}, None, {}]

    def test_refuses_a_rename_that_is_no_pair(self) -> None:
        with pytest.raises(ConfigError, match="Invalid rename mapping: a:b:c"):
            chain_of(stage("ReplaceField$Value", renames="a:b:c"))


class TestExtractField:
    def test_replaces_the_whole_with_a_field(self) -> None:
        assert values(stage("ExtractField$Value", field="a"), batch(ROWS)) == [1, None, 2]

    def test_of_keys(self) -> None:
        outcome = applied(
            stage("ExtractField$Key", field="k"), batch(ROWS, [{"k": n} for n in "abc"])
        )
        assert outcome.batch.keys.array.to_pylist() == ["a", "b", "c"]

    def test_an_unknown_field_is_null_in_a_map_but_refused_in_a_schema(self) -> None:
        config = stage("ExtractField$Value", field="z")
        assert values(config, batch(ROWS)) == [None, None, None]
        outcome = applied(config, batch(ROWS, has_schema=True))
        assert [(r.index, r.message) for r in outcome.refused] == [
            (0, "transforms.t: Unknown field: z"),
            (2, "transforms.t: Unknown field: z"),
        ]
        assert outcome.refused[0].exception == "java.lang.IllegalArgumentException"

    def test_an_object_inside_is_opened_for_the_next_transform(self) -> None:
        config = stage("ExtractField$Value", field="a")
        config |= {"transforms": "t,u", "transforms.u.type": f"{KAFKA}ExtractField$Value"}
        config |= {"transforms.u.field": "b"}
        assert values(config, batch(of_json(b'{"a":{"b":5}}', b'{"a":{"b":6,"c":1}}'))) == [5, 6]

    def test_a_path_leads_into_objects(self) -> None:
        config = stage("ExtractField$Value", field="a.`b.c`", field_syntax_version="V2")
        assert values(config, batch(of_json(b'{"a":{"b.c":5}}', b'{"a":null}'))) == [5, None]

    def test_refuses_a_path_with_one_backtick(self) -> None:
        with pytest.raises(ConfigError, match="Incomplete backtick pair in path"):
            chain_of(stage("ExtractField$Value", field="a.`b", field_syntax_version="V2"))


class TestValueToKey:
    def test_makes_a_key_of_fields(self) -> None:
        outcome = applied(stage("ValueToKey", fields="a,z"), batch([{"a": 1, "b": 2}]))
        assert outcome.batch.keys.array.to_pylist() == [{"a": 1, "z": None}]
        assert outcome.batch.values.array.to_pylist() == [{"a": 1, "b": 2}]

    def test_refuses_tombstones_and_fields_that_a_schema_lacks(self) -> None:
        purpose = "copying fields from value to key"
        (why,) = refusals(stage("ValueToKey", fields="a"), batch(ROWS))
        assert why.endswith(NO_MAP.format(purpose, "null"))
        (why,) = refusals(stage("ValueToKey", fields="z"), batch([{"a": 1}], has_schema=True))
        assert why.endswith("Field does not exist: z")


class TestHoistField:
    def test_wraps_nulls_too(self) -> None:
        assert values(stage("HoistField$Value", field="h"), batch([42, None])) == [
            {"h": 42},
            {"h": None},
        ]


class TestMaskField:
    def test_masks_each_type_with_its_nothing(self) -> None:
        row = {
            "i": 5,
            "f": 1.5,
            "s": "secret",
            "t": True,
            "d": Decimal("1.50"),
            "at": datetime(2024, 1, 1, tzinfo=UTC),
            "l": [1],
            "n": None,
        }
        (masked,) = values(stage("MaskField$Value", fields="i,f,s,t,d,at,l,n"), batch([row]))
        assert masked == {
            "i": 0,
            "f": 0.0,
            "s": "",
            "t": False,
            "d": Decimal(0),
            "at": datetime(1970, 1, 1, tzinfo=UTC),
            "l": [],
            "n": None,
        }

    def test_puts_a_constant_in_the_place_of_numbers_and_texts(self) -> None:
        config = stage("MaskField$Value", fields="a,b", replacement="123")
        assert values(config, batch([{"a": 1, "b": "x", "c": 2}])) == [
            {"a": 123, "b": "123", "c": 2}
        ]
        (why,) = refusals(config, batch([{"a": True}]))
        assert why.endswith(
            "Cannot mask value of type class java.lang.Boolean with custom replacement."
        )
        config = stage("MaskField$Value", fields="a", replacement="x")
        (why,) = refusals(config, batch([{"a": 1}]))
        assert why.endswith("Unable to convert x (class java.lang.String) to a number")

    @pytest.mark.parametrize(
        ("given", "replacement", "made"),
        [
            (1, "NaN", None),
            (1, "Infinity", None),
            (1, "1e999999999", 0),
            (1.5, "NaN", None),
            (1.5, "-inf", None),
            (1, "1_000", None),
            (1.5, "-.5E+1", -5.0),
            (Decimal("1.5"), "1e-999999999", None),
            (Decimal("1.5"), "1e40", None),
            (Decimal("1.5"), "2.50", Decimal("2.5")),
        ],
    )
    def test_takes_numbers_of_any_size(self, given: Any, replacement: str, made: Any) -> None:
        config = stage("MaskField$Value", fields="a", replacement=replacement)
        if made is None:
            (why,) = refusals(config, batch([{"a": given}]))
            assert f"Unable to convert {replacement}" in why
        else:
            (row,) = values(config, batch([{"a": given}]))
            assert str(row["a"]) == str(made)

    def test_refuses_tombstones(self) -> None:
        (why,) = refusals(stage("MaskField$Value", fields="a"), batch(ROWS))
        assert why.endswith(NO_MAP.format("mask fields", "null"))


class TestCast:
    @pytest.mark.parametrize(
        ("spec", "given", "made"),
        [
            ("int8", [300, -129], [44, 127]),
            ("int8", [1.9, -1.9, 300.0, 1e20, float("nan")], [1, -1, 44, -1, 0]),
            ("int16", ["42", "+7", "-7"], [42, 7, -7]),
            ("int32", [2**31], [-(2**31)]),
            ("int32", [True, False], [1, 0]),
            ("int64", [1e30, -1e30], [2**63 - 1, -(2**63)]),
            ("float64", ["1.5", " 2e3 ", "7d", "-Infinity"], [1.5, 2000.0, 7.0, float("-inf")]),
            ("boolean", [0, 5, None], [False, True, None]),
            ("boolean", [0.5], [False]),
            ("boolean", ["TRUE", "yes"], [True, False]),
            ("string", [1, -5], ["1", "-5"]),
            (
                "string",
                [1.0, 1e7, 12345678.9, 0.001, 1e-5, -0.0, 1e21],
                ["1.0", "1.0E7", "1.23456789E7", "0.001", "1.0E-5", "-0.0", "1.0E21"],
            ),
            ("string", [float("nan"), float("inf")], ["NaN", "Infinity"]),
            ("string", [True], ["true"]),
            ("string", [b"\x00\xff"], ["AP8="]),
            ("string", [Decimal("1.50")], ["1.50"]),
            ("string", [datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)], ["2024-01-02T03:04:05.000Z"]),
            ("string", [datetime(2024, 1, 2, tzinfo=UTC)], ["2024-01-02"]),
            ("string", [datetime(1970, 1, 1, 1, tzinfo=UTC)], ["01:00:00.000Z"]),
            ("int64", [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], [1000]),
        ],
    )
    def test_converts_as_java_does(self, spec: str, given: list[Any], made: list[Any]) -> None:
        config = stage("Cast$Value", spec=spec)
        assert values(config, batch(given, has_schema=True)) == made

    def test_a_number_without_a_sign_keeps_its_lowest_bits(self) -> None:
        given = pa.array([{"v": 2**64 - 1}], pa.struct([("v", pa.uint64())]))
        assert values(stage("Cast$Value", spec="v:int64"), batch(given)) == [{"v": -1}]

    def test_of_fields(self) -> None:
        config = stage("Cast$Value", spec="a:string, b:int32")
        assert values(config, batch([{"a": 1, "b": "5", "c": 1}, None])) == [
            {"a": "1", "b": 5, "c": 1},
            None,
        ]

    @pytest.mark.parametrize(
        ("spec", "value"),
        [("int8", "300"), ("int64", "9" * 20), ("int32", "1.5"), ("float32", "x")],
    )
    def test_refuses_texts_that_are_no_such_number(self, spec: str, value: str) -> None:
        outcome = applied(stage("Cast$Value", spec=spec), batch(["7", value, None]))
        assert outcome.batch.values.array.to_pylist() == [7, None]
        (refused,) = outcome.refused
        assert refused.message.endswith(f"Value ({value}) was out of range for requested data type")

    def test_values_of_several_types_are_cast_each_for_itself(self) -> None:
        given = of_json(b'{"a":"7"}', b'{"a":8}', b'{"a":9.5}', b'{"a":true}', b'{"a":null}')
        assert values(stage("Cast$Value", spec="a:int32"), batch(given)) == [
            {"a": n} for n in (7, 8, 9, 1, None)
        ]
        texts = [{"a": t} for t in ("7", "8", "9.5", "true", None)]
        assert values(stage("Cast$Value", spec="a:string"), batch(given)) == texts
        given = of_json(b'{"a":"7"}', b'{"a":{"b":1}}', b'{"a":"x"}')
        outcome = applied(stage("Cast$Value", spec="a:int32"), batch(given))
        assert {r.index for r in outcome.refused} == {1, 2}
        given = of_json(b'{"a":"7"}', b'{"a":18446744073709551617}')
        assert values(stage("Cast$Value", spec="a:int32"), batch(given)) == [{"a": 7}, {"a": 1}]

    def test_refuses_arrays(self) -> None:
        (why,) = refusals(stage("Cast$Value", spec="a:string"), batch([{"a": [1]}]))
        assert "does not support casting from ARRAY" in why

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("a:faketype", "Invalid type found in casting spec: faketype"),
            ("a:bytes", "does not support casting to BYTES"),
            ("int8,int32", "may only specify a single cast in their spec"),
        ],
    )
    def test_refuses_a_spec_that_names_no_type(self, spec: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            chain_of(stage("Cast$Value", spec=spec))


class TestFlatten:
    def test_joins_the_names_of_all_levels(self) -> None:
        given = of_json(
            b'{"a":{"b":{"c":1},"d":[1,2]},"t":"2024-01-01"}', b'{"a":{"e":true}}', b'{"a":null}'
        )
        assert values(stage("Flatten$Value", delimiter="#"), batch(given)) == [
            {"a#b#c": 1, "a#d": [1, 2], "t": "2024-01-01"},
            {"a#e": True, "t": None},
            {"a": None, "t": None},
        ]

    def test_a_value_that_is_no_object_stays(self) -> None:
        assert values(stage("Flatten$Value"), batch(of_json(b'{"a":{"b":1}}', b'{"a":5}'))) == [
            {"a.b": 1},
            {"a": "5"},
        ]

    def test_of_structs(self) -> None:
        rows = [{"a": {"b": 1, "c": {"d": "x"}}, "e": 2}, {"a": None, "e": 3}, None]
        assert values(stage("Flatten$Value"), batch(rows, has_schema=True)) == [
            {"a.b": 1, "a.c.d": "x", "e": 2},
            {"a.b": None, "a.c.d": None, "e": 3},
            None,
        ]

    def test_two_fields_of_one_name(self) -> None:
        config = stage("Flatten$Value", delimiter="_")
        rows = [{"a_b": 3, "a": None}, {"a_b": 2, "a": {"b": 1}}]
        assert values(config, batch(rows)) == [{"a_b": 3, "a": None}, {"a_b": 1}]
        refused = refusals(config, batch(rows, has_schema=True))
        assert (
            refused
            == ["transforms.t: Cannot create field because of field name duplication a_b"] * 2
        )
        assert values(stage("Flatten$Value", delimiter=""), batch(rows[1:])) == [
            {"a_b": 2, "ab": 1}
        ]

    def test_refuses_maps_in_schemas(self) -> None:
        maps = pa.array([{"m": [("k", 1)]}], pa.struct([("m", pa.map_(pa.string(), pa.int32()))]))
        (why,) = refusals(stage("Flatten$Value"), batch(maps, has_schema=True))
        assert why.endswith("does not support MAP for record with schemas (for field m).")


class TestSetSchemaMetadata:
    def test_names_the_schema(self) -> None:
        config = stage("SetSchemaMetadata$Value", schema_name="n", schema_version=2)
        contents = applied(config, batch(ROWS, has_schema=True)).batch.values
        assert (contents.name, contents.version) == ("n", 2)
        assert contents.array.to_pylist() == ROWS

    def test_needs_a_schema(self) -> None:
        (why,) = refusals(stage("SetSchemaMetadata$Value", schema_name="n"), batch([{"a": 1}]))
        assert why.endswith("Schema required for [updating schema metadata]")
        with pytest.raises(ConfigError, match="Neither schema name nor version configured"):
            chain_of(stage("SetSchemaMetadata$Value"))


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (stage("Flatten$Value"), {"n.i": '{"a": 1}'}),
        (stage("ExtractField$Value", field="n.i", field_syntax_version="V2"), '{"a": 1}'),
        (
            {
                "transforms": "f,t",
                "transforms.f.type": KAFKA + "Flatten$Value",
                "transforms.t.type": KAFKA + "Cast$Value",
                "transforms.t.spec": "n.i:string",
            },
            {"n.i": '{"a": 1}'},
        ),
    ],
    ids=["Flatten", "ExtractField", "Cast"],
)
def test_a_text_that_holds_json_is_a_text(config: dict[str, str], found: Any) -> None:
    inner = {"field": "i", "type": "string", "name": "io.debezium.data.Json"}
    fields = [{"field": "n", "type": "struct", "fields": [inner]}]
    value = {"schema": {"type": "struct", "fields": fields}, "payload": {"n": {"i": '{"a": 1}'}}}
    given = JsonConverter().decode(pa.array([json.dumps(value).encode()])).values
    outcome = applied(config, batch(given, has_schema=True))
    assert outcome.refused == []
    assert outcome.batch.values.array.to_pylist() == [found]
