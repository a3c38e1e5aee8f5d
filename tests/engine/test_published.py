"""Sink configurations as tutorials and READMEs publish them, with other addresses: the results are
those that Kafka Connect leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from semel.converters import create
from semel.driver.planning import plan
from semel_lab.embedded import Kafka
from semel_lab.embedded.registry import SchemaRegistry
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import caught_up, name, sql
from tests.searching import documents

pytestmark = [pytest.mark.integration, pytest.mark.long]

AVRO = "io.confluent.connect.avro.AvroConverter"
DECEMBER = 1_607_000_000_000
"""Thursday, 3 December 2020, 12:53:20 in UTC: the time of all records."""

Fields = Mapping[str, Any]
Rows = Sequence[Any]


@dataclass(frozen=True)
class Example:
    """A configuration, records for it, and the rows of each target.

    ``records`` are keys and values; a value is encoded with ``value``, unless it is bytes.
    ``{t}`` stands for the topic, and ``{suffix}`` for its part that is new in each run.
    """

    connector: str
    keys: Mapping[str, str]
    records: Sequence[tuple[bytes | None, Fields | bytes | None]]
    rows: Mapping[str, Rows]
    value: str = AVRO
    prefix: str = "topic"
    stamps: Sequence[int] = field(default=())
    select: str = "*"
    store: str = "mariadb"


def _examples() -> Iterator[tuple[str, Example]]:
    """Bytes are written as Latin-1."""

    def bytes_of(text: Any) -> Any:
        return text.encode("latin-1") if isinstance(text, str) else text

    with Path(__file__).with_name("published.jsonl").open() as lines:
        for facts in map(json.loads, lines):
            facts["records"] = [(bytes_of(k), bytes_of(v)) for k, v in facts["records"]]
            for target, rows in facts["rows"].items():
                facts["rows"][target] = [tuple(r) if isinstance(r, list) else r for r in rows]
            yield facts.pop("title"), Example(**facts)


EXAMPLES = dict(_examples())


def in_sql(config: Mapping[str, str], example: Example, target: str) -> Rows:
    rows = sql(config["connection.url"], f'SELECT {example.select} FROM "{target}" ORDER BY 1')
    return [tuple(map(_plain, r)) if isinstance(r, tuple) else _plain(r) for r in rows]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else str(value)


def in_search(config: Mapping[str, str], _example: Example, target: str) -> Rows:
    return sorted(documents(config["connection.url"], target), key=lambda d: str(d["_id"]))


def in_files(config: Mapping[str, str], _example: Example, target: str) -> Rows:
    rows: list[Any] = []
    for path in sorted(Path(config["path"]).glob(target)):
        if path.suffix == ".avro":
            with path.open("rb") as stream:
                rows += list(fastavro.reader(stream))
        else:
            rows += map(json.loads, path.read_text().splitlines())
    return rows


def in_lines(config: Mapping[str, str], _example: Example, _target: str) -> Rows:
    return Path(config["file"]).read_text().splitlines()


def in_iceberg(config: Mapping[str, str], _example: Example, target: str) -> Rows:
    catalog = load_catalog("iceberg", type="sql", uri=config["iceberg.catalog.uri"])
    found = catalog.load_table(target).scan().to_arrow()
    return sorted(duckdb.from_arrow(found).fetchall())


LOOK: Mapping[str, Callable[[Mapping[str, str], Example, str], Rows]] = {
    "files": in_files,
    "iceberg": in_iceberg,
    "lines": in_lines,
    "opensearch": in_search,
}


def address(store: str, request: pytest.FixtureRequest, directory: Path) -> dict[str, str]:
    """Where the example's results go."""
    if store == "postgresql":
        return {"connection.url": request.getfixturevalue("database")}
    if store == "sqlite":
        return {"connection.url": f"jdbc:sqlite:{directory / 'test.db'}"}
    if store == "mariadb":
        return {"connection.url": request.getfixturevalue("mariadb").create_database(name())}
    if store == "opensearch":
        url = request.getfixturevalue("opensearch").url
        return {"connection.url": url, "read.timeout.ms": "600000"}
    if store == "files":
        return {"path": str(directory / "bucket")}
    if store == "lines":
        return {"file": str(directory / "lines")}
    return {
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{directory}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{directory}/warehouse",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.control.commit.interval-ms": "1000",
        "value.converter.schemas.enable": "false",
    }


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_published_configuration_leaves_what_kafka_connect_leaves(
    title: str,
    kafka: Kafka,
    registry: SchemaRegistry,
    topic: MakeTopic,
    produce: Produce,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    example = EXAMPLES[title]
    there = topic(1, prefix=example.prefix)
    suffix = there.partition("-")[2]
    camel = "".join(part.capitalize() for part in there.split("-"))
    names = {"{t}": there, "{suffix}": suffix, "{Camel}": camel}

    def named(text: Any) -> Any:
        if isinstance(text, tuple):
            return tuple(map(named, text))
        if isinstance(text, dict):
            return {k: named(v) for k, v in text.items()}
        for what, by in names.items():
            text = text.replace(what, by) if isinstance(text, str) else text
        return text

    config = {
        "name": name(),
        "connector.class": example.connector,
        "topics": there,
        "bootstrap.servers": kafka.bootstrap_servers,
        "value.converter": example.value,
        **address(example.store, request, tmp_path),
        **{k: named(v) for k, v in example.keys.items()},
    }
    if "topics.regex" in config:
        del config["topics"]
    if example.value == AVRO:
        config["value.converter.schema.registry.url"] = registry.url
    plan(config).close()
    values = [_encoded(example, there, registry, value) for _, value in example.records]
    stamps = example.stamps or [DECEMBER] * len(values)
    produce(there, values, keys=[key for key, _ in example.records], timestamps=stamps)
    caught_up(config)
    look = LOOK.get(example.store, in_sql)
    found = {named(t): list(look(config, example, named(t))) for t in example.rows}
    assert found == {named(t): [named(row) for row in rows] for t, rows in example.rows.items()}


def _encoded(
    example: Example, topic: str, registry: SchemaRegistry, value: Fields | bytes | None
) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    options = {"schema.registry.url": registry.url}
    made = create(example.value, options, is_key=False, where="value.converter").for_topic(topic)
    written: bytes = made.encode(pa.array([value]))[0].as_py()
    return written
