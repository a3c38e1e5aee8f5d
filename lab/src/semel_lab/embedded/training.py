"""Creates the class data sharing archives of embedded servers.

``python -m semel_lab.embedded.training NAME`` runs a server for a moment, in a directory of its
own, and makes its JVM record the classes that it has loaded.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semel.core.errors import ServiceError
from semel.spark.archives import QUIET, yielding
from semel.spark.jars import resolve
from semel_lab.embedded.java import find_java
from semel_lab.embedded.kafka import Kafka
from semel_lab.embedded.registry import SchemaRegistry, installed
from semel_lab.embedded.server import archive
from semel_lab.jars import KAFKA

_LIMIT = 600.0
"""Seconds for a start or a stop: the machine may be busy with something else."""


class _PatientKafka(Kafka):
    start_timeout = stop_timeout = _LIMIT


class _PatientRegistry(SchemaRegistry):
    start_timeout = stop_timeout = _LIMIT


class _Server(NamedTuple):
    """A server's jars, and what creates it in a directory."""

    jars: Callable[[], Sequence[Path]]
    create: Callable[[Path], Kafka | SchemaRegistry]


_SERVERS: Mapping[str, _Server] = {
    "kafka": _Server(
        lambda: resolve(KAFKA),
        lambda directory: _PatientKafka(directory, heap="256m", short_lived=True),
    ),
    "registry": _Server(installed, _PatientRegistry),
}


def make(name: str) -> None:
    """Create a server's archive, unless it exists or another process is creating it.

    Raises:
        OSError: the cache directory cannot be written to.
        ServiceError: the server does not start, or its JVM writes no archive.
    """
    server = _SERVERS[name]

    def train(part: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="semel-warm-up-") as directory:
            running = server.create(Path(directory))
            running.flags = (f"-XX:ArchiveClassesAtExit={part}", QUIET)
            with running:
                pass
        if not part.exists():
            raise ServiceError("this Java cannot write an archive")
        return {}

    class_data = archive(name, find_java(), server.jars())
    if class_data is not None:
        class_data.make(train)


if __name__ == "__main__":
    yielding()
    signal.alarm(int(2 * _LIMIT))
    make(sys.argv[1])
