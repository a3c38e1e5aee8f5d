"""Converters that a configuration leaves to Kafka Connect's worker."""

from __future__ import annotations

import pytest

from semel.driver.planning import plan

TEXT = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
SINK = {
    "name": "orders",
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "connection.url": "jdbc:sqlite:orders.db",
    "bootstrap.servers": "localhost:1",
    "topics": "orders",
    "insert.mode": "upsert",
    "pk.mode": "record_key",
}
OF_A_KEY = {
    "transforms": "id",
    "transforms.id.type": "ExtractField$Key",
    "transforms.id.field": "id",
}
MADE = {
    "transforms": "make,id",
    "transforms.make.type": "ValueToKey",
    "transforms.make.fields": "id",
    **{k: v for k, v in OF_A_KEY.items() if k != "transforms"},
}


@pytest.mark.parametrize(
    ("keys", "assumed", "said"),
    [
        ({}, JSON, "keys are JSON here"),
        ({"pk.fields": "id"}, JSON, "keys are JSON here"),
        ({"connector.class": "sqlite"}, JSON, "keys are JSON here"),
        ({"connector.class": "sqlite", "pk.fields": "id"}, TEXT, "keys are text here"),
        ({"pk.fields": "id", **OF_A_KEY}, JSON, "keys are JSON here"),
        ({"pk.fields": "id", **MADE}, TEXT, "keys are text here"),
        ({"pk.mode": "record_value", "pk.fields": "id"}, TEXT, ""),
        ({"pk.fields": "id", "key.converter": TEXT}, TEXT, ""),
    ],
)
def test_keys_have_fields_where_fields_of_keys_are_wanted(
    keys: dict[str, str], assumed: str, said: str
) -> None:
    planned = plan({**SINK, **keys})
    planned.close()
    assert planned.connector.key_converter == assumed
    warned = [w for w in planned.warnings if w.startswith("key.converter")]
    assert said in "".join(warned)
    assert len(warned) == bool(said)


@pytest.mark.parametrize(
    ("keys", "assumed"),
    [
        ({}, JSON),
        ({"iceberg.tables.default-id-columns": "id"}, TEXT),
        ({"iceberg.tables.default-id-columns": "id", "iceberg.tables.cdc-field": "op"}, TEXT),
        ({"iceberg.tables.cdc-field": "op"}, TEXT),
    ],
)
def test_icebergs_id_columns_name_the_columns_of_keys(keys: dict[str, str], assumed: str) -> None:
    given = {
        "name": "orders",
        "connector.class": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.catalog.uri": "http://localhost:1",
        "iceberg.tables": "shop.orders",
        "iceberg.tables.upsert-mode-enabled": "true",
        "bootstrap.servers": "localhost:1",
        "topics": "orders",
        "pk.mode": "record_key",
    }
    planned = plan({**given, **keys})
    planned.close()
    assert planned.connector.key_converter == assumed
