"""Configuration: Kafka Connect's names, typed, with every mistake reported at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.config import ConnectorConfig, check_keys, definitions, key, load, names, read, under
from semel.core.delivery import Delivery, Mechanism
from semel.core.errors import ConfigError
from semel.driver.planning import plan, plan_any
from semel.sinks import sink_class
from semel.sinks.postgresql import PostgresSink
from semel.sinks.sql.config import POSTGRESQL, PostgresConfig

NEEDED = {
    "name": "orders",
    "connector.class": "postgresql",
    "topics": "orders",
    "bootstrap.servers": "kafka:9092",
    "connection.url": "jdbc:postgresql://db/shop",
    "value.converter": "JsonConverter",
}
EXAMPLES = Path(__file__).parent.parent / "examples"
KEYED = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id"}


def connector(**more: str) -> ConnectorConfig:
    return read(ConnectorConfig, NEEDED | {k.replace("_", "."): v for k, v in more.items()})


def sink(**more: str) -> PostgresConfig:
    return read(PostgresConfig, NEEDED | {k.replace("_", "."): v for k, v in more.items()})


# Reading


def test_defaults_are_kafka_connects() -> None:
    config = connector()
    assert config.tasks_max == 1
    assert config.errors_tolerance == "none"
    assert config.key_converter == "org.apache.kafka.connect.storage.StringConverter"
    assert config.group_id == "connect-orders"
    assert config.topics == ("orders",)
    assert config.delivery is None
    assert config.provenance_columns == {}
    found = sink()
    assert (found.mode, found.pk_mode, found.pk_fields) == ("insert", "none", ())
    assert (found.creates, found.evolves, found.delete_enabled) == (False, False, False)


def test_values_are_typed() -> None:
    config = connector(
        topics=" a , b,,c ",
        tasks_max=" 3 ",
        provenance="TRUE",
        delivery="Exactly-Once",
        delivery_mechanism="idempotent",
        auto_offset_reset="LATEST",
    )
    assert config.topics == ("a", "b", "c")
    assert config.tasks_max == 3
    assert config.provenance is True
    assert (config.delivery, config.delivery_mechanism) == (
        Delivery.EXACTLY_ONCE,
        Mechanism.IDEMPOTENT,
    )
    assert config.offset_reset == "latest"
    assert set(config.provenance_columns) == {
        "__connect_topic",
        "__connect_partition",
        "__connect_offset",
        "__connect_timestamp",
    }


@pytest.mark.parametrize("text", ["auto", "", " AUTO "])
def test_auto_is_no_choice(text: str) -> None:
    assert connector(delivery_mechanism=text).delivery_mechanism is None


ALIASES = [
    (section, definition.attribute, definition.name, alias)
    for section in (ConnectorConfig, PostgresConfig)
    for definition in definitions(section)
    for alias in definition.aliases
]


@pytest.mark.parametrize(("section", "field", "name", "alias"), ALIASES)
def test_every_alias_sets_the_same_field(section: type, field: str, name: str, alias: str) -> None:
    hint = section.__dataclass_fields__[field]
    choices = hint.metadata["choices"]
    value = choices[-1] if choices else {"int": "2000", "bool": "true"}.get(str(hint.type), "x_y")
    if field == "pk_mode":
        value = "kafka"
    if field == "naming_strategies":
        value = "DefaultTableNamingStrategy"
    if field == "time_zone":
        value = "Etc/UTC"
    raw = {k: v for k, v in NEEDED.items() if k != name}
    assert getattr(read(section, raw | {alias: value}), field) == getattr(
        read(section, raw | {name: value}), field
    )
    if field != "bootstrap_servers":
        assert getattr(read(section, raw | {name: value}), field) != getattr(
            read(section, raw), field
        )


def test_a_key_and_its_alias_may_agree_but_not_differ() -> None:
    assert sink(connection_user="u", connection_username="u").connection_user == "u"
    with pytest.raises(
        ConfigError, match=r"connection.user and connection.username are the same setting"
    ):
        sink(connection_user="u", connection_username="v")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tasks.max", "two", r"tasks.max='two' must be a whole number"),
        ("tasks.max", "0", r"tasks.max='0' must be at least 1"),
        ("tasks.max", "", r"tasks.max='' must be a whole number"),
        ("tasks.max", "2147483647", r"tasks.max='2147483647' must be at most 10000"),
        ("provenance", "yes", r"provenance='yes' must be true or false"),
        ("delivery", "twice", r"must be one of auto, at-most-once, at-least-once, exactly-once"),
        ("delivery.mechanism", "x", r"must be one of auto, transactional, idempotent"),
        ("engine", "fast", r"must be one of auto, direct, micro-batch"),
        ("max.poll.records", "1000001", r"max.poll.records='1000001' must be at most 1000000"),
        ("max.poll.bytes", "8589934592", r"max.poll.bytes='8589934592' must be at most 4294967296"),
        ("errors.tolerance", "some", r"must be one of none, all"),
        ("auto.offset.reset", "none", r"must be one of earliest, latest"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match="connector orders: .*" + message):
        read(ConnectorConfig, {**NEEDED, name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("insert.mode", "merge", r"must be one of insert, multi, upsert, update"),
        ("pk.mode", "record", r"must be one of none, kafka, record_key, record_value, record_head"),
        ("auto.create", "1", r"must be true or false"),
        ("connection.idle.in.transaction.timeout.ms", "5", r"must be at least 100"),
        ("quote.sql.identifiers", "maybe", r"must be one of always, never, true, false"),
    ],
)
def test_a_value_that_the_sink_does_not_know_is_reported(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(PostgresConfig, {**NEEDED, name: value})


@pytest.mark.parametrize("name", ["table.name.format", "collection.name.format", "value.converter"])
def test_an_empty_text_does_not_count_as_a_value(name: str) -> None:
    with pytest.raises(ConfigError, match=f"connector orders: {name} is empty: set it, or remove"):
        plan({**NEEDED, name: " "})


def test_choices_are_listed_without_the_empty_one() -> None:
    with pytest.raises(ConfigError, match="format='orc' must be one of parquet, json"):
        plan({**NEEDED, "connector.class": "files", "path": "/x", "format": "orc"})


def test_an_aliased_key_is_reported_as_it_was_written() -> None:
    raw = {**NEEDED, "collection.name.format": "${source.table}", "primary.key.mode": "kafka"}
    with pytest.raises(ConfigError, match=r"^connector orders: collection\.name\.format='\$\{sou"):
        read(PostgresConfig, raw)
    with pytest.raises(
        ConfigError, match=r"needs primary\.key\.mode=record_key, not kafka"
    ) as told:
        read(PostgresConfig, {**raw, "delete.enabled": "true"})
    assert [(p.key, p.value) for p in told.value.problems] == [
        ("delete.enabled", "true"),
        ("collection.name.format", "${source.table}"),
    ]


def test_provenance_needs_four_columns() -> None:
    same = {"provenance.offset.column": "__connect_topic"}
    with pytest.raises(ConfigError, match=r"provenance.*__connect_topic, __connect_partition, __c"):
        read(ConnectorConfig, {**NEEDED, **same, "provenance": "true"})
    assert read(ConnectorConfig, {**NEEDED, **same}).provenance_columns == {}


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read(ConnectorConfig, {"name": "x", "tasks.max": "a", "provenance": "b"})
    text = str(caught.value)
    assert text.startswith("connector x: ")
    for part in ("connector.class is required", "bootstrap.servers is required", "tasks.max='a'"):
        assert part in text
    assert "neither is set" in text  # what does not fit together, too
    assert len(text.splitlines()) == 6
    assert [(p.key, p.value) for p in caught.value.problems] == [
        ("connector.class", ""),
        ("tasks.max", "a"),
        ("bootstrap.servers", ""),
        ("provenance", "b"),
        ("topics", ""),
    ]


SEVEN = {
    "name": "orders",
    "connector.class": "postgresql",
    "topic": "orders",
    "bootstrap.servers": "kafka:9092",
    "tasks.max": "two",
    "delivery.mechanism": "idempotent",
    "connection.url": "mysqll://me:hidden4you@db/shop",
    "connection.password": "hidden4you",
    "insert.mode": "upsert",
    "delete.enabled": "maybe",
    "value.converter": "JsonConvertor",
    "consumer.override.group.id": "mine",
    "producer.override.no.such.key": "1",
    "transforms": "t",
    "errors.deadletterqueue.table": "semel_offsets",
    "processingTime": "often",
}


def test_mistakes_of_all_sections_and_warnings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(SEVEN)
    found = {p.key: p for p in caught.value.problems}
    assert set(found) == {
        *("topics", "tasks.max", "connection.url", "insert.mode", "delete.enabled"),
        *(
            "value.converter",
            "consumer.override.group.id",
            "producer.override.no.such.key",
            "transforms.t.type",
        ),
        *("errors.deadletterqueue.table", "processingTime"),
    }
    assert len(found) == len(caught.value.problems), "each is reported once"
    assert found["tasks.max"].value == "two"
    assert found["delete.enabled"].message == "delete.enabled='maybe' must be true or false"
    assert caught.value.warnings == ["unknown configuration key topic; did you mean topics?"]
    assert "hidden4you" not in repr(caught.value.problems) + str(caught.value)
    for problem in caught.value.problems:
        assert str(caught.value).count(problem.message) == 1


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (
            {
                "connector.class": "delta",
                "insert.mode": "x",
                "parquet.codec": "y",
                "tasks.max": "0",
            },
            {"delta.table.path", "insert.mode", "parquet.codec", "tasks.max"},
        ),
        (
            {"connector.class": "delta", "delta.table.path": "/x", "table.name.format": "t"}
            | {"topics.regex": "a.*", "topics": "", "pk.mode": "record_key", "pk.fields": "id"}
            | {"provenance": "true", "provenance.offset.column": "id"},
            {"topics.regex", "provenance.offset.column"},
        ),
        (
            {"connector.class": "files", "path": "/x", "format": "orc", "provenance": "true"}
            | {"field.exclude.list": "__connect_topic", "errors.deadletterqueue.table": "orders"},
            {"format", "field.exclude.list", "errors.deadletterqueue.table"},
        ),
        (
            {"connector.class": "opensearch", "connection.url": "", "tasks.max": "x"},
            {"connection.url", "tasks.max"},
        ),
        (
            {"connector.class": "kafka", "tasks.max": "x"},
            {"tasks.max", "topic.rename.format"},
        ),
        ({"connector.class": "postgres", "tasks.max": "x"}, {"connector.class", "tasks.max"}),
        (
            {"connection.url": "jdbc:sqlite:", "pk.mode": "x", "tasks.max": "x"},
            {"connection.url", "pk.mode", "tasks.max"},
        ),
    ],
)
def test_each_sinks_own_mistakes_are_reported_with_the_connectors(
    change: dict[str, str], keys: set[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan({**NEEDED, **change})
    assert {p.key for p in caught.value.problems} == keys, caught.value


@pytest.mark.parametrize("given", ["connection.ulr", "connections.url"])
def test_a_required_key_that_is_misspelt_is_named(given: str) -> None:
    raw = {k: v for k, v in NEEDED.items() if k != "connection.url"} | {"connection.user": "me"}
    with pytest.raises(ConfigError, match=f"connection.url is required; is {given} a misspelling"):
        read(PostgresConfig, raw | {given: "jdbc:postgresql://db/shop"})
    with pytest.raises(ConfigError, match=r"connection.url is required\. "):
        read(PostgresConfig, raw)


@pytest.mark.parametrize("value", ["", "   "])
def test_an_empty_required_key_is_missing(value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"connection.url is required\. The database: jdbc:postgresql:"
    ):
        read(PostgresConfig, {**NEEDED, "connection.url": value})


@dataclasses.dataclass(frozen=True)
class Secretive:
    """A section of a third party's sink."""

    pin: int = key("pin", 0, secret=True)


