"""A REST proxy beside a worker: a process that may fail without the worker, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from semel.cli.rest import beside, check_beside
from semel.config import read
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.conftest import MakeTopic, wait_gone
from tests.engine.harness import wait_until
from tests.proxy.conftest import v2

WORKER = """\
import sys, threading
from semel.cli.rest import beside
from semel.config import load, read
from semel.config.worker import WorkerConfig

if __name__ == "__main__":
    with beside(read(WorkerConfig, load(sys.argv[1]))):
        print("begun", flush=True)
        threading.Event().wait()
"""


def keys(kafka: Kafka, port: int) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "listeners": f"http://{LOOPBACK}:{free_port()}",
        "semel.rest.authentication": "none",
        "rest.proxy.listeners": f"http://{LOOPBACK}:{port}",
        "rest.proxy.semel.rest.max.records": "2",
    }


def healthy(port: int) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://{LOOPBACK}:{port}/health").status_code == 200
    return False


def serving(parent: int, port: int) -> psutil.Process:
    """The process below a worker that listens on a port."""
    for each in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):
            if any(c.laddr.port == port for c in each.net_connections()):
                return each
    raise AssertionError(f"no process listens on {port}")


@pytest.mark.integration
def test_a_worker_has_a_proxy_beside_it_that_may_die(kafka: Kafka, topic: MakeTopic) -> None:
    port, name = free_port(), topic()
    with beside(read(WorkerConfig, keys(kafka, port))):
        wait_until(lambda: healthy(port))
        first = serving(os.getpid(), port)
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: healthy(port))
        second = serving(os.getpid(), port)
        assert second.pid != first.pid
        url, kind = f"http://{LOOPBACK}:{port}/topics/{name}", {"content-type": v2("json")}
        for count, status in ((2, 200), (3, 422)):
            body = {"records": [{"value": 1}] * count}
            assert httpx.post(url, json=body, headers=kind).status_code == status
    assert wait_gone(second.pid)
    assert not healthy(port)


@pytest.fixture
def worker(kafka: Kafka, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a proxy beside it, and the proxy's port."""
    port = free_port()
    program, file = tmp_path / "worker.py", tmp_path / "worker.properties"
    program.write_text(WORKER)
    file.write_text("".join(f"{k}={v}\n" for k, v in keys(kafka, port).items()))
    command = [sys.executable, str(program), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process, port
        process.kill()


@pytest.mark.integration
@pytest.mark.long
def test_a_proxy_ends_with_its_worker_even_if_that_is_killed(
    worker: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = worker
    wait_until(lambda: healthy(port))
    proxy = serving(process.pid, port)
    process.send_signal(signal.SIGKILL)
    assert wait_gone(proxy.pid)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rest.proxy.id": "1"}, "rest.proxy.id has no effect: rest.proxy.listeners is not set"),
        ({"rest.proxy.listeners": "localhost:1"}, "rest.proxy.listeners='localhost:1'"),
        (
            {"rest.proxy.listeners": "http://localhost:1", "rest.proxy.consumer.threads": "x"},
            "rest.proxy.consumer.threads='x'",
        ),
        (
            {"rest.proxy.listeners": "https://localhost:1"},
            "rest.proxy.listeners: an https:// listener needs a key",
        ),
    ],
)
def test_mistakes_are_reported_before_the_worker_starts(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_beside(read(WorkerConfig, given))
    assert str(error.value).startswith(message)


def test_the_proxy_has_what_the_worker_logs_in_with_and_asks_for() -> None:
    shared = {
        "bootstrap.servers": "a:1",
        "sasl.mechanism": "PLAIN",
        "semel.rest.tokens.file": "t",
        "listeners.https.ssl.keystore.location": "k",
        "client.dns.lookup": "use_all_dns_ips",
    }
    own = {"listeners": "http://localhost:8082", "producer.acks": "all"}
    others = {
        "listeners": "http://localhost:8083",
        "admin.listeners": "",
        "rest.advertised.port": "1",
        "consumer.max.poll.records": "1",
        "semel.rest.max.request.bytes": "5000",
    }
    below = {f"rest.proxy.{name}": value for name, value in own.items()}
    assert read(WorkerConfig, shared | others | below).proxy == shared | own
