"""Both services: up in one process, found and stopped in another, whatever the state file says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semel.core.errors import ServiceError
from semel_lab.cli.services import app
from semel_lab.embedded import Kafka, Postgres, Services
from tests.conftest import wait_gone
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A services directory in which nothing is left running."""
    yield tmp_path / "services"
    if (tmp_path / "services").exists():
        services = Services(tmp_path / "services")
        services.kafka.kill()
        services.postgres.kill()


def in_another_process(directory: Path, *arguments: str) -> dict[str, dict[str, object]]:
    command = [sys.executable, "-c", "from semel_lab.cli.services import app; app()", *arguments]
    done = subprocess.run(
        [*command, "--dir", str(directory), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.stdout, done.stderr
    answer: dict[str, dict[str, object]] = json.loads(done.stdout)
    return answer


@pytest.mark.long
def test_up_status_down_and_up_again(directory: Path) -> None:
    started = in_another_process(directory, "up")
    assert started["kafka"]["running"]
    assert started["postgres"]["running"]

    # They outlive the process that started them, and every other one finds them.
    services = Services(directory)
    assert services.status().running
    assert services.status().kafka.pid == started["kafka"]["pid"]
    assert services.up().kafka.pid == started["kafka"]["pid"]  # what runs is left alone
    services.kafka.create_topic("kept")
    assert json.loads(services.state_file.read_text()) == started

    # A block on services that run already does not stop them.
    with Services(directory) as same:
        assert same.kafka.pid == started["kafka"]["pid"]
    assert services.status().running

    stopped = in_another_process(directory, "down")
    assert not stopped["kafka"]["running"]
    assert not services.status().postgres.running
    assert services.down().kafka.pid is None  # down twice is no error

    again = services.up()
    assert again.kafka.url == started["kafka"]["url"]
    assert again.postgres.url == started["postgres"]["url"]
    with pytest.raises(ServiceError, match="kept"):
        services.kafka.create_topic("kept")
    services.down()


@pytest.mark.long
def test_stale_state_is_not_believed(directory: Path) -> None:
    with Services(directory) as services:
        kafka, postgres = services.status().kafka.pid, services.status().postgres.pid
        assert kafka is not None
        assert postgres is not None
        os.kill(kafka, signal.SIGKILL)
        # The same process id, but of a process that started at another time.
        record = services.postgres.directory / "process.json"
        true_record = record.read_text()
        record.write_text(json.dumps(json.loads(true_record) | {"pid": os.getpid()}))
        try:
            assert wait_gone(kafka)
            status = Services(directory).status()
            assert not status.kafka.running
            assert not status.postgres.running
            Services(directory).down()  # would stop this process, if it took it for PostgreSQL
        finally:
            record.write_text(true_record)
        assert Services(directory).status().postgres.pid == postgres


@pytest.mark.long
def test_one_that_died_is_started_again(directory: Path) -> None:
    with Services(directory) as services:
        before = services.status()
        services.postgres.kill()
        after = services.up(detached=False)
        assert after.running
        assert after.kafka.pid == before.kafka.pid
        assert after.postgres.pid != before.postgres.pid
    assert not services.status().kafka.running
    assert not services.status().postgres.running


@pytest.mark.long
def test_if_one_cannot_start_neither_stays(directory: Path, postgres: Postgres) -> None:
    services = Services(directory)
    taken = postgres.port
    with pytest.raises(ServiceError, match=f"PostgreSQL cannot listen on .*:{taken}"):
        services.up(postgres_port=taken)
    assert services.kafka.pid is None


@pytest.mark.long
def test_command_line_shows_how_to_connect(directory: Path) -> None:
    runner = CliRunner()
    nothing = runner.invoke(app, ["status", "--dir", str(directory)])
    assert nothing.exit_code == ServiceError.exit_code
    assert "No services were ever started" in nothing.output
    assert not directory.exists()

    started = runner.invoke(app, ["up", "--dir", str(directory)])
    assert started.exit_code == 0, started.output
    status = runner.invoke(app, ["status", "--dir", str(directory)])
    assert status.exit_code == 0
    services = Services(directory)
    for shown in (services.kafka.bootstrap_servers, services.postgres.url, "running"):
        assert shown in status.output

    stopped = runner.invoke(app, ["down", "--dir", str(directory)])
    assert stopped.exit_code == 0
    assert "stopped" in stopped.output
    after = runner.invoke(app, ["status", "--dir", str(directory)])
    assert after.exit_code == ServiceError.exit_code


def test_a_requested_port_is_used_even_if_another_listener_had_it(tmp_path: Path) -> None:
    first = Kafka(tmp_path)
    controller = json.loads((tmp_path / "ports.json").read_text())["controller"]
    assert Kafka(tmp_path).port == first.port
    assert Kafka(tmp_path, port=controller).port == controller
    ports = json.loads((tmp_path / "ports.json").read_text())
    assert ports["kafka"] == controller != ports["controller"]
