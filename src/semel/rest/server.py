"""The server of the REST API, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from semel.errors import ServiceError
from semel.rest.guard import PEER

log = logging.getLogger(__name__)

_ENDS_IN = 5.0
_IDLE = 30
"""Seconds after which an idle connection is closed, as in Jetty. Clients that keep theirs for 5 s,
like httpx, never use one that is just being closed."""
_TICK = 1.0


@dataclass(frozen=True)
class Site:
    """An application and where it answers: ``http://host:port``, or ``https://`` with ``tls``;
    without a host, at all addresses of this machine."""

    application: Any
    listener: str
    tls: ssl.SSLContext | None = None


class RestServer:
    """Answers requests from its start until it is closed. Use it in a ``with`` statement.

    Raises:
        ServiceError: a port is taken, or a host is not this machine's.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for site in sites:
                self._sockets.append(_bound(site.listener))
        except ServiceError:
            self._close()
            raise
        self._servers = [_server(site) for site in sites]
        # The worker handles signals itself; uvicorn does so only in the main thread.
        self._thread = threading.Thread(target=self._serve, daemon=True, name="semel-rest")

    @property
    def ports(self) -> list[int]:
        """The port of each site."""
        return [int(each.getsockname()[1]) for each in self._sockets]

    def __enter__(self) -> RestServer:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for server in self._servers:
            server.end()
        self._thread.join(2 * _ENDS_IN)
        self._close()

    def _close(self) -> None:
        for each in self._sockets:
            each.close()

    def _serve(self) -> None:
        async def all_of_them() -> None:
            pairs = zip(self._servers, self._sockets, strict=True)
            await asyncio.gather(*(server.serve([each]) for server, each in pairs))

        try:
            asyncio.run(all_of_them())
        except Exception:
            log.exception("the REST API has ended")


def _server(site: Site) -> _Server:
    config = uvicorn.Config(
        site.application,
        http=_Protocol,
        ws="none",
        log_config=None,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=int(_ENDS_IN),
    )
    config.load()
    config.ssl = site.tls
    return _Server(config)


class _Server(uvicorn.Server):
    """Waits to be told to end; uvicorn looks for that ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # which also refreshes the Date header
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _TICK)

    def end(self) -> None:
        """End, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._over.set)


class _Protocol(H11Protocol):
    """Passes the name in a client's certificate to applications."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        name = _common_name(transport.get_extra_info("peercert"))
        if name:
            self.app_state = {**self.app_state, PEER: name}


def _common_name(certificate: Any) -> str:
    """The common name of the subject of a certificate, as :mod:`ssl` describes it."""
    subject = certificate.get("subject", ()) if certificate else ()
    return next((value for part in subject for name, value in part if name == "commonName"), "")


def _bound(listener: str) -> socket.socket:
    parts = urlsplit(listener)
    host, port = parts.hostname or "", parts.port or 0
    try:
        family = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
        # Accepted connections inherit it. asyncio sets it only where the protocol is named, and
        # without it an answer on a connection that is kept waits 40 ms for a client's delayed ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ServiceError(f"listeners={listener}: cannot listen there: {error}") from None
