"""``semel connectors`` against a worker of Kafka Connect 4.3.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semel_lab.embedded import Kafka
from semel_lab.embedded.connect import DistributedConnect
from semel_lab.embedded.process import LOOPBACK
from tests.cli.conftest import Ended, Semel
from tests.conftest import MakeTopic
from tests.engine.harness import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long]

TEXTS = "org.apache.kafka.connect.storage.StringConverter"


def test_a_connector_of_kafka_connect_is_managed_from_its_file_to_its_end(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path, semel: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(values=[b"one", b"two"])
    file, lines = tmp_path / "lines.properties", tmp_path / "lines.txt"
    name = f"lines-{source}"

    def write(**changes: str) -> Path:
        config = {
            "name": name,
            "connector.class": "FileStreamSink",
            "topics": source,
            "file": str(lines),
            "value.converter": TEXTS,
            "key.converter": TEXTS,
        } | {k.replace("_", "."): v for k, v in changes.items()}
        file.write_text("".join(f"{k}={v}\n" for k, v in config.items()))
        return file

    def connectors(*arguments: object) -> Ended:
        return semel("connectors", *arguments)

    def status() -> Any:
        ended = connectors("status", name, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    def states() -> list[str]:
        return [part["state"] for part in (status()["connector"], *status()["tasks"])]

    with DistributedConnect(
        tmp_path / "connect", kafka.bootstrap_servers, source, exactly_once=False
    ) as connect:
        monkeypatch.setenv("SEMEL_WORKER_URL", f"http://{LOOPBACK}:{connect.port}")
        wait_until(lambda: connectors("list").code == 0)
        refused = connectors("apply", write(file_password="[hidden]"))
        assert refused.code == 2
        assert f"{file}: file.password is [hidden], which a semel worker shows" in refused.err
        assert connectors("apply", write()).out == f"{name}: created\n"
        assert connectors("apply", write()).out == f"{name}: unchanged\n"
        updated = connectors("apply", write(tasks_max="2")).out
        assert updated == f"{name}: updated\n  + tasks.max=2\n"
        wait_until(lambda: states() == ["RUNNING"] * 3)
        (row,) = connectors("list").out.splitlines()[1:]
        worker = f"{LOOPBACK}:{connect.port}"
        assert row.split() == [name, "sink", "RUNNING", "2", "RUNNING", worker, "FileStreamSink"]
        assert "RUNNING" in connectors("status", name).out
        assert json.loads(connectors("config", name, "--json").out)["tasks.max"] == "2"
        logs = connectors("logs", name)
        assert (logs.code, logs.out) == (0, "")
        assert "Kafka Connect's workers keep no log lines" in logs.err

        for command, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
            assert connectors(command, name).code == 0
            wait_until(lambda state=state: set(states()) == {state})
        assert connectors("restart", name).code == 0
        wait_until(lambda: states() == ["RUNNING"] * 3)
        assert connectors("restart", name, "--task", "1").code == 0
        assert "Did you mean" in connectors("status", name[:-1]).err

        assert connectors("stop", name).code == 0
        wait_until(lambda: states() == ["STOPPED"])
        wait_until(lambda: connectors("offsets", name, "--set", f"{source}-0=1").code == 0)
        assert connectors("offsets", name).out.split()[-3:] in (
            [source, "0", "1"],
            ["0", source, "1"],
        )
        wrong = connectors("offsets", name, "--set", f"{source}-0=1_0")
        assert (wrong.code, "need to be integers" in wrong.err) == (2, True)
        assert connectors("offsets", name, "--reset", "--yes").code == 0
        assert connectors("offsets", name).out == f"{name} has no offsets yet\n"

        bad = connectors("apply", write(file=str(tmp_path / "nowhere" / "lines.txt")))
        assert bad.code == 0
        assert connectors("resume", name).code == 0
        wait_until(lambda: "FAILED" in states())
        assert "NoSuchFileException" in connectors("logs", name).out
        assert "NoSuchFileException" in connectors("status", name).out
        assert connectors("restart", name, "--only-failed").code == 0
        assert connectors("delete", name, "--yes").out == f"{name}: deleted\n"
        assert json.loads(connectors("list", "--json").out) == []
