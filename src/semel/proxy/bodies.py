"""JSON as clients send it, and as it is answered."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from semel.core.quoting import named
from semel.proxy.errors import Refusal, unsupported

JSON, BYTES = "application/json", "application/octet-stream"
_WITH_BODY = ("POST", "PUT", "PATCH")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_no_number)
_text_of = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def loaded(text: bytes) -> Any:
    """What a text says, if it is JSON as the standard has it, and another program could read it
    when it is written again.

    Raises:
        ValueError: says what is wrong with it.
    """
    try:
        value = _DECODER.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if b"\\u" in text:
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


def _check_texts(value: Any) -> None:
    try:
        written(value)
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is no character") from None


def problem(where: Iterable[object], error: Mapping[str, Any]) -> str:
    """What is wrong with a body, or a part of it, as Pydantic has found."""
    path = ".".join(map(str, where))
    if not path and error["type"] == "missing":
        return "The body is empty"
    why = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {why}" if path else why


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
        """Raises Refusal: the body is of another type."""
        kind = type_of(request)
        if request.method in _WITH_BODY and kind not in ("", JSON):
            raise unsupported(kind)


def count_of(content: Any, name: str) -> int:
    """How many items a field of a body has."""
    items = content.get(name) if isinstance(content, dict) else None
    return len(items) if isinstance(items, list) else 0


def json_of(body: bytes) -> Any:
    """What a body says. Raises Refusal: it is not JSON."""
    try:
        return loaded(body)
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}") from None


def type_of(request: Request) -> str:
    """The media type of a body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
