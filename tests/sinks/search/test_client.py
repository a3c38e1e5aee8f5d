"""What a server's refusals mean."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import urllib3

from semel.core.errors import ConfigError, ServiceError, TransientError, Unavailable
from semel.core.ledger import Advance, OffsetRange, Outcome
from semel.core.records import Commit, DeadLetter, RejectedRecord
from semel.driver.planning import plan
from semel.sinks.search.client import Answer, Client, Failure, RequestTooLarge, _node
from semel.sinks.search.indices import Index, create, extend, mapping
from semel.sinks.search.sink import SearchSink
from tests.patience import PATIENCE
from tests.sinks.search.test_config import BASE
from tests.sinks.target import records


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

    do_GET = do_PUT = do_POST

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join(PATIENCE)


@pytest.fixture
def sink(server: Answering) -> Iterator[SearchSink]:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    patient = {"connection.timeout.ms": "600000", "read.timeout.ms": "600000"}
    made = plan({**BASE, **patient, "connection.url": url, "key.ignore": "true"}).sink
    assert isinstance(made, SearchSink)
    yield made
    made.close()


@pytest.fixture
def client(sink: SearchSink) -> Client:
    return sink._client


def refusal(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason}}


@pytest.mark.parametrize(
    ("status", "kind", "error", "says"),
    [
        (429, "circuit_breaking_exception", Unavailable, "too much"),
        (503, "unavailable_shards_exception", Unavailable, "too much"),
        (403, "cluster_block_exception", Unavailable, "too much"),
        (403, "security_exception", ServiceError, "Check connection.username"),
        (401, "security_exception", ServiceError, "Check connection.username"),
        (413, "", RequestTooLarge, "Set bulk.size.bytes below"),
        (400, "illegal_argument_exception", ServiceError, "too much"),
    ],
)
def test_transient_and_permanent_refusals_are_distinguished(
    status: int, kind: str, error: type[Exception], says: str, server: Answering, client: Client
) -> None:
    server.status, server.body = status, refusal(kind, "too much")
    with pytest.raises(error, match=says) as found:
        client.bulk("t", b"{}\n")
    assert type(found.value) is error
    assert "connector c: http://127.0.0.1" in str(found.value)


@pytest.mark.parametrize(
    ("url", "port"), [("http://h", 80), ("https://h/p", 443), ("https://h:9200", 9200)]
)
def test_a_node_without_a_port_has_that_of_its_protocol(url: str, port: int) -> None:
    assert _node(url)["port"] == port


@pytest.mark.parametrize("body", ["down for maintenance", [], {}, {"errors": True}])
def test_an_answer_that_acknowledges_nothing_is_no_success(
    body: Any, server: Answering, client: Client
) -> None:
    """A proxy may answer in the place of the server."""
    server.body = body
    with pytest.raises(ServiceError, match="does not answer like a search server"):
        client.bulk("t", b"{}\n")


def test_dead_letters_are_split_as_documents_are(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one request they would be too large for the server, at each attempt."""
    sizes: list[int] = []
    monkeypatch.setattr(client, "bulk", lambda _index, body: sizes.append(len(body)) or [])
    sink = plan(
        {
            **BASE,
            "errors.tolerance": "all",
            "errors.deadletterqueue.table": "letters",
            "bulk.size.bytes": "4000",
            "batch.size": "3",
        }
    ).sink
    assert isinstance(sink, SearchSink)
    sink._client = client
    sized = [1, 1, 1, 1, 2000, 2000, 9000]
    letters = [
        DeadLetter("t", 0, o, None, b"x" * size, [], 5, "TASK_PUT", "E", "why")
        for o, size in enumerate(sized)
    ]
    sink.write(Commit([], letters))
    assert len(sizes) == 4
    assert all(size < 4000 for size in sizes[:-1])


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"", TransientError, "EOF"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ServiceError, "does not speak TLS"),
        (b"\x15\x03\x03\x00\x02\x02\x50", TransientError, "internal error"),
        (b"\x15\x03\x03\x00\x02\x02\x2a", ServiceError, "bad certificate"),
    ],
)
def test_a_node_that_goes_down_in_a_handshake_is_no_mistake(
    answer: bytes, error: type[Exception], says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answering() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=answering)
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        made = plan({**BASE, "connection.url": url}).sink
        assert isinstance(made, SearchSink)
        with contextlib.closing(made), pytest.raises(error, match=says) as found:
            made._client.request("GET", "/")
        thread.join(PATIENCE)
    assert type(found.value) is error