def test_a_plan_does_not_show_its_secrets() -> None:
    secret = {
        "connection.url": "postgresql://me:hidden1@db/shop",
        "connection.password": "hidden2",
        "consumer.override.sasl.password": "hidden3",
    }
    planned = plan(NEEDED | secret)
    assert "hidden" not in repr(planned)
    assert "hidden" not in repr(read(PostgresConfig, planned.connector.originals))


def test_secrets_are_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        read(Secretive, {"pin": "hunter2"})
    assert str(caught.value) == "pin must be a whole number"
    raw = {
        **NEEDED,
        "connection.password": "hunter2",
        "insert.mode": "x",
        "conection.password": "y",
    }
    with pytest.raises(ConfigError) as caught:
        read(PostgresConfig, raw)
    assert "hunter2" not in str(caught.value)
    warnings = check_keys(raw, [ConnectorConfig, PostgresConfig], PostgresSink.ignored)
    assert "hunter2" not in " ".join(warnings)


# What does not go together


@pytest.mark.parametrize(
    ("topics", "regex", "message"),
    [("a", "a.*", "not both"), ("", "", "neither is set"), (" , ", "", "neither is set")],
)
def test_topics_or_a_pattern(topics: str, regex: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"connector orders: set one of topics .*" + message):
        connector(topics=topics, topics_regex=regex)
    assert connector(topics="", topics_regex="a.*").topics_regex == "a.*"


