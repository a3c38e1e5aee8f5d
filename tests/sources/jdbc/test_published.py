"""Configurations as Confluent, Aiven and their users publish them are valid unchanged, addresses
aside, with what a worker would add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semel.config import load
from semel.core.errors import ConfigError
from semel.driver.planning import plan_source

CONFLUENT = "io.confluent.connect.jdbc.JdbcSourceConnector"
AIVEN = "io.aiven.connect.jdbc.JdbcSourceConnector"
USER = {"connection.user": "reader", "connection.password": "secret"}

PUBLISHED: dict[str, dict[str, Any]] = {
    "Confluent's quick start": {
        "connector.class": CONFLUENT,
        "tasks.max": "1",
        "connection.url": "jdbc:sqlite:test.db",
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "topic.prefix": "test-sqlite-jdbc-",
    },
    "Aiven's quick start": {
        "connector.class": AIVEN,
        "tasks.max": "1",
        "connection.url": "jdbc:sqlite:test.db",
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "topic.prefix": "test-sqlite-jdbc-",
    },
    "Aiven's PostgreSQL, incrementing without a column": {
        "connector.class": AIVEN,
        **USER,
        "connection.url": "jdbc:postgresql://localhost:5432/pagila?sslmode=require",
        "poll.interval.ms": "2000",
        "mode": "incrementing",
        "topic.prefix": "increment.",
        "table.whitelist": "rental,store,inventory,film,address",
        "numeric.mapping": "best_fit",
    },
    "Aiven's MySQL": {
        "connector.class": AIVEN,
        **USER,
        "connection.url": "jdbc:mysql://localhost:3306/test?ssl-mode=REQUIRED",
        "table.whitelist": "orders,items",
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "poll.interval.ms": "2000",
        "topic.prefix": "jdbc_",
        "auto.create": "true",
    },
    "MySQL with numbers that are no strings": {
        "connector.class": CONFLUENT,
        "tasks.max": 1,
        "connection.url": "jdbc:mysql://localhost:3306/db?user=reader&password=secret",
        "mode": "timestamp+incrementing",
        "incrementing.column.name": "id",
        "timestamp.column.name": "modified",
        "topic.prefix": "test-mysql-jdbc-",
        "poll.interval.ms": 1000,
        "table.whitelist": "test_kafka_connect, test_kafka_jdbc",
    },
    "PostgreSQL by timestamp into topics without a prefix": {
        "connector.class": CONFLUENT,
        **USER,
        "connection.url": "jdbc:postgresql://localhost:5432/",
        "poll.interval.ms": "1000",
        "mode": "timestamp",
        "table.whitelist": "orders",
        "topic.prefix": "",
        "timestamp.column.name": "update_ts",
        "validate.non.null": False,
        "numeric.mapping": "best_fit",
        "transforms": "copy,extract",
        "transforms.copy.type": "org.apache.kafka.connect.transforms.ValueToKey",
        "transforms.copy.fields": "order_id",
        "transforms.extract.type": "org.apache.kafka.connect.transforms.ExtractField$Key",
        "transforms.extract.field": "order_id",
    },
    "a whole schema with comments": {
        "_comment": "The class",
        "connector.class": CONFLUENT,
        "connection.url": "jdbc:postgresql://localhost:5432/demo?user=reader&password=secret",
        "_comment_mode": "Which rows",
        "mode": "timestamp+incrementing",
        "timestamp.column.name": "update_ts, create_ts",
        "incrementing.column.name": "id",
        "schema.pattern": "demo",
        "table.types": "TABLE,VIEW",
        "connection.attempts": "5",
        "connection.backoff.ms": "50000",
        "batch.max.rows": 7000,
        "timestamp.delay.interval.ms": 1000,
        "validate.non.null": "false",
        "topic.prefix": "postgres-",
    },
    "SQL Server by Microsoft's driver": {
        "connector.class": CONFLUENT,
        **USER,
        "connection.url": "jdbc:sqlserver://db:1433;databaseName=shop;encrypt=false",
        "table.whitelist": "orders",
        "mode": "timestamp+incrementing",
        "timestamp.column.name": "changed",
        "incrementing.column.name": "id",
        "topic.prefix": "mssql-",
        "validate.non.null": False,
    },
    "SQL Server by jTDS, with what Java's driver reads": {
        "connector.class": CONFLUENT,
        **USER,
        "connection.url": "jdbc:jtds:sqlserver://db:1433/shop;instance=MAIN",
        "connection.javax.net.ssl.trustStore": "/certs/store.jks",
        "dialect.name": "SqlServerDatabaseDialect",
        "mode": "incrementing",
        "topic.prefix": "jtds-",
        "output.data.format": "AVRO",
    },
    "a query in bulk": {
        "connector.class": CONFLUENT,
        **USER,
        "connection.url": "jdbc:postgresql://localhost:5432/demo",
        "mode": "bulk",
        "query": 'SELECT * FROM "Topic-1";',
        "topic.prefix": "Topic-1",
        "poll.interval.ms": "3600000",
        "validate.non.null": "false",
    },
}


@pytest.mark.parametrize("which", PUBLISHED)
def test_a_published_configuration_is_valid_unchanged(which: str, tmp_path: Path) -> None:
    of_worker = {
        "bootstrap.servers": "localhost:9092",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }
    file = tmp_path / "connector.json"
    file.write_text(json.dumps({"name": "published", "config": PUBLISHED[which] | of_worker}))
    assert plan_source(load(file)).guarantee.delivery.value == "exactly-once"


def test_the_prefix_of_topics_must_be_given() -> None:
    raw = {"name": "c", "connector.class": CONFLUENT, "mode": "bulk", "bootstrap.servers": "b:1"}
    with pytest.raises(ConfigError, match=r"topic\.prefix is required.*It may be empty"):
        plan_source({**raw, "connection.url": "jdbc:sqlite:test.db"})
