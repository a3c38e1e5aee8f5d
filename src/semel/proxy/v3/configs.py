"""Settings of topics, of brokers, and of all brokers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from semel.core.quoting import named
from semel.proxy.bodies import Body, JsonRoute, Partition
from semel.proxy.errors import Refusal
from semel.proxy.kafka import ANSWERS_IN, Kafka
from semel.proxy.v3 import Part, Shapes, broker_part, of_cluster, topic_part

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


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose settings they are: their names, their place, and what is said of each."""

    kind: str
    resource: ConfigResource
    where: Sequence[Part]
    collection: tuple[str, str]
    facts: Mapping[str, Any]

    @property
    def topic(self) -> str:
        return str(self.facts.get("topic_name", ""))


def routes(kafka: Kafka, shapes: Shapes) -> APIRouter:
    """All paths that end with configs."""
    router = APIRouter(prefix="/v3/clusters/{cluster}", route_class=JsonRoute)

    async def of_topic(cluster: str, topic: str) -> _Owner:
        await shapes.check(cluster)
        await kafka.partitions(topic)
        return _topic(cluster, topic)

    async def of_broker(cluster: str, broker: Partition) -> _Owner:
        await shapes.check(cluster)
        if broker not in (await kafka.metadata()).brokers:
            raise Refusal(404, f"Broker {broker} cannot be found.")
        return _broker(cluster, broker)

    async def of_all(cluster: str) -> _Owner:
        await shapes.check(cluster)
        broker = min((await kafka.metadata()).brokers)  # each knows the settings of all
        return _Owner(
            "ClusterConfig",
            ConfigResource(_BROKER, str(broker)),
            of_cluster(cluster),
            ("broker-configs", "broker-config"),
            {"cluster_id": cluster, "config_type": "BROKER"},
        )

    @router.get("/topics/-/configs")
    async def all_topics(cluster: str) -> dict[str, Any]:
        await shapes.check(cluster)
        owners = [_topic(cluster, topic) for topic in sorted((await kafka.metadata()).topics)]
        return await together(cluster, "Topic", "topics", owners)

    @router.get("/brokers/-/configs")
    async def all_brokers(cluster: str) -> dict[str, Any]:
        await shapes.check(cluster)
        owners = [_broker(cluster, broker) for broker in sorted((await kafka.metadata()).brokers)]
        return await together(cluster, "Broker", "brokers", owners)

    async def together(
        cluster: str, kind: str, what: str, owners: Sequence[_Owner]
    ) -> dict[str, Any]:
        resources = []
        for owner in owners:
            try:
                resources += await _listed(kafka, shapes, owner)
            except Refusal as refused:
                if refused.status != 404:  # it was deleted meanwhile
                    raise
        return shapes.several(f"{kind}Config", of_cluster(cluster), f"{what}/-/configs", resources)

    _read(router, kafka, shapes, "/topics/{topic}/configs", Depends(of_topic))
    _change(router, kafka, "/topics/{topic}/configs", Depends(of_topic))
    _read(router, kafka, shapes, "/brokers/{broker}/configs", Depends(of_broker))
    _change(router, kafka, "/brokers/{broker}/configs", Depends(of_broker))
    _read(router, kafka, shapes, "/broker-configs", Depends(of_all))

    @router.post("/broker-configs:alter")
    @router.put("/broker-configs/{name}")
    @router.delete("/broker-configs/{name}")
    async def change(cluster: str) -> Response:
        await shapes.check(cluster)
        raise Refusal(
            501,
            "librdkafka cannot change the settings of all brokers together: change those of each "
            "broker, or use kafka-configs.sh --entity-default",
        )

    return router


def _read(router: APIRouter, kafka: Kafka, shapes: Shapes, path: str, dependency: Any) -> None:
    @router.get(path)
    async def listed(owner: Any = dependency) -> dict[str, Any]:
        resources = await _listed(kafka, shapes, owner)
        return shapes.several(owner.kind, owner.where, owner.collection[0], resources)

    @router.get(f"{path}/{{name}}")
    async def one(name: str, owner: Any = dependency) -> dict[str, Any]:
        entries = await _entries(kafka, owner)
        if name not in entries:
            raise _not_found(name)
        return _shown(shapes, owner, entries[name])


def _change(router: APIRouter, kafka: Kafka, path: str, dependency: Any) -> None:
    @router.post(f"{path}:alter", status_code=204)
    async def alter(body: Changes, owner: Any = dependency) -> Response:
        return await _changed(kafka, owner, body.data, body.validate_only)

    @router.put(f"{path}/{{name}}", status_code=204)
    async def put(name: str, body: Value, owner: Any = dependency) -> Response:
        return await set_(name, body.value, owner)

    @router.delete(f"{path}/{{name}}", status_code=204)
    async def reset(name: str, owner: Any = dependency) -> Response:
        return await set_(name, None, owner)

    async def set_(name: str, value: str | None, owner: _Owner) -> Response:
        if name not in await _entries(kafka, owner):
            raise _not_found(name)
        operation: Literal["SET", "DELETE"] = "DELETE" if value is None else "SET"
        return await _changed(kafka, owner, [Change(name=name, value=value, operation=operation)])


def _topic(cluster: str, topic: str) -> _Owner:
    return _Owner(
        "TopicConfig",
        ConfigResource(_TOPIC, topic),
        of_cluster(cluster, topic_part(topic)),
        ("configs", "config"),
        {"cluster_id": cluster, "topic_name": topic},
    )


def _broker(cluster: str, broker: int) -> _Owner:
    return _Owner(
        "BrokerConfig",
        ConfigResource(_BROKER, str(broker)),
        of_cluster(cluster, broker_part(broker)),
        ("configs", "config"),
        {"cluster_id": cluster, "broker_id": broker},
    )


async def _listed(kafka: Kafka, shapes: Shapes, owner: _Owner) -> list[dict[str, Any]]:
    entries = await _entries(kafka, owner)
    return [_shown(shapes, owner, entries[name]) for name in sorted(entries)]


async def _entries(kafka: Kafka, owner: _Owner) -> dict[str, Any]:
    entries: dict[str, Any] = await kafka.answer(
        lambda admin: admin.describe_configs([owner.resource], request_timeout=ANSWERS_IN)[
            owner.resource
        ],
        owner.topic,
    )
    if owner.kind == "ClusterConfig":
        return {
            name: synonym
            for name, entry in entries.items()
            for synonym in entry.synonyms.values()
            if synonym.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value
        }
    return entries


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
    await kafka.answer(
        lambda admin: admin.incremental_alter_configs(
            [resource], validate_only=validate_only, request_timeout=ANSWERS_IN
        )[resource],
        owner.topic,
    )
    return Response(status_code=204)


def _not_found(name: str) -> Refusal:
    return Refusal(404, f"Config {named(name)} cannot be found.")


def _shown(shapes: Shapes, owner: _Owner, entry: Any) -> dict[str, Any]:
    several, one = owner.collection
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
