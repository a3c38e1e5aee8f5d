"""What a user who may only read sends to a worker to harm it: the worker lives, answers others
meanwhile, runs nothing and gives nothing away."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel_lab.embedded.process import LOOPBACK
from tests.patience import PATIENCE

POSTGRES = {
    "name": "orders",
    "connector.class": "postgresql",
    "topics": "orders",
    "connection.url": "postgresql://db/shop",
}
SEARCH = {
    "name": "found",
    "connector.class": "OpenSearchSink",
    "topics": "orders",
    "connection.url": "http://search:9200",
    "key.ignore": "true",
}
FILE = {"name": "lines", "connector.class": "FileStreamSource", "topic": "lines", "file": "x"}
SECRET = "Xqvzrth-Qkwplm,Jynxo.wyvqrn;Zqphyr Kumqvat"
REGEX_ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
TOPIC_MATCHES = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
LOADS = (
    *("plugin.library.paths", "ssl.engine.location", "ssl.providers", "ssl.ca.location"),
    *("ssl.key.location", "ssl.certificate.location", "ssl.crl.location"),
    *("ssl.keystore.location", "ssl.truststore.location", "sasl.kerberos.keytab"),
    *("https.ca.location", "sasl.oauthbearer.assertion.private.key.file"),
    *("sasl.oauthbearer.assertion.file", "sasl.oauthbearer.assertion.jwt.template.file"),
)

FATAL = {
    "aborts": "import os; os.abort()",
    "swells": "x = [bytearray(1 << 20) for _ in range(1 << 20)]",
    "loops": "while True: pass",
}
"""Plugins that do what a library may do with a configuration that nobody has thought of."""


class Victim:
    """A worker whose API the attacks are sent to: by a reader, or by a writer."""

    def __init__(self, port: int, process: subprocess.Popen[str], folder: Path) -> None:
        self.folder = folder
        self._process = process
        self.url = f"http://{LOOPBACK}:{port}"

    def send(
        self, path: str, body: Any, token: str = "read", method: str = "PUT"
    ) -> httpx.Response:
        return httpx.request(
            method,
            self.url + path,
            content=body if isinstance(body, bytes) else json.dumps(body),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=PATIENCE,
        )

    def get(self, path: str, token: str = "read") -> httpx.Response:
        return self.send(path, b"", token, "GET")

    def validate(self, config: dict[str, str]) -> httpx.Response:
        return self.send(f"/connector-plugins/{config['connector.class']}/config/validate", config)

    def errors(self, config: dict[str, str]) -> dict[str, list[str]]:
        """The messages about the keys of a configuration that a reader validates."""
        answer = self.validate({"bootstrap.servers": "kafka:9092", **config})
        assert answer.status_code == 200, answer.text
        values = [found["value"] for found in answer.json()["configs"]]
        return {value["name"]: value["errors"] for value in values if value["errors"]}

    def is_well(self) -> bool:
        healthy = httpx.get(f"{self.url}/health", timeout=PATIENCE).status_code == 200
        return healthy and self._process.poll() is None


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("victim")
    (folder / "tokens.properties").write_text("reader=read\nwriter=write\n")
    (folder / "secrets.properties").write_text(f"treasure={SECRET}\n")
    (folder / "surprise.py").write_text(f"open({str(folder / 'imported')!r}, 'w').close()\n")
    plugins = folder / "fatal-1.dist-info"
    plugins.mkdir()
    (plugins / "METADATA").write_text("Metadata-Version: 2.1\nName: fatal\nVersion: 1\n")
    entries = [f"{name} = {name}:Sink" for name in FATAL]
    (plugins / "entry_points.txt").write_text("\n".join(["[semel.sinks]", *entries]))
    for name, program in FATAL.items():
        (folder / f"{name}.py").write_text(program)
    file = folder / "worker.properties"
    file.write_text(
        f"listeners=http://{LOOPBACK}:0\nbootstrap.servers=localhost:1\n"
        f"semel.rest.tokens.file={folder}/tokens.properties\n"
        "semel.rest.read.only.users=reader\nsemel.rest.anonymous.paths=/health\n"
        "config.providers=file\n"
        "config.providers.file.class="
        "org.apache.kafka.common.config.provider.FileConfigProvider\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "tests.rest.victim", str(file)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield Victim(int(process.stdout.readline()), process, folder)
        process.kill()


@pytest.fixture(autouse=True)
def survives(victim: Victim) -> Iterator[None]:
    yield
    assert victim.is_well()


def reference(victim: Victim) -> str:
    return f"${{file:{victim.folder}/secrets.properties:treasure}}"


def some(*cases: Any) -> list[Any]:
    """The first case, and the others as long ones."""
    return [cases[0], *(pytest.param(case, marks=pytest.mark.long) for case in cases[1:])]


# Text that is none


@pytest.mark.parametrize("character", ["\ud800", "\0", "\x1b"])
@pytest.mark.parametrize(
    "key",
    some("name", "topics", "bootstrap.servers", "consumer.override.client.id", "connection.url"),
)
def test_text_that_is_none_is_refused(victim: Victim, key: str, character: str) -> None:
    answer = victim.validate({**POSTGRES, key: f"a{character}b"})
    assert answer.status_code == 400
    assert f"U+{ord(character):04X}" in answer.json()["message"]


@pytest.mark.parametrize("character", ["\ud800", "\0", "\n"])
def test_a_key_that_is_no_text_is_refused(victim: Victim, character: str) -> None:
    answer = victim.validate({**POSTGRES, f"consumer.override.{character}": "x"})
    assert answer.status_code == 400


@pytest.mark.parametrize("body", [b'"\xff\xfe"', b'{"name": "\xc3\x28"}', b"[" * 100_000, b"{}}"])
def test_a_body_that_is_no_json_is_refused(victim: Victim, body: bytes) -> None:
    answer = victim.send("/connector-plugins/postgresql/config/validate", body)
    assert 400 <= answer.status_code < 500


def test_text_may_have_lines(victim: Victim) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\r\n"
    assert not victim.errors({**POSTGRES, "consumer.override.ssl.ca.pem": pem})


# Code and files


@pytest.mark.parametrize("client", some("consumer", "producer", "admin"))
@pytest.mark.parametrize("setting", some(*LOADS))
def test_a_client_setting_opens_no_file(
    victim: Victim, tmp_path: Path, client: str, setting: str
) -> None:
    """Whoever opens a named pipe waits until somebody writes into it."""
    pipe = tmp_path / "pipe.so"
    os.mkfifo(pipe)
    key = f"{client}.override.{setting}"
    secured = {f"{client}.override.security.protocol": "SASL_SSL"}
    errors = victim.errors({**POSTGRES, **secured, key: str(pipe)})
    assert any("cannot be set for a connector of this worker" in e for e in errors[key])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sasl.kerberos.kinit.cmd", "touch {ran}"),
        ("sasl.kerberos.principal", "x; touch {ran}"),
        ("interceptors", "0x1234"),
        ("default_topic_conf", "1"),
        ("internal.termination.signal", "9"),
        ("sasl.oauthbearer.metadata.authentication.type", "aws_iam"),
        ("sasl.oauthbearer.token.endpoint.url", "file:///etc/passwd"),
        ("sasl.login.callback.handler.class", "acme.Handler"),
        ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required a='b';"),
        ("sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required keyTab='/k';"),
        ("sasl.jaas.config", "x" * 500_000),
        ("ssl.engine.id", "dynamic"),
        ("no.such.setting", "1"),
    ],
)
def test_client_settings_come_from_a_list(
    victim: Victim, tmp_path: Path, setting: str, value: str
) -> None:
    ran = tmp_path / "ran"
    key = f"consumer.override.{setting}"
    login = {
        "consumer.override.security.protocol": "SASL_PLAINTEXT",
        "consumer.override.sasl.mechanism": "GSSAPI",
    }
    assert victim.errors({**POSTGRES, **login, key: value.format(ran=ran)})[key]
    assert not ran.exists()


@pytest.mark.parametrize("connector", [POSTGRES, FILE])
def test_a_reader_imports_nothing(victim: Victim, connector: dict[str, str]) -> None:
    given = {"transforms": "t", "transforms.t.type": "python"}
    errors = victim.errors({**connector, **given, "transforms.t.function": "surprise:f"})
    (message,) = errors["transforms.t.function"]
    assert "semel.python.modules" in message
    assert not (victim.folder / "imported").exists()


@pytest.mark.parametrize(
    "name", ["py-io-impl", "py-catalog-impl", "s3.retry-strategy-impl", "auth.impl"]
)
def test_a_catalog_imports_nothing(victim: Victim, name: str) -> None:
    key = f"iceberg.catalog.{name}"
    lake = {"name": "lake", "connector.class": "iceberg", "topics": "a", "iceberg.tables": "db.a"}
    assert victim.errors({**lake, key: "surprise.Class"})[key]
    assert not (victim.folder / "imported").exists()


@pytest.mark.parametrize("plugin", some(*FATAL))
@pytest.mark.parametrize("token", ["read", "write"])
def test_validation_that_dies_takes_nothing_along(victim: Victim, plugin: str, token: str) -> None:
    validates, sets = f"/connector-plugins/{plugin}/config/validate", "/connectors/orders/config"
    config = {**POSTGRES, "connector.class": plugin}
    answer = victim.send(validates if token == "read" else sets, config, token)
    assert answer.status_code == 400
    assert "the process that did so has died" in answer.json()["message"]
    assert victim.is_well()
    assert not victim.errors(POSTGRES)


# Patterns


@pytest.mark.parametrize(
    "pattern", some("(a+)+b", "(?!x)(a|a)+b", "(?:a|aa)+(?<=c)", r"((a|a)+)\1b")
)
@pytest.mark.parametrize("place", some("router", "predicate", "topics.regex"))
def test_a_pattern_stops_nobody(victim: Victim, pattern: str, place: str) -> None:
    topic = "a" * 60
    router = {"transforms": "t", "transforms.t.type": REGEX_ROUTER}
    given = {
        "router": {"topics": topic, "transforms.t.regex": pattern, "transforms.t.replacement": "x"},
        "predicate": {
            "topics": topic,
            "transforms.t.regex": "(.*)",
            "transforms.t.replacement": "x",
            "transforms.t.predicate": "p",
            "predicates": "p",
            "predicates.p.type": TOPIC_MATCHES,
            "predicates.p.pattern": pattern,
        },
        "topics.regex": {
            "topics": "",
            "topics.regex": pattern,
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": topic,
        },
    }[place]
    victim.errors({**SEARCH, **(router if place != "topics.regex" else {}), **given})


@pytest.mark.parametrize("key", some("consumer.override.k{}", "unknown.k{}"))
def test_thousands_of_wrong_keys_are_counted_and_not_all_told(victim: Victim, key: str) -> None:
    many = {key.format(n): "x" for n in range(2000)}
    answer = victim.validate({**POSTGRES, **many})
    assert re.search(r"1,90\d more", answer.text)
    keys = len(victim.validate(POSTGRES).content)
    assert len(answer.content) < keys + 100_000
    refused = victim.send("/connectors/orders/config", {**POSTGRES, "x": "y"}, "read")
    assert refused.status_code == 403


LONG = 20_000


@pytest.mark.parametrize(
    "value",
    [
        "a." * LONG,
        "${" * LONG,
        "${::" * LONG,
        "a://a" * LONG,
        "a://b:" * LONG,
        "a," * LONG,
        "\\" * LONG,
    ],
    ids=["words", "references", "colons", "hosts", "logins", "lists", "backslashes"],
)
@pytest.mark.parametrize("key", some("connection.url", "name", "transforms", "connection.password"))
def test_a_long_value_stops_nobody(victim: Victim, key: str, value: str) -> None:
    victim.errors({**POSTGRES, key: value})


# Secrets


def pieces(text: str) -> set[str]:
    """What an answer would have of a secret, whatever became of it."""
    folded = "".join(c for c in text.lower() if c.isalnum())
    return {folded[at : at + 5] for at in range(len(folded) - 4)}


def shows(answer: httpx.Response, given: dict[str, str]) -> set[str]:
    known = pieces("".join(given.values()) + "".join(given))
    return (pieces(SECRET) - known) & pieces(answer.text)


@pytest.mark.parametrize(
    "key", ["index.name.format", "topics", "topic.index.map", "connection.url", "batch.size"]
)
def test_validation_resolves_no_reference(victim: Victim, key: str) -> None:
    given = {"bootstrap.servers": "kafka:9092", **SEARCH, key: reference(victim)}
    answer = victim.validate(given)
    assert answer.status_code == 200
    assert not shows(answer, given)
    assert not victim.errors(given).get(key)


@pytest.mark.parametrize("key", ["index.name.format", "topics", "batch.size", "delivery"])
def test_a_writer_is_not_shown_what_a_reference_stands_for(victim: Victim, key: str) -> None:
    given = {**SEARCH, "index.name.format": "/", key: reference(victim)}
    answer = victim.send("/connectors/found/config", given, "write")
    assert answer.status_code == 400, answer.text
    assert not shows(answer, given)
