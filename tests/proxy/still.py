"""A proxy in this process without brokers: it has every topic, with one partition, and takes all
records."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.proxy.app import Proxy, application
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka, Outcome, OutgoingRecord, RecordMetadata

CLUSTER = "still"
RECORDS = f"/v3/clusters/{CLUSTER}/topics/t/records"


class _Still(Kafka):
    async def metadata(self, topic: str | None = None) -> Any:
        return SimpleNamespace(cluster_id=CLUSTER)

    async def partitions(self, topic: str) -> int:
        return 1

    async def produce(self, topic: str, records: Sequence[OutgoingRecord]) -> list[Outcome]:
        return [RecordMetadata(0, offset, 1) for offset, _ in enumerate(records)]


class StillProxy:
    """The proxy, and its application."""

    def __init__(self, **keys: str) -> None:
        config = read(ProxyConfig, {name.replace("_", "."): value for name, value in keys.items()})
        self.formats = Formats(config)
        self.kafka = _Still(config)
        self._app = application(Proxy(self.kafka, self.formats))

    def client(self) -> httpx.AsyncClient:
        """A client of it."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self), base_url="http://proxy")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
