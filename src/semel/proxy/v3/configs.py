"""Settings of topics, of brokers, and of all brokers together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from fastapi import APIRouter, Response
from pydantic import Field

from semel.core.quoting import named
from semel.proxy.bodies import JsonRoute
from semel.proxy.errors import Refusal, of_kafka
from semel.proxy.kafka import ANSWERS_IN, Kafka, check_topic
from semel.proxy.paths import Partition
from semel.proxy.records import Body
from semel.proxy.v3.shapes import Part, Shapes, broker_part, of_cluster, topic_part

_TOPIC, _BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
_LONGEST = 65_536


class Value(Body):
    """The new value of a setting."""

    value: str | None = Field(max_length=_LONGEST)


class Change(Body):
    """A change of one setting."""

    name: str = Field(max_length=255)
    value: str | None = Field(None, max_length=_LONGEST)
    operation: Literal["SET", "DELETE"] = "SET"


class Changes(Body):
    """Changes that are made together."""

    data: list[Change] = Field(max_length=1000)
    validate_only: bool = False


class _Owner:
    """Whose settings they are: their names, their place, and what is said of each."""

    def __init__(
        self,
        kind: str,
        resource: ConfigResource,
        where: Sequence[Part],
        collection: Part,
        **facts: Any,
    ) -> None:
        self.kind = kind
        self.resource = resource
        self.where = where
        self.collection = collection
        self.facts = facts


def routes(kafka: Kafka, shapes: Shapes) -> APIRouter:
    """All paths that end with configs."""
    router = APIRouter(prefix="/v3/clusters/{cluster}", route_class=JsonRoute)
    _of_topics(router, kafka, shapes)
    _of_brokers(router, kafka, shapes)
    _of_cluster(router, kafka, shapes)
    return router


def _of_topics(router: APIRouter, kafka: Kafka, shapes: Shapes) -> None:
    path = "/topics/{topic}/configs"

    async def owner(cluster: str, topic: str) -> _Owner:
        await shapes.check(cluster)
        check_topic(topic)
        await kafka.partitions(topic)
        return _topic(cluster, topic)

    @router.get("/topics/-/configs")
    async def all_topics(cluster: str) -> dict[str, Any]:
        await shapes.check(cluster)
        topics = (await kafka.metadata()).topics
        found = []
        for topic in sorted(topics):
            found += await _listed(kafka, shapes, _topic(cluster, topic))
        return shapes.several("TopicConfig", of_cluster(cluster), "topics/-/configs", found)

    @router.get(path)
    async def listed(cluster: str, topic: str) -> dict[str, Any]:
        return await _answer(kafka, shapes, await owner(cluster, topic))

    @router.post(f"{path}:alter", status_code=204)
    async def alter(cluster: str, topic: str, body: Changes) -> Response:
        return await _changed(kafka, await owner(cluster, topic), body.data, body.validate_only)

    @router.get(f"{path}/{{name}}")
    async def one(cluster: str, topic: str, name: str) -> dict[str, Any]:
        return await _one(kafka, shapes, await owner(cluster, topic), name)

    @router.put(f"{path}/{{name}}", status_code=204)
    async def put(cluster: str, topic: str, name: str, body: Value) -> Response:
        return await _put(kafka, await owner(cluster, topic), name, body.value)

    @router.delete(f"{path}/{{name}}", status_code=204)
    async def reset(cluster: str, topic: str, name: str) -> Response:
        return await _put(kafka, await owner(cluster, topic), name, None)


def _of_brokers(router: APIRouter, kafka: Kafka, shapes: Shapes) -> None:
    path = "/brokers/{broker}/configs"

    async def owner(cluster: str, broker: int) -> _Owner:
        await shapes.check(cluster)
        if broker not in (await kafka.metadata()).brokers:
            raise Refusal(404, f"Broker {broker} cannot be found.")
        return _broker(cluster, broker)

    @router.get("/brokers/-/configs")
    async def all_brokers(cluster: str) -> dict[str, Any]:
        await shapes.check(cluster)
        found = []
        for broker in sorted((await kafka.metadata()).brokers):
            found += await _listed(kafka, shapes, _broker(cluster, broker))
        return shapes.several("BrokerConfig", of_cluster(cluster), "brokers/-/configs", found)

    @router.get(path)
    async def listed(cluster: str, broker: Partition) -> dict[str, Any]:
        return await _answer(kafka, shapes, await owner(cluster, broker))

    @router.post(f"{path}:alter", status_code=204)
    async def alter(cluster: str, broker: Partition, body: Changes) -> Response:
        return await _changed(kafka, await owner(cluster, broker), body.data, body.validate_only)

    @router.get(f"{path}/{{name}}")
    async def one(cluster: str, broker: Partition, name: str) -> dict[str, Any]:
        return await _one(kafka, shapes, await owner(cluster, broker), name)

    @router.put(f"{path}/{{name}}", status_code=204)
    async def put(cluster: str, broker: Partition, name: str, body: Value) -> Response:
        return await _put(kafka, await owner(cluster, broker), name, body.value)

    @router.delete(f"{path}/{{name}}", status_code=204)
    async def reset(cluster: str, broker: Partition, name: str) -> Response:
        return await _put(kafka, await owner(cluster, broker), name, None)


def _of_cluster(router: APIRouter, kafka: Kafka, shapes: Shapes) -> None:
    path = "/broker-configs"

    async def owner(cluster: str) -> _Owner:
        await shapes.check(cluster)
        broker = min((await kafka.metadata()).brokers)  # each knows the settings of all
        return _Owner(
            "ClusterConfig",
            ConfigResource(_BROKER, str(broker)),
            of_cluster(cluster),
            ("broker-configs", "broker-config", ""),
            cluster_id=cluster,
            config_type="BROKER",
        )

    @router.get(path)
    async def listed(cluster: str) -> dict[str, Any]:
        return await _answer(kafka, shapes, await owner(cluster))

    @router.get(f"{path}/{{name}}")
    async def one(cluster: str, name: str) -> dict[str, Any]:
        return await _one(kafka, shapes, await owner(cluster), name)

    @router.post(f"{path}:alter")
    @router.put(f"{path}/{{name}}")
    @router.delete(f"{path}/{{name}}")
    async def change(cluster: str) -> Response:
        await shapes.check(cluster)
        raise Refusal(
            501,
            "librdkafka cannot change the settings of all brokers together: change those of each "
            "broker, or use kafka-configs.sh --entity-default",
        )


def _topic(cluster: str, topic: str) -> _Owner:
    return _Owner(
        "TopicConfig",
        ConfigResource(_TOPIC, topic),
        of_cluster(cluster, topic_part(topic)),
        ("configs", "config", ""),
        cluster_id=cluster,
        topic_name=topic,
    )


def _broker(cluster: str, broker: int) -> _Owner:
    return _Owner(
        "BrokerConfig",
        ConfigResource(_BROKER, str(broker)),
        of_cluster(cluster, broker_part(broker)),
        ("configs", "config", ""),
        cluster_id=cluster,
        broker_id=broker,
    )


async def _answer(kafka: Kafka, shapes: Shapes, owner: _Owner) -> dict[str, Any]:
    found = await _listed(kafka, shapes, owner)
    return shapes.several(owner.kind, owner.where, owner.collection[0], found)


async def _listed(kafka: Kafka, shapes: Shapes, owner: _Owner) -> list[dict[str, Any]]:
    found = await _entries(kafka, owner)
    return [_shown(shapes, owner, found[name]) for name in sorted(found)]


async def _one(kafka: Kafka, shapes: Shapes, owner: _Owner, name: str) -> dict[str, Any]:
    found = await _entries(kafka, owner)
    if name not in found:
        raise _not_found(name)
    return _shown(shapes, owner, found[name])


async def _entries(kafka: Kafka, owner: _Owner) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await kafka.answer(
            lambda admin: admin.describe_configs([owner.resource], request_timeout=ANSWERS_IN)[
                owner.resource
            ]
        )
    except KafkaException as error:
        raise of_kafka(error, str(owner.facts.get("topic_name", ""))) from None
    if owner.kind == "ClusterConfig":
        return {
            name: synonym
            for name, entry in found.items()
            for synonym in entry.synonyms.values()
            if synonym.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value
        }
    return found


async def _put(kafka: Kafka, owner: _Owner, name: str, value: str | None) -> Response:
    if name not in await _entries(kafka, owner):
        raise _not_found(name)
    operation: Literal["SET", "DELETE"] = "DELETE" if value is None else "SET"
    return await _changed(kafka, owner, [Change(name=name, value=value, operation=operation)])


async def _changed(
    kafka: Kafka, owner: _Owner, changes: Sequence[Change], validate_only: bool = False
) -> Response:
    entries = [
        ConfigEntry(
            each.name,
            None if each.operation == "DELETE" else each.value,
            incremental_operation=AlterConfigOpType[each.operation],
        )
        for each in changes
    ]
    for each in changes:
        if each.operation == "SET" and each.value is None:
            raise Refusal(400, f"{named(each.name)} has no value", 40002)
    if not entries:
        return Response(status_code=204)
    resource = ConfigResource(
        owner.resource.restype, owner.resource.name, incremental_configs=entries
    )
    try:
        await kafka.answer(
            lambda admin: admin.incremental_alter_configs(
                [resource], validate_only=validate_only, request_timeout=ANSWERS_IN
            )[resource]
        )
    except KafkaException as error:
        raise of_kafka(error, str(owner.facts.get("topic_name", ""))) from None
    return Response(status_code=204)


def _not_found(name: str) -> Refusal:
    return Refusal(404, f"Config {named(name)} cannot be found.")


def _shown(shapes: Shapes, owner: _Owner, entry: Any) -> dict[str, Any]:
    several, one, _ = owner.collection
    return shapes.one(
        owner.kind,
        [*owner.where, (several, one, entry.name)],
        **owner.facts,
        name=entry.name,
        value=entry.value,
        is_default=entry.is_default,
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        source=_source(entry),
        synonyms=[
            {"name": each.name, "value": each.value, "source": _source(each)}
            for each in entry.synonyms.values()
        ],
    )


def _source(entry: Any) -> str:
    try:
        return ConfigSource(entry.source).name.removesuffix("_CONFIG") + "_CONFIG"
    except ValueError:
        return "UNKNOWN"
