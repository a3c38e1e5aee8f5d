"""What requests and answers hold: JSON, the media types of v1 and v2, what records have in all
versions, and bodies that are streamed."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from confluent_kafka import Message
from fastapi import Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from starlette.types import Receive, Scope, Send

from semel.core.quoting import named
from semel.kafka import consumer
from semel.proxy.errors import Refusal, not_acceptable, unsupported
from semel.proxy.kafka import Headers

JSON, BYTES = "application/json", "application/octet-stream"
_WITH_BODY = ("POST", "PUT", "PATCH")

Partition = Annotated[int, Path(ge=-(2**31), le=2**31 - 1)]
"""In a path: the number of a partition, or of a broker, which Java reads as an int."""


class JsonRoute(APIRoute):
    """Reads bodies by :func:`loaded`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def read(request: Request) -> Response:
            self.check(request)
            if self.body_field is not None and (body := await request.body()):
                content = json_of(body)
                self.check_count(content, request)
                if type_of(request) in ("", BYTES):  # FastAPI takes bodies of other types for text
                    request.scope["headers"] = [
                        *((n, v) for n, v in request.scope["headers"] if n != b"content-type"),
                        (b"content-type", b"application/json"),
                    ]
                    request = Request(request.scope, request.receive)
                    request._body = body
                request._json = content
            return await answer(request)

        return read

    def check(self, request: Request) -> None:
        """Raises Refusal: the headers say that the body cannot be read."""
        coding = request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            raise Refusal(
                415,
                f"Content-Encoding {named(coding)} is not supported: send the body as it is",
            )
        self.negotiate(request)

    def check_count(self, content: Any, request: Request) -> None:
        """Raises Refusal: a body holds more records than a request may have."""

    def negotiate(self, request: Request) -> None:
        """Raises Refusal: the body is of another type, or the client takes no JSON."""
        kind = type_of(request)
        if request.method in _WITH_BODY and kind not in ("", JSON):
            raise unsupported(kind)
        accept = accept_of(request)
        if not any(each in (*ANY, JSON) for each in preferred(accept)):
            raise not_acceptable(accept)


def type_of(request: Request) -> str:
    """The media type of a body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_of(body: bytes) -> Any:
    """What a body says. Raises Refusal: it is not JSON."""
    try:
        return loaded(body)
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}") from None


def count_of(content: Any, name: str) -> int:
    """How many items a field of a body has."""
    items = content.get(name) if isinstance(content, dict) else None
    return len(items) if isinstance(items, list) else 0


def problem(where: Iterable[object], error: Mapping[str, Any]) -> str:
    """What is wrong with a body, or a part of it, as Pydantic has found."""
    path = ".".join(map(str, where))
    if not path and error["type"] == "missing":
        return "The body is empty"
    why = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {why}" if path else why


def loaded(text: bytes) -> Any:
    """What a text says, if it is JSON as the standard has it, and another program could read it
    when it is written again.

    Raises:
        ValueError: says what is wrong with it.
    """
    decoded = text.decode(json.detect_encoding(text))
    try:
        value = _DECODER.decode(decoded)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\u" in decoded:
        _check_texts(value)
    return value


def written(value: Any) -> bytes:
    """JSON, as short as it gets.

    Raises:
        ValueError: it is nested too deeply, or not JSON.
    """
    try:
        return _text_of(value).encode()
    except (RecursionError, TypeError) as error:
        raise ValueError(f"it cannot be written as JSON: {error}") from None


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_no_number)
_text_of = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _check_texts(value: Any) -> None:
    try:
        written(value)
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is no character") from None


# Media types

V1, V2 = "application/vnd.kafka.v1+json", "application/vnd.kafka.v2+json"
_LATEST = "application/vnd.kafka+json"
_EMBEDDED = re.compile(
    r"application/vnd\.kafka\.(binary|json|avro|jsonschema|protobuf)(?:\.v[12])?\+json"
)
ANY = ("", "*", "*/*", "*/json", "application/*", _LATEST)


class EmbeddedFormat(StrEnum):
    """How keys and values are written in a body."""

    BINARY = "binary"
    JSON = "json"
    AVRO = "avro"
    JSONSCHEMA = "jsonschema"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True)
class Media:
    """What a request's headers say. ``sent`` and ``wanted`` are the formats of its records and of
    those in its answer, if they name one; ``answer`` is the type of the answer."""

    sent: EmbeddedFormat | None
    wanted: EmbeddedFormat | None
    answer: str


class MediaRoute(JsonRoute):
    """A route whose requests and answers have the media types of v1 and v2. FastAPI would take as
    long for a dependency as for the request itself."""

    def negotiate(self, request: Request) -> None:
        """Note the media types of a request in its state.

        Raises:
            Refusal: one of them is not theirs.
        """
        kind = type_of(request)
        sent = embedded_of(kind)
        if sent is None and kind not in ("", JSON, V1, V2, _LATEST, BYTES):
            raise unsupported(kind)
        accept = accept_of(request)
        for each in preferred(accept):
            if each in (*ANY, JSON, V1, V2):
                answer = each if each in (JSON, V1) else V2
                break
            if embedded_of(each) is not None:
                answer = each
                break
        else:
            raise not_acceptable(accept)
        request.state.media = Media(sent, embedded_of(answer), answer)


def embedded_of(kind: str) -> EmbeddedFormat | None:
    """The format that a media type names."""
    match = _EMBEDDED.fullmatch(kind)
    return EmbeddedFormat(match[1]) if match else None


def media_of(request: Request) -> Media:
    """What a :class:`MediaRoute` has noted."""
    media: Media = getattr(request.state, "media", Media(None, None, V2))
    return media


def answer(request: Request, body: Any, status: int = 200) -> Response:
    """An answer of the type that the client accepts."""
    return Response(written(body), status, media_type=media_of(request).answer)


def accept_of(request: Request) -> str:
    """The Accept header; several are one list."""
    return ", ".join(request.headers.getlist("accept"))


_WEIGHT = re.compile(r"[01](\.\d*)?|\.\d+")
"""Java's own client sends ``.2``, and ``*`` for ``*/*``."""


