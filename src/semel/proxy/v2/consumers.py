"""Consumer instances, in the order of Confluent's documentation."""

from __future__ import annotations

from typing import Annotated, Any

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition
from fastapi import APIRouter, Query, Request, Response
from pydantic import AliasChoices, ConfigDict, Field

from semel.config import whole
from semel.core.patterns import compiled
from semel.proxy.bodies import (
    V1,
    V2,
    Body,
    EmbeddedFormat,
    Instant,
    MediaRoute,
    answer,
    headers_shown,
    media_of,
    written,
)
from semel.proxy.consumers import BEGINNING, END, Instance, Place, Session, Sessions
from semel.proxy.errors import (
    Refusal,
    already_subscribed,
    format_mismatch,
    illegal_state,
    wrong_consumer,
    wrong_payload,
)
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka, check_topic

_RESETS = ("earliest", "latest", "none")
_LIBRDKAFKA = {"none": "error"}
_OF_V1 = {"smallest": "earliest", "largest": "latest"}
_INT, _LONG = 2**31 - 1, 2**63 - 1
_LONGEST_NAME = 255
_INSTANCE = "/instances/{instance}"
_MOST_PLACES = 10_000

Numbers = Annotated[int, Field(ge=0, le=_INT)]
Offset = Annotated[int, Field(ge=0, le=_LONG - 1)]


class Create(Body):
    """The settings of a new instance. Confluent's clients give numbers and flags as texts, too."""

    model_config = ConfigDict(extra="allow", validate_by_name=True, validate_by_alias=True)

    name: str | None = Field(None, max_length=_LONGEST_NAME)
    id: str | None = Field(None, max_length=_LONGEST_NAME)
    format: str | None = None
    auto_offset_reset: str | None = Field(None, alias="auto.offset.reset")
    auto_commit: Any = Field(None, alias="auto.commit.enable")
    fetch_min_bytes: Any = Field(
        None, validation_alias=AliasChoices("fetch.min.bytes", "responseMinBytes")
    )
    timeout: Any = Field(
        None, validation_alias=AliasChoices("consumer.request.timeout.ms", "requestWaitMs")
    )


class At(Body):
    """A partition of a topic."""

    topic: str
    partition: Numbers

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class AtOffset(At):
    """An offset in it."""

    offset: Offset
    metadata: str | None = Field(None, max_length=4096)


class Partitions(Body):
    """Partitions of topics."""

    partitions: list[At] = Field(max_length=_MOST_PLACES)

    @property
    def places(self) -> list[Place]:
        return [each.place for each in self.partitions]


class Offsets(Body):
    """Offsets of partitions."""

    offsets: list[AtOffset] = Field(max_length=_MOST_PLACES)


class AtTime(At):
    """A time in it."""

    timestamp: Instant
    metadata: str | None = Field(None, max_length=4096)


class Positions(Body):
    """Where to go on in partitions: at an offset, or at the first record since a time."""

    offsets: list[AtOffset] | None = Field(None, max_length=_MOST_PLACES)
    timestamps: list[AtTime] | None = Field(None, max_length=_MOST_PLACES)


class Subscription(Body):
    """Topics by name, or by a pattern that their whole name matches."""

    topics: list[str] | None = Field(None, max_length=_MOST_PLACES)
    topic_pattern: str | None = Field(None, max_length=1000)


def routes(kafka: Kafka, formats: Formats, sessions: Sessions) -> APIRouter:
    """What is under /consumers."""
    router = APIRouter(prefix="/consumers/{group}", route_class=MediaRoute)
    _instances(router, kafka, sessions)
    _positions(router, kafka, sessions)
    _records(router, kafka, formats, sessions)
    return router


