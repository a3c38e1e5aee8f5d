"""What a server's refusals mean."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from semel.errors import ServiceError, TransientError
from semel.run import plan
from semel.sinks.search.client import Client
from tests.sinks.search.test_config import BASE


class Answering(http.server.ThreadingHTTPServer):
    """Gives one answer to everything."""

    status = 200
    body: Any = None


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        content = json.dumps(self.server.body).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def client(server: Answering) -> Iterator[Client]:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    made: Client = plan({**BASE, "connection.url": url}).sink._client  # type: ignore[attr-defined]
    yield made
    made.close()


def refusal(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason}}


@pytest.mark.parametrize(
    ("status", "kind", "error", "says"),
    [
        (429, "circuit_breaking_exception", TransientError, "too much"),
        (503, "unavailable_shards_exception", TransientError, "too much"),
        (403, "cluster_block_exception", TransientError, "too much"),
        (403, "security_exception", ServiceError, "Check connection.username"),
        (401, "security_exception", ServiceError, "Check connection.username"),
        (413, "", ServiceError, "Set bulk.size.bytes below"),
        (400, "illegal_argument_exception", ServiceError, "too much"),
    ],
)
def test_refusals_that_pass_and_those_that_do_not(
    status: int, kind: str, error: type[Exception], says: str, server: Answering, client: Client
) -> None:
    server.status, server.body = status, refusal(kind, "too much")
    with pytest.raises(error, match=says) as found:
        client.bulk("t", b"{}\n")
    assert type(found.value) is error
    assert "connector c: http://127.0.0.1" in str(found.value)


def test_each_action_of_a_request_is_judged_by_itself(server: Answering, client: Client) -> None:
    cause = {"type": "x", "reason": "For input string", "caused_by": {"reason": "why"}}
    server.body = {
        "errors": True,
        "items": [
            {"index": {"status": 201}},
            {"index": {"status": 409, **refusal("version_conflict_engine_exception", "newer")}},
            {"delete": {"status": 404}},
            {"index": {"status": 400, "error": {"type": "m", "reason": "r", "caused_by": cause}}},
        ],
    }
    found = client.bulk("t", b"{}\n")
    assert [(f.place, f.status, f.reason) for f in found] == [
        (1, 409, "newer"),
        (3, 400, "r: For input string: why"),
    ]