def test_an_invalid_pattern_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"topics.regex='\(' is not a regular expression"):
        connector(topics="", topics_regex="(")


def test_dead_letters_go_to_one_place() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        connector(errors_deadletterqueue_topic_name="a", errors_deadletterqueue_table="b")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"insert.mode": "upsert"}, r"insert.mode=upsert needs a key: set pk.mode"),
        ({"insert.mode": "update"}, r"insert.mode=update needs a key"),
        ({"delete.enabled": "true"}, r"delete.enabled=true needs pk.mode=record_key, not none"),
        (
            {"delete.enabled": "true", "pk.mode": "record_value"},
            r"needs pk.mode=record_key, not record_value",
        ),
        ({"pk.mode": "kafka", "pk.fields": "a,b"}, r"must name three columns"),
        ({"pk.fields": "a,b,a"}, r"pk.fields=a,b,a names a column twice"),
        (
            {"fields.whitelist": "a", "field.exclude.list": "b"},
            r"fields.whitelist and field.exclude.list exclude each other",
        ),
        (
            {"pk.mode": "record_value", "pk.fields": "id,v", "field.exclude.list": "x,orders:v"},
            r"field.exclude.list=x,orders:v leaves out v, which pk.fields=id,v names",
        ),
        (
            {"primary.key.mode": "record_value", "fields.whitelist": "a"},
            r"fields.whitelist=a with .*=record_value and no pk.fields",
        ),
        ({"truncate.enabled": "true"}, r"truncate.enabled=true is not available: .*would remain"),
        ({"topics.to.tables.mapping": "a:b,c"}, r"must hold topic:table pairs"),
        ({"table.name.format": "${source.table}"}, r"topics\.to\.tables\.mapping"),
        ({"db.timezone": "Europe/Berlin"}, r"db\.timezone=Europe/Berlin: times are stored in UTC"),
        ({"database.time_zone": "+02:00"}, r"times are stored in UTC"),
        ({"table.name.format": "${source.table}"}, r"only \$\{topic\} can be filled in"),
        (
            {"collection.naming.strategy": "com.acme.Names"},
            r"naming strategy com.acme.Names is not available",
        ),
        ({"column.naming.strategy": "com.acme.Names"}, r"naming strategy com.acme.Names"),
    ],
)
def test_what_the_sink_cannot_keep_is_refused(more: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(PostgresConfig, NEEDED | dict(more))


def test_debeziums_sink_makes_a_key_of_the_fields_that_are_listed() -> None:
    keys = {"connector.class": DEBEZIUM["config"]["connector.class"], "field.include.list": "a"}
    assert read(PostgresConfig, {**NEEDED, **keys, "pk.mode": "record_value"}).takes("orders", "a")


def test_a_field_that_is_left_out_may_have_the_name_of_a_record_keys_column() -> None:
    given = {**KEYED, "key.converter": "StringConverter", "field.exclude.list": "id"}
    assert plan({**NEEDED, **given}).warnings == []


@pytest.mark.parametrize(
    "converter", ["StringConverter", "org.apache.kafka.connect.converters.ByteArrayConverter"]
)
@pytest.mark.parametrize("url", ["jdbc:postgresql://db/shop", "jdbc:sqlite:/tmp/shop.db"])
def test_a_key_of_one_value_needs_a_columns_name(converter: str, url: str) -> None:
    raw = {
        **NEEDED,
        "connector.class": POSTGRESQL[1],
        "connection.url": url,
        "pk.mode": "record_key",
    }
    with pytest.raises(ConfigError, match=r"pk.mode=record_key without pk.fields .*Converter a"):
        plan(raw | {"key.converter": converter})
    plan(raw | {"key.converter": "JsonConverter"})


@pytest.mark.parametrize("where", ["topic.name", "table"])
def test_dead_letters_that_will_not_be_written_are_warned_of(where: str) -> None:
    raw = {**NEEDED, f"errors.deadletterqueue.{where}": "dead"}
    (warning,) = plan(raw).warnings
    assert warning.startswith(f"errors.deadletterqueue.{where}=dead has no effect")
    assert "Set errors.tolerance=all" in warning
    assert plan({**raw, "errors.tolerance": "all"}).warnings == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.name)
