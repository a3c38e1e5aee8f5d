"""Produce: one record, a stream of them, or a batch."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from confluent_kafka import KafkaError
from fastapi import APIRouter, Request, Response
from pydantic import FailFast, Field, ValidationError
from starlette.requests import ClientDisconnect

from semel.core.quoting import named
from semel.core.redact import redacted
from semel.proxy.bodies import (
    JSON,
    Body,
    EmbeddedFormat,
    GivenHeaders,
    Instant,
    JsonRoute,
    Splitter,
    StreamedResponse,
    count_of,
    headers_of,
    json_of,
    problem,
    written,
)
from semel.proxy.errors import (
    Refusal,
    of_kafka,
    partition_not_found,
    too_long,
    wrong_batch,
    wrong_payload,
)
from semel.proxy.formats import FEW, LONGEST, Encoder, Formats, RequestSchema
from semel.proxy.kafka import Kafka, Outcome, OutgoingRecord, RecordMetadata
from semel.proxy.keyed import HEADER, KeyedRequests, key_of
from semel.proxy.v3 import Shapes

log = logging.getLogger(__name__)

_INT, _LONGEST = 2**31 - 1, 1000
_STRING = "STRING"
_TYPES = {each.name: each for each in EmbeddedFormat}
_WITHOUT_SCHEMA = (_STRING, EmbeddedFormat.BINARY.name, EmbeddedFormat.JSON.name)
_STRATEGIES = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")
_ID = re.compile(r"[0-9a-zA-Z-_]{1,80}")
_NULL = -1
"""The size of a key or a value that is null, as Kafka's producer has it."""
_END = b"\r\n"
_SMALL = 64 * 1024
"""Bytes of a body that is cut into its objects in the event loop."""
_IN_FLIGHT = 500
"""The records of a stream that wait for Kafka. Then no more are read from the client."""


class Data(Body):
    """A key or a value, and how it is written."""

    type: str | None = Field(None, max_length=20)
    subject: str | None = Field(None, max_length=_LONGEST)
    subject_name_strategy: str | None = Field(None, max_length=_LONGEST)
    schema_id: int | None = Field(None, ge=0, le=_INT)
    schema_version: int | None = Field(None, ge=1, le=_INT)
    schema_text: str | None = Field(None, alias="schema")
    data: Any


class Record(Body):
    """A record to produce."""

    partition_id: int | None = Field(None, ge=0, le=_INT)
    headers: GivenHeaders | None = None
    key: Data | None = None
    value: Data | None = None
    timestamp: Instant | None = None


class Entry(Record):
    """A record of a batch."""

    id: str


class Batch(Body):
    """Records that are produced together."""

    entries: Annotated[list[Entry], FailFast()]


class _BatchRoute(JsonRoute):
    """Counts the records before there are models of them."""

    def check_count(self, content: Any, request: Request) -> None:
        count, most = count_of(content, "entries"), request.app.state.max_records
        if count > most:
            raise wrong_batch(f"Too many entries in batch: {count}; the limit is {most}")


@dataclass(frozen=True, slots=True)
class _PreparedRecord:
    """A record as Kafka takes it, and what is told of its key and its value."""

    record: OutgoingRecord
    facts: dict[str, Any]


class _BatchProducer:
    """Turns bodies into records, and produces them."""

    def __init__(self, kafka: Kafka, formats: Formats) -> None:
        self._kafka = kafka
        self._formats = formats

    async def results(self, request: Request, cluster: str, topic: str) -> AsyncIterator[bytes]:
        """The result of each record, in order, as it comes."""
        splitter = Splitter(self._kafka.config.max_request_bytes)
        waiting: asyncio.Queue[Awaitable[bytes] | None] = asyncio.Queue(_IN_FLIGHT)

        async def read() -> None:
            try:
                async for part in request.stream():
                    for each in splitter.feed(part):
                        await waiting.put(await self._begun(cluster, topic, each))
                splitter.finish()
            except ClientDisconnect:
                pass
            except OverflowError as error:
                await waiting.put(_line(Refusal(413, str(error))))
            except ValueError as error:
                await waiting.put(_line(Refusal(400, str(error))))
            except Exception as error:  # else the answer would never end
                log.exception("a stream of records failed")
                why = redacted(f"{type(error).__name__}: {error}")
                await waiting.put(_line(Refusal(500, why, 50002)))
            await waiting.put(None)

        reading = asyncio.create_task(read())
        try:
            while (result := await waiting.get()) is not None:
                yield await result
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _begun(self, cluster: str, topic: str, text: bytes) -> Awaitable[bytes]:
        """What becomes of one record of a stream. Records are sent in their order."""
        try:
            ready = await self.ready(topic, _record(Record, text))
        except Refusal as refused:
            return _line(refused)

        async def produced() -> bytes:
            try:
                (outcome,) = await self._kafka.produce(topic, [ready.record])
                return _success(cluster, topic, ready, outcome) + _END
            except Refusal as refused:
                return await _line(refused)

        return asyncio.create_task(produced())

    async def tried(self, topic: str, records: Sequence[Record]) -> list[_PreparedRecord | Refusal]:
        """Each as Kafka takes it, or why it cannot be used. They are made in one call: the threads
        take no more than some hundreds."""
        highest = max((each.partition_id or 0 for each in records), default=0)
        with suppress(Refusal):
            await self._kafka.check_partition(topic, highest)  # there may be more by now
        count, late = await self._kafka.partitions(topic), too_long()

        def made() -> list[_PreparedRecord | Refusal]:
            until = time.monotonic() + LONGEST
            return [
                late if time.monotonic() > until else _tried(self._formats, topic, count, record)
                for record in records
            ]

        takes_long = len(records) > FEW or any(map(_needs_registry, records))
        return await self._kafka.call(made) if takes_long else made()

    async def ready(self, topic: str, record: Record) -> _PreparedRecord:
        if record.partition_id is not None:
            await self._kafka.check_partition(topic, record.partition_id)
        if _needs_registry(record):
            return await self._kafka.call(_made, self._formats, topic, record)
        return _made(self._formats, topic, record)

    def check_size(self, request: Request) -> None:
        length = request.headers.get("content-length", "0")
        most = self._kafka.config.max_request_bytes
        if not length.isdecimal() or len(length) > 18 or int(length) > most:
            raise Refusal(413, f"The body has more than {most} bytes")


