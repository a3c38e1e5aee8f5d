"""Credentials are never shown: no command prints one, and no line of a log holds one."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping

import pytest

from semel.config import ConnectorConfig
from semel.config.definition import definitions
from semel.sinks import sink_class
from tests import matrix
from tests.cli.conftest import NOWHERE, Ended, Semel, Write
from tests.engine.conftest import Config
from tests.engine.harness import some

HIDDEN = "hidden4you"
NOBODY = "no-such-host.invalid:9"
URL = f"s3://me:{HIDDEN}@bucket/x"
KAFKA = {
    f"{client}.override.{key}": value
    for client in ("consumer", "producer", "admin")
    for key, value in {
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="me" password="a\\"b{HIDDEN}";'
        ),
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_PLAINTEXT",
    }.items()
}
PASSED_ON = {
    **{f"storage.options.{key}": HIDDEN for key in ("secret", "token", "sas_token", "account_key")},
    "storage.options.aws_secret_access_key": HIDDEN,
    "storage.options.client_kwargs": json.dumps({"aws_secret_access_key": HIDDEN}),
    "value.converter.basic.auth.user.info": f"me:{HIDDEN}",
    "value.converter.schema.registry.url": f"http://me:{HIDDEN}@registry",
    "spark.hadoop.fs.s3a.secret.key": HIDDEN,
}
ICEBERG = {
    f"iceberg.catalog.{key}": HIDDEN
    for key in ("token", "credential", "s3.secret-access-key", "client.secret-access-key")
}
OF_SINK: Mapping[str, Mapping[str, str]] = {
    "postgresql": {"connection.url": f"jdbc:postgresql://{NOBODY}/d?user=me&password={HIDDEN}"},
    "mysql": {"connection.url": f"jdbc:mariadb://{NOBODY}/d?user=me&password={HIDDEN}"},
    "sqlserver": {
        "connection.url": f"jdbc:sqlserver://{NOBODY};databaseName=d;user=me;password={HIDDEN};"
        "encrypt=false"
    },
    "elasticsearch": {"connection.url": f"http://me:{HIDDEN}@{NOBODY}"},
    "delta": {"delta.table.path": URL, **PASSED_ON},
    "files": {"path": URL, **PASSED_ON},
    "iceberg": {
        "iceberg.catalog.type": "rest",
        "iceberg.catalog.uri": f"http://me:{HIDDEN}@{NOBODY}",
        **ICEBERG,
    },
    "kafka": {
        "dest.kafka.bootstrap.servers": NOBODY,
        "dest.kafka.sasl.jaas.config": KAFKA["admin.override.sasl.jaas.config"],
    },
}
OF_SOURCE: Mapping[str, Mapping[str, str]] = {
    "JdbcSource": {
        "connection.url": f"jdbc:postgresql://me:{HIDDEN}@{NOBODY}/d?password={HIDDEN}",
        "connection.password": HIDDEN,
        "query.masked": f"SELECT '{HIDDEN}'",
        "mode": "bulk",
        "topic.prefix": "a",
    },
    "Directory": {
        "format": "text",
        "input.path": URL,
        "cleanup.policy": "none",
        "input.file.pattern": ".*",
        "topic": "a",
        **PASSED_ON,
    },
    "FileStreamSource": {"file": "/no/such/file", "topic": "a", **PASSED_ON},
}
COMMANDS = (
    *(["describe"], ["describe", "--json"], ["validate"], ["validate", "--json"]),
    *(["lag"], ["run"], ["run", "--json"], ["offsets", "show"], ["audit"]),
)


@pytest.fixture(autouse=True)
def all_of_the_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that semel has to say. The command sets handlers up once in a process."""
    monkeypatch.setenv("SEMEL_LOG", "DEBUG")
    warnings.simplefilter("always")
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    yield
    root.handlers = before
    logging.getLogger("semel").setLevel("NOTSET")


def secrets(sink: str) -> dict[str, str]:
    """Every key of a sink that holds a secret."""
    sections = (ConnectorConfig, sink_class(sink).section)
    found = {d.name for section in sections for d in definitions(section) if d.secret}
    return {name: HIDDEN for name in found if not name.endswith(".url")}


def config(sink: str) -> Config:
    required = {**matrix.SINKS[sink].keys, **secrets(sink), **OF_SINK.get(sink, {})}
    where = {"name": "nowhere", "topics": "a", "bootstrap.servers": NOBODY}
    return {**where, "connector.class": sink, **KAFKA, **required}


def check(ended: Ended) -> None:
    assert HIDDEN not in ended.out + ended.err
    assert ended.out + ended.err


@pytest.mark.parametrize("sink", some(matrix.registered(), {"postgresql", "files"}))
def test_no_command_shows_a_secret_of_any_sink(sink: str, semel: Semel, written: Write) -> None:
    file = written(config(sink))
    for arguments in COMMANDS:
        check(semel(*arguments, file))


@pytest.mark.parametrize("sink", some(matrix.registered(), {"postgresql", "files"}))
def test_no_key_shows_the_credentials_of_a_url_that_it_does_not_take(
    sink: str, semel: Semel, written: Write
) -> None:
    sections = (ConnectorConfig, sink_class(sink).section)
    every = {name: URL for section in sections for d in definitions(section) for name in d.names}
    for keys in (every, {f"{name}x": URL for name in every}):
        file = written({**config(sink), **keys, "name": "nowhere", "connector.class": sink})
        for arguments in COMMANDS[:4]:
            check(semel(*arguments, file))


@pytest.mark.parametrize(
    "change",
    [
        {"connector.class": "delta", "delta.table.path": f"gopher://me:{HIDDEN}@bucket/x"},
        {"connector.class": "files", "path": URL, "format": "exe"},
        {"connection.url": f"postgresql://me:{HIDDEN}@192.0.2.1/db"},
        pytest.param({"connection.pasword": HIDDEN}, marks=pytest.mark.long),
        pytest.param(
            {
                "consumer.override.ssl.key.password": HIDDEN,
                "consumer.override.sasl.mechanism": "NO",
            },
            marks=pytest.mark.long,
        ),
        {"table.name.format": f"x password={HIDDEN}", "tasks.max": URL},
    ],
)
def test_a_mistake_does_not_show_the_credentials_beside_it(
    change: Config, semel: Semel, written: Write
) -> None:
    file = written({**NOWHERE, **change})
    for arguments in COMMANDS[:4]:
        check(semel(*arguments, file))


@pytest.mark.parametrize("source", some(OF_SOURCE, {"JdbcSource", "Directory"}))
def test_no_command_shows_a_secret_of_any_source(source: str, semel: Semel, written: Write) -> None:
    keys = {"name": "nowhere", "bootstrap.servers": NOBODY, "connector.class": source}
    file = written({**keys, **KAFKA, **OF_SOURCE[source]})
    for command in COMMANDS:
        if command[0] in ("describe", "validate", "run"):
            check(semel(*command, file))