def test_the_examples_are_valid_and_exactly_once(path: Path) -> None:
    planned = plan_any(path)
    assert planned.warnings == []
    mechanism = "idempotent" if "elasticsearch" in path.name else "transactional"
    assert str(planned.guarantee) == f"exactly-once ({mechanism})"


# Keys that nobody knows


def test_unknown_keys_are_reported_with_the_nearest_known_one() -> None:
    raw = {**NEEDED, "insert.mod": "upsert", "tasks": "3", "zzzz": "1"}
    warnings = check_keys(raw, [ConnectorConfig, PostgresConfig], PostgresSink.ignored)
    assert warnings == [
        "unknown configuration key insert.mod; did you mean insert.mode?",
        "unknown configuration key tasks; did you mean tasks.max?",
        "unknown configuration key zzzz",
    ]


def test_keys_that_resemble_none_get_no_hint() -> None:
    others = ("kafka.api.secret", "producer.topic.bootstrap.servers", "input.data.format")
    warnings = check_keys({**NEEDED, **dict.fromkeys(others, "x")}, [ConnectorConfig], {})
    assert [w for w in warnings if "did you mean" in w] == []


def test_keys_of_licenses_and_of_another_converter_have_no_effect() -> None:
    raw = {**NEEDED, "confluent.topic.bootstrap.servers": "kafka:9092", "confluent.license": ""}
    raw |= {
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "key.converter.schemas.enable": "false",
    }
    assert sorted(plan(raw).warnings) == [
        "confluent.license has no effect: no license is needed",
        "confluent.topic.bootstrap.servers has no effect: no license is needed",
        "key.converter.schemas.enable has no effect: it belongs to the JsonConverter",
    ]


