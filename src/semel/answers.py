"""Reads the answers of HTTP services up to a limit, with whichever client asks.

The clients' own ways hold whatever a server sends, unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

MOST = 128 * 1024 * 1024
"""The most bytes of an answer."""
SMALL = 16 * 1024 * 1024
"""The most bytes of one that holds a schema or a token."""
_PIECE = 1 << 16


class TooLarge(OSError):
    """An answer is larger than any that makes sense."""


def gathered(parts: Iterable[bytes], most: int, where: object) -> bytes:
    """The content of an answer.

    Raises:
        TooLarge: it has more bytes than that.
    """
    content = bytearray()
    for part in parts:
        content += part
        if len(content) > most:
            raise too_large(most, where)
    return bytes(content)


def too_large(most: int, where: object) -> TooLarge:
    """The error for an answer of this server."""
    return TooLarge(f"the answer of {where} has more than {most:,} bytes")


def limit_requests(session: Any, most: int = MOST) -> None:
    """Limit the answers that a session of ``requests`` reads whole."""

    def read(answer: Any, *_: Any, stream: bool = False, **__: Any) -> None:
        if not stream and answer.raw is not None:
            where = answer.url.partition("?")[0]
            try:
                answer._content = gathered(answer.iter_content(_PIECE), most, where)
            except TooLarge:
                answer.close()
                raise

    session.hooks["response"].insert(0, read)


def limit_httpx(client: Any, most: int = SMALL) -> None:
    """Limit the answers that a client of ``httpx`` reads."""

    def read(answer: Any) -> None:
        answer._content = gathered(answer.iter_bytes(), most, answer.url.copy_with(query=None))

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [read, *hooks.get("response", ())]}


def limit_urllib3(pool: Any, most: int = MOST) -> None:
    """Limit the answers that a connection pool of ``urllib3`` reads."""
    pool.urlopen = partial(_urlopen, pool.urlopen, most, pool.host)


def _urlopen(urlopen: Callable[..., Any], most: int, where: str, *given: Any, **keys: Any) -> Any:
    answer = urlopen(*given, **keys, preload_content=False)
    try:
        answer._body = gathered(answer.stream(_PIECE, decode_content=True), most, where)
    except TooLarge:
        answer.close()
        raise
    answer.release_conn()
    return answer