@pytest.mark.parametrize(
    "cause",
    [
        ssl.SSLCertVerificationError(
            1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
        ),
        FileNotFoundError(2, "No such file or directory"),
        ValueError("hostname 'a' doesn't match 'b'"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_a_mistake(client: Client, cause: Exception) -> None:
    if isinstance(cause, ssl.SSLError):
        cause.reason = "CERTIFICATE_VERIFY_FAILED"
    assert type(client._refused_handshake(urllib3.exceptions.SSLError(cause))) is ServiceError


TYPES = "mapper [a] cannot be changed from type [long] to [text]"
IMMENSE = 'Document contains at least one immense term in field="k"'


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mapper_parsing_exception", "failed to parse"),
        ("document_parsing_exception", "failed to parse"),
        ("strict_dynamic_mapping_exception", "mapping set to strict"),
        ("illegal_argument_exception", IMMENSE),
        ("illegal_argument_exception", "Limit of total fields [2] has been exceeded"),
        ("illegal_argument_exception", "Limit of mapping depth [20] has been exceeded"),
        ("illegal_argument_exception", "Field name [abc] is longer than the limit of [2] ..."),
        ("illegal_argument_exception", TYPES),
    ],
)
def test_documents_are_to_blame_for_what_the_server_says_of_them(kind: str, reason: str) -> None:
    assert Failure(0, 400, kind, reason).of_document


@pytest.mark.parametrize(
    ("kind", "reason", "error"),
    [
        ("index_closed_exception", "closed", TransientError),
        ("illegal_argument_exception", "pipeline with id [x] does not exist", ServiceError),
        ("illegal_argument_exception", "no write index is defined for alias [x]", ServiceError),
        ("routing_missing_exception", "routing is required for [t]/[1]", ServiceError),
    ],
)
def test_documents_are_not_to_blame_for_an_index_that_takes_none(
    kind: str, reason: str, error: type[Exception], server: Answering, sink: SearchSink
) -> None:
    """With errors.tolerance=all they would all be thrown away."""
    sink._indices["t"] = Index("t")
    item = {"index": {"status": 400, **refusal(kind, reason)}}
    server.body = {"errors": True, "items": [item, item]}
    batch = records([{"x": 1}, {"x": 2}], topic="t")
    parts = sink._writer.parts(batch, "t", lambda _tp: 0)
    with pytest.raises(error, match=re.escape(reason)) as found:
        sink._send(parts, lambda: Outcome.APPLIED)
    assert type(found.value) is error
    assert not sink._indices


def test_a_failed_request_is_raised_once_no_other_is_in_flight(
    sink: SearchSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its error would surface during the next attempt."""
    sink._indices["t"] = Index("t")
    begun, failed, ended = threading.Event(), threading.Event(), []

    def bulk(_index: str, body: bytes) -> list[Failure]:
        if b'"t+0+0"' in body:
            assert begun.wait(PATIENCE)
            failed.set()
            raise TransientError("the first")
        begun.set()
        assert failed.wait(PATIENCE)
        time.sleep(0.1)
        ended.append(body)
        return [Failure(0, 429, "rejected_execution_exception", "too much")]

    monkeypatch.setattr(sink._client, "bulk", bulk)
    monkeypatch.setattr(
        sink._bulk, "requests", lambda lines: [(range(1), f"{line}".encode()) for line in lines]
    )
    parts = sink._writer.parts(records([{"x": i} for i in range(3)], topic="t"), "t", lambda _: 0)
    with pytest.raises(TransientError, match="the first"):
        sink._send(parts, lambda: Outcome.APPLIED)
    assert len(ended) == 1
    assert not sink._indices


def test_a_document_that_is_too_large_alone_is_refused_by_itself(
    server: Answering, sink: SearchSink
) -> None:
    def sent(count: int) -> list[RejectedRecord]:
        given = records([{"x": i} for i in range(count)], topic="t")
        parts = sink._writer.parts(given, "t", lambda _: 0)
        return sink._send(parts, lambda: Outcome.APPLIED)

    server.status, server.body = 413, refusal("", "")
    (rejected,) = sent(1)
    assert (rejected.offset, rejected.exception) == (0, "RequestTooLarge")
    assert "alone in its request" in rejected.message
    with pytest.raises(ServiceError, match=r"Set bulk\.size\.bytes below"):
        sent(2)


def test_an_index_is_created_although_a_field_cannot_be_mapped(
    sink: SearchSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record need not stop the connector: the server refuses its document alone."""
    made: dict[str, Any] = {}

    def request(method: str, path: str, body: Any = None, **_: object) -> Answer:
        if method == "GET":
            return Answer(200, {"t": {}}) if made else Answer(404, {})
        fields = (body["mappings"] if path == "/t" else body)["properties"]
        if "" in fields:
            return Answer(400, refusal("mapper_parsing_exception", "field name cannot be empty"))
        made.update({path: True, **fields})
        return Answer(200, {})

    monkeypatch.setattr(sink._client, "request", request)
    sink.accommodate(records([{"": 1, "x": 2}], topic="t"))
    assert made == {"/t": True, "/t/_mapping": True, "x": {"type": "long"}}


def test_an_index_is_not_created_without_mapping_for_other_reasons(
    server: Answering, client: Client
) -> None:
    server.status, server.body = 400, refusal("validation_exception", "too many shards")
    with pytest.raises(ConfigError, match="too many shards") as raised:
        create(client, "t", {}, "connector c")
    assert type(raised.value) is ConfigError  # which the sink does not catch


@pytest.mark.parametrize(
    ("reason", "mapped"),
    [
        ("mapper [c] cannot be changed", {"a", "b", "c", "d"}),
        ("Limit of total fields [1000] has been exceeded", {"a", "b"}),
    ],
)
def test_fields_are_added_one_by_one_as_long_as_there_is_room(
    reason: str, mapped: set[str], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    def request(_method: str, _path: str, body: Any, **_: object) -> Answer:
        asked.append(set(body["properties"]))
        refused = "c" in body["properties"]
        return Answer(400, refusal("x", reason)) if refused else Answer(200, {})

    monkeypatch.setattr(client, "request", request)
    index = Index("t")
    extend(client, index, {name: {"type": "long"} for name in "abcd"})
    assert index.fields == mapped
    assert asked == [{*"abcd"}, {"a"}, {"b"}, {"c"}, {"d"}][: 2 + len(mapped)]


def test_provenance_is_mapped_before_other_fields() -> None:
    columns = {"x": pa.int64(), "o": pa.string()}
    made = mapping(columns, {"__connect_offset": "o"}, derive=True)
    assert list(made.items()) == [("o", {"type": "long"}), ("x", {"type": "long"})]


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


def test_an_answer_of_the_ledger_is_as_old_as_its_question(
    sink: SearchSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be frozen when the answer is there: the permission is stale when it wakes."""
    now, took, asked = [100.0], iter([0.0, 9.0, 3000.0, 0.0]), []
    monkeypatch.setattr("semel.sinks.search.sink.time", SimpleNamespace(monotonic=lambda: now[0]))

    def guard(_advances: object) -> Outcome:
        asked.append(now[0])
        now[0] += next(took)
        return Outcome.APPLIED

    monkeypatch.setattr(sink._ledger, "guard", guard)
    still = sink._guard([Advance(OffsetRange("t", 0, 0, 1), 1, 1)])
    for seconds in (0, 5, 6):
        now[0] += seconds
        assert still() is Outcome.APPLIED
    assert asked == [100, 111]
    now[0] += 2
    with pytest.raises(TransientError, match="ledger's answer came after"):
        still()
    assert still() is Outcome.APPLIED
    assert asked == [100, 111, 122, 3122]
