"""How the registry is reached: several addresses, bearer tokens, and one that is away."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pytest

from semel.config import read
from semel.converters.registry.config import RegistryKeys, registry
from semel.core.errors import ConfigError, ServiceError, Unavailable
from semel.driver.planning import plan_source
from semel.sources.base import source_records
from semel.tasks.source.encoder import Encoder, SkipLog, SkippedRecord
from semel_lab.embedded.process import LOOPBACK
from tests.patience import PATIENCE

SCHEMA = '"long"'


class Server(HTTPServer):
    """A registry with one schema, which wants ``login`` and answers with ``status``, and with
    ``answer`` if that is given for the path."""

    login: str | None = None
    status = 200
    asked = 0
    answers: Mapping[str, bytes] = {}


class _Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        status = self.server.status
        if self.server.login not in (None, self.headers["Authorization"]):
            status = 401
        answer = {"schema": SCHEMA, "schemaType": "AVRO"} if status == 200 else {"error_code": 1}
        body = json.dumps(answer | {"message": "no"}).encode()
        body = self.server.answers.get(self.path, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Tests are silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server((LOOPBACK, 0), _Answers)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join(PATIENCE)
    made.server_close()


def _asked(url: str, **more: str) -> str:
    config = {"schema.registry.url": url, **{k.replace("_", "."): v for k, v in more.items()}}
    return registry(read(RegistryKeys, config), "value.converter").schema(1).text


def _url(server: Server) -> str:
    return f"http://{LOOPBACK}:{server.server_port}"


def test_a_variable_of_a_shell_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"=\$REGISTRY must begin .* write \$\{env:NAME\}"):
        _asked("$REGISTRY")


def test_the_second_address_answers_if_the_first_is_down(server: Server) -> None:
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind((LOOPBACK, 0))
        down = f"http://{LOOPBACK}:{taken.getsockname()[1]}"
        assert _asked(f"{down},{_url(server)}") == SCHEMA
        with pytest.raises(Unavailable, match="cannot be reached"):
            _asked(down)


def test_a_bearer_token_is_sent(server: Server) -> None:
    server.login = "Bearer t0ken"
    bearer = {"bearer_auth_credentials_source": "STATIC_TOKEN", "bearer_auth_token": "t0ken"}
    assert _asked(_url(server), **bearer) == SCHEMA
    with pytest.raises(ServiceError, match="refuses the login"):
        _asked(_url(server), **{**bearer, "bearer_auth_token": "old"})


def test_a_registry_that_cannot_answer_now_is_asked_again_and_then_away(server: Server) -> None:
    server.status = 503
    with pytest.raises(Unavailable, match="cannot answer now"):
        _asked(_url(server))
    assert server.asked > 1
    server.status = 200
    assert _asked(_url(server)) == SCHEMA


@pytest.mark.parametrize(
    "answer",
    [b"<html>", b"[]", b"null", b"", b"{}", b'{"schema":{}}', b'{"schema":"x","ruleSet":5}'],
)
def test_an_answer_that_is_no_schema_stops_the_connector(server: Server, answer: bytes) -> None:
    server.answers = {"/schemas/ids/1": answer}
    with pytest.raises(ServiceError, match=r"does not answer as a schema registry: .* Check value"):
        _asked(_url(server))


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("value.converter", "value.converter.schema.registry.url"),
        ("schema.registry", "schema.registry.url"),  # of the REST proxy
    ],
)
def test_the_key_to_check_is_named_as_users_write_it(server: Server, where: str, name: str) -> None:
    server.answers = {"/schemas/ids/1": b"<html>"}
    made = registry(read(RegistryKeys, {"schema.registry.url": _url(server)}), where)
    with pytest.raises(ServiceError, match=rf"Check {re.escape(name)}$"):
        made.schema(1)


def test_a_redirect_stops_the_connector(server: Server) -> None:
    server.status = 302
    with pytest.raises(ServiceError, match=r"it redirects \(HTTP status code 302\)"):
        _asked(_url(server))


def test_references_are_found_though_they_are_deleted(server: Server) -> None:
    """Deleted versions are not listed, but what refers to them may still be read."""
    reference = {"name": "a.Inner", "subject": "inner", "version": 1}
    server.answers = {
        "/schemas/ids/1": json.dumps({"schema": '"a.Inner"', "references": [reference]}).encode(),
        "/subjects/inner/versions/1?deleted=true": b'{"schema":"{}","id":2}',
        "/subjects/inner/versions/1?deleted=false": b'{"schema":"not to be asked","id":2}',
    }
    made = registry(read(RegistryKeys, {"schema.registry.url": _url(server)}), "value.converter")
    assert made.schema(1).references == (("a.Inner", "{}"),)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bearer.auth.credentials.source", "SECRET", "must be one of STATIC_TOKEN, OAUTHBEARER"),
        ("bearer.auth.credentials.source", "STATIC_TOKEN", "bearer.auth.token is required with"),
        ("schema.registry.ssl.ca.location", "/none", "Check value.*.ca.location=/none"),
    ],
)
def test_what_no_connection_can_be_made_of_is_named(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _asked("https://registry", **{key: value})


def test_a_registry_that_refuses_schemas_is_logged_once_though_bad_records_are_not(
    server: Server,
) -> None:
    server.status = 422
    connector = plan_source(
        {
            "name": "lines",
            "connector.class": "FileStreamSource",
            "file": "test.txt",
            "topic": "lines",
            "bootstrap.servers": "localhost:1",
            "errors.tolerance": "all",
            "value.converter": "io.confluent.connect.avro.AvroConverter",
            "value.converter.schema.registry.url": f"http://{LOOPBACK}:{server.server_port}",
        }
    ).connector
    encoder, log = Encoder(connector), SkipLog(connector)
    told: list[str] = []
    for _ in range(2):
        skipped: list[SkippedRecord] = []
        encoder.messages(source_records("t", pa.array(["a", "b"])), skipped)
        assert len(skipped) == 2
        told += log.lines(skipped)
    (line,) = told
    assert line.startswith("errors.tolerance=all: skipping all records like this one: bad record")
    assert "refuses: no (HTTP status code 422" in line
