"""Consumer groups: their members, what those are assigned, and how far behind they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import OffsetSpec
from fastapi import APIRouter

from semel.core.quoting import named
from semel.kafka.answers import UNBOUNDED
from semel.proxy.bodies import JsonRoute, Partition
from semel.proxy.errors import Refusal
from semel.proxy.kafka import ANSWERS_IN, Kafka
from semel.proxy.v3 import (
    Part,
    Shapes,
    broker_part,
    group_part,
    of_cluster,
    partition_part,
    topic_part,
)
from semel.worker.rest.jersey import Name

_NOBODY = "DEAD"
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Lag:
    topic: str
    partition: int
    current: int
    end: int
    member: Any

    @property
    def lag(self) -> int:
        return max(0, self.end - self.current)

    @property
    def who(self) -> tuple[str, str | None, str]:
        """The member that reads there: its id, its instance's, and its client's."""
        if self.member is None:
            return "", None, ""
        return self.member.member_id, self.member.group_instance_id, self.member.client_id


def routes(kafka: Kafka, shapes: Shapes) -> APIRouter:
    """What is under /clusters/{cluster}/consumer-groups."""
    router = APIRouter(prefix="/v3/clusters/{cluster}/consumer-groups", route_class=JsonRoute)
    groups = _Groups(kafka, shapes)
    _groups(router, groups, shapes)
    _members(router, groups, shapes)
    _lags(router, groups, shapes)
    return router


class _Groups:
    """Asks about groups."""

    def __init__(self, kafka: Kafka, shapes: Shapes) -> None:
        self._kafka = kafka
        self._shapes = shapes

    async def all(self, cluster: str) -> list[Any]:
        """Every group."""
        await self._shapes.check(cluster)
        listed = await self._kafka.answer(
            lambda admin: admin.list_consumer_groups(request_timeout=ANSWERS_IN)
        )
        found = []
        for name in sorted(each.group_id for each in listed.valid):
            try:
                found.append(await self._described(name))
            except Refusal as refused:
                if refused.status != 404:  # it has ended, or consists of no consumers
                    raise
        return found

    async def one(self, cluster: str, group: str) -> Any:
        """Raises Refusal: there is no such group."""
        await self._shapes.check(cluster)
        missing = Refusal(404, f"Consumer group {named(group)} could not be found.")
        if not group or not group.isprintable():
            raise missing
        description = await self._described(group)
        if description.state.name == _NOBODY:
            raise missing
        return description

    async def _described(self, name: str) -> Any:
        # A question to a coordinator that times out within librdkafka may end the process.
        return await self._kafka.answer(
            lambda admin: admin.describe_consumer_groups([name], request_timeout=UNBOUNDED)[name]
        )

    async def lags(self, cluster: str, group: str) -> list[_Lag]:
        """Committed offsets of a group, and the ends of their partitions; the largest lag first.

        Raises:
            Refusal: there is no such group, or it has committed nothing, or nothing of
                a topic that still exists.
        """
        described = await self.one(cluster, group)
        asked = [ConsumerGroupTopicPartitions(group)]
        stored = await self._kafka.answer(
            lambda admin: admin.list_consumer_group_offsets(asked, request_timeout=UNBOUNDED)[group]
        )
        current = {
            (each.topic, each.partition): each.offset
            for each in stored.topic_partitions
            if each.error is None and each.offset >= 0
        }
        if not current:
            raise Refusal(404, f"Consumer group {named(group)} has committed nothing.")
        ends = await self._ends(current)
        owners = {
            (each.topic, each.partition): member
            for member in described.members
            for each in member.assignment.topic_partitions
        }
        if not ends:
            raise Refusal(404, f"All topics of consumer group {named(group)} have been deleted.")
        lags = [
            _Lag(*place, current[place], ends[place], owners.get(place)) for place in sorted(ends)
        ]
        return sorted(lags, key=lambda each: each.lag, reverse=True)

    async def _ends(self, places: Mapping[Place, int]) -> dict[Place, int]:
        ends = {}
        for place in places:
            try:
                ends[place] = await self._kafka.offset(*place, OffsetSpec.latest())
            except Refusal as refused:
                if refused.status != 404:  # the topic was deleted
                    raise
        return ends


def _groups(router: APIRouter, groups: _Groups, shapes: Shapes) -> None:
    @router.get("")
    async def listed(cluster: str) -> dict[str, Any]:
        resources = [_group(each, cluster) for each in await groups.all(cluster)]
        return shapes.several("ConsumerGroup", of_cluster(cluster), "consumer-groups", resources)

    @router.get("/{group}")
    async def one(cluster: str, group: Name) -> dict[str, Any]:
        return _group(await groups.one(cluster, group), cluster)

    def _group(description: Any, cluster: str) -> dict[str, Any]:
        where = of_cluster(cluster, group_part(description.group_id))
        coordinator = description.coordinator
        return shapes.one(
            "ConsumerGroup",
            where,
            cluster_id=cluster,
            consumer_group_id=description.group_id,
            is_simple=description.is_simple_consumer_group,
            partition_assignor=description.partition_assignor,
            state=description.state.name.replace("REBALANCING", "REBALANCE"),
            type=description.type.name,
            is_mixed_consumer_group=False,
            coordinator=shapes.related(
                of_cluster(cluster, broker_part(coordinator.id if coordinator else -1))
            ),
            consumers=shapes.related(where, "consumers"),
            lag_summary=shapes.related(where, "lag-summary"),
        )


def _members(router: APIRouter, groups: _Groups, shapes: Shapes) -> None:
    path = "/{group}/consumers"
    assignments = f"{path}/{{consumer}}/assignments"

    @router.get(path)
    async def listed(cluster: str, group: Name) -> dict[str, Any]:
        description = await groups.one(cluster, group)
        resources = [_member(cluster, group, member) for member in description.members]
        return shapes.several(
            "Consumer", of_cluster(cluster, group_part(group)), "consumers", resources
        )

    @router.get(f"{path}/{{consumer}}")
    async def one(cluster: str, group: Name, consumer: Name) -> dict[str, Any]:
        return _member(cluster, group, await _member_named(cluster, group, consumer))

    @router.get(assignments)
    async def assigned(cluster: str, group: Name, consumer: Name) -> dict[str, Any]:
        member = await _member_named(cluster, group, consumer)
        places = [(p.topic, p.partition) for p in member.assignment.topic_partitions]
        resources = [_assignment(cluster, group, consumer, place) for place in sorted(places)]
        where = _where(cluster, group, consumer)
        return shapes.several("ConsumerAssignment", where, "assignments", resources)

    @router.get(f"{assignments}/{{topic}}/partitions/{{partition}}")
    async def one_assigned(
        cluster: str, group: Name, consumer: Name, topic: str, partition: Partition
    ) -> dict[str, Any]:
        member = await _member_named(cluster, group, consumer)
        places = [(p.topic, p.partition) for p in member.assignment.topic_partitions]
        if (topic, partition) not in places:
            raise Refusal(404, f"{named(topic)}-{partition} is not assigned to it.")
        return _assignment(cluster, group, consumer, (topic, partition))

    async def _member_named(cluster: str, group: str, consumer: str) -> Any:
        members = (await groups.one(cluster, group)).members
        match = next((m for m in members if m.member_id == consumer), None)
        if match is None:
            raise Refusal(404, f"Consumer {named(consumer)} could not be found.")
        return match

    def _where(cluster: str, group: str, consumer: str) -> list[Part]:
        return of_cluster(cluster, group_part(group), ("consumers", "consumer", consumer))

    def _member(cluster: str, group: str, member: Any) -> dict[str, Any]:
        where = _where(cluster, group, member.member_id)
        return shapes.one(
            "Consumer",
            where,
            cluster_id=cluster,
            consumer_group_id=group,
            consumer_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            assignments=shapes.related(where, "assignments"),
        )

    def _assignment(cluster: str, group: str, consumer: str, place: Place) -> dict[str, Any]:
        topic, partition = place
        inside: list[Part] = [("assignments", "assignment", topic), partition_part(partition)]
        of_topic = of_cluster(cluster, topic_part(topic), partition_part(partition))
        of_group = of_cluster(cluster, group_part(group))
        return shapes.one(
            "ConsumerAssignment",
            [*_where(cluster, group, consumer), *inside],
            cluster_id=cluster,
            consumer_group_id=group,
            consumer_id=consumer,
            topic_name=topic,
            partition_id=partition,
            partition=shapes.related(of_topic),
            lag=shapes.related([*of_group, ("lags", "lag", topic), partition_part(partition)]),
        )


def _lags(router: APIRouter, groups: _Groups, shapes: Shapes) -> None:
    @router.get("/{group}/lags")
    async def listed(cluster: str, group: Name) -> dict[str, Any]:
        resources = [_lag(cluster, group, each) for each in await groups.lags(cluster, group)]
        return shapes.several(
            "ConsumerLag", of_cluster(cluster, group_part(group)), "lags", resources
        )

    @router.get("/{group}/lags/{topic}/partitions/{partition}")
    async def one(cluster: str, group: Name, topic: str, partition: Partition) -> dict[str, Any]:
        for each in await groups.lags(cluster, group):
            if (each.topic, each.partition) == (topic, partition):
                return _lag(cluster, group, each)
        raise Refusal(404, f"{named(group)} has committed nothing of {named(topic)}-{partition}.")

    @router.get("/{group}/lag-summary")
    async def summary(cluster: str, group: Name) -> dict[str, Any]:
        lags = await groups.lags(cluster, group)
        largest = lags[0]
        consumer, instance, client = largest.who
        where = of_cluster(cluster, group_part(group))
        of_topic = of_cluster(cluster, topic_part(largest.topic), partition_part(largest.partition))
        return shapes.one(
            "ConsumerGroupLagSummary",
            where,
            "lag-summary",
            cluster_id=cluster,
            consumer_group_id=group,
            max_lag_consumer_id=consumer,
            max_lag_instance_id=instance,
            max_lag_client_id=client,
            max_lag_topic_name=largest.topic,
            max_lag_partition_id=largest.partition,
            max_lag=largest.lag,
            total_lag=sum(each.lag for each in lags),
            max_lag_consumer=shapes.related([*where, ("consumers", "consumer", consumer)]),
            max_lag_partition=shapes.related(of_topic),
        )

    def _lag(cluster: str, group: str, lag: _Lag) -> dict[str, Any]:
        consumer, instance, client = lag.who
        inside: list[Part] = [("lags", "lag", lag.topic), partition_part(lag.partition)]
        return shapes.one(
            "ConsumerLag",
            [*of_cluster(cluster, group_part(group)), *inside],
            cluster_id=cluster,
            consumer_group_id=group,
            topic_name=lag.topic,
            partition_id=lag.partition,
            consumer_id=consumer,
            instance_id=instance,
            client_id=client,
            current_offset=lag.current,
            log_end_offset=lag.end,
            lag=lag.lag,
        )