def test_a_missing_value_converter_is_warned_of() -> None:
    unset = {k: v for k, v in NEEDED.items() if k != "value.converter"}
    (warning,) = plan(unset).warnings
    assert warning.startswith("value.converter is not set: values are JSON here")
    assert plan(NEEDED).warnings == []


def test_keys_without_effect_are_reported_with_the_reason() -> None:
    raw = {**NEEDED, "batch.size": "3000", "errors.retry.timeout": "5"}
    warnings = check_keys(raw, [ConnectorConfig, PostgresConfig], PostgresSink.ignored)
    assert warnings[0].startswith("batch.size has no effect: a commit's rows travel in one COPY")
    assert warnings[1].startswith("errors.retry.timeout has no effect")


@pytest.mark.parametrize(
    "name", ["tasks.max.enforce", "timestamp.fields.list", "timestamp.precision.mode"]
)
def test_keys_of_connect_and_its_jdbc_sink_are_not_unknown(name: str) -> None:
    (warning,) = plan({**NEEDED, name: "true"}).warnings
    assert warning.startswith(f"{name} has no effect: ")


def test_versions_of_plugins_have_no_effect() -> None:
    plugins = ("connector", "key.converter", "header.converter", "transforms.a", "predicates.p")
    package = "org.apache.kafka.connect.transforms."
    raw = {
        **NEEDED,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "header.converter.schemas.enable": "false",
        "transforms": "a",
        "transforms.a.type": f"{package}Filter",
        "transforms.a.predicate": "p",
        "predicates": "p",
        "predicates.p.type": f"{package}predicates.RecordIsTombstone",
        **{f"{plugin}.plugin.version": "[1.0,2.0)" for plugin in plugins},
    }
    why = "plugin.version has no effect: there is one version of each plugin"
    assert sorted(plan(raw).warnings) == sorted(f"{plugin}.{why}" for plugin in plugins)


