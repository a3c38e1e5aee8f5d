"""A sink without ``key.converter`` once wrote JSON keys as plain text. It does not continue with
keys in another form."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition, firsts
from semel.core.records import Commit
from semel.driver.planning import plan
from semel.sinks.base import Sink
from semel.sinks.protocols import transactional
from tests.engine.harness import some
from tests.sinks.target import advance, records

TEXT = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"


def sink(directory: Path, system: str, **more: str) -> Sink:
    raw = {
        "name": "c",
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "connection.url": f"jdbc:{system}:{directory / 'database'}",
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "k",
        "auto.create": "true",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return plan(raw).sink


def written(directory: Path, system: str, *keys: str) -> None:
    """Rows of a connector that reads keys as text."""
    made = sink(directory, system, key_converter=TEXT)
    made.prepare(["t"])
    made.start(firsts({TopicPartition("t", 0): 0}))
    rows = records([{"v": n} for n in range(len(keys))], keys=pa.array(keys))
    transactional(made).commit([advance(0, len(keys))], Commit([rows]))
    made.close()


@pytest.mark.parametrize("system", ["sqlite", "duckdb"])
@pytest.mark.parametrize("key", some(['"a"', '{"id": 1}', "[1]"], {'"a"', '{"id": 1}'}))
def test_keys_that_are_texts_of_json_are_refused_with_what_to_set(
    tmp_path: Path, system: str, key: str
) -> None:
    written(tmp_path, system, key, key.replace("1", "2").replace("a", "b"))
    again = sink(tmp_path, system)
    with pytest.raises(ConfigError, match="and table t holds keys that were") as e:
        again.prepare(["t"])
    again.close()
    assert f"set key.converter={TEXT}" in str(e.value)
    for converter in (TEXT, JSON):
        told = sink(tmp_path, system, key_converter=converter)
        told.prepare(["t"])
        told.close()


@pytest.mark.parametrize("keys", [("a", "b"), ("1", "2"), ("[EU]", "{x}"), ("[1]", "EU")])
def test_keys_that_json_would_write_the_same_are_taken(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    written(tmp_path, "sqlite", *keys)
    again = sink(tmp_path, "sqlite")
    again.prepare(["t"])
    again.close()


def test_a_table_of_others_is_taken(tmp_path: Path) -> None:
    written(tmp_path, "sqlite", '"a"')
    other = sink(tmp_path, "sqlite", name="other")
    other.prepare(["t"])
    other.close()
