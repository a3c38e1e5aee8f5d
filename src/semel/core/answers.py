"""Reads the answers of HTTP services, with whichever client asks, and files up to a limit.

The clients' own ways hold whatever a server sends, unpacked.
"""

from __future__ import annotations

import errno
import stat
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

MOST = 128 * 1024 * 1024
"""The most bytes of an answer."""
SMALL = 16 * 1024 * 1024
"""The most bytes of one that holds a schema or a token."""
PATIENCE = 300.0
"""Seconds for the whole of one, however slowly it trickles in."""
_PIECE = 1 << 16


class TooLarge(OSError):
    """An answer is larger than any that makes sense."""


def gathered(parts: Iterable[bytes], most: int, where: object) -> bytes:
    """The content of an answer.

    Raises:
        TooLarge: it has more bytes than that.
        TimeoutError: it is not complete in time.
    """
    content, end = bytearray(), time.monotonic() + PATIENCE
    for part in parts:
        content += part
        if time.monotonic() > end:
            raise TimeoutError(f"the answer of {where} is not complete after {PATIENCE:.0f} s")
        if len(content) > most:
            raise too_large(most, where)
    return bytes(content)


def too_large(most: int, where: object) -> TooLarge:
    """The error for an answer of this server."""
    return TooLarge(f"the answer of {where} has more than {most:,} bytes")


def content_of(path: Path, most: int = SMALL) -> bytes:
    """The content of a file that a configuration names, which may be anything: a pipe would never
    answer, and a device has no end.

    Raises:
        OSError: it is not a file, is too large or cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return content


def limit_requests(session: Any, most: int = MOST) -> None:
    """Limit the answers that a session of ``requests`` reads whole."""

    def read(answer: Any, *_: Any, stream: bool = False, **__: Any) -> None:
        if not stream and answer.raw is not None:
            where = answer.url.partition("?")[0]
            try:
                answer._content = gathered(answer.iter_content(_PIECE), most, where)
            except (TooLarge, TimeoutError):
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


def _urlopen(urlopen: Callable[..., Any], most: int, where: str, *args: Any, **kwargs: Any) -> Any:
    answer = urlopen(*args, **kwargs, preload_content=False)
    try:
        answer._body = gathered(answer.stream(_PIECE, decode_content=True), most, where)
    except (TooLarge, TimeoutError):
        answer.close()
        raise
    answer.release_conn()
    return answer
