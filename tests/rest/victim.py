"""Serves a worker's API in a process of its own, which an attack may end: ``python -m
tests.rest.victim FILE``. It needs no Kafka, and prints its port."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from semel.config import load, read, resolved
from semel.config.worker import WorkerConfig
from semel.driver.runtime import Runtime
from semel.worker.alone import StandaloneHerder
from semel.worker.rest.listening import serving
from tests.engine.harness import LocalSpark


def main(file: str) -> None:
    config = read(WorkerConfig, resolved(load(Path(file))))
    cluster = cast(Any, SimpleNamespace(cluster_id=lambda: "some"))
    with Runtime(cast(Any, LocalSpark())) as runtime:
        herder = StandaloneHerder(runtime, config)
        with serving(herder, config, cluster, runtime) as server:
            print(server.ports[0], flush=True)
            sys.stdin.read()  # until the test ends


if __name__ == "__main__":
    main(sys.argv[1])