def _instances(router: APIRouter, kafka: Kafka, sessions: Sessions) -> None:
    """Instances, and what they read."""

    @router.post("")
    async def create(group: str, request: Request, body: Create | None = None) -> Response:
        given = _instance(kafka, group, body or Create.model_validate({}), sessions.new_id())
        url = await sessions.create(given)
        return answer(request, {"instance_id": given.id, "base_uri": url})

    @router.delete(_INSTANCE, status_code=204)
    async def delete(group: str, instance: str) -> Response:
        await sessions.delete(group, instance)
        return Response(status_code=204)

    @router.post(f"{_INSTANCE}/subscription", status_code=204)
    async def subscribe(group: str, instance: str, body: Subscription) -> Response:
        pattern = _pattern(body)
        topics = body.topics or []
        for topic in topics:
            check_topic(topic)
        await sessions.use(group, instance, lambda session: session.subscribe(topics, pattern))
        return Response(status_code=204)

    @router.get(f"{_INSTANCE}/subscription")
    async def subscription(group: str, instance: str, request: Request) -> Response:
        topics = await sessions.use(group, instance, lambda session: session.topics)
        return answer(request, {"topics": topics})

    @router.delete(f"{_INSTANCE}/subscription", status_code=204)
    async def unsubscribe(group: str, instance: str) -> Response:
        await sessions.use(group, instance, Session.unsubscribe)
        return Response(status_code=204)

    @router.post(f"{_INSTANCE}/assignments", status_code=204)
    async def assign(group: str, instance: str, body: Partitions) -> Response:
        for topic, partition in body.places:
            await kafka.check_partition(topic, partition)
        await sessions.use(group, instance, lambda session: session.assign(body.places))
        return Response(status_code=204)

    @router.get(f"{_INSTANCE}/assignments")
    async def assignments(group: str, instance: str, request: Request) -> Response:
        places = await sessions.use(group, instance, Session.assignment)
        partitions = [{"topic": topic, "partition": partition} for topic, partition in places]
        return answer(request, {"partitions": partitions})


def _positions(router: APIRouter, kafka: Kafka, sessions: Sessions) -> None:
    """Where instances read, and what their groups have committed."""

    @router.post(f"{_INSTANCE}/positions", status_code=204)
    async def seek(group: str, instance: str, body: Positions) -> Response:
        offsets = {each.place: each.offset for each in body.offsets or ()}
        times = {each.place: each.timestamp for each in body.timestamps or ()}
        return await _seek(group, instance, offsets, times)

    @router.post(f"{_INSTANCE}/positions/beginning", status_code=204)
    async def seek_to_beginning(group: str, instance: str, body: Partitions) -> Response:
        return await _seek(group, instance, dict.fromkeys(body.places, BEGINNING))

    @router.post(f"{_INSTANCE}/positions/end", status_code=204)
    async def seek_to_end(group: str, instance: str, body: Partitions) -> Response:
        return await _seek(group, instance, dict.fromkeys(body.places, END))

    async def _seek(
        group: str, instance: str, offsets: dict[Place, int], times: dict[Place, int] | None = None
    ) -> Response:
        await sessions.use(group, instance, lambda session: session.seek(offsets, times or {}))
        return Response(status_code=204)

    @router.post(f"{_INSTANCE}/offsets")
    async def commit(
        group: str, instance: str, request: Request, body: Offsets | None = None
    ) -> Response:
        offsets = None
        if body is not None:  # a client may have processed nothing yet
            for each in body.offsets:
                await kafka.check_partition(each.topic, each.partition)
            # Clients name the last record that they have processed.
            offsets = [
                KafkaPartition(each.topic, each.partition, each.offset + 1, each.metadata or "")
                for each in body.offsets
            ]
        done = await sessions.use(group, instance, lambda session: session.commit(offsets))
        return answer(request, {"offsets": [*map(_committed, done)]})

    @router.get(f"{_INSTANCE}/offsets")
    async def committed(
        group: str, instance: str, request: Request, body: Partitions | None = None
    ) -> Response:
        if body is None:
            raise Refusal(404, "Partition not found: name the partitions in the body", 40402)
        partitions = await sessions.use(group, instance, lambda s: s.committed(body.places))
        return answer(request, {"offsets": [*map(_committed, partitions)]})


def _records(router: APIRouter, kafka: Kafka, formats: Formats, sessions: Sessions) -> None:
    @router.get(f"{_INSTANCE}/records")
    async def records(
        group: str,
        instance: str,
        request: Request,
        timeout: Annotated[int | None, Query(ge=-1, le=_INT)] = None,
        max_bytes: Annotated[int | None, Query(ge=-1, le=_LONG)] = None,
    ) -> Response:
        return await read(group, instance, request, timeout, max_bytes)

    @router.get(f"{_INSTANCE}/topics/{{topic}}")
    async def records_of_v1(
        group: str,
        instance: str,
        topic: str,
        request: Request,
        max_bytes: Annotated[int | None, Query(ge=-1, le=_LONG)] = None,
    ) -> Response:
        """The first request subscribes."""
        await kafka.partitions(topic)

        def subscribe(session: Session) -> None:
            if session.topics not in ([], [topic]):
                raise already_subscribed(session.topics)
            if not session.topics:
                session.subscribe([topic], None)

        await sessions.use(group, instance, subscribe)
        return await read(group, instance, request, None, max_bytes)

    async def read(
        group: str, instance: str, request: Request, timeout: int | None, max_bytes: int | None
    ) -> Response:
        given = await sessions.use(group, instance, lambda session: session.given)
        wanted = media_of(request).wanted
        if wanted is not None and wanted is not given.embedded:
            raise format_mismatch(wanted, given.embedded)
        kind = media_of(request).answer
        if kind in (V1, V2):
            kind = kind.replace("kafka.", f"kafka.{given.embedded}.")
        wait = given.timeout_ms if timeout is None or timeout < 0 else timeout
        most = kafka.config.request_max_bytes

        async def hand_over(session: Session, messages: list[Message]) -> bytes:
            body = await kafka.call(_shown, formats, session, messages)
            if await request.is_disconnected():  # the next request gets them
                raise Refusal(408, "The client has gone")
            return body

        body = await sessions.read(
            group,
            instance,
            timeout_ms=min(wait, kafka.config.max_wait_ms),
            most_bytes=min(max_bytes, most) if max_bytes and max_bytes > 0 else most,
            hand_over=hand_over,
        )
        return Response(body, media_type=kind)


