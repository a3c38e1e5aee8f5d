"""Records between bodies and Kafka: what v2, v3 and reads without a consumer share."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from confluent_kafka import Message
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from semel.core.quoting import named
from semel.proxy.kafka import Headers


class Body(BaseModel):
    """A body, or a part of one. Misspelt fields are refused."""

    model_config = ConfigDict(extra="forbid")


def _whole(name: str) -> str:
    if "\0" in name:
        raise ValueError("has a zero character, where librdkafka would cut it off")
    return name


def _of_base64(text: Any) -> bytes:
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
    headers: Any = message.headers() or ()
    return [
        {"name": name, "value": None if value is None else base64.b64encode(value).decode()}
        for name, value in headers
    ]
