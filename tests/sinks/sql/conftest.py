from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.sinks import sink_class
from semel.sinks.sql.sink import SqlSink
from tests import databases

MakeSink = Callable[..., SqlSink]
Query = Callable[[str], list[Any]]


@pytest.fixture
def make(sql_url: str) -> Iterator[MakeSink]:
    """Makes sinks for the database; ``insert_mode="upsert"`` stands for ``insert.mode``."""
    made: list[SqlSink] = []

    def sink(name: str = "c", **keys: str) -> SqlSink:
        system = sql_url.split(":")[1]
        raw = {
            "name": name,
            "connector.class": system,
            "bootstrap.servers": "nowhere:9092",
            "topics": "t",
            "connection.url": sql_url,
            "auto.create": "true",
            **{k.replace("_", "."): v for k, v in keys.items()},
        }
        new = sink_class(system)(read(ConnectorConfig, raw))
        assert isinstance(new, SqlSink)
        made.append(new)
        return new

    yield sink
    for each in made:
        each.close()


@pytest.fixture
def query(sql_url: str) -> Query:
    return lambda statement: databases.query(sql_url, statement)
