"""A REST proxy, with a real Kafka and a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.proxy.app import serving
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from semel_lab.embedded.registry import SchemaRegistry
from tests.patience import PATIENCE

V2 = "application/vnd.kafka.v2+json"


def v2(embedded: str = "") -> str:
    """The media type of records in a format."""
    return f"application/vnd.kafka.{embedded}.v2+json" if embedded else V2


def threads() -> int:
    """How many threads of librdkafka run in this process."""
    found = 0
    for each in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended
            found += each.read_text().startswith("rdk:")
    return found


@contextmanager
def served(servers: str, **keys: str) -> Iterator[httpx.Client]:
    """A client of a proxy in this process."""
    port = free_port()
    raw = {
        "bootstrap.servers": servers,
        "listeners": f"http://{LOOPBACK}:{port}",
        "semel.rest.authentication": "none",
        **{name.replace("_", "."): value for name, value in keys.items()},
    }
    with (
        serving(read(ProxyConfig, raw)),
        httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def proxy(kafka: Kafka, registry: SchemaRegistry) -> Iterator[httpx.Client]:
    """The run's proxy. A test with settings of its own takes ``own_proxy``."""
    url = {"schema_registry_url": registry.url}
    with served(kafka.bootstrap_servers, **url) as client:
        yield client


OwnProxy = Callable[..., httpx.Client]


@pytest.fixture
def own_proxy(kafka: Kafka) -> Iterator[OwnProxy]:
    """Starts a proxy with these keys."""
    with ExitStack() as ends:
        yield lambda **keys: ends.enter_context(served(kafka.bootstrap_servers, **keys))
