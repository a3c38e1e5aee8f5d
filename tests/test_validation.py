"""A configuration judged key by key, in the shape in which Kafka Connect answers it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import pytest

from semel.config.reading import VALUE_CONVERTER
from semel.core.errors import ConfigError
from semel.driver.planning import plan, plan_any
from semel.driver.validation import keys_of, validate
from semel.kafka import cluster, groups

RAW = {
    "name": "orders",
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "topics": "orders",
    "bootstrap.servers": "kafka:9092",
    "connection.url": "jdbc:postgresql://me:hidden4you@db/shop",
    "connection.password": "hidden4you",
}

KEY_INFO = [
    *("name", "type", "required", "default_value", "importance", "documentation", "group"),
    *("order_in_group", "width", "display_name", "dependents"),
]
VALUE_INFO = ["name", "value", "recommended_values", "errors", "visible"]
"""The fields of Kafka Connect 4.3.1's answer."""


def answer(**more: str) -> dict[str, Any]:
    infos, _warnings = validate(RAW | {k.replace("_", "."): v for k, v in more.items()})
    return asdict(infos)


def of(answered: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    (found,) = (c for c in answered["configs"] if c["value"]["name"] == name)
    return found["definition"], found["value"]


def test_a_configuration_that_has_hardly_anything_is_answered_too() -> None:
    infos, _warnings = validate({"connector.class": RAW["connector.class"]})
    wrong = {config.value.name for config in infos.configs if config.value.errors}
    assert {"name", "topics", "bootstrap.servers", "connection.url"} <= wrong


def test_the_answer_has_the_fields_of_kafka_connects() -> None:
    answered = answer()
    assert list(answered) == ["name", "error_count", "groups", "configs"]
    assert (answered["name"], answered["error_count"]) == (RAW["connector.class"], 0)
    for config in answered["configs"]:
        assert list(config) == ["definition", "value"]
        assert list(config["definition"]) == KEY_INFO
        assert list(config["value"]) == VALUE_INFO
    assert of(answered, "tasks.max") == (
        {
            "name": "tasks.max",
            "type": "INT",
            "required": False,
            "default_value": "1",
            "importance": "HIGH",
            "documentation": "Maximum number of tasks to run at once.",
            "group": "Common",
            "order_in_group": 3,
            "width": "SHORT",
            "display_name": "Tasks max",
            "dependents": (),
        },
        {
            "name": "tasks.max",
            "value": "1",
            "recommended_values": (),
            "errors": (),
            "visible": True,
        },
    )


def test_keys_of_connector_and_sink_are_numbered_within_their_groups() -> None:
    answered = answer()
    orders: dict[str, list[int]] = defaultdict(list)
    for config in answered["configs"]:
        orders[config["definition"]["group"]].append(config["definition"]["order_in_group"])
    assert list(orders) == answered["groups"]
    assert {"Common", "Error Handling", "Connection", "Writes", "Data Mapping"} <= orders.keys()
    for numbers in orders.values():
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    ("name", "given", "value", "error"),
    [
        ("tasks.max", "two", None, "must be a whole number"),
        ("tasks.max", "0", "0", "must be at least 1"),
        ("auto.create", "maybe", None, "must be true or false"),
        ("errors.tolerance", "some", "some", "must be one of none, all"),
        ("primary.key.mode", "nope", "nope", "must be one of none, kafka, record_key"),
    ],
)
def test_an_error_is_listed_with_its_value_under_the_users_name(
    name: str, given: str, value: str | None, error: str
) -> None:
    answered = answer(**{name: given})
    definition, found = of(answered, name)
    assert (definition["name"], found["value"]) == (name, value)
    (message,) = found["errors"]
    assert message.startswith(f"{name}={given!r} ")
    assert error in message
    assert answered["error_count"] == 1


def test_a_missing_key_is_required_and_has_no_value() -> None:
    infos, _warnings = validate({k: v for k, v in RAW.items() if k != "connection.url"})
    definition, found = of(asdict(infos), "connection.url")
    assert (definition["required"], definition["default_value"], found["value"]) == (
        *(True, None, None),
    )
    assert len(found["errors"]) == infos.error_count == 1


def test_a_key_that_nobody_declares_appears_without_a_definition_if_it_is_wrong() -> None:
    answered = answer(**{"consumer.override.group.id": "mine", "consumer.override.client.id": "x"})
    definition, found = of(answered, "consumer.override.group.id")
    assert definition is None
    assert (found["value"], len(found["errors"])) == ("mine", 1)
    assert not [c for c in answered["configs"] if c["value"]["name"].endswith("client.id")]


def test_values_are_those_in_force_and_the_alternatives_are_recommended() -> None:
    answered = answer(errors_tolerance=" ALL ", delivery="")
    _, found = of(answered, "errors.tolerance")
    assert (found["value"], found["recommended_values"]) == ("all", ("none", "all"))
    definition, found = of(answered, "delivery")
    assert (definition["default_value"], found["value"]) == (None, None)
    infos, _warnings = validate({**RAW, "connector.class": "kafka", "topic.rename.format": "copy"})
    definition, found = of(asdict(infos), "value.converter")
    assert definition["default_value"] == found["value"]
    assert str(found["value"]).endswith("ByteArrayConverter")


def test_secrets_are_passwords_and_their_values_are_hidden() -> None:
    answered = answer(**{"primary.key.mode": "nope"})
    for name in ("connection.url", "connection.password"):
        definition, found = of(answered, name)
        assert (definition["type"], found["value"]) == ("PASSWORD", "[hidden]")
    assert "hidden4you" not in str(answered)


