"""A search server, and sinks that write into it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.core.ledger import TopicPartition, firsts
from semel.sinks.search.sink import SearchSink
from semel_lab.embedded.opensearch import OpenSearch
from tests.engine.harness import some


class Cluster:
    """One server; each test has topics, and so indices, and connectors of its own."""

    def __init__(self, server: OpenSearch) -> None:
        self.server = server
        self._made: list[SearchSink] = []
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.name = f"c-{uuid.uuid4().hex[:8]}"
        self.first = TopicPartition(self.topic, 0)

    def config(self, keys: Mapping[str, Any] | None = None) -> dict[str, str]:
        wanted = {
            "name": self.name,
            "connector.class": "opensearch",
            "bootstrap.servers": "nowhere:9092",
            "topics": self.topic,
            "connection.url": self.server.url,
            "read.timeout.ms": 600_000,
            "key.ignore": "true",
            **(keys or {}),
        }
        return {k: str(v) for k, v in wanted.items() if v is not None}

    def sink(self, keys: Mapping[str, Any] | None = None, *, started: bool = True) -> SearchSink:
        """A sink that has entered its first position."""
        raw = self.config(keys)
        made = SearchSink(read(ConnectorConfig, raw))
        self._made.append(made)
        if started:
            made.prepare([self.topic])
            made.start(firsts({self.first: 0}))
        return made

    def keyed(self, keys: Mapping[str, Any] | None = None) -> SearchSink:
        """One whose ids are keys, and whose tombstones delete."""
        wanted = {"key.ignore": "false", "behavior.on.null.values": "delete"}
        return self.sink({**wanted, **(keys or {})})

    def hits(self, index: str | None = None) -> dict[str, dict[str, Any]]:
        """All documents by id, with ``_version`` and ``_source``."""
        index = index or self.topic
        self.server.request("POST", f"/{index}/_refresh")
        body = {"size": 10_000, "version": True}
        found = self.server.request("POST", f"/{index}/_search", body)
        return {h["_id"]: h for h in found["hits"]["hits"]}

    def documents(self, index: str | None = None) -> dict[str, dict[str, Any]]:
        return {i: h["_source"] for i, h in self.hits(index).items()}

    def versions(self) -> dict[str, int]:
        return {i: h["_version"] for i, h in self.hits().items()}

    def routes(self, index: str | None = None) -> dict[int, str | None]:
        """What each document's shard was chosen by, by its field ``x``."""
        found = self.hits(index).values()
        return {h["_source"]["x"]: h.get("_routing") for h in found}

    def mapping(self, index: str | None = None) -> dict[str, Any]:
        found = self.server.request("GET", f"/{index or self.topic}/_mapping")
        ((_, facts),) = found.items()
        properties: dict[str, Any] = facts["mappings"].get("properties", {})
        return properties

    def close(self) -> None:
        for sink in self._made:
            sink.close()


@pytest.fixture
def cluster(opensearch: OpenSearch) -> Iterator[Cluster]:
    made = Cluster(opensearch)
    yield made
    made.close()


@pytest.fixture(params=some(["opensearch", "elasticsearch"], {"opensearch"}))
def either(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Each of the two servers."""
    made = Cluster(request.getfixturevalue(request.param))
    yield made
    made.close()
