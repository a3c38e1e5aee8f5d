"""What the API says of a connector whose store refuses it, is away or does not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from semel.worker import herder
from semel.worker.alone import StandaloneHerder
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.engine.conftest import Configure
from tests.patience import PATIENCE
from tests.rest.conftest import Worker

pytestmark = pytest.mark.integration


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield int(server.getsockname()[1])


@pytest.mark.parametrize("how", ["refuses", "is away", "is silent"])
def test_questions_about_a_ledger_are_answered_while_its_store(
    how: str,
    worker: Worker,
    configure: Configure,
    database: str,
    silent: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(herder, "_READS_IN", 10.0 if how != "is silent" else 0.5)
    where, postgres = urlsplit(database), f"postgres@{LOOPBACK}"
    place, said = {
        "refuses": (f"stranger:wrong@{where.netloc.rpartition('@')[2]}", "stranger"),
        "is away": (f"{postgres}:{free_port()}", "refused"),
        "is silent": (f"{postgres}:{silent}", "no answer"),
    }[how]
    config = configure("nothing", {"connection.url": where._replace(netloc=place).geturl()})
    name = config["name"]
    api = worker()
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=body).status_code == 201
    for path in (
        f"/connectors/{name}/offsets",
        f"/semel/connectors/{name}/ledger",
        f"/semel/connectors/{name}/lag",
    ):
        answer = api.get(path)
        found = answer.json()
        assert (answer.status_code, found["error_code"]) == (503, 503), (path, found)
        assert said in found["message"], found
        assert "Traceback" not in found["message"]


def test_questions_about_a_ledger_are_answered_while_a_secret_is_not_there(
    worker: Worker, configure: Configure, tmp_path: Path
) -> None:
    secrets = tmp_path / "db.properties"
    secrets.write_text("pw=of-the-shop\n")
    config = configure("nothing", {"connection.password": f"${{file:{secrets}:pw}}"})
    name = config["name"]
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    api = worker(config_providers="file", config_providers_file_class=provider)
    body = {"name": name, "config": config, "initial_state": "STOPPED"}
    assert api.post("/connectors", json=body).status_code == 201
    secrets.unlink()
    answer = api.get(f"/connectors/{name}/offsets")
    assert answer.status_code == 503, answer.text
    assert f"cannot read {secrets}" in answer.json()["message"]


def test_probes_are_answered_while_other_calls_hold_all_threads(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, over = threading.Semaphore(0), threading.Event()

    def offsets(*_arguments: Any) -> dict[str, Any]:
        held.release()
        over.wait(PATIENCE)
        return {}

    monkeypatch.setattr(StandaloneHerder, "offsets", offsets)
    api = worker()
    with ThreadPoolExecutor(45) as clients:
        calls = [clients.submit(api.get, "/connectors/any/offsets") for _ in range(45)]
        try:
            for _ in range(40):  # the size of the pool
                assert held.acquire(timeout=PATIENCE)
            assert api.get("/health").json()["status"] == "healthy"
            assert api.get("/metrics").is_success
            assert not any(call.done() for call in calls)
        finally:
            over.set()
        assert all(call.result(PATIENCE).is_success for call in calls)
