"""Class data sharing archives of embedded Java servers, which then take less CPU to start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from semel.spark.archives import Archive, in_background, key

log = logging.getLogger(__name__)


def usable(name: str, java: Path, jars: Sequence[Path]) -> Archive | None:
    """A server's archive. If there is none yet, it is created in the background for later
    starts."""
    found = archive(name, java, jars)
    if found is not None and found.wanted():
        in_background("semel_lab.embedded.training", name)
    return found if found is not None and found.options() else None


def archive(name: str, java: Path, jars: Sequence[Path]) -> Archive | None:
    """A server's archive, whether it exists or not; None if there is no place for it."""
    try:
        return Archive(name, key(java, jars, map(str, jars)))
    except (OSError, RuntimeError) as error:  # no home directory, either
        log.debug("no class data archive: %s", error)
        return None
