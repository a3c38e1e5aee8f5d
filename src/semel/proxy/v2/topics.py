"""Topics: what is produced to them, their partitions and offsets; and the brokers."""

from __future__ import annotations

import time
from typing import Annotated, Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import ConfigResource
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import FailFast, Field, ValidationError
from starlette.types import Receive, Scope, Send

from semel.proxy.bodies import (
    Body,
    EmbeddedFormat,
    GivenHeaders,
    MediaRoute,
    Partition,
    answer,
    count_of,
    headers_of,
    json_of,
    media_of,
    written,
)
from semel.proxy.errors import (
    RETRIABLE,
    Refusal,
    of_kafka,
    partition_not_found,
    too_long,
    wrong_payload,
)
from semel.proxy.formats import FEW, LONGEST, SMALL, TYPES, Encoder, Formats, RequestSchema
from semel.proxy.kafka import ANSWERS_IN, Kafka, Outcome, OutgoingRecord
from semel.proxy.keyed import KeyedRequests, key_of

_INT = 2**31 - 1
_FAILED, _AGAIN = 1, 2
"""The codes of records that Kafka refuses for good, and of those that may be sent again."""


class Record(Body):
    """A record to produce. Headers and timestamp are additions to v2."""

    key: Any = None
    value: Any = None
    partition: int | None = Field(None, ge=0, le=_INT)
    timestamp: int | None = Field(None, ge=1, le=2**62)  # librdkafka takes 0 for now
    headers: GivenHeaders | None = None


class Produce(Body):
    """Records, and the schemas that they were written with."""

    key_schema: str | None = None
    key_schema_id: int | None = Field(None, ge=0, le=_INT)
    value_schema: str | None = None
    value_schema_id: int | None = Field(None, ge=0, le=_INT)
    records: Annotated[list[Record], FailFast()]

    @property
    def key_schema_given(self) -> RequestSchema:
        return RequestSchema(self.key_schema, self.key_schema_id)

    @property
    def value_schema_given(self) -> RequestSchema:
        return RequestSchema(self.value_schema, self.value_schema_id)


class _Route(MediaRoute):
    """A route that may produce."""

    def check_count(self, content: Any, request: Request) -> None:
        """Models of a million records take over a gigabyte, so the records are counted first."""
        count, most = count_of(content, "records"), request.app.state.max_records
        if count > most:
            raise wrong_payload(f"{count} records; the limit is {most}")


class _TopicRoute(_Route):
    """Bypasses FastAPI's dependency handling, which takes longer than the rest of the request.
    FastAPI still documents the route."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive, send)
        self.check(request)
        text = await request.body()
        if not text:
            raise RequestValidationError([{"type": "missing", "loc": ("body",)}])
        try:
            content = json_of(text)
            self.check_count(content, request)
            body = Produce.model_validate(content, from_attributes=True)
        except ValidationError as error:
            raise RequestValidationError(
                [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
            ) from None
        response = await self.endpoint(**scope["path_params"], body=body, request=request)
        await response(scope, receive, send)


def routes(kafka: Kafka, formats: Formats, keyed: KeyedRequests) -> APIRouter:
    """What is under /topics and /brokers."""
    router = APIRouter(route_class=_Route)
    _produced(router, kafka, formats, keyed)
    _listed(router, kafka)
    return router


def _produced(router: APIRouter, kafka: Kafka, formats: Formats, keyed: KeyedRequests) -> None:
    async def to_topic(topic: str, body: Produce, request: Request) -> Response:
        return await produce(topic, None, body, request)

    router.add_api_route(
        "/topics/{topic}", to_topic, methods=["POST"], route_class_override=_TopicRoute
    )

    @router.post("/topics/{topic}/partitions/{partition}")
    async def to_partition(
        topic: str, partition: Partition, body: Produce, request: Request
    ) -> Response:
        await kafka.check_partition(topic, partition)
        return await produce(topic, partition, body, request)

    async def produce(
        topic: str, partition: int | None, body: Produce, request: Request
    ) -> Response:
        if not body.records:
            raise wrong_payload("records is empty")
        count = await kafka.partitions(topic)
        for record in body.records:
            if record.partition is not None and partition is not None:
                raise wrong_payload("A record names a partition, but the path does already")
            if (record.partition or 0) >= count:
                await kafka.check_partition(topic, record.partition or 0)
        embedded = media_of(request).sent or EmbeddedFormat.BINARY
        arguments = formats, embedded, topic, partition, body
        is_long = len(body.records) > FEW
        if embedded in TYPES:
            schemas = body.key_schema_given, body.value_schema_given
            is_long |= len(await request.body()) > SMALL or any(map(formats.needs_time, schemas))
        if is_long:
            key, value, records = await kafka.call(_outgoing, *arguments)
        else:
            key, value, records = _outgoing(*arguments)
        ids = {"key_schema_id": key.schema_id, "value_schema_id": value.schema_id}

        def tell(outcomes: list[Outcome]) -> bytes:
            return written({**ids, "offsets": [*map(_offset, outcomes)]})

        once = await key_of(request)
        kind = media_of(request).answer
        if once is not None:
            return await keyed.produce(once, topic, records, tell, kind)
        outcomes = await kafka.produce(topic, records)
        return Response(tell(outcomes), _status(outcomes), media_type=kind)


def _outgoing(
    formats: Formats, embedded: EmbeddedFormat, topic: str, partition: int | None, body: Produce
) -> tuple[Encoder, Encoder, list[OutgoingRecord]]:
    """Encoders of keys and values, and the records as Kafka takes them. Raises Refusal."""
    plain = Encoder(lambda _: b"")
    key = value = plain
    if any(record.key is not None for record in body.records):
        key = formats.encoder(embedded, topic, body.key_schema_given, is_key=True)
    if any(record.value is not None for record in body.records):
        value = formats.encoder(embedded, topic, body.value_schema_given, is_key=False)
    records, until = [], time.monotonic() + LONGEST
    for index, record in enumerate(body.records):
        if time.monotonic() > until:
            raise too_long()
        place = partition if partition is not None else record.partition
        try:
            records.append(
                OutgoingRecord(
                    key.bytes_of(record.key),
                    value.bytes_of(record.value),
                    -1 if place is None else place,
                    record.timestamp or 0,
                    headers_of(record.headers),
                )
            )
        except Refusal as refused:
            raise Refusal(refused.status, f"record {index}: {refused}", refused.code) from None
    return key, value, records


def _offset(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, KafkaError):
        code = _AGAIN if outcome.code() in RETRIABLE else _FAILED
        error = {"error_code": code, "error": str(of_kafka(outcome))}
        return {"partition": None, "offset": None, **error}
    return {
        "partition": outcome.partition,
        "offset": outcome.offset,
        "error_code": None,
        "error": None,
    }


def _status(outcomes: list[Outcome]) -> int:
    """Denied records make the answer a denial; others are told one by one."""
    errors = [of_kafka(each) for each in outcomes if isinstance(each, KafkaError)]
    denied = [each.status for each in errors if each.status in (401, 403)]
    return denied[0] if denied else 200


def _listed(router: APIRouter, kafka: Kafka) -> None:
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
        first, end = await kafka.ends(topic, partition)
        return answer(request, {"beginning_offset": first, "end_offset": end})

    @router.get("/brokers")
    async def brokers(request: Request) -> Response:
        metadata = await kafka.metadata()
        return answer(request, {"brokers": sorted(metadata.brokers)})


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
