"""A worker in this process whose API is called over HTTP, with a real Kafka and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from semel.config import read
from semel.config.worker import WorkerConfig
from semel.driver.runtime import Runtime
from semel.kafka.clients import worker_client
from semel.kafka.cluster import Cluster
from semel.worker.alone import StandaloneHerder
from semel.worker.rest.listening import serving
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK
from tests.engine.conftest import configure  # noqa: F401
from tests.engine.harness import LocalSpark
from tests.patience import PATIENCE

Worker = Callable[..., httpx.Client]


@pytest.fixture
def worker(kafka: Kafka) -> Iterator[Worker]:
    """Starts a worker with these keys; returns a client of its API."""
    with ExitStack() as ends:

        def start(**keys: str) -> httpx.Client:
            spark: Any = LocalSpark()
            runtime = ends.enter_context(Runtime(spark))
            raw = {k.replace("_", "."): v for k, v in keys.items()}
            raw["bootstrap.servers"] = kafka.bootstrap_servers
            raw.setdefault("listeners", f"http://{LOOPBACK}:0")
            raw.setdefault("semel.rest.authentication", "none")
            raw |= {"rest.advertised.host.name": "worker", "rest.advertised.port": "8083"}
            config = read(WorkerConfig, raw)
            herder = StandaloneHerder(runtime, config)
            server = ends.enter_context(
                serving(herder, config, Cluster(worker_client(config)), runtime)
            )
            url = f"http://{LOOPBACK}:{server.ports[0]}"
            return ends.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))

        yield start
