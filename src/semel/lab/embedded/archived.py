"""Kafka's class data archive, with which a broker takes less CPU to start.

``python -m semel.lab.embedded.archived`` creates it by running a broker for a moment, in a
directory of its own.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from semel.archives import QUIET, Archive, in_background, key, yielding
from semel.errors import ServiceError

log = logging.getLogger(__name__)

_LIMIT = 600.0
"""Seconds."""


def options(java: Path, classpath: str) -> list[str]:
    """The JVM's options for using the archive. If there is none yet, it is created in the
    background for later brokers."""
    archive = _archive(java, classpath)
    if archive is None:
        return []
    if archive.wanted():
        in_background(__name__)
    return archive.options()


def make() -> None:
    """Create the archive, unless it exists or another process is creating it.

    Raises:
        OSError: the cache directory cannot be written to.
        ServiceError: the broker does not start, or its JVM writes no archive.
    """
    from semel.jars import classpath
    from semel.lab.embedded.java import find_java
    from semel.lab.jars import KAFKA

    archive = _archive(find_java(), classpath(KAFKA))
    if archive is not None:
        archive.make(_train)


def _archive(java: Path, classpath: str) -> Archive | None:
    try:
        return Archive("kafka", key(java, map(Path, classpath.split(os.pathsep)), [classpath]))
    except (OSError, RuntimeError) as error:  # no home directory, either
        log.debug("no class data archive: %s", error)
        return None


def _train(part: Path) -> dict[str, Any]:
    """Start a broker, and make its JVM record the classes that it has loaded."""
    from semel.lab.embedded.kafka import Kafka

    class Patient(Kafka):
        """For a machine that is busy with something else."""

        start_timeout = stop_timeout = _LIMIT

    with tempfile.TemporaryDirectory(prefix="semel-warm-up-") as directory:
        flags = (f"-XX:ArchiveClassesAtExit={part}", QUIET)
        with Patient(Path(directory), heap="256m", short_lived=True, flags=flags):
            pass
    if not part.exists():
        raise ServiceError("this Java cannot write an archive")
    return {}


if __name__ == "__main__":
    yielding()
    signal.alarm(int(2 * _LIMIT))
    make()
