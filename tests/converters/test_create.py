"""Converters by name, and the small ones."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel import converters
from semel.config import definitions, names
from semel.converters.base import Converter, Decoded
from semel.converters.json.converter import JsonConverter
from semel.converters.primitives import ByteArrayConverter, StringConverter
from semel.core.errors import ConfigError


def create(name: str, **config: str) -> Converter:
    options = {k.replace("_", "."): v for k, v in config.items()}
    return converters.create(name, options, is_key=False, where="value.converter")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("org.apache.kafka.connect.json.JsonConverter", JsonConverter),
        ("JsonConverter", JsonConverter),
        ("org.apache.kafka.connect.storage.StringConverter", StringConverter),
        (" StringConverter ", StringConverter),
        ("org.apache.kafka.connect.converters.ByteArrayConverter", ByteArrayConverter),
        ("ByteArrayConverter", ByteArrayConverter),
    ],
)
def test_converters_have_kafka_connects_names(name: str, wanted: type[Converter]) -> None:
    assert type(create(name)) is wanted


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("JsonConvertor", "no such converter; did you mean JsonConverter?"),
        ("AvroConverter", "More than one converter matches alias AvroConverter. Please use full"),
        ("", "available are AvroConverter, BooleanConverter, ByteArrayConverter"),
    ],
)
def test_an_unknown_converter_is_refused_with_the_known_ones(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        create(name)
    assert problem in str(raised.value)
    if "More than one" not in problem:
        assert "available are AvroConverter, BooleanConverter, ByteArray" in str(raised.value)


class Upper(Converter):
    def decode(self, values: pa.Array, expected: pa.Schema | None = None) -> Decoded:
        return Decoded(values)


def test_third_parties_add_converters_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"Upper": f"{__name__}:Upper", "Broken": "nowhere:Nothing", "Wrong": "json:loads"}
    monkeypatch.setattr(converters, "entries", lambda group: found)
    assert type(create("Upper")).__name__ == "Upper"
    with pytest.raises(ConfigError, match="cannot load nowhere:Nothing"):
        create("Broken")
    with pytest.raises(ConfigError, match="is not a semel Converter"):
        create("Wrong")


def test_json_schemas_are_enabled_unless_told_otherwise() -> None:
    value = pa.array([b'{"a":1}'])
    assert create("JsonConverter").decode(value).failures
    assert create("JsonConverter", schemas_enable="true").decode(value).failures
    assert not create("JsonConverter", schemas_enable="FALSE").decode(value).failures


def test_a_declared_schema_means_plain_json() -> None:
    found = create("JsonConverter", schema="a SMALLINT").decode(pa.array([b'{"a":1}']))
    assert found.values.type == pa.struct([("a", pa.int16())])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"schemas_enable": "yes"}, "value.converter.schemas.enable='yes' must be true or false"),
        ({"schemas_enable": "true", "schema": "a INT"}, "set it to false, or remove the schema"),
        ({"schema": "a NUMBER"}, "value.converter.schema: unknown type 'NUMBER' of field a"),
    ],
)
def test_a_bad_json_configuration_is_refused(config: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        create("JsonConverter", **config)
    assert problem in str(raised.value)
    assert raised.value.problems[0].key.startswith("value.converter.schema")


def test_a_converter_names_the_keys_it_reads() -> None:
    keys = {"schemas.enable", "schema", "schema.content", "decimal.format"} | {
        "replace.null.with.default"
    }
    assert keys == set(names(create("JsonConverter").section))
    assert set() == set(names(create("StringConverter").section))


@pytest.mark.parametrize("name", sorted(converters.names()))
def test_every_key_of_a_converter_is_explained(name: str) -> None:
    section = converters.find(name, where="").section
    assert [d.name for d in definitions(section) if not d.documentation] == []


def test_all_mistakes_are_reported_at_once_by_their_whole_keys() -> None:
    mistakes = {
        "schema.registry.request.timeout.ms": "soon",
        "auto.register.schemas": "maybe",
        "bearer.auth.token": "hidden",
        "proxy.host": " ",
    }
    with pytest.raises(ConfigError) as raised:
        converters.create(
            "io.confluent.connect.avro.AvroConverter",
            mistakes,
            is_key=True,
            where="key.converter",
        )
    assert [(p.key, p.message) for p in raised.value.problems] == [
        (
            "key.converter.schema.registry.url",
            "key.converter.schema.registry.url is required. The schema registry, such as "
            "http://localhost:8081; several addresses are separated by commas.",
        ),
        (
            "key.converter.schema.registry.request.timeout.ms",
            "key.converter.schema.registry.request.timeout.ms='soon' must be a whole number",
        ),
        (
            "key.converter.auto.register.schemas",
            "key.converter.auto.register.schemas='maybe' must be true or false",
        ),
    ]


APICURIO = "io.apicurio.registry.utils.converter.ProtobufConverter"


def test_the_first_name_of_a_key_counts_if_it_is_given_by_several() -> None:
    given = {
        "apicurio.registry.as-confluent": "true",
        "schema.registry.url": "http://second",
        "apicurio.registry.url": "http://first",
        "auto.register.schemas": "true",
        "apicurio.registry.auto-register": "false",
        "schema.registry.basic.auth.user.info": "second:",
        "basic.auth.user.info": "first:",
    }
    keys = converters.find(APICURIO, where="x").keys(given, "x")
    assert (keys.urls, keys.registers, keys.user) == (("http://first",), False, "first:")


def test_keys_without_effect_take_anything() -> None:
    given = {
        "apicurio.registry.as-confluent": "true",
        "apicurio.registry.url": "http://localhost",
        "schemas.cache.config": "many",
        "reference.lookup.only": "perhaps",
    }
    assert converters.find(APICURIO, where="x").keys(given, "x").urls == ("http://localhost",)


def test_all_mistakes_in_apicurios_keys_are_reported_at_once() -> None:
    given = {"apicurio.registry.url": "localhost", "basic.auth.credentials.source": "odd"}
    with pytest.raises(ConfigError) as error:
        converters.find(APICURIO, where="x").keys(given, "x")
    assert [p.key for p in error.value.problems] == [
        "x.apicurio.registry.as-confluent",
        "x.apicurio.registry.url",
        "x.basic.auth.credentials.source",
    ]


def test_fields_that_the_sink_does_not_know_are_wanted_with_evolve() -> None:
    converter = converters.create(
        "JsonConverter",
        {"schemas.enable": "false"},
        is_key=False,
        where="value.converter",
        evolve=True,
    )
    found = converter.decode(pa.array([b'{"a":1,"b":2}']), pa.schema([("a", pa.int64())]))
    assert found.values.to_pylist() == [{"a": 1, "b": 2}]


def test_strings_must_be_utf8() -> None:
    found = create("StringConverter").decode(pa.array(["é".encode(), None, b"", b"a\xff"]))
    assert found.values.to_pylist() == ["é", None, "", None]
    assert [(f.index, f.message) for f in found.failures] == [
        (3, "not UTF-8: byte 0xff at position 1")
    ]


def test_bytes_pass_unchanged() -> None:
    values = pa.array([b"\xff", None, b""])
    found = create("ByteArrayConverter").decode(values)
    assert found.values.equals(values)
    assert found.failures == ()
    assert create("ByteArrayConverter").infer(values) is None