def test_keys_of_clients_converters_and_spark_pass() -> None:
    raw = {
        **NEEDED,
        "consumer.override.fetch.min.bytes": "1",
        "producer.override.acks": "all",
        "value.converter.schemas.enable": "false",
        "key.converter.schema.registry.url": "http://x",
        "spark.executor.memory": "1g",
    }
    assert check_keys(raw, [ConnectorConfig, PostgresConfig], PostgresSink.ignored) == []


@pytest.mark.parametrize("name", ["transforms", "predicates"])
def test_no_transforms_are_no_transforms(name: str) -> None:
    assert plan({**NEEDED, name: ""}).warnings == []


def test_no_key_is_declared_twice_or_ignored_too() -> None:
    for section in (ConnectorConfig, PostgresConfig):
        found = list(names(section))
        assert len(found) == len(set(found))
        assert not set(found) & set(PostgresSink.ignored)
    shared = set(names(ConnectorConfig)) & set(names(PostgresConfig))
    assert shared == {"connector.class"}


def test_keys_below_a_prefix() -> None:
    raw = {"value.converter": "x", "value.converter.a.b": "1", "key.converter.a": "2"}
    assert under(raw, "value.converter.") == {"a.b": "1"}


# Files

FLAT = {**NEEDED, "tasks.max": "2", "connection.password": "p=w:d #1"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", json.dumps(FLAT)),
        ("c.json", json.dumps({"name": "orders", "config": FLAT})),
        (
            "c.json",
            json.dumps(
                {"name": "orders", "config": {k: v for k, v in FLAT.items() if k != "name"}}
            ),
        ),
        ("c.txt", json.dumps({**FLAT, "tasks.max": 2})),
        ("c.json", "\ufeff" + json.dumps(FLAT)),
        ("c.properties", "\n".join(f"{k} = {v}" for k, v in FLAT.items())),
        ("c.properties", "\ufeff" + "\n".join(f"{k} = {v}" for k, v in FLAT.items())),
        (
            "c.properties",
            "# a comment\n! another\n" + "\n".join(f"{k}:{v}  " for k, v in FLAT.items()),
        ),
    ],
)
def test_files_of_every_shape_are_the_same(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert load(file) == FLAT
    assert load(str(file)) == FLAT


def test_properties_may_be_continued_and_escaped(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text(
        "topics=a,\\\n   b\nconnection.password=\\u00e4\\=\\\\\nname=caf\u00e9\n", "utf-8"
    )
    assert load(file) == {"topics": "a,b", "connection.password": "ä=\\", "name": "café"}


def test_mappings_are_normalised() -> None:
    found = load(
        {
            "name": "x",
            "tasks.max": 2,
            "provenance": True,
            "topics": ["a", "b"],
            "delivery": Delivery.EXACTLY_ONCE,
            "key.converter": None,
        }
    )
    assert found == {
        "name": "x",
        "tasks.max": "2",
        "provenance": "true",
        "topics": "a,b",
        "delivery": "exactly-once",
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.json", b"{", r"c.json is not JSON: .* at line 1, column 2.*suffix .properties"),
        ("c.json", b"[1]", r"c.json must hold a JSON object, not list"),
        ("c.json", b'{"name": "x", "a": {"b": 1}}', r"a holds an object; a value must be a string"),
        (
            "c.json",
            b'{"name": "x", "config": {"name": "y"}}',
            r"name='x' outside of config and 'y' in it: the ledger is kept under the name",
        ),
        ("c.json", b"\xff", r"c.json is not text in UTF-8: .* byte 0"),
        ("c.properties", b"a=\\u12", r"c.properties is not a .properties file"),
        ("c.properties", b"\xff", r"c.properties is not text in UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_reported(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.json"):
        load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("sink", [{}, {"connector.class": "kafka", "topic.rename.format": "copy"}])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"admin.override.nonsense": "1"}, r"admin\.override\.nonsense: No such .*nonsense"),
        ({"producer.override.linger.ms": "x"}, r"producer\.override\.linger\.ms: Invalid value"),
        (
            {"producer.override.max.in.flight.requests.per.connection": "10"},
            r"producer\.override\.max\.in\.flight\.requests\.per\.connection: .*idempotence",
        ),
        (
            {"consumer.override.session.timeout.ms": "600000"},  # and not the interval's default
            r"consumer\.override\.session\.timeout\.ms: .*`max\.poll\.interval\.ms` ?must be >=",
        ),
        (
            {"consumer.override.fetch.max.bytes": "10"},
            r"consumer\.override\.fetch\.max\.bytes: .*must be >= `message\.max\.bytes`",
        ),
        (
            {"consumer.override.session.timeout.ms": "3000"},
            r"heartbeat\.interval\.ms=3000 must be less than .*\.session\.timeout\.ms=3000",
        ),
        (
            {
                "producer.override.acks": "1",
                "delivery": "at-most-once",
                "errors.tolerance": "all",
                "errors.deadletterqueue.topic.name": "bad",
            },
            r"producer\.override\.acks=1 confirms dead letters that a broker may still lose",
        ),
    ],
)
def test_settings_of_clients_are_judged_in_the_plan(
    sink: Mapping[str, str], keys: Mapping[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan({**NEEDED, **sink, **keys})


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_where_nothing_is_sent_in_a_transaction_idempotence_is_a_choice(delivery: str) -> None:
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "bad"}
    plan(
        {
            **NEEDED,
            **letters,
            "delivery": delivery,
            "producer.override.enable.idempotence": "false",
            "producer.override.max.in.flight.requests.per.connection": "10",
        }
    )


def test_dead_letters_beside_the_topics_of_other_brokers_are_a_warning() -> None:
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "bad"}
    given = {k: v for k, v in {**NEEDED, **letters}.items() if k != "bootstrap.servers"}
    servers = {"consumer.override.bootstrap.servers": "other:1"}
    assert not any("worker's own brokers" in w for w in plan({**NEEDED, **letters}).warnings)
    assert any("worker's own brokers" in w for w in plan({**given, **servers}).warnings)
    copy = {"connector.class": "kafka", "dest.kafka.bootstrap.servers": "mine:1"}
    assert not any("own brokers" in w for w in plan({**given, **servers, **copy}).warnings)


