"""What the command line makes of a worker that is away, busy, silent or none."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from semel.cli import connectors, worker_client
from semel.cli.worker_client import client
from semel.core.errors import ConfigError, ServiceError
from semel_lab.embedded.process import free_port
from tests.cli.conftest import Semel
from tests.patience import PATIENCE

Answer = tuple[int, str]
Serve = Callable[[Callable[[str, str], Answer]], str]
REBALANCE = json.dumps(
    {"error_code": 409, "message": "Cannot complete request momentarily due to stale rebalance"}
)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers as a function of the method and the path says; returns its
    URL."""
    servers = []

    def start(answer: Callable[[str, str], Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                code, text = answer(self.command, self.path)
                self.send_response(code)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                with suppress(OSError):  # the client has given up
                    self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = do

            def log_message(self, *_arguments: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_worker_that_is_away_is_named_with_the_way_out(
    semel: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("SEMEL_WORKER_URL", url)
    ended = semel("connectors", "list")
    assert ended.code == 3
    assert f"no worker can be reached at {url}: Connection refused" in ended.err
    assert "Check --url or SEMEL_WORKER_URL" in ended.err


def test_a_request_during_a_rebalance_is_repeated(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "_AGAIN", 0.01)
    answers = iter([(409, REBALANCE)] * 3 + [(200, '["orders"]')])
    assert client(serve(lambda _method, _path: next(answers))).names() == ["orders"]


def test_a_rebalance_that_does_not_end_is_not_waited_for_forever(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "_AGAIN", 0.01)
    monkeypatch.setattr(worker_client, "_REBALANCES", 0.1)
    with pytest.raises(ServiceError, match="stale rebalance"):
        client(serve(lambda _method, _path: (409, REBALANCE))).names()


@pytest.mark.parametrize(
    "answer",
    [
        (200, "<html>"),
        (200, "null"),
        (200, "5"),
        (200, "[" * 10**5),
        (302, ""),
        (404, "no such page"),
    ],
)
def test_a_server_that_is_no_worker_is_recognised(answer: Answer, serve: Serve) -> None:
    asked = client(serve(lambda _method, _path: answer))
    for ask in (asked.names, asked.statuses, lambda: asked.is_semel):
        with pytest.raises(ServiceError, match="does not answer as a worker"):
            ask()


@pytest.mark.parametrize("connector", ["5", '{"status": 5}', '{"info": []}'])
def test_statuses_of_another_shape_are_recognised(connector: str, serve: Serve) -> None:
    asked = client(serve(lambda _method, _path: (200, f'{{"orders": {connector}}}')))
    with pytest.raises(ServiceError, match="does not answer as a worker"):
        asked.statuses()


def test_a_silent_worker_is_given_up(serve: Serve) -> None:
    held = threading.Event()

    def silent(_method: str, _path: str) -> Answer:
        assert held.wait(PATIENCE)
        return 200, "[]"

    with pytest.raises(ServiceError, match=r"no answer within 0\.1 s"):
        client(serve(silent), timeout=0.1).names()
    held.set()


@pytest.mark.parametrize(
    "half",
    [b"500 x\r\nContent-Length: 5\r\n\r\n", b"200 x\r\nTransfer-Encoding: chunked\r\n\r\n"],
)
def test_an_answer_that_never_ends_is_given_up(half: bytes) -> None:
    """Neither an error without its body, nor one of which a part comes now and then."""
    given_up = threading.Event()

    def trickle(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 " + half)
            while not given_up.wait(0.05):
                connection.sendall(b"1\r\n \r\n" if b"chunked" in half else b"")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=trickle, args=(listening,))
        server.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ServiceError, match=r"no answer within 0\.3 s"):
            client(url, timeout=0.3).names()
        given_up.set()
        server.join(PATIENCE)


@pytest.mark.parametrize(
    "url", ["localhost:8083", "ftp://x", "http://", "http://x:y", "http://x?a"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a worker's URL"):
        client(url)


def test_completion_ends_in_time_and_says_nothing_about_errors(
    serve: Serve, semel: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()

    def silent(_method: str, _path: str) -> Answer:
        assert held.wait(PATIENCE)
        return 200, "[]"

    monkeypatch.setattr(connectors, "_COMPLETES_IN", 0.1)
    monkeypatch.setenv("SEMEL_WORKER_URL", serve(silent))
    monkeypatch.setenv("_SEMEL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "semel connectors status or")
    monkeypatch.setenv("COMP_CWORD", "3")
    ended = semel()
    assert (ended.out.strip(), ended.err) == ("", "")
    held.set()


def test_a_watch_prints_what_changes_and_survives_a_worker_that_starts_again(
    serve: Serve, semel: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connectors, "_EVERY", 0.01)

    def listed(**states: str) -> Answer:
        def one(name: str, state: str) -> Any:
            part = {"state": state, "worker_id": "w"}
            status = {"name": name, "connector": part, "tasks": [{"id": 0, **part}], "type": "sink"}
            return {"status": status, "info": {"config": {}}}

        return 200, json.dumps({name: one(name, state) for name, state in states.items()})

    def answers() -> Iterator[Answer]:
        yield listed(a="RUNNING", b="RUNNING")
        yield listed(a="RUNNING", b="RUNNING")
        yield 500, '{"error_code": 500, "message": "starting"}'
        yield listed(a="FAILED", b="RUNNING")
        yield listed(b="RUNNING")
        while True:
            yield 500, '{"error_code": 500, "message": "over"}'

    given, lock = answers(), threading.Lock()

    def answer(_method: str, _path: str) -> Answer:
        with lock:
            return next(given)

    looks = iter(range(6))

    def sleep(_seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(connectors, "time", SimpleNamespace(sleep=sleep, strftime=time.strftime))
    ended = semel("connectors", "list", "--watch", "--url", serve(answer))
    assert ended.code == 0
    lines = [line.partition(" ")[2] for line in ended.out.splitlines()]
    *changes, over = lines
    assert changes.pop(2).endswith(": starting")
    assert over.endswith(": over")
    assert changes == [
        "a RUNNING, tasks: 1 RUNNING",
        "b RUNNING, tasks: 1 RUNNING",
        "a FAILED, tasks: 1 FAILED",
        "a is gone",
    ]


def test_a_worker_of_this_machine_is_not_asked_through_a_proxy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def proxy(method: str, path: str) -> Answer:
        asked.append(path)
        return 200, "[]"

    monkeypatch.setenv("http_proxy", serve(proxy))
    monkeypatch.delenv("no_proxy", raising=False)
    assert client(serve(lambda _method, _path: (200, "[]"))).names() == []
    assert not asked
