"""A server in front of another one, and what goes wrong on the way.

It forwards each request and returns the answer. A fault hits the requests that it matches: an error
instead of the request, an answer that is lost after the request has been carried out, or a request
that arrives twice, as it does if a client or a gateway in between retries by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any, Protocol
from urllib.parse import urlsplit

from semel_lab.embedded.proxy import Proxy

KINDS = ("refused", "lost", "cut", "twice")
"""The request is not carried out, and answered with 503; is carried out, and answered with 500, or
not at all; is carried out twice, and the second answer is returned."""
_HOP = {
    *("connection", "transfer-encoding", "keep-alive", "date", "server", "content-length", "expect")
}


@dataclass
class Fault:
    """What happens to the next ``times`` requests for which ``hits`` is true."""

    kind: str
    hits: Callable[[str, str], bool]
    times: int = 1
    matched: list[str] = field(default_factory=list)


class PendingFault(Protocol):
    """A fault that is still to come, or has come."""

    @property
    def matched(self) -> list[str]:
        """The requests that it has hit so far."""
        ...


class Faults:
    """Faults to inject into requests through ``url``."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.url = ""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def come(self, kind: str, method: str, part: str, times: int = 1) -> PendingFault:
        """Let a fault hit requests by their method and a part of their path or headers."""
        assert kind in KINDS
        fault = Fault(kind, lambda m, text: m == method and part in text, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def of(self, method: str, text: str) -> str:
        """The kind of fault that hits a request, if any."""
        with self._lock:
            for fault in self._faults:
                if len(fault.matched) < fault.times and fault.hits(method, text):
                    fault.matched.append(f"{method} {text.splitlines()[0]}")
                    return fault.kind
        return ""


@contextmanager
def before(backend: str) -> Iterator[Faults]:
    """A server in front of ``backend``, which other processes can reach, too."""
    faults = Faults(backend)
    there = urlsplit(backend)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits for the headers' acknowledgement

        def _handle(self) -> None:
            body = self._body()
            kind = faults.of(self.command, f"{self.path}\n{self.headers}")
            if kind == "refused":
                self._answer(503, {}, b"")
                return
            status, headers, content = self._carried_out(body)
            if kind == "twice":
                status, headers, content = self._carried_out(body)
            if kind == "lost":
                self._answer(500, {}, b"")
            elif kind == "cut":
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self._answer(status, headers, content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            whole = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole

        def _carried_out(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(str(there.hostname), there.port, timeout=60)
            try:
                keep = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
                connection.request(self.command, self.path, body or None, keep)
                answer = connection.getresponse()
                content = answer.read()
                headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
                if self.command == "HEAD":
                    headers["Content-Length"] = answer.getheader("content-length") or "0"
                return answer.status, headers, content
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers and status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tests look at what comes of it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    faults.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        server.shutdown()
        server.server_close()


class _Served:
    """A server and its faults, in a process of their own."""

    def __init__(self, serve: Callable[[], AbstractContextManager[str]]) -> None:
        self._until_the_end = contextlib.ExitStack()
        endpoint = self._until_the_end.enter_context(serve())
        self._faults = self._until_the_end.enter_context(before(endpoint))
        self._come: list[PendingFault] = []

    def places(self) -> tuple[str, str]:
        return self._faults.backend, self._faults.url

    def come(self, kind: str, method: str, part: str, times: int) -> int:
        self._come.append(self._faults.come(kind, method, part, times))
        return len(self._come) - 1

    def matched(self, number: int) -> list[str]:
        return self._come[number].matched

    def clear(self) -> None:
        self._faults.clear()


class _Manager(BaseManager):
    pass


_Manager.register("Served", _Served)


@dataclass
class _Apart:
    served: Any
    number: int

    @property
    def matched(self) -> list[str]:
        return list(self.served.matched(self.number))


class _FaultsApart(Faults):
    def __init__(self, served: Any) -> None:
        backend, url = served.places()
        super().__init__(backend)
        self.url = url
        self._served = served

    def come(self, kind: str, method: str, part: str, times: int = 1) -> PendingFault:
        return _Apart(self._served, self._served.come(kind, method, part, times))

    def clear(self) -> None:
        self._served.clear()


@contextmanager
def apart(serve: Callable[[], AbstractContextManager[str]]) -> Iterator[Faults]:
    """Serve, with faults in front of it, in another process: drivers in Rust may hold Python's lock
    while they wait for an answer."""
    with _Manager(ctx=get_context("forkserver")) as manager:
        yield _FaultsApart(manager.Served(serve))  # type: ignore[attr-defined]


class _Proxies(BaseManager):
    """A proxy in a process of its own."""


_Proxies.register("Proxy", Proxy)


@contextmanager
def proxied(url: str) -> Iterator[Any]:
    """A :class:`Proxy` before a server, in another process for the same reason."""
    parts = urlsplit(url)
    with _Proxies(ctx=get_context("forkserver")) as manager:
        proxy = manager.Proxy(parts.hostname, parts.port)  # type: ignore[attr-defined]
        try:
            yield proxy
        finally:
            proxy.close()
