"""A sink of each database, and SQL to look at what it wrote."""

from __future__ import annotations

from typing import Any

from semel.config import ConnectorConfig, read
from semel.sinks import sink_class
from semel.sinks.postgresql import PostgresSink
from semel.sinks.sql.sink import SqlSink
from tests.sinks.target import Target


class System:
    """PostgreSQL, or one of the others."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.system = url.split(":")[1] if url.startswith("jdbc:") else "postgresql"
        self._target = Target(url) if self.system == "postgresql" else None
        raw = {
            "name": "c",
            "connector.class": self.system,
            "bootstrap.servers": "nowhere:9092",
            "connection.url": url,
            **keys,
        }
        made = sink_class(self.system)(read(ConnectorConfig, raw))
        assert isinstance(made, PostgresSink | SqlSink)
        self.sink = made

    def execute(self, sql: str) -> None:
        if self._target is not None:
            self._target.execute(sql)
            return
        assert isinstance(self.sink, SqlSink)
        with self.sink._dialect.transaction():
            self.sink._dialect.execute(sql)

    def query(self, sql: str) -> list[dict[str, Any]]:
        if self._target is not None:
            return self._target.query(sql)
        assert isinstance(self.sink, SqlSink)
        with self.sink._dialect.transaction(reading=True):
            return self.sink._dialect.query(sql).to_pylist()

    def close(self) -> None:
        self.sink.close()
        if self._target is not None:
            self._target.close()