def routes(kafka: Kafka, formats: Formats, keyed: KeyedRequests, shapes: Shapes) -> APIRouter:
    """What is posted to the records of a topic."""
    router = APIRouter(prefix="/v3/clusters/{cluster}/topics/{topic}", route_class=JsonRoute)
    producing = _BatchProducer(kafka, formats)
    content = {"application/json": {"schema": Record.model_json_schema()}}

    @router.post("/records", openapi_extra={"requestBody": {"content": content, "required": True}})
    async def produce(cluster: str, topic: str, request: Request) -> Response:
        await shapes.check(cluster)
        await kafka.partitions(topic)
        text = b""
        # Where both are given, the length means nothing (RFC 9112, 6.3).
        is_stream = "transfer-encoding" in request.headers or (
            "content-length" not in request.headers
        )
        if not is_stream:
            producing.check_size(request)
            body, splitter = await request.body(), Splitter(kafka.config.max_request_bytes)
            is_long = len(body) > _SMALL
            found = await kafka.call(_first, splitter, body) if is_long else _first(splitter, body)
            text, is_stream = found
        if is_stream:
            if HEADER in request.headers:
                raise wrong_payload("A stream takes no Idempotency-Key: send a batch")
            return StreamedResponse(producing.results(request, cluster, topic), JSON)
        once = await key_of(request)
        ready = await producing.ready(topic, _record(Record, text))

        def tell(outcomes: Sequence[Outcome]) -> bytes:
            return _success(cluster, topic, ready, outcomes[0])

        if once is not None:
            return await keyed.produce(once, topic, [ready.record], tell, JSON)
        return Response(tell(await kafka.produce(topic, [ready.record])), media_type=JSON)

    async def batch(cluster: str, topic: str, body: Batch, request: Request) -> Response:
        await shapes.check(cluster)
        await kafka.partitions(topic)
        _check_batch(body)
        attempts = await producing.tried(topic, body.entries)
        once = await key_of(request)
        bad = next((each for each in attempts if isinstance(each, Refusal)), None)
        if once is not None and bad is not None:  # all records or none
            entry = body.entries[attempts.index(bad)].id
            raise Refusal(bad.status, f"entry {entry}: {bad}. Nothing was written", bad.code)
        records = [each.record for each in attempts if isinstance(each, _PreparedRecord)]

        def tell(outcomes: Sequence[Outcome]) -> bytes:
            remaining = iter(outcomes)
            successes, failures = [], []
            for entry, ready in zip(body.entries, attempts, strict=True):
                try:
                    if isinstance(ready, Refusal):
                        raise ready
                    details = _details(cluster, topic, ready, next(remaining))
                    successes.append({"id": entry.id, **details})
                except Refusal as refused:
                    failures.append({"id": entry.id, **refused.in_v3.body})
            return written({"successes": successes, "failures": failures})

        if once is not None:
            return await keyed.produce(once, topic, records, tell, JSON, 207)
        return Response(tell(await kafka.produce(topic, records)), 207, media_type=JSON)

    router.add_api_route(
        "/records:batch", batch, methods=["POST"], status_code=207, route_class_override=_BatchRoute
    )
    return router


def _check_batch(body: Batch) -> None:
    ids = [entry.id for entry in body.entries]
    if not ids:
        raise wrong_batch("Empty batch.")
    if len(set(ids)) < len(ids):
        raise wrong_batch("Batch entry IDs are not distinct.")
    wrong = next((each for each in ids if not _ID.fullmatch(each)), None)
    if wrong is not None:
        raise wrong_batch(f"Batch entry identifier is not a valid string: {named(wrong)}")


