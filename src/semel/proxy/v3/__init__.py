"""Version 3 of the REST Proxy's API. This module has the shapes that its resources share, and the
cluster that all are in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from semel.core.quoting import named
from semel.proxy.errors import Refusal
from semel.proxy.kafka import Kafka

Part = tuple[str, str, object]
"""A step of a path: the name of a collection, that of one of its members, and which one it is."""


class Shapes:
    """The one cluster of a proxy, and bodies for what is in it."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._base = f"{kafka.config.url}/v3"
        self._id = ""

    async def cluster(self) -> str:
        """The cluster's id."""
        if not self._id:
            self._id = str((await self._kafka.metadata()).cluster_id or "")
        return self._id

    async def check(self, cluster: str) -> None:
        """Raises Refusal: it is another cluster."""
        if cluster != await self.cluster():
            raise Refusal(404, f"Cluster {named(cluster)} cannot be found.")

    def one(self, kind: str, parts: Sequence[Part], end: str = "", **facts: Any) -> dict[str, Any]:
        """A resource. ``end`` is the rest of its path."""
        tail = f"/{end}" if end else ""
        metadata = {"self": self.link(parts) + tail, "resource_name": _crn(parts) + tail}
        return {"kind": f"Kafka{kind}", "metadata": metadata, **facts}

    def several(
        self, kind: str, parts: Sequence[Part], end: str, resources: Iterable[dict[str, Any]]
    ) -> dict[str, Any]:
        """A list of resources."""
        metadata = {"self": f"{self.link(parts)}/{end}".rstrip("/"), "next": None}
        return {"kind": f"Kafka{kind}List", "metadata": metadata, "data": list(resources)}

    def related(self, parts: Sequence[Part], end: str = "") -> dict[str, str]:
        """A link to another resource."""
        return {"related": self.link(parts) + (f"/{end}" if end else "")}

    def link(self, parts: Sequence[Part]) -> str:
        """The URL of a resource."""
        steps = [f"{several}/{quote(str(which), safe='@:')}" for several, _, which in parts]
        return "/".join([self._base, *steps])


def of_cluster(cluster: str, *more: Part) -> list[Part]:
    """The path of something in a cluster."""
    return [("clusters", "kafka", cluster), *more]


def topic_part(topic: str) -> Part:
    return "topics", "topic", topic


def partition_part(partition: int) -> Part:
    return "partitions", "partition", partition


def broker_part(broker: int) -> Part:
    return "brokers", "broker", broker


def group_part(group: str) -> Part:
    return "consumer-groups", "consumer-group", group


def _crn(parts: Sequence[Part]) -> str:
    return "crn:///" + "/".join(f"{singular}={which}" for _, singular, which in parts)
