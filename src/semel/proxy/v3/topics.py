"""Topics, partitions and replicas, and the cluster and the brokers that they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from fastapi import APIRouter, Query, Response
from pydantic import Field

from semel.kafka.cluster import INTERNAL
from semel.proxy.bodies import Body, JsonRoute, Partition
from semel.proxy.errors import Refusal, of_kafka, partition_not_found
from semel.proxy.kafka import ANSWERS_IN, Kafka, check_topic
from semel.proxy.v3 import (
    Shapes,
    broker_part,
    of_cluster,
    partition_part,
    topic_part,
)

_SHORT, _MOST_PARTITIONS = 2**15 - 1, 1_000_000
_AT_ONCE = 10_000
"""The partitions that brokers create for one request; they say nothing useful about more."""


class Setting(Body):
    """A setting of a new topic."""

    name: str = Field(max_length=255)
    value: str | None = Field(None, max_length=65_536)


class NewOne(Body):
    """A topic to create. Brokers choose what is left out."""

    topic_name: str
    partitions_count: Annotated[int, Field(ge=1, le=_MOST_PARTITIONS)] | None = None
    replication_factor: Annotated[int, Field(ge=1, le=_SHORT)] | None = None
    replicas_assignments: list[dict[str, Any]] | None = Field(None, max_length=10_000)
    configs: list[Setting] = Field(default_factory=list, max_length=1000)
    validate_only: bool = False


class Count(Body):
    """How many partitions a topic is to have."""

    partitions_count: int = Field(ge=1, le=_MOST_PARTITIONS)


def routes(kafka: Kafka, shapes: Shapes) -> APIRouter:
    """Clusters and their brokers, and what is under /clusters/{cluster}/topics."""
    router = APIRouter(prefix="/v3/clusters", route_class=JsonRoute)
    _clusters(router, kafka, shapes)
    topics = APIRouter(prefix="/{cluster}/topics", route_class=JsonRoute)
    _topics(topics, kafka, shapes)
    _partitions(topics, kafka, shapes)
    router.include_router(topics)
    return router


def _with_operations(
    topic: dict[str, Any], operations: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    return {**topic, "authorized_operations": operations[topic["topic_name"]]}


def _topics(router: APIRouter, kafka: Kafka, shapes: Shapes) -> None:
    @router.get("")
    async def topics(
        cluster: str,
        include_authorized_operations: bool = False,
        as_confluent: Annotated[bool, Query(alias="includeAuthorizedOperations")] = False,
    ) -> dict[str, Any]:
        await shapes.check(cluster)
        by_name = (await kafka.metadata()).topics
        names = [name for name in sorted(by_name) if by_name[name].error is None]
        resources = [_topic(shapes, cluster, by_name[name]) for name in names]
        if include_authorized_operations or as_confluent:
            operations = await _operations(names)
            resources = [
                _with_operations(resource, operations)
                for resource in resources
                if resource["topic_name"] in operations
            ]
        return shapes.several("Topic", of_cluster(cluster), "topics", resources)

    async def _operations(names: Sequence[str]) -> dict[str, list[str]]:
        """What the login may do with each of these topics, without those that are gone.

        Raises:
            Refusal: Kafka refuses, or has not answered.
        """

        def ask(admin: AdminClient) -> dict[str, list[str]]:
            operations = {}
            asked = admin.describe_topics(
                TopicCollection([*names]),
                include_authorized_operations=True,
                request_timeout=ANSWERS_IN,
            )
            for name, future in asked.items():
                try:
                    allowed = future.result(ANSWERS_IN).authorized_operations
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise of_kafka(error, name) from None
                except TimeoutError:
                    raise kafka.unanswered() from None
                else:
                    operations[name] = sorted(each.name for each in allowed or ())
            return operations

        return await kafka.call(ask, kafka.clients.admin) if names else {}

    @router.post("", status_code=201)
    async def create(cluster: str, body: NewOne, response: Response) -> dict[str, Any]:
        await shapes.check(cluster)
        _check_count(body.partitions_count or 0)
        new = _new(body)
        await kafka.answer(
            lambda admin: admin.create_topics(
                [new],
                operation_timeout=ANSWERS_IN,
                request_timeout=ANSWERS_IN,
                validate_only=body.validate_only,
            )[body.topic_name]
        )
        kafka.forget(body.topic_name)
        response.headers["location"] = shapes.link(of_cluster(cluster, topic_part(new.topic)))
        if not body.validate_only:
            metadata = (await kafka.metadata_soon(body.topic_name)).topics[body.topic_name]
            return _topic(shapes, cluster, metadata)
        response.status_code = 200
        return _planned(shapes, cluster, new)

    @router.get("/{topic}")
    async def topic(
        cluster: str, topic: str, include_authorized_operations: bool = False
    ) -> dict[str, Any]:
        await shapes.check(cluster)
        resource = _topic(shapes, cluster, (await kafka.metadata(topic)).topics[topic])
        if not include_authorized_operations:
            return resource
        operations = await _operations([topic])
        return _with_operations(resource, {topic: operations.get(topic, [])})

    @router.patch("/{topic}")
    async def add_partitions(cluster: str, topic: str, body: Count) -> dict[str, Any]:
        await shapes.check(cluster)
        _check_count(body.partitions_count - await kafka.partitions(topic))
        await kafka.answer(
            lambda admin: admin.create_partitions(
                [NewPartitions(topic, body.partitions_count)],
                operation_timeout=ANSWERS_IN,
                request_timeout=ANSWERS_IN,
            )[topic],
            topic,
        )
        kafka.forget(topic)
        metadata = (await kafka.metadata(topic)).topics[topic]
        answer = _topic(shapes, cluster, metadata)
        return {**answer, "partitions_count": body.partitions_count}

    @router.delete("/{topic}", status_code=204)
    async def delete(cluster: str, topic: str) -> Response:
        await shapes.check(cluster)
        check_topic(topic)
        await kafka.answer(
            lambda admin: admin.delete_topics(
                [topic], operation_timeout=ANSWERS_IN, request_timeout=ANSWERS_IN
            )[topic],
            topic,
        )
        kafka.forget(topic)
        return Response(status_code=204)


def _partitions(router: APIRouter, kafka: Kafka, shapes: Shapes) -> None:
    @router.get("/{topic}/partitions")
    async def partitions(cluster: str, topic: str) -> dict[str, Any]:
        await shapes.check(cluster)
        by_id = (await kafka.metadata(topic)).topics[topic].partitions
        resources = [_partition(cluster, topic, by_id[number]) for number in sorted(by_id)]
        where = of_cluster(cluster, topic_part(topic))
        return shapes.several("Partition", where, "partitions", resources)

    @router.get("/{topic}/partitions/{partition}")
    async def partition(cluster: str, topic: str, partition: Partition) -> dict[str, Any]:
        return _partition(cluster, topic, await _metadata_of(cluster, topic, partition))

    @router.get("/{topic}/partitions/{partition}/offset")
    async def offsets(cluster: str, topic: str, partition: Partition) -> dict[str, Any]:
        await shapes.check(cluster)
        await kafka.check_partition(topic, partition)
        first, end = await kafka.ends(topic, partition)
        return shapes.one(
            "PartitionWithOffsets",
            of_cluster(cluster, topic_part(topic), partition_part(partition)),
            "offset",
            cluster_id=cluster,
            topic_name=topic,
            partition_id=partition,
            earliest_offset=first,
            latest_offset=end,
        )

    @router.get("/{topic}/partitions/{partition}/replicas")
    async def replicas(cluster: str, topic: str, partition: Partition) -> dict[str, Any]:
        metadata = await _metadata_of(cluster, topic, partition)
        resources = [
            _replica(shapes, cluster, topic, metadata, broker) for broker in metadata.replicas
        ]
        where = of_cluster(cluster, topic_part(topic), partition_part(partition))
        return shapes.several("Replica", where, "replicas", resources)

    @router.get("/{topic}/partitions/{partition}/replicas/{broker}")
    async def one_replica(
        cluster: str, topic: str, partition: Partition, broker: Partition
    ) -> dict[str, Any]:
        metadata = await _metadata_of(cluster, topic, partition)
        if broker not in metadata.replicas:
            raise Refusal(404, f"Broker {broker} has no replica of {topic}-{partition}.")
        return _replica(shapes, cluster, topic, metadata, broker)

    async def _metadata_of(cluster: str, topic: str, partition: int) -> Any:
        await shapes.check(cluster)
        by_id = (await kafka.metadata(topic)).topics[topic].partitions
        if partition not in by_id:
            raise partition_not_found(topic, partition)
        return by_id[partition]

    def _partition(cluster: str, topic: str, metadata: Any) -> dict[str, Any]:
        where = of_cluster(cluster, topic_part(topic), partition_part(metadata.id))
        leader = [*where, ("replicas", "replica", metadata.leader)]
        return shapes.one(
            "Partition",
            where,
            cluster_id=cluster,
            topic_name=topic,
            partition_id=metadata.id,
            leader=shapes.related(leader) if metadata.leader >= 0 else None,
            replicas=shapes.related(where, "replicas"),
            reassignment=shapes.related(where, "reassignment"),
        )


def _clusters(router: APIRouter, kafka: Kafka, shapes: Shapes) -> None:
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
            _replica(shapes, cluster, topic, partition, broker)
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


def _replica(
    shapes: Shapes, cluster: str, topic: str, partition: Any, broker: int
) -> dict[str, Any]:
    """A replica of a partition."""
    where = of_cluster(cluster, topic_part(topic), partition_part(partition.id))
    return shapes.one(
        "Replica",
        [*where, ("replicas", "replica", broker)],
        cluster_id=cluster,
        topic_name=topic,
        partition_id=partition.id,
        broker_id=broker,
        is_leader=broker == partition.leader,
        is_in_sync=broker in partition.isrs,
        broker=shapes.related(of_cluster(cluster, broker_part(broker))),
    )


def _topic(shapes: Shapes, cluster: str, metadata: Any) -> dict[str, Any]:
    replicas = max((len(each.replicas) for each in metadata.partitions.values()), default=0)
    return _described(shapes, cluster, metadata.topic, len(metadata.partitions), replicas)


def _planned(shapes: Shapes, cluster: str, new: NewTopic) -> dict[str, Any]:
    """A topic that is not created. What brokers would choose is taken for 1."""
    placed = new.replica_assignment
    replicas = len(placed[0]) if placed else new.replication_factor
    return _described(shapes, cluster, new.topic, max(new.num_partitions, 1), max(replicas, 1))


def _described(
    shapes: Shapes, cluster: str, topic: str, count: int, replicas: int
) -> dict[str, Any]:
    where = of_cluster(cluster, topic_part(topic))
    return shapes.one(
        "Topic",
        where,
        cluster_id=cluster,
        topic_name=topic,
        is_internal=topic in INTERNAL,
        replication_factor=replicas,
        partitions_count=count,
        partitions=shapes.related(where, "partitions"),
        configs=shapes.related(where, "configs"),
        partition_reassignments=shapes.related(where, "partitions/-/reassignment"),
        authorized_operations=[],
    )


def _new(body: NewOne) -> NewTopic:
    """Raises Refusal: it has no name that a topic can have, or its replicas are malformed."""
    try:
        check_topic(body.topic_name)
    except Refusal:
        raise Refusal(400, f"Topic name {body.topic_name[:300]!r} is illegal.", 40002) from None
    configs = {each.name: each.value for each in body.configs if each.value is not None}
    if not body.replicas_assignments:
        return NewTopic(
            body.topic_name,
            body.partitions_count or -1,
            body.replication_factor or -1,
            config=configs,
        )
    placed: dict[int, list[int]] = {}
    for each in body.replicas_assignments:
        number, brokers = each.get("partition_id"), each.get("broker_ids")
        if not _is_int(number) or not isinstance(brokers, list) or not all(map(_is_int, brokers)):
            raise Refusal(400, "replicas_assignments: each has a partition_id and broker_ids")
        placed[int(str(number))] = brokers
    if sorted(placed) != [*range(len(placed))]:
        raise Refusal(400, "replicas_assignments: partitions are numbered from 0", 40002)
    return NewTopic(
        body.topic_name,
        len(placed),
        replica_assignment=[placed[number] for number in sorted(placed)],
        config=configs,
    )


def _check_count(more: int) -> None:
    if more > _AT_ONCE:
        raise Refusal(400, f"{more} partitions; {_AT_ONCE} can be created at once", 40002)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
