"""A server's answer is read up to a limit, whatever it sends: a registry, a catalog, a store."""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import requests
import urllib3

from semel.config import read
from semel.config.providers import resolved
from semel.converters.registry.client import Registry
from semel.core.answers import TooLarge, content_of, limit_httpx, limit_requests, limit_urllib3
from semel.core.errors import ServiceError, TransientError, Unavailable, Unresolvable
from semel.sinks.iceberg import catalog
from semel.sinks.search.client import Client
from semel.sinks.search.config import SearchConfig
from semel.storage.webhdfs import WebHdfsStore
from semel_lab.embedded.process import LOOPBACK


def deflated_zeros(megabytes: int) -> bytes:
    """Without an end: whoever reads that far has read too much."""
    packer = zlib.compressobj(1, wbits=-15)
    one = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return one * megabytes


BOMB = gzip.compress(b"")[:10] + deflated_zeros(700)
"""What is a small answer until it is unpacked."""
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Answers with 700 MB, or below ``/deep`` with JSON that is nested without end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            deep = "/deep/" in self.path
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if not deep:
                self.send_header("Content-Encoding", "gzip")
            body = DEEP if deep else BOMB
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{serving.server_port}"
        serving.shutdown()


def config_of(url: str) -> SearchConfig:
    keys = {"name": "x", "connector.class": "search", "topics": "t", "connection.url": url}
    return read(SearchConfig, keys)


def of_requests(url: str) -> None:
    with requests.Session() as session:
        limit_requests(session, 1000)
        session.get(url)


def of_httpx(url: str) -> None:
    with httpx.Client() as client:
        limit_httpx(client, 1000)
        client.get(url)


def of_urllib3(url: str) -> None:
    with urllib3.connection_from_url(url) as pool:
        limit_urllib3(pool, 1000)
        pool.urlopen("GET", "/")


@pytest.mark.parametrize("ask", [of_requests, of_httpx, of_urllib3])
def test_a_client_does_not_wait_for_an_answer_that_trickles_in(
    ask: Callable[[str], None], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.core.answers.PATIENCE", -1.0)
    monkeypatch.setattr("semel.core.answers._PIECE", 10)
    with pytest.raises(TimeoutError, match=r"127\.0\.0\.1.* is not complete after"):
        ask(f"{server}/deep")


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "large", "."])
def test_what_is_no_file_of_a_sane_size_is_not_read(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(1001))
    with pytest.raises(OSError, match=r"it is not a file|has more than 1,000 bytes"):
        content_of(tmp_path / name, 1000)


def test_a_reference_to_a_device_or_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(Unresolvable, match=r"cannot read .*it is not a file"):
            resolved({"name": "x", "a": f"${{file:{path}:k}}"})


@pytest.mark.parametrize("ask", [of_requests, of_httpx, of_urllib3])
def test_a_client_reads_no_more_of_an_answer_than_its_limit(
    ask: Callable[[str], None], server: str
) -> None:
    with pytest.raises(TooLarge, match=r"127\.0\.0\.1.* has more than 1,000 bytes"):
        ask(server)


def test_a_registry_whose_answer_is_too_large_is_named(server: str) -> None:
    with pytest.raises(ServiceError, match=r"has more than 16,777,216 bytes.*Check value"):
        Registry({"url": server}, "value.converter").schema(1)


def test_an_issuer_of_tokens_whose_answer_is_too_large_is_named(server: str) -> None:
    settings = {
        "url": server,
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.client.id": "me",
        "bearer.auth.client.secret": "x",
        "bearer.auth.scope": "all",
        "bearer.auth.issuer.endpoint.url": f"{server}/token",
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1",
        "max.retries": 0,
    }
    with pytest.raises(Unavailable, match=r"/token has more than 16,777,216 bytes"):
        Registry(settings, "value.converter").schema(1)


def test_a_search_server_whose_answer_is_too_large_is_named(server: str) -> None:
    with pytest.raises(ServiceError, match="has more than 134,217,728 bytes"):
        Client(config_of(server), "x").request("GET", "/_search")


def test_a_catalog_whose_answer_is_too_large_is_named(server: str) -> None:
    with pytest.raises(TooLarge, match="/v1/config has more than 134,217,728 bytes"):
        catalog._rest("x", 60.0, {"uri": server})


def test_a_webhdfs_gateway_whose_answer_is_too_large_is_named(server: str) -> None:
    store = WebHdfsStore(server.replace("http", "webhdfs") + "/x", {})
    with pytest.raises(TransientError, match="has more than 134,217,728 bytes"):
        store.read("x")


def test_an_answer_that_is_nested_without_end_is_no_answer(server: str) -> None:
    with pytest.raises(ServiceError, match="it is not JSON"):
        Registry({"url": f"{server}/deep"}, "value.converter").schema(1)
    with pytest.raises(ServiceError, match="does not answer like a search server"):
        Client(config_of(f"{server}/deep"), "x").request("GET", "/_search")
