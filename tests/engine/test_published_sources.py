"""Source connectors as Kafka, Confluent and Aiven publish them, addresses aside, on brokers as they
are installed: what a new user runs, and finds in Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel_lab.embedded import Kafka
from tests.processes import run_to_end
from tests.sinks.kafka.copying import consume
from tests.sources.jdbc.conftest import executed

pytestmark = [pytest.mark.integration, pytest.mark.long]

FILE = """
name=local-file-source
connector.class=FileStreamSource
tasks.max=1
file=test.txt
topic=connect-test
"""
"""Kafka's quick start."""

CONFLUENT = """
name=test-source-sqlite-jdbc-autoincrement
connector.class=io.confluent.connect.jdbc.JdbcSourceConnector
tasks.max=1
connection.url=jdbc:sqlite:test.db
mode=incrementing
incrementing.column.name=id
topic.prefix=test-sqlite-jdbc-
"""
"""Confluent's quick start; Aiven's has another class."""

AIVEN: dict[str, Any] = {
    "name": "jdbc_source_pg_increment",
    "connector.class": "io.aiven.connect.jdbc.JdbcSourceConnector",
    "poll.interval.ms": "2000",
    "mode": "incrementing",
    "topic.prefix": "jdbc_source_pg_increment.",
    "table.whitelist": "students",
    "numeric.mapping": "best_fit",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "transforms": "copyFieldToKey,extractKeyFromStruct",
    "transforms.copyFieldToKey.type": "org.apache.kafka.connect.transforms.ValueToKey",
    "transforms.copyFieldToKey.fields": "id",
    "transforms.extractKeyFromStruct.type": "org.apache.kafka.connect.transforms.ExtractField$Key",
    "transforms.extractKeyFromStruct.field": "id",
}


class Installed(Kafka):
    """Kafka as it is installed: it creates topics of which it is asked."""

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "auto.create.topics.enable": "true"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("kafka")
    with Installed(directory, heap="256m", session=2, short_lived=True) as kafka:
        yield kafka.bootstrap_servers


def run(brokers: str, file: Path) -> str:
    """Run a connector's file where it is, as a new user does; what is logged."""
    ended = run_to_end(
        [
            *(sys.executable, "-m", "semel", "run", file.name),
            *("--bootstrap-server", brokers, "--until-caught-up"),
        ],
        cwd=file.parent,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def values(brokers: str, topic: str) -> list[Any]:
    return [json.loads(record.value or b"") for record in consume(brokers, topic)]


def test_kafkas_quick_start(brokers: str, tmp_path: Path) -> None:
    file = tmp_path / "connect-file-source.properties"
    file.write_text(FILE)
    (tmp_path / "test.txt").write_text("foo\nbar\n")
    assert "topic connect-test was missing and is created" in run(brokers, file)
    schema = {"type": "string", "optional": False}
    assert values(brokers, "connect-test") == [
        {"schema": schema, "payload": line} for line in ("foo", "bar")
    ]


@pytest.mark.parametrize("vendor", ["confluent", "aiven"])
def test_the_quick_start_of_the_jdbc_source(vendor: str, brokers: str, tmp_path: Path) -> None:
    file = tmp_path / "source-quickstart-sqlite.properties"
    text = CONFLUENT.replace("io.confluent", f"io.{vendor}")
    file.write_text(text.replace("name=test", f"name={vendor}").replace("=test-", f"={vendor}-"))
    executed(
        f"jdbc:sqlite:{tmp_path / 'test.db'}",
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name VARCHAR(255))",
        "INSERT INTO accounts (name) VALUES ('alice'), ('bob')",
    )
    run(brokers, file)
    found = values(brokers, f"{vendor}-sqlite-jdbc-accounts")
    assert [value["payload"] for value in found] == [
        {"id": 1, "name": "alice"},
        {"id": 2, "name": "bob"},
    ]
    assert [field["optional"] for field in found[0]["schema"]["fields"]] == [False, True]


def test_aivens_postgresql(brokers: str, database: str, tmp_path: Path) -> None:
    executed(
        database,
        "CREATE TABLE students (id serial PRIMARY KEY, name text, age int)",
        "INSERT INTO students (name, age) VALUES ('Carlo', 77), ('Lucy', 55)",
    )
    file = tmp_path / "jdbc_source_pg_increment.json"
    file.write_text(json.dumps({**AIVEN, "connection.url": database}))
    run(brokers, file)
    topic = "jdbc_source_pg_increment.students"
    assert [value["payload"]["name"] for value in values(brokers, topic)] == ["Carlo", "Lucy"]
    assert [json.loads(r.key or b"")["payload"] for r in consume(brokers, topic)] == [1, 2]
