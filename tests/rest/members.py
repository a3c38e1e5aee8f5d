"""Workers of a group: in the test's process, or in processes of their own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import httpx

from semel.config import read
from semel.config.worker import ClusterConfig
from semel.driver.runtime import Runtime
from semel.kafka.clients import worker_client
from semel.kafka.cluster import Cluster, admin_client
from semel.worker.cluster.membership import described
from semel.worker.cluster.worker import ClusterWorker
from semel.worker.rest.listening import serving
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.engine.harness import LocalSpark, wait_until
from tests.patience import PATIENCE

OPEN = {"semel.rest.authentication": "none"}


class Inside:
    """A worker in this process, and a client of its API."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        url = keys.get("listeners") or f"http://{LOOPBACK}:{free_port()}"
        self.id = url.removeprefix("http://")
        config = self.config = read(ClusterConfig, {**OPEN, **keys, "listeners": url})
        spark: Any = LocalSpark()
        client = worker_client(config)
        self._ends = ExitStack()
        with ExitStack() as ends:
            runtime = self.runtime = ends.enter_context(Runtime(spark))
            self.worker = ends.enter_context(ClusterWorker(runtime, config, client))
            herder = self.worker.herder
            ends.enter_context(serving(herder, config, Cluster(client), runtime))
            self.api = ends.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
            self._ends = ends.pop_all()

    def starts(self, name: str) -> int:
        """How often a connector has been started here."""
        return self.runtime.connectors[name].tally.starts

    def partitions(self, name: str) -> list[int]:
        """How many partitions each task has that runs here."""
        progress = self.runtime.connectors[name].progress
        return [] if progress is None else [len(r.positions) for r in progress.tasks.values()]

    def end(self) -> None:
        self._ends.close()


class Outside:
    """A worker in a process of its own: ``command``, or this module, which needs no JVM."""

    def __init__(self, keys: Mapping[str, str], command: Sequence[str] = ()) -> None:
        url = f"http://{LOOPBACK}:{free_port()}"
        self.id = url.removeprefix("http://")
        given = json.dumps({**OPEN, **keys, "listeners": url})
        self.process = subprocess.Popen(
            [*(command or (sys.executable, "-m", __name__)), given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.api = httpx.Client(base_url=url, timeout=PATIENCE)

    def wait(self) -> None:
        """Until it answers."""
        url = str(self.api.base_url)
        wait_until(lambda: self.process.poll() is not None or answers(url))
        assert self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it and its tasks a signal."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            finally:
                self.kill()
        self.api.close()

    def kill(self) -> None:
        """End it and its tasks at once."""
        with suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self.process.wait(PATIENCE)


def answers(url: str) -> bool:
    """Whether the worker there is ready."""
    try:
        return httpx.get(f"{url.rstrip('/')}/health", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def leader_of(keys: Mapping[str, str]) -> str:
    """The id of the worker that leads a group; nothing while none does."""
    admin = admin_client({"bootstrap.servers": keys["bootstrap.servers"]})
    found = described(admin, keys["group.id"], keys["config.storage.topic"]).leader
    return (found or "").removeprefix("http://")


def state(api: httpx.Client, name: str) -> tuple[str, str]:
    """A connector's state, and the worker that runs it."""
    answer = api.get(f"/connectors/{name}/status")
    if answer.status_code == 404:
        return "", ""
    found = answer.json()["connector"]
    return found["state"], found["worker_id"]


def owners(api: httpx.Client, names: Sequence[str]) -> Counter[str]:
    """How many connectors run on each worker."""
    found = [state(api, name) for name in names]
    return Counter(worker for is_in, worker in found if is_in == "RUNNING")


def offset(api: httpx.Client, name: str) -> int:
    """The sum of a connector's positions."""
    found = api.get(f"/connectors/{name}/offsets").json()["offsets"]
    return sum(each["offset"]["kafka_offset"] for each in found)


def _main() -> None:
    member = Inside(json.loads(sys.argv[1]))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        member.worker.wait(stop)
    finally:
        member.end()


if __name__ == "__main__":
    _main()
