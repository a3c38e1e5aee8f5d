"""Reads without a consumer: the client keeps the position."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from confluent_kafka import Message
from fastapi import APIRouter, Header, Query, Request, Response

from semel.config import whole
from semel.core.quoting import named
from semel.proxy.bodies import (
    ANY,
    JSON,
    V1,
    V2,
    EmbeddedFormat,
    JsonRoute,
    Partition,
    StreamedResponse,
    accept_of,
    embedded_of,
    headers_shown,
    preferred,
    written,
)
from semel.proxy.errors import Refusal, not_acceptable
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka
from semel.proxy.reading import COMMITTED, LogReader, Readers, Slice

NDJSON, EVENTS = "application/x-ndjson", "text/event-stream"
_INT, _LONG = 2**31 - 1, 2**63 - 1
_MOST, _MOST_BYTES = 500, 1024 * 1024
_LOOKS = 1.0
"""Seconds that a stream waits for records before it looks whether its client is still there."""
_BEATS = 15.0
"""Seconds after which a stream says that it is alive."""
_BEAT = {NDJSON: b"\n", EVENTS: b": \n\n"}


class _Route(JsonRoute):
    """A route whose answer has one of many types."""

    def negotiate(self, request: Request) -> None:
        """Leaves it to :func:`_wanted`."""


def routes(kafka: Kafka, formats: Formats, readers: Readers) -> APIRouter:
    """The records of a partition."""
    router = APIRouter(route_class=_Route)

    @router.get("/topics/{topic}/partitions/{partition}/records")
    async def records(
        topic: str,
        partition: Partition,
        request: Request,
        offset: Annotated[str, Query(max_length=32)] = "earliest",
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        form: Annotated[str | None, Query(alias="format", max_length=32)] = None,
        leader_epoch: Annotated[int | None, Query(ge=-1, le=_INT)] = None,
        timeout: Annotated[int, Query(ge=0, le=_INT)] = 0,
        max_records: Annotated[int, Query(ge=1, le=_INT)] = _MOST,
        max_bytes: Annotated[int, Query(ge=1, le=_LONG)] = _MOST_BYTES,
        follow: bool = True,
        last_event_id: Annotated[str | None, Header(max_length=32)] = None,
    ) -> Response:
        await kafka.check_partition(topic, partition)
        kind, embedded = _wanted(accept_of(request), form)
        position = await _position(topic, partition, offset, last_event_id)
        epoch = -1 if leader_epoch is None else leader_epoch
        place, limits = (topic, partition), (max_records, max_bytes)
        read = partial(_read, place, isolation, limits)
        if kind in _BEAT:
            first = await read(position, epoch, 0)
            stream = _followed(first, epoch, read, kind, embedded, request, follow=follow)
            return StreamedResponse(stream, kind)
        wait = min(timeout, kafka.config.max_wait_ms) / 1000
        batch = await read(position, epoch, wait)
        body = await kafka.call(_body, formats, embedded, batch, leader_epoch)
        return Response(body, media_type=kind)

    @router.get("/topics/{topic}/partitions/{partition}/messages")
    async def messages(
        topic: str,
        partition: Partition,
        request: Request,
        offset: Annotated[int, Query(ge=0, le=_LONG - 1)],
        count: Annotated[int, Query(ge=1, le=_INT)] = 1,
    ) -> Response:
        """Records, as version 1 has them."""
        await kafka.check_partition(topic, partition)
        kind, embedded = _wanted(accept_of(request), None)
        limits = count, kafka.config.request_max_bytes
        batch = await _read((topic, partition), COMMITTED, limits, offset, -1, 0)
        shown = await kafka.call(_all_shown, formats, embedded, batch)
        return Response(written(shown), media_type=kind)

    async def _read(
        place: tuple[str, int],
        isolation: str,
        limits: tuple[int, int],
        position: int,
        epoch: int,
        wait: float,
    ) -> Slice:
        most, most_bytes = limits

        async def act(reader: LogReader) -> Slice:
            return await kafka.call(
                reader.read,
                *(*place, position),
                most=min(most, kafka.config.max_records),
                most_bytes=min(most_bytes, kafka.config.request_max_bytes),
                until=time.monotonic() + wait,
                epoch=epoch,
            )

        return await readers.use(isolation, (*place, position), act)

    async def _position(topic: str, partition: int, offset: str, last: str | None) -> int:
        if last is not None:
            return _number("Last-Event-ID", last) + 1
        if offset not in ("earliest", "latest"):
            return _number("offset", offset)
        first, end = await kafka.ends(topic, partition)
        return first if offset == "earliest" else end

    async def _followed(
        batch: Slice,
        epoch: int,
        read: Any,
        kind: str,
        embedded: EmbeddedFormat,
        request: Request,
        *,
        follow: bool,
    ) -> AsyncIterator[bytes]:
        """Each record as it comes, until the client goes."""
        beat = time.monotonic()
        while True:
            if batch.messages:
                yield await kafka.call(_lines, formats, embedded, kind, batch.messages)
                last = batch.messages[-1].leader_epoch()
                epoch = epoch if last is None else last
                beat = time.monotonic()
            elif batch.is_end and not follow:
                return
            if time.monotonic() - beat > _BEATS:
                yield _BEAT[kind]
                beat = time.monotonic()
            if await request.is_disconnected():
                return
            try:
                batch = await read(batch.next, epoch, _LOOKS if follow else 0)
            except Refusal as refused:
                if refused.status != 429:
                    yield _last(kind, refused)
                    return

    return router


def _number(what: str, text: str) -> int:
    try:
        return whole(text, 0, _LONG - 1)
    except ValueError as error:
        raise Refusal(400, f"{what}: {named(text)} {error}, earliest or latest") from None


def _wanted(accept: str, form: str | None) -> tuple[str, EmbeddedFormat]:
    """The type of the answer, and the format of its records.

    Raises:
        Refusal: it is none.
    """
    default = EmbeddedFormat.BINARY
    if form is not None:
        if form.lower() not in EmbeddedFormat.__members__.values():
            raise Refusal(400, f"format={named(form)} must be one of {', '.join(EmbeddedFormat)}")
        default = EmbeddedFormat(form.lower())
    for each in preferred(accept):
        if each in (NDJSON, EVENTS):
            return each, default
        if each in (*ANY, JSON, V1, V2):
            return JSON if each in ANY else each, default
        embedded = embedded_of(each)
        if embedded is not None:
            return each, embedded
    raise not_acceptable(accept)


def _body(formats: Formats, embedded: EmbeddedFormat, batch: Slice, epoch: int | None) -> bytes:
    last = batch.messages[-1].leader_epoch() if batch.messages else epoch
    return written(
        {
            "records": _all_shown(formats, embedded, batch),
            "next_offset": batch.next,
            "leader_epoch": None if last is None or last < 0 else last,
            "is_end": batch.is_end,
        }
    )


def _all_shown(formats: Formats, embedded: EmbeddedFormat, batch: Slice) -> list[dict[str, Any]]:
    return [_shown(formats, embedded, message) for message in batch.messages]


def _lines(formats: Formats, embedded: EmbeddedFormat, kind: str, messages: list[Message]) -> bytes:
    lines = []
    for each in messages:
        line = written(_shown(formats, embedded, each))
        if kind == EVENTS:
            line = b"id: %d\ndata: %s\n" % (int(each.offset() or 0), line)
        lines.append(line + b"\n")
    return b"".join(lines)


def _last(kind: str, refused: Refusal) -> bytes:
    body = written(refused.body)
    return b"event: error\ndata: " + body + b"\n\n" if kind == EVENTS else body + b"\n"


def _shown(formats: Formats, embedded: EmbeddedFormat, message: Message) -> dict[str, Any]:
    """A record. What is not in the format is told of with it, so that the client can go on."""
    record: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "headers": headers_shown(message),
    }
    for name, value in (("key", message.key()), ("value", message.value())):
        raw: Any = value
        try:
            record[name] = formats.decoded(embedded, raw)
        except ValueError as error:
            record[name] = None
            record["error"] = f"the {name} is not {embedded}: {error}"
    return record
