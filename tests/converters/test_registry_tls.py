"""A schema registry whose certificate only a trust store of Java vouches for."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from semel.config import read
from semel.converters.registry.config import RegistryKeys, registry
from semel.core.errors import ConfigError
from semel_lab.embedded.process import LOOPBACK
from tests.kafka.secured import java_trust_store
from tests.patience import PATIENCE
from tests.rest.authority import Authority


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"schema": '"long"', "schemaType": "AVRO"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests are silent."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.pem_store("registry"))
    server = HTTPServer((LOOPBACK, 0), _Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://{LOOPBACK}:{server.server_port}"
    server.shutdown()
    thread.join(PATIENCE)
    server.server_close()


def _asked(url: str, store: Path | str, password: str) -> str:
    config = {
        "schema.registry.url": url,
        "schema.registry.ssl.truststore.location": str(store),
        "schema.registry.ssl.truststore.password": password,
    }
    return registry(read(RegistryKeys, config), "value.converter").schema(1).text


def test_a_trust_store_of_java_is_read(url: str, authority: Authority) -> None:
    assert _asked(url, java_trust_store(authority), authority.password) == '"long"'


def test_a_store_is_not_read_before_the_registry_is_asked() -> None:
    """A configuration may be checked on a machine that lacks the file."""
    with pytest.raises(
        ConfigError,
        match=r"value\.converter\.schema\.registry\.ssl\.truststore\.location=/none cannot be read",
    ):
        _asked("https://registry", "/none", "x")
