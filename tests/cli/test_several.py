"""``semel run`` with several connectors, and with a worker's file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.cli.worker import _with_page, are_several
from semel.config.loading import of_environment
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition
from semel.driver.runtime import Runtime
from semel.worker.rest.token import VARIABLE
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.cli.conftest import NOWHERE, Semel
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure
from tests.engine.harness import (
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    positions,
    records,
    wait_until,
)
from tests.patience import PATIENCE

WORKER = "bootstrap.servers={}\nvalue.converter=org.apache.kafka.connect.json.JsonConverter\n"
SCHEMALESS = "value.converter.schemas.enable=false\n"


def file(folder: Path, name: str, config: dict[str, Any]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def test_a_file_is_a_workers_if_nothing_in_it_is_a_connectors(tmp_path: Path) -> None:
    worker = tmp_path / "worker.properties"
    worker.write_text("bootstrap.servers=b:1\ngroup.id=g\n")
    connector = file(tmp_path, "a", NOWHERE)
    nameless = file(tmp_path, "b", {"topics": "t"})  # lacks its class by mistake
    assert are_several([worker], environment=False)
    assert are_several([connector, connector], environment=False)
    assert are_several([connector], environment=True)
    assert not are_several([connector], environment=False)
    assert not are_several([nameless], environment=False)


def test_variables_of_confluents_images_are_keys() -> None:
    found = of_environment(
        {
            "CONNECT_BOOTSTRAP_SERVERS": "b:1",
            "CONNECT_GROUP_ID": "g",
            "CONNECT_KEY__WITH___BOTH": "x",
            "CONNECT_LOG4J_LOGGERS": "org.reflections=ERROR",
            "HOME": "/root",
        }
    )
    assert found == {"bootstrap.servers": "b:1", "group.id": "g", "key_with-both": "x"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["worker"], "no connector is given"),
        (["one", "one"], "is that of another connector"),
        (["one", "wrong"], "tasks.max='two' must be a whole number"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(
    files: list[str], said: str, semel: Semel, tmp_path: Path
) -> None:
    (tmp_path / "worker.json").write_text('{"bootstrap.servers": "192.0.2.1:9092"}')
    file(tmp_path, "one", NOWHERE)
    file(tmp_path, "wrong", {**NOWHERE, "name": "other", "tasks.max": "two"})
    ended = semel("run", *(tmp_path / f"{name}.json" for name in files))
    assert ended.code == 2
    assert said in ended.err


def test_a_connectors_file_is_not_mistaken_for_a_workers(semel: Semel, tmp_path: Path) -> None:
    ended = semel("worker", file(tmp_path, "one", NOWHERE))
    assert ended.code == 2
    assert "one.json is a connector's configuration" in ended.err
    assert "Give the worker's file first, or use semel run" in ended.err


def test_a_page_belongs_to_a_worker_that_has_what_the_connectors_have(tmp_path: Path) -> None:
    own = {
        **NOWHERE,
        "bootstrap.servers": "b:1",
        "consumer.override.security.protocol": "SSL",
        "config.providers": "env",
        "transforms.x.function": "acme.made:cut",
    }
    found = _with_page("[::1]:8083", {}, [file(tmp_path, "one", own)])
    assert found == {
        "listeners": "http://[::1]:8083",
        "bootstrap.servers": "b:1",
        "security.protocol": "SSL",
        "config.providers": "env",
        "semel.python.modules": "acme.made",
    }
    given = {"bootstrap.servers": "c:1"}
    assert _with_page("1", given, []) == {**given, "listeners": "http://127.0.0.1:1"}
    with pytest.raises(ConfigError, match="the page is there, at /ui"):
        _with_page("1", {"listeners": "http://:2"}, [])


@pytest.mark.integration
@pytest.mark.long
def test_a_run_is_shown_on_a_page(topic: MakeTopic, configure: Configure, tmp_path: Path) -> None:
    source = topic(values=records(10))
    config = configure(source)
    port = free_port()
    command = (sys.executable, "-m", "semel", "run", file(tmp_path, "one", config))
    process = subprocess.Popen(
        [*command, "--ui", str(port)], env={**os.environ, VARIABLE: "let me in"}
    )
    try:
        url, asks = f"http://{LOOPBACK}:{port}", {"name": config["name"]}
        with httpx.Client(base_url=url, auth=("any", "let me in"), timeout=PATIENCE) as page:

            def shows(path: str, text: str) -> bool:
                with suppress(httpx.TransportError):
                    return text in page.get(f"/ui{path}", params=asks).text
                return False

            wait_until(lambda: shows("/connector", "<dt>Records read</dt><dd>10</dd>"))
            assert shows("/config", "this connector")
            assert httpx.get(f"{url}/ui").status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()


@pytest.mark.integration
def test_a_worker_names_the_file_that_it_refuses(
    semel: Semel, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = LocalSpark()
    monkeypatch.setattr("semel.driver.runtime.Runtime", lambda **keys: Runtime(spark, **keys))
    worker = tmp_path / "worker.properties"
    text = WORKER.format(kafka.bootstrap_servers) + f"listeners=http://{LOOPBACK}:0\n"
    worker.write_text(text)
    ended = semel("worker", worker, file(tmp_path, "bad", {**NOWHERE, "tasks.max": "two"}))
    assert ended.code == 2
    assert "bad.json: Connector configuration is invalid" in ended.err
    assert "tasks.max='two' must be a whole number" in ended.err


@pytest.mark.integration
def test_connectors_share_a_process_and_what_their_worker_says(
    semel: Semel,
    topic: MakeTopic,
    configure: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark: Any = LocalSpark()
    monkeypatch.setattr("semel.driver.runtime.Runtime", lambda **keys: Runtime(spark, **keys))
    configs = []
    for _ in range(2):
        source = topic(values=records(30))
        configs.append(configure(source))
    worker = tmp_path / "worker.properties"
    worker.write_text(WORKER.format(configs[0]["bootstrap.servers"]) + SCHEMALESS)
    inherits = ("bootstrap.servers", "value.converter", "value.converter.schemas.enable")
    files = [
        file(tmp_path, c["name"], {k: v for k, v in c.items() if k not in inherits})
        for c in configs
    ]
    ended = semel("run", worker, *files, "--until-caught-up", "--json")
    assert ended.code == 0, ended.err
    found = {each["name"]: each["rows"] for each in json.loads(ended.out)}
    assert found == {config["name"]: 30 for config in configs}
    for config in configs:
        assert_nothing_lost_nothing_twice(config, range(30))


@pytest.mark.integration
def test_a_task_that_fails_ends_a_run_that_is_to_catch_up(
    semel: Semel, topic: MakeTopic, configure: Configure, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    spark: Any = LocalSpark()
    monkeypatch.setattr("semel.driver.runtime.Runtime", lambda **keys: Runtime(spark, **keys))
    bad = topic(values=[*records(3), b"not JSON"])
    good = topic(values=records(30))
    configs = [configure(bad), configure(good)]
    ended = semel(
        "run", *(file(tmp_path, c["name"], c) for c in configs), "--until-caught-up", "--json"
    )
    assert ended.code == 5, ended.err
    one, other = json.loads(ended.out)
    assert "not JSON" in one["error"]
    assert positions(configs[0]) == {TopicPartition(bad, 0): 3}
    assert (one["records"], one["rows"], one["commits"]) == (3, 3, 1)
    assert (other["rows"], "error" in other) == (30, False)


def test_the_version_is_printed(semel: Semel) -> None:
    assert semel("--version").out.startswith("semel 0.")