def test_dead_letters_need_a_topic_of_their_own() -> None:
    copy = {"connector.class": "kafka", "topic.rename.format": "copy", "errors.tolerance": "all"}
    with pytest.raises(ConfigError, match="=copy is the target of topic orders too"):
        plan({**NEEDED, **copy, "errors.deadletterqueue.topic.name": "copy"})


@pytest.mark.parametrize("source", [None, 7, ["name"], {7: "seven"}])
def test_what_is_not_a_configuration_is_reported(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"not (NoneType|int|list)|the key 7 must be a string"):
        plan(source)


def test_a_transform_that_is_not_a_function_is_reported() -> None:
    transform: Any = "double"
    with pytest.raises(ConfigError, match="transform='double' must be a function"):
        plan(NEEDED, transform)


# Other connectors' files, as they stand (a worker adds bootstrap.servers)

CONFLUENT = {
    "name": "jdbc-sink",
    "config": {
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": "orders",
        "connection.url": "jdbc:postgresql://postgres:5432/shop?currentSchema=public",
        "connection.user": "postgres",
        "connection.password": "hunter2",
        "connection.attempts": "3",
        "connection.backoff.ms": "10000",
        "dialect.name": "PostgreSqlDatabaseDialect",
        "insert.mode": "upsert",
        "batch.size": "3000",
        "delete.enabled": "true",
        "table.name.format": "kafka_${topic}",
        "table.types": "TABLE,PARTITIONED TABLE",
        "pk.mode": "record_key",
        "pk.fields": "id",
        "fields.whitelist": "",
        "db.timezone": "UTC",
        "date.timezone": "DB_TIMEZONE",
        "date.calendar.system": "LEGACY",
        "string.output.value.column.name": "record_value",
        "auto.create": "true",
        "auto.evolve": "true",
        "quote.sql.identifiers": "always",
        "max.retries": "10",
        "retry.backoff.ms": "3000",
        "trim.sensitive.log": "false",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dlq-orders",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.log.enable": "true",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": "3000",
    },
}
AIVEN = {
    "name": "jdbc-sink",
    "connector.class": "io.aiven.connect.jdbc.JdbcSinkConnector",
    "connection.url": "jdbc:postgresql://pg.example.org:12691/defaultdb?sslmode=require",
    "connection.user": "avnadmin",
    "connection.password": "hunter2",
    "topics": "iot.measurements",
    "tasks.max": "2",
    "auto.create": "true",
    "auto.evolve": "true",
    "insert.mode": "multi",
    "pk.mode": "record_value",
    "pk.fields": "iot_id,metric",
    "delete.enabled": "false",
    "batch.size": "3000",
    "db.timezone": "UTC",
    "dialect.name": "PostgreSqlDatabaseDialect",
    "sql.quote.identifiers": "true",
    "table.name.normalize": "true",
    "topics.to.tables.mapping": "iot.other:other",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
}
DEBEZIUM = {
    "name": "jdbc-connector",
    "config": {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "connection.url": "jdbc:postgresql://localhost/db",
        "connection.username": "pguser",
        "connection.password": "hunter2",
        "connection.pool.min_size": "5",
        "connection.pool.max_size": "32",
        "connection.restart.on.errors": "true",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "truncate.enabled": "false",
        "primary.key.mode": "record_key",
        "primary.key.fields": "id",
        "schema.evolution": "basic",
        "use.time.zone": "UTC",
        "quote.identifiers": "false",
        "collection.name.format": "kafka_${topic}",
        "collection.naming.strategy": ("io.debezium.sink.naming.DefaultCollectionNamingStrategy"),
        "column.naming.strategy": ("io.debezium.connector.jdbc.naming.DefaultColumnNamingStrategy"),
        "field.exclude.list": "orders:secret",
        "use.reduction.buffer": "true",
        "keyed.message.batch.mode": "deduplicate",
        "dialect.postgres.unnest.insert.enabled": "false",
        "cloud.events.schema.name.pattern": r".*CloudEvents\.Envelope$",
        "flush.max.retries": "5",
        "flush.retry.delay.ms": "1000",
        "batch.size": "500",
        "topics": "orders",
    },
}