def preferred(accept: str) -> list[str]:
    """The types of an Accept header, the best first."""
    weighted = []
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        number = float(weight) if _WEIGHT.fullmatch(weight) else 0.0
        if number > 0:
            weighted.append((number, kind))
    return [kind for _, kind in sorted(weighted, key=lambda each: -each[0])]


# Parts of records


class Body(BaseModel):
    """A body, or a part of one. Misspelt fields are refused."""

    model_config = ConfigDict(extra="forbid")


def _whole(name: str) -> str:
    if "\0" in name:
        raise ValueError("has a zero character, where librdkafka would cut it off")
    return name


def _of_base64(text: Any) -> bytes:
    """As with Confluent, a header needs its padding, unlike a key or a value."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError("not base64") from None


_Base64 = Annotated[
    bytes, BeforeValidator(_of_base64), WithJsonSchema({"type": "string", "format": "byte"})
]


class Header(Body):
    """A header of a record."""

    name: Annotated[str, AfterValidator(_whole)]
    value: _Base64 | None = None


GivenHeaders = Annotated[list[Header], Field(max_length=1000)]


def headers_of(headers: Sequence[Header] | None) -> Headers:
    """Headers as Kafka has them."""
    return [(each.name, each.value) for each in headers or ()]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(text: Any) -> int:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError, OverflowError):
        milliseconds = 0
    if milliseconds <= 0:  # librdkafka takes 0 for now
        raise ValueError(f"{named(text)} is not a time after 1970, like 2026-01-31T12:00:00Z")
    return milliseconds


Instant = Annotated[
    int, BeforeValidator(_milliseconds), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""Milliseconds since 1970, from a time as ISO 8601 has it."""


def headers_shown(message: Message) -> list[dict[str, Any]]:
    """The headers of a record as a body has them."""
    return [
        {"name": name, "value": None if value is None else base64.b64encode(value).decode()}
        for name, value in consumer.headers_of(message) or ()
    ]


# Bodies without an end: JSON values one after another, in both directions

_TOKEN = re.compile(rb'\\.|\\\Z|["{}\[\]]', re.S)
_BLANK = b" \t\r\n"
_NO_BLANK = re.compile(rb"[^ \t\r\n]|\Z")


class Splitter:
    """Cuts a stream into the JSON objects that it consists of, each as soon as it is whole."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._text = bytearray()
        self._scanned = self._depth = 0
        self._is_text = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The objects that end in a part, up to where it cannot be read.

        Raises:
            ValueError: the stream holds something else.
            OverflowError: an object is too large.
        """
        self._text += part
        while (end := self._end()) is not None:
            record = bytes(self._text[:end])
            del self._text[:end]
            self._scanned = 0
            yield record
        if len(self._text) > self._most:
            raise OverflowError(f"A record of the stream has more than {self._most} bytes")

    def finish(self) -> None:
        """Raises ValueError: the stream ends within an object."""
        if self._text.strip(_BLANK):
            raise ValueError("the stream ends within a record")

    def _end(self) -> int | None:
        """Where the object at the beginning ends; None if that has not come yet."""
        if not self._depth:
            begin = _NO_BLANK.search(self._text)  # lstrip() would copy the text for each object
            del self._text[: begin.start() if begin else 0]
            if self._text and self._text[0] != ord("{"):
                raise ValueError("a record of the stream is a JSON object")
        for token in _TOKEN.finditer(self._text, self._scanned):
            mark = token[0]
            if mark == b"\\":  # what it escapes has not come yet
                self._scanned = token.start()
                return None
            if self._is_text:
                self._is_text = mark != b'"'
            elif mark == b'"':
                self._is_text = True
            elif mark in b"{[":
                self._depth += 1
            elif mark in b"}]":
                self._depth -= 1
                if not self._depth:
                    return token.end()
        self._scanned = len(self._text)
        return None


class StreamedResponse(Response):
    """An answer that is sent part by part, while the body of the request may still be coming."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-store"
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
