"""Clusters and brokers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from semel.proxy.bodies import JsonRoute
from semel.proxy.errors import Refusal
from semel.proxy.kafka import Kafka
from semel.proxy.paths import Partition
from semel.proxy.v3.shapes import Shapes, broker_part, of_cluster
from semel.proxy.v3.topics import replica


def routes(kafka: Kafka, shapes: Shapes) -> APIRouter:
    """What is under /clusters, and /clusters/{cluster}/brokers."""
    router = APIRouter(prefix="/v3/clusters", route_class=JsonRoute)

    @router.get("")
    async def clusters() -> dict[str, Any]:
        return shapes.several("Cluster", [], "clusters", [_cluster(await kafka.metadata())])

    @router.get("/{cluster}")
    async def cluster(cluster: str) -> dict[str, Any]:
        await shapes.check(cluster)
        return _cluster(await kafka.metadata())

    @router.get("/{cluster}/brokers")
    async def brokers(cluster: str) -> dict[str, Any]:
        await shapes.check(cluster)
        by_id = (await kafka.metadata()).brokers
        resources = [_broker(cluster, by_id[number]) for number in sorted(by_id)]
        return shapes.several("Broker", of_cluster(cluster), "brokers", resources)

    @router.get("/{cluster}/brokers/{broker}")
    async def broker(cluster: str, broker: Partition) -> dict[str, Any]:
        await shapes.check(cluster)
        return _broker(cluster, _broker_metadata(await kafka.metadata(), broker))

    @router.get("/{cluster}/brokers/{broker}/partition-replicas")
    async def replicas(cluster: str, broker: Partition) -> dict[str, Any]:
        await shapes.check(cluster)
        metadata = await kafka.metadata()
        _broker_metadata(metadata, broker)
        resources = [
            replica(shapes, cluster, topic, partition, broker)
            for topic, described in sorted(metadata.topics.items())
            for _, partition in sorted(described.partitions.items())
            if broker in partition.replicas
        ]
        where = of_cluster(cluster, broker_part(broker))
        return shapes.several("Replica", where, "partition-replicas", resources)

    def _broker_metadata(metadata: Any, broker: int) -> Any:
        if broker not in metadata.brokers:
            raise Refusal(404, f"Broker {broker} cannot be found.")
        return metadata.brokers[broker]

    def _cluster(metadata: Any) -> dict[str, Any]:
        name = str(metadata.cluster_id or "")
        where = of_cluster(name)
        ends = ("acls", "brokers", "broker-configs", "consumer-groups", "topics")
        facts: dict[str, Any] = {e.replace("-", "_"): shapes.related(where, e) for e in ends}
        return shapes.one(
            "Cluster",
            where,
            cluster_id=name,
            controller=shapes.related([*where, broker_part(metadata.controller_id)]),
            **facts,
            partition_reassignments=shapes.related(where, "topics/-/partitions/-/reassignment"),
        )

    def _broker(cluster: str, node: Any) -> dict[str, Any]:
        where = of_cluster(cluster, broker_part(node.id))
        return shapes.one(
            "Broker",
            where,
            cluster_id=cluster,
            broker_id=node.id,
            host=node.host,
            port=node.port,
            configs=shapes.related(where, "configs"),
            partition_replicas=shapes.related(where, "partition-replicas"),
        )

    return router