def test_without_a_connector_class_the_common_keys_are_judged() -> None:
    for given in ("", "io.acme.Sink"):
        infos, _warnings = validate({**RAW, "connector.class": given, "tasks.max": "x"})
        _, found = of(asdict(infos), "connector.class")
        assert len(found["errors"]) == 1
        assert infos.error_count == 2


def test_warnings_are_listed_separately() -> None:
    infos, warnings = validate({**RAW, "topic": "x", "value.converter": "JsonConverter"})
    assert infos.error_count == 0
    assert warnings == ["unknown configuration key topic; did you mean topics?"]


def test_keys_of_converters_are_described_too() -> None:
    answered = answer(
        value_converter="io.confluent.connect.avro.AvroConverter",
        value_converter_basic_auth_user_info="me:secret",
        value_converter_use_latest_version="maybe",
    )
    definition, value = of(answered, "value.converter.use.latest.version")
    assert (definition["type"], definition["default_value"]) == ("BOOLEAN", "false")
    assert value["errors"] == ("value.converter.use.latest.version='maybe' must be true or false",)
    assert of(answered, "value.converter.basic.auth.user.info")[1]["value"] == "[hidden]"
    keys = {key.name: key for key in keys_of("JsonConverter")}
    assert keys_of("org.apache.kafka.connect.json.JsonConverter") == list(keys.values())
    assert (keys["schemas.enable"].type, keys["schemas.enable"].default_value) == (
        "BOOLEAN",
        "true",
    )


def test_keys_of_transforms_and_predicates_are_described_too() -> None:
    answered = answer(
        transforms="cast,odd",
        transforms_cast_type="org.apache.kafka.connect.transforms.Cast$Value",
        transforms_cast_predicate="gone",
        transforms_odd_type="com.example.Odd",
        predicates="gone",
        predicates_gone_type="org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
    )
    assert {"Transforms: cast", "Transforms: odd", "Predicates: gone"} <= set(answered["groups"])
    definition, value = of(answered, "transforms.cast.spec")
    assert (definition["group"], definition["required"]) == ("Transforms: cast", True)
    assert definition["display_name"] == "Spec"
    assert value["errors"]
    assert of(answered, "transforms.cast.predicate")[1]["value"] == "gone"
    assert "com.example.Odd" in of(answered, "transforms.odd.type")[1]["errors"][0]
    assert of(answered, "predicates.gone.type")[0]["type"] == "CLASS"


@pytest.mark.parametrize("kind", ["Sink", "Source"])
def test_the_url_of_a_database_that_semel_lacks_is_hidden(kind: str) -> None:
    name = f"io.confluent.connect.jdbc.Jdbc{kind}Connector"
    url = "jdbc:oracle:thin:scott/tiger@h:1521:x"
    raw = RAW | {"connector.class": name, "connection.url": url}
    infos, warnings = validate(raw)
    (said,) = [c.value for c in infos.configs if c.value.name == "connection.url"]
    assert "connection.url=jdbc:oracle" in said.errors[0]
    with pytest.raises(ConfigError) as refused:
        plan_any(raw)
    assert "tiger" not in f"{infos} {warnings} {refused.value.problems} {refused.value.warnings}"


def test_a_class_that_may_be_a_source_is_not_asked_for_topics() -> None:
    raw = {"name": "c", "bootstrap.servers": "localhost:1"}
    unknown = {"connector.class": "io.debezium.connector.postgresql.PostgresConnector"}
    for given, said in (
        (unknown, "It reads databases (connector.class=JdbcSource)"),
        ({}, "connector.class is required"),
    ):
        (error,) = [e for c in validate({**raw, **given})[0].configs for e in c.value.errors]
        assert said in error


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("com.snowflake.kafka.connector.SnowflakeSinkConnector", "It can read Iceberg tables"),
        ("com.mongodb.kafka.connect.MongoSinkConnector", "semel has. semel writes to PostgreSQL"),
        (
            "io.confluent.connect.elasticsearch.ElasticSearchSinkConnector",
            r"Did you mean io\.confluent\.connect\.elasticsearch\.ElasticsearchSinkConnector\?",
        ),
        (
            "io.confluent.connect.replicator.ReplicatorSourceConnector",
            "semel has. connector.class=kafka, a sink, copies topics",
        ),
        ("io.confluent.connect.http.HttpSinkConnector", "semel has. semel writes to PostgreSQL"),
        (
            "io.confluent.connect.gcs.GCSSinkConnector",
            r"Did you mean io\.confluent\.connect\.gcs\.GcsSinkConnector\?",
        ),
    ],
)
def test_an_error_about_an_unknown_connector_names_known_ones(name: str, said: str) -> None:
    raw = {"name": "c", "connector.class": name, "topics": "t", "bootstrap.servers": "localhost:1"}
    with pytest.raises(ConfigError, match=said) as told:
        plan({**raw, "connection.url": "x"})
    assert told.value.warnings == [VALUE_CONVERTER]


@pytest.mark.parametrize("sink", [{}, {"connector.class": "kafka", "topic.rename.format": "copy"}])
def test_nothing_connects_to_kafka(sink: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a client waits for the name of its brokers to be resolved, 5 s perhaps."""
    connected: list[Any] = []
    for module in (cluster, groups):
        monkeypatch.setattr(module, "admin_client", connected.append)
    infos, _warnings = validate(RAW | sink)
    assert (infos.error_count, connected) == (0, [])