def _first(splitter: Splitter, body: bytes) -> tuple[bytes, bool]:
    """The first object of a body, and whether there are more: millions of them, perhaps.

    Raises:
        Refusal: there is none, or the body holds something else.
    """
    try:
        objects = splitter.feed(body)
        first, more = next(objects, b""), sum(1 for _ in objects)
        splitter.finish()
    except OverflowError as error:
        raise Refusal(413, str(error)) from None
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}") from None
    if not first:
        raise Refusal(422, "Payload error. Request body is empty. Data is required.")
    return first, more > 0


def _record(kind: type[Record], text: bytes) -> Record:
    try:
        return kind.model_validate(json_of(text))
    except ValidationError as error:
        first = error.errors()[0]
        raise Refusal(400, problem(first["loc"], first)) from None


async def _line(refused: Refusal) -> bytes:
    return written(refused.in_v3.body) + _END


def _needs_registry(record: Record) -> bool:
    return _has_schema(record.key) or _has_schema(record.value)


def _has_schema(part: Data | None) -> bool:
    return (
        part is not None
        and part.data is not None
        and (part.type or "").upper() not in _WITHOUT_SCHEMA
    )


def _tried(formats: Formats, topic: str, count: int, record: Record) -> _PreparedRecord | Refusal:
    if record.partition_id is not None and record.partition_id >= count:
        return partition_not_found(topic, record.partition_id)
    try:
        return _made(formats, topic, record)
    except Refusal as refused:
        return refused


def _made(formats: Formats, topic: str, record: Record) -> _PreparedRecord:
    """Raises Refusal: a key or a value cannot be used."""
    facts: dict[str, Any] = {}
    key = _encoded(formats, topic, "key", record.key, facts)
    value = _encoded(formats, topic, "value", record.value, facts)
    place = -1 if record.partition_id is None else record.partition_id
    sent = OutgoingRecord(key, value, place, record.timestamp or 0, headers_of(record.headers))
    return _PreparedRecord(sent, facts)


def _encoded(
    formats: Formats, topic: str, name: str, part: Data | None, facts: dict[str, Any]
) -> bytes | None:
    if part is None:
        return None
    kind = part.type.upper() if part.type is not None else None
    if kind not in (None, _STRING, *_TYPES):
        raise Refusal(400, f"{name}.type: {named(kind)} is not one of STRING, {', '.join(_TYPES)}")
    given = RequestSchema(
        part.schema_text, part.schema_id, _subject(topic, name, part), part.schema_version
    )
    if kind in _WITHOUT_SCHEMA and (given.is_there or part.subject_name_strategy is not None):
        raise Refusal(400, f"{name}: {kind} has no schema")
    if part.data is None:
        if kind is not None:
            facts[name] = {"type": kind, "size": _NULL}
        return None
    if kind == _STRING:
        encoder = Encoder(_text)
    else:
        embedded = None if kind is None else _TYPES[kind]
        if not given.is_there:
            given = RequestSchema(subject=f"{topic}-{name}")
        encoder = formats.encoder(embedded, topic, given, is_key=name == "key")
    encoded = encoder.bytes_of(part.data)
    facts[name] = {"type": kind or encoder.kind, "size": len(encoded or b"")}
    if encoder.schema_id is not None:
        facts[name] |= {"subject": encoder.subject, "schema_id": encoder.schema_id}
    return encoded


def _subject(topic: str, name: str, part: Data) -> str | None:
    strategy = part.subject_name_strategy
    if strategy is not None and strategy not in _STRATEGIES:
        raise Refusal(
            400, f"{name}.subject_name_strategy: {named(strategy)} is not one of {_STRATEGIES}"
        )
    if strategy not in (None, _STRATEGIES[0]) and part.subject is None:
        raise Refusal(400, f"{name}.subject: name it, for {strategy} takes the name of the record")
    return part.subject


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("STRING data is a string")
    return value.encode()


def _success(cluster: str, topic: str, ready: _PreparedRecord, outcome: Outcome) -> bytes:
    """The answer for one record. Raises Refusal: Kafka has not taken it."""
    return written({"error_code": 200, **_details(cluster, topic, ready, outcome)})


def _details(cluster: str, topic: str, ready: _PreparedRecord, outcome: Outcome) -> dict[str, Any]:
    """Where a record is. Raises Refusal: Kafka has not taken it."""
    if isinstance(outcome, KafkaError):
        raise of_kafka(outcome, topic)
    return {
        "cluster_id": cluster,
        "topic_name": topic,
        "partition_id": outcome.partition,
        "offset": outcome.offset,
        "timestamp": _shown(outcome),
        **ready.facts,
    }


def _shown(sent: RecordMetadata) -> str | None:
    if sent.timestamp < 0:
        return None
    with suppress(ValueError, OverflowError):
        when = datetime.fromtimestamp(sent.timestamp / 1000, UTC)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return None
