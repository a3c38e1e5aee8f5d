"""Bodies without an end: JSON values one after another, in both directions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_TOKEN = re.compile(rb'\\.|\\\Z|["{}\[\]]', re.S)
_BLANK = b" \t\r\n"


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
            begin = len(self._text) - len(self._text.lstrip(_BLANK))
            del self._text[:begin]
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

    def __init__(self, parts: AsyncIterator[bytes], media_type: str, status: int = 200) -> None:
        super().__init__(status_code=status, media_type=media_type)
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
