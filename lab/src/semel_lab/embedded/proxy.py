"""A TCP proxy that can fall silent and can close, refuse or delay connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from semel_lab.embedded.process import LOOPBACK

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)


class _Link:
    """One connection through the proxy."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = (near, far)
        self.silent = threading.Event()

    def shut(self) -> None:
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Forwards bytes between its own port and a server's, for tests and drills.

    ``delay`` holds back each chunk for that many seconds; ``held`` counts the bytes that
    :meth:`silence` has held back.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._mute = False
        self._listener: socket.socket | None = None
        self.delay = 0.0
        self.held = 0
        self.port = 0
        self.accept()

    @classmethod
    def before(cls, url: str) -> Proxy:
        """A proxy for the server that a URL names."""
        parts = urlsplit(url.removeprefix("jdbc:"))
        assert parts.hostname and parts.port
        return cls(parts.hostname, parts.port)

    def url(self, url: str) -> str:
        """The URL with the proxy's address instead of the server's."""
        bare = url.removeprefix("jdbc:")
        parts = urlsplit(bare)
        login, at, _ = parts.netloc.rpartition("@")
        moved = parts._replace(netloc=f"{login}{at}{LOOPBACK}:{self.port}")
        return url[: len(url) - len(bare)] + urlunsplit(moved)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # Faults

    def silence(self, *, new: bool = False) -> int:
        """Stop forwarding bytes on the present connections. They stay open, and the kernel keeps
        acknowledging what arrives. With ``new``, later connections are silent too, until
        :meth:`accept`. Returns how many fell silent."""
        with self._lock:
            self._mute = new
            fallen = [link for link in self._links if not link.silent.is_set()]
        for link in fallen:
            link.silent.set()
        return len(fallen)

    def cut(self) -> None:
        """Reset all connections."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.shut()

    def refuse(self) -> None:
        """Reset all connections and refuse new ones, until :meth:`accept`."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def accept(self) -> None:
        """Accept new connections and forward their bytes."""
        with self._lock:
            self._mute = False
            if self._listener is not None:
                return
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, self.port))
            listener.listen(64)
            self.port = listener.getsockname()[1]
            self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def close(self) -> None:
        self.refuse()

    # Forwarding

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):  # before another thread can shut them
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(near, far)
            with self._lock:
                if self._mute:
                    link.silent.set()
                self._links.add(link)
            for source, sink in (link.ends, link.ends[::-1]):
                carry: Any = (link, source, sink)
                threading.Thread(target=self._carry, args=carry, daemon=True).start()

    def _carry(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        try:
            while not link.silent.is_set():
                chunk = source.recv(_CHUNK)
                if link.silent.is_set():
                    self.held += len(chunk)
                    return  # what has come is held back, and so is its end
                if not chunk:
                    break
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(chunk)
        except OSError:
            pass
        if not link.silent.is_set():
            with self._lock:
                self._links.discard(link)
            link.shut()