def _shown(formats: Formats, session: Session, messages: list[Message]) -> bytes:
    """Records as a body has them. One that cannot be read is passed over by the next request.

    Raises:
        Refusal: names the first that cannot be read.
    """
    shown = []
    for at, message in enumerate(messages):
        try:
            shown.append(
                {
                    "topic": message.topic(),
                    "key": formats.decoded(session.given.embedded, message.key()),
                    "value": formats.decoded(session.given.embedded, message.value()),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp": message.timestamp()[1],
                    "headers": headers_shown(message),
                }
            )
        except ValueError as error:
            if at:
                break
            place = f"{message.topic()}-{message.partition()}, offset {message.offset()}"
            raise Refusal(
                422,
                f"{place} is not {session.given.embedded}: {error}. Set the position behind it "
                "to go on",
                42203,
            ) from None
    if len(shown) < len(messages):
        session.keep(messages[len(shown) :])
        del messages[len(shown) :]
    return written(shown)


def _committed(each: KafkaPartition) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.offset,
        "metadata": each.metadata or "",
    }


def _pattern(body: Subscription) -> str | None:
    """The pattern, if there is one.

    Raises:
        Refusal: topics and pattern are both given, or neither; or it is not a pattern.
    """
    if (body.topic_pattern is None) == (not body.topics):
        raise illegal_state(
            "Subscription to topics, partitions and pattern are mutually exclusive: give topics or "
            "topic_pattern"
        )
    if body.topic_pattern is None:
        return None
    try:
        compiled(body.topic_pattern)
    except ValueError as error:
        raise wrong_payload(f"topic_pattern {error}") from None
    return body.topic_pattern


def _instance(kafka: Kafka, group: str, body: Create, new_id: str) -> Instance:
    """Raises Refusal: a setting cannot be used."""
    config = kafka.config
    embedded = (body.format or EmbeddedFormat.BINARY).lower()
    if embedded not in EmbeddedFormat.__members__.values():
        raise wrong_consumer(f"format={embedded[:80]} must be one of {', '.join(EmbeddedFormat)}")
    reset = (body.auto_offset_reset or "latest").lower()
    reset = _OF_V1.get(reset, reset)
    if reset not in _RESETS:
        raise wrong_consumer(f"auto.offset.reset={reset[:80]} must be one of {', '.join(_RESETS)}")
    commit = str(True if body.auto_commit is None else body.auto_commit).lower()
    if commit not in ("true", "false"):
        raise wrong_consumer(f"auto.commit.enable={commit[:80]} must be true or false")
    unknown = {*(body.model_extra or {})}
    if unknown:
        raise wrong_consumer(f"{min(unknown)[:80]} is not a setting of a consumer")
    name = body.id or body.name or new_id
    for each in (group, name):
        if not each.isprintable() or "/" in each or len(each) > _LONGEST_NAME:
            raise wrong_consumer("names have up to 255 printable characters, and no slash")
    least = config.fetch_min_bytes
    return Instance(
        group,
        name,
        EmbeddedFormat(embedded),
        _LIBRDKAFKA.get(reset, reset),
        commit == "true",
        _number("fetch.min.bytes", body.fetch_min_bytes, least, -1),
        _number("consumer.request.timeout.ms", body.timeout, config.request_timeout_ms, 0),
    )


def _number(name: str, given: Any, default: int, least: int) -> int:
    if given is None:
        return default
    try:
        return whole(str(given), least, _INT)
    except ValueError:
        why = f"{name}={str(given)[:80]} must be a number from {least} to {_INT}"
        raise wrong_consumer(why) from None
