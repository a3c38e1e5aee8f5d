"""Topics, their partitions and offsets, and the brokers."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec
from fastapi import APIRouter, Request, Response

from semel.proxy.errors import partition_not_found
from semel.proxy.kafka import ANSWERS_IN, Kafka
from semel.proxy.media import MediaRoute, answer
from semel.proxy.paths import Partition


def routes(kafka: Kafka) -> APIRouter:
    """What is under /topics and /brokers."""
    router = APIRouter(route_class=MediaRoute)

    @router.get("/")
    async def root(request: Request) -> Response:
        return answer(request, {})

    @router.get("/topics")
    async def topics(request: Request) -> Response:
        metadata = await kafka.metadata()
        return answer(request, sorted(n for n, t in metadata.topics.items() if t.error is None))

    @router.get("/topics/{topic}")
    async def topic(topic: str, request: Request) -> Response:
        partitions = _partitions(await kafka.metadata(topic), topic)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        configs = await kafka.answer(
            lambda admin: admin.describe_configs([resource], request_timeout=ANSWERS_IN)[resource],
            topic,
        )
        values = {name: each.value for name, each in sorted(configs.items())}
        return answer(request, {"name": topic, "configs": values, "partitions": partitions})

    @router.get("/topics/{topic}/partitions")
    async def partitions(topic: str, request: Request) -> Response:
        return answer(request, _partitions(await kafka.metadata(topic), topic))

    @router.get("/topics/{topic}/partitions/{partition}")
    async def partition(topic: str, partition: Partition, request: Request) -> Response:
        listed = _partitions(await kafka.metadata(topic), topic)
        described = next((each for each in listed if each["partition"] == partition), None)
        if described is None:
            raise partition_not_found(topic, partition)
        return answer(request, described)

    @router.get("/topics/{topic}/partitions/{partition}/offsets")
    async def offsets(topic: str, partition: Partition, request: Request) -> Response:
        await kafka.check_partition(topic, partition)
        first, end = await ends(kafka, topic, partition)
        return answer(request, {"beginning_offset": first, "end_offset": end})

    @router.get("/brokers")
    async def brokers(request: Request) -> Response:
        metadata = await kafka.metadata()
        return answer(request, {"brokers": sorted(metadata.brokers)})

    return router


async def ends(kafka: Kafka, topic: str, partition: int) -> tuple[int, int]:
    """The first offset of a partition, and the one after its last.

    Raises:
        Refusal: there is no such partition, or Kafka does not answer.
    """
    place = TopicPartition(topic, partition)
    offsets = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        listed = await kafka.answer(
            lambda admin, spec=spec: admin.list_offsets(  # type: ignore[misc]
                {place: spec}, request_timeout=ANSWERS_IN
            )[place],
            topic,
        )
        offsets.append(int(listed.offset))
    return offsets[0], offsets[1]


def _partitions(metadata: Any, topic: str) -> list[dict[str, Any]]:
    return [
        {
            "partition": number,
            "leader": each.leader,
            "replicas": [
                {"broker": b, "leader": b == each.leader, "in_sync": b in each.isrs}
                for b in each.replicas
            ],
        }
        for number, each in sorted(metadata.topics[topic].partitions.items())
    ]
