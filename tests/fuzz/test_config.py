"""Configurations: any key with any value. The answer is a plan, or all mistakes by key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import strategies as st

from semel.config.loading import load
from semel.core.errors import ConfigError
from semel.driver import validation
from tests.fuzz.junk import JUNK, TEXTS

Fuzz = Callable[..., Callable[[Callable[..., None]], None]]
COMMON = {"name": "orders", "topics": "orders", "bootstrap.servers": "localhost:1"}
SOURCE = {"name": "orders", "bootstrap.servers": "localhost:1", "topic": "orders"}
CONNECTORS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {**COMMON, "connection.url": "jdbc:postgresql://h/db"},
    "io.debezium.connector.jdbc.JdbcSinkConnector": {
        **COMMON,
        "connection.url": "jdbc:postgresql://h/db",
    },
    "sqlite": {**COMMON, "connection.url": "jdbc:sqlite:/x.db"},
    "duckdb": {**COMMON, "connection.url": "jdbc:duckdb:/x.duckdb"},
    "mysql": {**COMMON, "connection.url": "jdbc:mysql://h/db"},
    "delta": {**COMMON, "delta.table.path": "/x"},
    "iceberg": {**COMMON, "iceberg.tables": "a.b", "iceberg.catalog.type": "sql"},
    "files": {**COMMON, "path": "/x", "format": "json"},
    "kafka": {**COMMON, "kafka.topic.format": "copy"},
    "opensearch": {**COMMON, "connection.url": "http://h:9200"},
    "FileStreamSink": {**COMMON, "file": "/x"},
    "FileStreamSource": {**SOURCE, "file": "/x"},
    "JdbcSource": {**SOURCE, "connection.url": "jdbc:sqlite:/x.db", "mode": "bulk"},
    "Directory": {**SOURCE, "input.path": "/x", "format": "csv"},
    "Datagen": {**SOURCE, "kafka.topic": "orders", "quickstart": "users"},
}
TRANSFORMS = tuple(name for name, _ in validation.transforms.classes("transforms"))
VALUES = TEXTS | st.sampled_from(
    (
        *(
            "true",
            "false",
            "0",
            "1",
            "-1",
            "9223372036854775808",
            "a,b",
            ",",
            "a:b",
            "{}",
            "[]",
            "(",
        ),
        *("localhost:9092", "http://[::1", "jdbc:postgresql://u:p@h:x/db?a=%zz", "s3://", "file:"),
        *("org.apache.kafka.connect.json.JsonConverter", "os:system", "yyyy-MM-dd", "'", "${", "%"),
    )
)


@pytest.mark.parametrize("name", CONNECTORS)
def test_any_value_of_any_key(name: str, fuzz: Fuzz) -> None:
    given = {"connector.class": name, **CONNECTORS[name]}
    keys = sorted(k.name for k in validation.keys_of(name) if not k.name.startswith("plugin."))
    keys += ["key.converter", "value.converter", "errors.tolerance", "consumer.override.x", "junk"]

    @fuzz(changed=st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=3))
    def check(changed: dict[str, str]) -> None:
        infos, warnings = validation.validate({**given, **changed})
        assert isinstance(infos.error_count, int)
        assert all(isinstance(warning, str) for warning in warnings)


def test_any_transform(fuzz: Fuzz) -> None:
    given = {"connector.class": "postgresql", **CONNECTORS["postgresql"]}
    options = sorted({k.name for t in TRANSFORMS for k in validation.keys_of(t)})

    @fuzz(
        kind=st.sampled_from(TRANSFORMS) | VALUES,
        keys=st.dictionaries(st.sampled_from(options), VALUES, max_size=4),
        negated=st.booleans(),
    )
    def check(kind: str, keys: dict[str, str], negated: bool) -> None:
        raw = {**given, "transforms": "t", "transforms.t.type": kind, "predicates": "p"}
        raw |= {f"transforms.t.{key}": value for key, value in keys.items()}
        raw |= {f"predicates.p.{key}": value for key, value in keys.items()}
        raw |= {"predicates.p.type": "TopicNameMatches", "transforms.t.predicate": "p"}
        raw |= {"transforms.t.negate": str(negated).lower()}
        validation.validate(raw)


def test_any_document(fuzz: Fuzz, tmp_path: Path) -> None:
    path = tmp_path / "connector.json"

    @fuzz(document=JUNK.map(json.dumps).map(str.encode) | st.binary(max_size=30))
    def check(document: bytes) -> None:
        path.write_bytes(document)
        try:
            found = load(path)
        except ConfigError as error:
            assert str(error)
            return
        assert all(isinstance(key, str) and isinstance(value, str) for key, value in found.items())


def test_any_properties(fuzz: Fuzz, tmp_path: Path) -> None:
    path = tmp_path / "connector.properties"

    @fuzz(text=st.binary(max_size=40) | TEXTS.map(lambda t: t.encode("utf-8", "surrogatepass")))
    def check(text: bytes) -> None:
        path.write_bytes(text)
        try:
            load(path)
        except ConfigError as error:
            assert str(error)
