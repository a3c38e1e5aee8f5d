"""Content negotiation of v1 and v2: how records are embedded in requests and answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastapi import Request, Response

from semel.proxy.bodies import BYTES, JSON, JsonRoute, type_of, written
from semel.proxy.errors import not_acceptable, unsupported

V1, V2 = "application/vnd.kafka.v1+json", "application/vnd.kafka.v2+json"
_LATEST = "application/vnd.kafka+json"
_EMBEDDED = re.compile(
    r"application/vnd\.kafka\.(binary|json|avro|jsonschema|protobuf)(?:\.v[12])?\+json"
)
ANY = ("", "*/*", "*/json", "application/*", _LATEST)


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
        accept = request.headers.get("accept", "")
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


def preferred(accept: str) -> list[str]:
    """The types of an Accept header, the best first."""
    weighted = []
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        number = float(weight) if re.fullmatch(r"[01](\.\d{0,3})?", weight) else 0.0
        if number > 0:
            weighted.append((number, kind))
    return [kind for _, kind in sorted(weighted, key=lambda each: -each[0])]
