"""The server of a REST API, in a thread of its own: where it listens, and for how long a client may
keep it busy."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from uvicorn.protocols.http.h11_impl import H11Protocol

from semel.config.rest import AUTHENTICATION, RestConfig
from semel.core.errors import ServiceError
from semel.worker.rest.guard import PEER
from semel.worker.rest.tls import server_context
from semel.worker.rest.token import is_local, where
from semel.worker.rest.users import Users

log = logging.getLogger(__name__)

_ENDS_IN = 5.0
_IDLE = 30
"""Seconds after which an idle connection is closed, as in Jetty. Clients that keep theirs for 5 s,
like httpx, never use one that is just being closed."""
_TICK = 1.0
_HEADER_IN, _BODY_IN, _HANDSHAKE_IN = 10.0, 30.0, 10.0
"""Seconds in which a client must have sent these."""
_STALLED_IN, _SLOWEST = 10.0, 16 * 1024
"""A client that takes fewer bytes of an answer in so many seconds is not reading it."""
_IN_ALL = 512
"""Connections of all addresses to one listener."""
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True)
class Site:
    """An application and where it answers: ``http://host:port``, or ``https://`` with ``tls``;
    without a host, at all addresses of this machine. An address may keep ``per_address``
    connections open."""

    application: Any
    listener: str
    tls: ssl.SSLContext | None = None
    per_address: int = 128


class RestServer:
    """Answers requests from its start until it is closed. Use it in a ``with`` statement.
    ``at_end`` is awaited once all are answered.

    Raises:
        ServiceError: a port is taken, or a host is not this machine's.
    """

    def __init__(
        self, sites: Sequence[Site], at_end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._at_end = at_end
        self._sockets: list[_ListeningSocket] = []
        try:
            for site in sites:
                self._sockets.append(_ListeningSocket(_bound(site.listener), site.per_address))
        except ServiceError:
            self._close()
            raise
        self._servers = list(map(_server, sites, self._sockets))
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
            await asyncio.gather(*(server.serve() for server in self._servers))
            if self._at_end is not None:
                await self._at_end()

        try:
            asyncio.run(all_of_them())
        except Exception:
            log.exception("the REST API has ended")


def sites_of(app: Any, config: RestConfig, listeners: tuple[str, ...], prefix: str) -> list[Site]:
    """Where an application listens. Raises ConfigError: a certificate cannot be used."""
    encrypted = any(urlsplit(each).scheme.lower() == "https" for each in listeners)
    tls = server_context(config, prefix) if encrypted else None
    return [
        Site(app, each, tls if each.lower().startswith("https:") else None, config.max_connections)
        for each in listeners
    ]


def warn(sites: list[Site], known: Users, may: str = "controls this worker") -> None:
    """Say who can use these listeners, and what they may, if that is more than the configuration's
    users."""
    for site in sites:
        if not known.are_asked and (site.tls is None or not site.tls.verify_mode):
            who = "any user of this machine" if _is_own(site) else "anyone who can reach it"
            log.warning("%s has no login: %s %s", site.listener, who, may)
        elif site.tls is None and known.are_asked and not _is_own(site):
            log.warning("%s is not encrypted: passwords and tokens can be read", site.listener)
    if known.default_token:
        log.info("requests need the token in %s (%s=none turns it off)", where(), AUTHENTICATION)


def _is_own(site: Site) -> bool:
    """Whether only this machine can reach it."""
    return is_local(urlsplit(site.listener).hostname or "")


def add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """What Prometheus scrapes. Other calls may fill the pool of threads, so it uses another."""

    @app.get("/metrics")
    async def metrics() -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


def _server(site: Site, listening: _ListeningSocket) -> _Server:
    config = uvicorn.Config(
        site.application,
        http=_Protocol,
        ws="none",
        log_config=None,
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # else any local user could write the address that the log has
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=int(_ENDS_IN),
    )
    config.load()
    config.ssl = site.tls
    return _Server(config, listening)


class _Server(uvicorn.Server):
    """Waits to be told to end; uvicorn looks for that ten times a second."""

    def __init__(self, config: uvicorn.Config, listening: _ListeningSocket) -> None:
        super().__init__(config)
        self._listening = listening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; uvicorn's own way sets no deadline for handshakes."""
        context = self.config.ssl
        server = await asyncio.get_running_loop().create_server(
            partial(_Protocol, self.config, self.server_state, {}, places=self._listening),
            sock=self._listening,
            ssl=context,
            ssl_handshake_timeout=_HANDSHAKE_IN if context else None,
            ssl_shutdown_timeout=_ENDS_IN if context else None,
        )
        self.servers = [server]
        self.started = True

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # which also refreshes the Date header
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, _Protocol):  # as all are
                    connection.look(now)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _TICK)

    def end(self) -> None:
        """End, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._over.set)


class _Protocol(H11Protocol):
    """Passes the name in a client's certificate to applications, and ends connections whose client
    leaves a request or an answer half done."""

    def __init__(self, *facts: Any, places: _ListeningSocket, **more: Any) -> None:
        super().__init__(*facts, **more)
        self._places = places
        self._phase: tuple[object, ...] = ()
        self._since, self._part = 0.0, 0
        self._unread, self._unread_since = 0, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._places.belongs(transport.get_extra_info("socket").fileno(), self)
        name = _common_name(transport.get_extra_info("peercert"))
        if name:
            self.app_state = {**self.app_state, PEER: name}

    @property
    def patience(self) -> float | None:
        """The seconds that the client has for what it must send now; None if it waits for us."""
        if self.conn.their_state is h11.SEND_BODY:
            return _BODY_IN
        if self.conn.their_state is h11.IDLE:
            return _HEADER_IN if self.conn.trailing_data[0] else _IDLE
        return None

    def look(self, now: float) -> None:
        """End the connection if its client has used up its time."""
        patience = self.patience
        phase = patience, self.cycle, self._part  # the last request's cycle tells requests apart
        if phase != self._phase:
            self._phase, self._since = phase, now
        elif patience is not None and now - self._since > patience:
            self._refuse(patience)
        unread = self.transport.get_write_buffer_size()
        if not unread or not 0 <= self._unread - unread < _SLOWEST:
            self._unread, self._unread_since = unread, now
        elif now - self._unread_since > _STALLED_IN:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """See :meth:`asyncio.Protocol.data_received`. A client that is being answered while it
        sends is given the time anew for each part."""
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self._part += 1
        super().data_received(data)

    def _refuse(self, patience: float) -> None:
        if self.transport.is_closing():
            return
        if patience != _IDLE and (self.cycle is None or not self.cycle.response_started):
            self.transport.write(_TOO_LATE)
        self.transport.close()


class _ListeningSocket(socket.socket):
    """A listening socket that keeps a number of connections from each address, handshakes included.

    For one more, it closes the oldest connection that waits for its client. If there is none, it
    refuses the new one.
    """

    def __init__(self, listening: socket.socket, per_address: int) -> None:
        super().__init__(fileno=listening.detach())
        self._per_address = per_address
        self._open: dict[int, _AcceptedSocket] = {}  # in the order in which they came

    def accept(self) -> tuple[_AcceptedSocket, Any]:
        """See :meth:`socket.socket.accept`.

        Raises:
            BlockingIOError: nobody is there, or nobody may come in.
        """
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        accepted = _AcceptedSocket(self, peer[0], descriptor)
        others = list(self._open.values())
        from_there = [each for each in others if each.address == accepted.address]
        if len(from_there) >= self._per_address or len(others) >= _IN_ALL:
            crowd = from_there if len(from_there) >= self._per_address else others
            idle = next((each for each in crowd if each.waits), None)
            if idle is None:
                accepted.close()
                raise BlockingIOError
            idle.give_way()
        self._open[descriptor] = accepted
        return accepted, peer

    def belongs(self, descriptor: int, protocol: _Protocol) -> None:
        """Note who serves a connection."""
        if descriptor in self._open:
            self._open[descriptor].protocol = protocol

    def left(self, accepted: _AcceptedSocket) -> None:
        """Note that a connection takes no place any more."""
        if self._open.get(accepted.fileno()) is accepted:
            del self._open[accepted.fileno()]


class _AcceptedSocket(socket.socket):
    """A connection that takes a place of its address."""

    def __init__(self, listening: _ListeningSocket, address: str, descriptor: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, descriptor)
        self._listening = listening
        self.address = address
        self.protocol: _Protocol | None = None
        """Who serves it; nobody during the handshake."""

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn."""
        return self.protocol is None or self.protocol.patience is not None

    def give_way(self) -> None:
        """End: asyncio reads the end of the stream."""
        self._listening.left(self)
        with suppress(OSError):  # the client has left
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See :meth:`socket.socket.close`."""
        self._listening.left(self)
        super().close()


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
