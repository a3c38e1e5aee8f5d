"""Access control lists."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from fastapi import APIRouter, Query, Response
from pydantic import Field

from semel.core.quoting import named
from semel.proxy.bodies import Body, JsonRoute
from semel.proxy.errors import Refusal, of_kafka
from semel.proxy.kafka import ANSWERS_IN, Kafka
from semel.proxy.v3 import Shapes, of_cluster

_CLUSTER = "CLUSTER"
_CLUSTER_NAME = "kafka-cluster"
_LIBRDKAFKA = {_CLUSTER: "BROKER"}
_LONGEST = 1000

Text = Annotated[str, Field(max_length=_LONGEST)]


class Acl(Body):
    """One rule."""

    resource_type: Text
    resource_name: Text = ""
    pattern_type: Text
    principal: Text
    host: Text = "*"
    operation: Text
    permission: Text


class Acls(Body):
    """Several rules."""

    data: list[Acl] = Field(max_length=1000)


def routes(kafka: Kafka, shapes: Shapes) -> APIRouter:
    """What is under /clusters/{cluster}/acls."""
    router = APIRouter(prefix="/v3/clusters/{cluster}/acls", route_class=JsonRoute)

    @router.get("")
    async def search(
        cluster: str,
        resource_type: Text = "ANY",
        resource_name: Text | None = None,
        pattern_type: Text = "ANY",
        principal: Text | None = None,
        host: Text | None = None,
        operation: Text = "ANY",
        permission: Text = "ANY",
    ) -> dict[str, Any]:
        await shapes.check(cluster)
        binding_filter = _filter(
            *(resource_type, resource_name, pattern_type, principal, host, operation, permission)
        )
        acls = await kafka.answer(
            lambda admin: admin.describe_acls(binding_filter, request_timeout=ANSWERS_IN)
        )
        if not acls:
            await check_search()
        resources = [_shown(cluster, acl) for acl in acls]
        return shapes.several("Acl", of_cluster(cluster), "acls", resources)

    async def check_search() -> None:
        """Raises Refusal: Kafka has refused the search, which its client takes for no rules."""
        described = await kafka.answer(
            lambda admin: admin.describe_cluster(
                include_authorized_operations=True, request_timeout=ANSWERS_IN
            )
        )
        operations = described.authorized_operations or ()
        if AclOperation.DESCRIBE not in operations:
            raise of_kafka(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
        if AclOperation.DESCRIBE_CONFIGS in operations:  # as everybody may without an authorizer
            broker = ConfigResource(ConfigResource.Type.BROKER, str(described.nodes[0].id))
            settings = await kafka.answer(
                lambda admin: admin.describe_configs([broker], request_timeout=ANSWERS_IN)[broker]
            )
            authorizer = settings.get("authorizer.class.name")
            if authorizer is not None and not authorizer.value:
                raise of_kafka(KafkaError(KafkaError.SECURITY_DISABLED))

    @router.post("", status_code=201)
    async def create(cluster: str, body: Acl) -> Response:
        await shapes.check(cluster)
        binding = _binding(body)
        await _created([binding])
        return Response(None, 201, {"location": _shown(cluster, binding)["metadata"]["self"]})

    @router.delete("")
    async def delete(
        cluster: str,
        resource_type: Annotated[Text, Query()],
        pattern_type: Annotated[Text, Query()],
        operation: Annotated[Text, Query()],
        permission: Annotated[Text, Query()],
        resource_name: Text | None = None,
        principal: Text | None = None,
        host: Text | None = None,
    ) -> dict[str, Any]:
        await shapes.check(cluster)
        binding_filter = _filter(
            *(resource_type, resource_name, pattern_type, principal, host, operation, permission)
        )
        gone = await kafka.answer(
            lambda admin: admin.delete_acls([binding_filter], request_timeout=ANSWERS_IN)[
                binding_filter
            ]
        )
        return {"data": [_shown(cluster, acl) for acl in gone]}

    @router.post(":batch", status_code=201)
    async def create_all(cluster: str, body: Acls) -> Response:
        await shapes.check(cluster)
        await _created([_binding(each) for each in body.data])
        return Response(status_code=201)

    async def _created(bindings: list[AclBinding]) -> None:
        for binding in bindings:
            await kafka.answer(
                lambda admin, binding=binding: admin.create_acls(  # type: ignore[misc]
                    [binding], request_timeout=ANSWERS_IN
                )[binding]
            )

    def _shown(cluster: str, acl: Any) -> dict[str, Any]:
        kind = acl.restype.name
        facts = {
            "resource_type": _CLUSTER if kind == _LIBRDKAFKA[_CLUSTER] else kind,
            "resource_name": acl.name,
            "pattern_type": acl.resource_pattern_type.name,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name,
            "permission": acl.permission_type.name,
        }
        url = f"{shapes.link(of_cluster(cluster))}/acls?{urlencode(facts)}"
        return {"kind": "KafkaAcl", "metadata": {"self": url}, "cluster_id": cluster, **facts}

    return router


def _binding(body: Acl) -> AclBinding:
    """Raises Refusal: it is no rule."""
    facts = _facts(
        body.resource_type,
        _CLUSTER_NAME
        if body.resource_type.upper() == _CLUSTER and not body.resource_name
        else (body.resource_name),
        *(body.pattern_type, body.principal, body.host, body.operation, body.permission),
    )
    if body.resource_type.upper() == _CLUSTER and facts[1] != _CLUSTER_NAME:
        raise Refusal(
            400, f"The only valid name for the CLUSTER resource is {_CLUSTER_NAME}", 40002
        )
    try:
        return AclBinding(*facts)
    except (ValueError, TypeError) as error:
        raise Refusal(400, str(error), 40002) from None


def _filter(*texts: str | None) -> AclBindingFilter:
    """Raises Refusal: it can match no rule."""
    try:
        return AclBindingFilter(*_facts(*texts))
    except (ValueError, TypeError) as error:
        raise Refusal(400, str(error), 40002) from None


def _facts(
    kind: str | None,
    name: str | None,
    pattern: str | None,
    principal: str | None,
    host: str | None,
    operation: str | None,
    permission: str | None,
) -> tuple[Any, ...]:
    kind = str(kind).upper()
    return (
        _of(ResourceType, "resource_type", _LIBRDKAFKA.get(kind, kind)),
        name or None,
        _of(ResourcePatternType, "pattern_type", pattern),
        principal or None,
        host or None,
        _of(AclOperation, "operation", operation),
        _of(AclPermissionType, "permission", permission),
    )


def _of(kind: Any, what: str, name: str | None) -> Any:
    member = str(name).upper()
    if member not in kind.__members__ or member == "UNKNOWN":
        raise Refusal(400, f"{what}: {named(name)} cannot be used", 400)
    return kind[member]
