"""The listening sockets of the REST API: what a client that leaves things half done can hold up."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.worker.rest import server
from semel.worker.rest.server import RestServer, Site, _bound
from semel_lab.embedded.process import LOOPBACK
from tests.engine.harness import wait_until
from tests.patience import PATIENCE
from tests.rest.authority import Authority

LARGE = 64 * 1024 * 1024
URL = f"http://{LOOPBACK}:0"


def test_answers_do_not_wait_for_a_delayed_acknowledgement() -> None:
    """Head and body of an answer are two small writes."""
    with (
        _bound("http://127.0.0.1:0") as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body, or with a large body of its own."""
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    body = b"x" * LARGE if scope["path"] == "/large" else str(length).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def connections(port: int, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as ends:
        made = []
        for _ in range(count):
            made.append(ends.enter_context(socket.create_connection((LOOPBACK, port), PATIENCE)))
            made[-1].sendall(sent)
        yield made


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadlines, as short as a test wants them."""
    for name in ("_HEADER_IN", "_BODY_IN", "_HANDSHAKE_IN", "_STALLED_IN"):
        monkeypatch.setattr(server, name, 0.3)
    monkeypatch.setattr(server, "_TICK", 0.1)


@pytest.mark.parametrize(
    "half",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT",
    ],
    ids=["a header", "a body", "a chunk", "the next header"],
)
def test_a_connection_with_half_of_a_request_is_closed(half: bytes, hurried: None) -> None:
    with (
        RestServer([Site(application, URL)]) as started,
        connections(started.ports[0], 3, half) as made,
    ):
        for each in made:
            assert b" 408 " in rest_of(each) or half.startswith(b"GET / ")


def test_a_request_that_drips_in_is_closed(hurried: None) -> None:
    with (
        RestServer([Site(application, URL)]) as started,
        connections(started.ports[0], 1, b"GET / HTTP/1.1\r\n") as [dripping],
    ):
        dripping.settimeout(0.05)

        def drips() -> bool:
            try:
                dripping.sendall(b"x")
                return dripping.recv(1000) == b"" or True
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(drips)


def test_a_handshake_that_is_not_finished_is_closed(hurried: None, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path).pem_store("server"))
    site = Site(application, f"https://{LOOPBACK}:0", context)
    with (
        RestServer([site]) as started,
        connections(started.ports[0], 1, b"\x16\x03\x01\x02\x00\x01") as [half],
    ):
        assert rest_of(half) == b""


def test_a_client_that_does_not_read_its_answer_is_cut_off(hurried: None) -> None:
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        RestServer([Site(application, URL)]) as started,
        connections(started.ports[0], 1, request) as [idle],
    ):
        listening: Any = started._sockets[0]
        wait_until(lambda: listening._open)
        wait_until(lambda: not listening._open)
        assert len(rest_of(idle)) < LARGE
        url = f"http://{LOOPBACK}:{started.ports[0]}/large"
        assert len(httpx.get(url, timeout=PATIENCE).content) == LARGE


def test_half_sent_requests_do_not_keep_others_of_the_same_address_out() -> None:
    """The deadlines are the real ones: none of them passes here."""
    site = Site(application, URL, per_address=20)
    with RestServer([site]) as started:
        url = f"http://{LOOPBACK}:{started.ports[0]}/health"
        with connections(started.ports[0], 200, b"GET / HTTP/1.1\r\nHost: x\r\n") as made:
            for _ in range(3):
                assert httpx.get(url, timeout=PATIENCE).status_code == 200
            listening: Any = started._sockets[0]
            assert len(listening._open) <= 20
            assert rest_of(made[0]) == b""


def test_a_client_may_keep_its_connection_and_take_its_time_between_requests(
    hurried: None,
) -> None:
    with (
        RestServer([Site(application, URL)]) as started,
        httpx.Client(base_url=f"http://{LOOPBACK}:{started.ports[0]}", timeout=PATIENCE) as client,
    ):
        listening: Any = started._sockets[0]
        clock = threading.Event()
        for _ in range(10):
            assert client.put("/", content=b"x" * 1_000_000).text == "1000000"
            first = next(iter(listening._open.values()))
            clock.wait(0.1)
        assert list(listening._open.values()) == [first]
