"""``semel connectors`` against a worker of semel."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.cli.worker_client import client
from tests.cli.conftest import Ended, Semel
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import records, wait_until
from tests.rest.conftest import Worker, worker  # noqa: F401

pytestmark = pytest.mark.integration


@pytest.fixture
def file(topic: MakeTopic, configure: Configure, tmp_path: Path) -> Callable[..., Path]:
    """Writes the configuration of a connector with ten records to read."""
    source = topic(values=records(10))
    config = configure(source, {"name": "orders", "group.id": f"orders-{source}"})

    def write(**changes: str) -> Path:
        path = tmp_path / "orders.json"
        path.write_text(json.dumps(config | {k.replace("_", "."): v for k, v in changes.items()}))
        return path

    return write


@pytest.fixture
def connectors(
    worker: Worker,  # noqa: F811
    semel: Semel,
    monkeypatch: pytest.MonkeyPatch,
) -> Semel:
    """Runs a command about the connectors of a worker."""
    monkeypatch.setenv("SEMEL_WORKER_URL", str(worker().base_url))
    return lambda *arguments: semel("connectors", *arguments)


def found(ended: Ended) -> Any:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_a_connector_is_managed_from_its_file_to_its_end(
    connectors: Semel, file: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "semel")
    assert "has no connectors" in connectors("list").out
    made = connectors("apply", file(insert_mod="upsert"))
    assert (made.code, made.out) == (0, "orders: created\n")
    assert "warning: unknown configuration key insert.mod; did you mean insert.mode?" in made.err

    def status() -> Any:
        return found(connectors("status", "orders", "--json"))

    def waits_for_records() -> bool:
        return (status()["waits"] or {}).get("for") == "records"

    wait_until(waits_for_records)
    shown = connectors("status", "orders").out
    assert "RUNNING" in shown
    assert "for records since 20" in shown
    (row,) = connectors("list").out.splitlines()[1:]
    assert row.split()[:5] == ["orders", "sink", "RUNNING", "1", "RUNNING"]
    assert "connector orders: created" in connectors("logs", "orders").out

    fetched = connectors("config", "orders", "--json")
    copy = tmp_path / "fetched.json"
    copy.write_text(fetched.out)
    assert connectors("apply", copy).out == "orders: unchanged\n"
    dry = connectors("apply", file(tasks_max="2"), "--dry-run").out
    updated = ["  - insert.mod=upsert", "  + tasks.max=2"]
    assert dry.splitlines() == ["orders: would be updated", *updated]
    assert connectors("apply", file(tasks_max="2")).out.splitlines() == [
        "orders: updated",
        *updated,
    ]
    assert found(connectors("apply", file(tasks_max="2"), "--json"))["outcome"] == "unchanged"
    wait_until(lambda: [t["state"] for t in status()["tasks"]] == ["RUNNING"] * 2)

    for command, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
        assert connectors(command, "orders").out == f"orders: {command}d\n"
        wait_until(lambda state=state: {t["state"] for t in status()["tasks"]} == {state})
    assert connectors("restart", "orders").code == 0
    assert connectors("restart", "orders", "--task", "1").code == 0

    refused = connectors("offsets", "orders", "--reset", "--yes")
    assert refused.code == 2
    assert "must be in the STOPPED state" in refused.err
    assert connectors("stop", "orders").out == "orders: stopped\n"
    (topic,) = (e["partition"]["kafka_topic"] for e in offsets_of(connectors))
    wait_until(lambda: connectors("offsets", "orders", "--set", f"{topic}-0=4").code == 0)
    assert [e["offset"]["kafka_offset"] for e in offsets_of(connectors)] == [4]
    table = connectors("offsets", "orders").out.splitlines()
    assert [line.split() for line in table] == [["TOPIC", "PARTITION", "OFFSET"], [topic, "0", "4"]]
    assert "altered successfully" in connectors("offsets", "orders", "--set", f"{topic}-0=null").out
    assert connectors("offsets", "orders", "--reset", "-y").code == 0
    assert connectors("offsets", "orders").out == "orders has no offsets yet\n"
    assert connectors("delete", "orders", "--yes").out == "orders: deleted\n"
    assert found(connectors("list", "--json")) == []


def offsets_of(connectors: Semel) -> Any:
    return found(connectors("offsets", "orders", "--json"))["offsets"]


@pytest.mark.long
def test_hidden_secrets_are_recognised(
    connectors: Semel, file: Callable[..., Path], tmp_path: Path
) -> None:
    secret = {"connection_password": "hunter2hunter2"}
    new = connectors("apply", file(connection_password="[hidden]"))
    assert new.code == 2
    assert "orders.json: connection.password is [hidden], the placeholder" in new.err
    assert connectors("apply", file(**secret)).code == 0
    fetched = connectors("config", "orders", "--json")
    assert "hidden: connection.password" in fetched.err
    assert json.loads(fetched.out)["connection.password"] == "[hidden]"
    assert connectors("apply", file(connection_password="[hidden]")).out == "orders: unchanged\n"
    assert connectors("apply", file(**secret)).out == "orders: unchanged\n"
    other = connectors("apply", file(connection_password="another-secret"), "--dry-run").out
    assert other == "orders: would be updated\n  connection.password: another secret\n"


@pytest.mark.long
def test_a_misspelt_name_is_answered_with_the_nearest_one(
    connectors: Semel, file: Callable[..., Path]
) -> None:
    unknown = connectors("status", "orders")
    assert (unknown.code, "has no connector orders. It has none" in unknown.err) == (2, True)
    assert connectors("apply", file()).code == 0
    for command in (("status",), ("pause",), ("stop",), ("config",), ("offsets",), ("logs",)):
        missing = connectors(*command, "oders")
        assert missing.code == 2
        assert "has no connector oders. Did you mean orders?" in missing.err
    missing = connectors("restart", "orders", "--task", "7")
    assert (missing.code, "Task orders-7 not found" in missing.err) == (3, True)


@pytest.mark.long
def test_a_login_is_asked_for_refused_and_taken(
    worker: Worker,  # noqa: F811
    semel: Semel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # this machine may have a token
    tokens, jaas, passwords = (tmp_path / n for n in ("tokens", "jaas", "passwords"))
    tokens.write_text("ops=secret-token\nreader=read-token\n")
    passwords.write_text("alice=wonder:land\n")
    module = "org.apache.kafka.connect.rest.basic.auth.extension"
    jaas.write_text(
        f'KafkaConnect {{ {module}.PropertyFileLoginModule required file="{passwords}"; }};'
    )
    api = worker(
        semel_rest_tokens_file=str(tokens),
        semel_rest_jaas_file=str(jaas),
        rest_extension_classes=f"{module}.BasicAuthSecurityRestExtension",
        **{"semel_rest_read.only.users": "reader"},
    )
    url = str(api.base_url)

    def listed(*options: str, **variables: str) -> Ended:
        for name in ("TOKEN", "USER", "PASSWORD"):
            monkeypatch.setenv(f"SEMEL_WORKER_{name}", variables.get(name.lower(), ""))
        return semel("connectors", "list", "--url", url, *options)

    assert "requires a login (401)" in listed().err
    assert listed().code == 3
    assert "refuses these credentials (401)" in listed(token="wrong").err
    assert listed(token="secret-token").code == 0
    assert listed("--user", "alice:wonder:land").code == 0
    assert listed(user="alice", password="wonder:land").code == 0
    assert listed("--url", url.replace("://", "://alice:wonder%3Aland@")).code == 0
    without = listed("--user", "alice")
    assert (without.code, "set SEMEL_WORKER_PASSWORD" in without.err) == (2, True)
    listed(token="read-token")
    reads = semel("connectors", "delete", "x", "--yes", "--url", url)
    assert (reads.code, "reader may only read (403)" in reads.err) == (3, True)


@pytest.mark.long
def test_names_are_completed(
    connectors: Semel, file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connectors("apply", file()).code == 0
    monkeypatch.setenv("_SEMEL_COMPLETE", "complete_bash")
    for line, names in (("status or", ["orders"]), ("pause ", ["orders"]), ("status x", [])):
        words = f"semel connectors {line}"
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        assert connectors().out.split() == names, line


@pytest.mark.long
def test_the_client_reads_its_url_from_the_environment(
    worker: Worker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEMEL_WORKER_URL", f"{worker().base_url}/")
    assert client().is_semel
    assert client().names() == []
