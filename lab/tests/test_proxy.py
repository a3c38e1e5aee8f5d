"""What a proxy lets through, and what it can break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from semel_lab.embedded.proxy import Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that answers with what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(line: socket.socket) -> None:
        with line:
            while heard := line.recv(1000):
                line.sendall(heard)

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(line,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo) as made:
        yield made


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 10)


def asked(line: socket.socket) -> bytes:
    line.sendall(b"hello")
    return line.recv(5)


def test_it_carries_bytes_both_ways(proxy: Proxy) -> None:
    with dial(proxy) as line:
        assert asked(line) == b"hello"


def test_a_silent_connection_stays_open_and_new_ones_work(proxy: Proxy) -> None:
    with dial(proxy) as line:
        assert asked(line) == b"hello"
        assert proxy.silence() == 1
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):
            asked(line)
        with dial(proxy) as another:
            assert asked(another) == b"hello"


def test_new_connections_can_be_silent_too(proxy: Proxy) -> None:
    proxy.silence(new=True)
    with dial(proxy) as line:
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):
            asked(line)
    proxy.accept()
    with dial(proxy) as line:
        assert asked(line) == b"hello"


def test_it_refuses_and_accepts_again_at_the_same_port(proxy: Proxy) -> None:
    with dial(proxy) as line:
        assert asked(line) == b"hello"
        proxy.refuse()
        with contextlib.suppress(ConnectionError):  # or its end comes before the question goes
            assert asked(line) == b""
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
    proxy.accept()
    with dial(proxy) as line:
        assert asked(line) == b"hello"


def test_urls_name_the_proxy_and_keep_the_rest(proxy: Proxy) -> None:
    url = proxy.url("jdbc:postgresql://u:p@there:5/d?x=1")
    assert url == f"jdbc:postgresql://u:p@127.0.0.1:{proxy.port}/d?x=1"