@pytest.mark.parametrize(
    ("document", "mode", "table", "user"),
    [
        (CONFLUENT, "upsert", "kafka_orders", "postgres"),
        (AIVEN, "insert", "orders", "avnadmin"),
        (DEBEZIUM, "upsert", "kafka_orders", "pguser"),
    ],
    ids=["Confluent", "Aiven", "Debezium"],
)
def test_other_connectors_files_are_accepted_unchanged(
    tmp_path: Path, document: Mapping[str, object], mode: str, table: str, user: str
) -> None:
    file = tmp_path / "sink.json"
    file.write_text(json.dumps(document))
    raw = {**load(file), "bootstrap.servers": "kafka:9092"}
    config = read(ConnectorConfig, raw)
    found = sink_class(config.connector_class)
    assert found is PostgresSink
    warnings = check_keys(raw, [ConnectorConfig, found.section], found.ignored)
    assert not [w for w in warnings if "unknown" in w]
    assert "hunter2" not in " ".join(warnings)
    made = found(config)
    assert isinstance(made, PostgresSink)
    section = read(PostgresConfig, raw)
    assert section.mode == mode
    assert section.table("orders") == table
    assert section.connection_user == user
    assert section.creates
    assert section.evolves


def test_debeziums_mode_that_only_validates_creates_nothing() -> None:
    config = DEBEZIUM["config"]
    assert isinstance(config, dict)
    section = read(PostgresConfig, {**config, "schema.evolution": "validate-only"})
    assert not section.creates
    assert not section.evolves


def test_aivens_normalized_names() -> None:
    section = read(PostgresConfig, {**AIVEN})
    assert section.table("iot.measurements") == "iot_measurements"
    assert section.table("iot.other") == "other"


@pytest.mark.parametrize("name", POSTGRESQL)
def test_every_class_name_finds_the_sink(name: str) -> None:
    assert sink_class(name) is PostgresSink


def test_an_unknown_class_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'io.acme.Sink' is not .*semel writes to PostgreSQL"):
        sink_class("io.acme.Sink")
