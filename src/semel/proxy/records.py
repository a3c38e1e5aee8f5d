"""Records between bodies and Kafka: what v2, v3 and reads without a consumer share."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message
from pydantic import BaseModel, ConfigDict

from semel.core.quoting import named
from semel.proxy.errors import not_convertible, wrong_payload
from semel.proxy.kafka import Headers

_MOST_HEADERS = 1000


class Body(BaseModel):
    """A body, or a part of one. Misspelt fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Header(Body):
    """A header of a record; its value is base64."""

    name: str
    value: str | None = None


def headers_of(given: Sequence[Header] | None) -> Headers:
    """Headers as Kafka has them. Raises Refusal: a value is not base64."""
    if given and len(given) > _MOST_HEADERS:
        raise wrong_payload(f"A record has more than {_MOST_HEADERS} headers")
    found = []
    for each in given or ():
        try:
            value = None if each.value is None else base64.b64decode(each.value, validate=True)
        except ValueError:
            raise not_convertible(f"the value of header {named(each.name)} is not base64") from None
        found.append((each.name, value))
    return found


def headers_shown(message: Message) -> list[dict[str, Any]]:
    """The headers of a record as a body has them."""
    found: Any = message.headers() or ()
    return [
        {"name": name, "value": None if value is None else base64.b64encode(value).decode()}
        for name, value in found
    ]
