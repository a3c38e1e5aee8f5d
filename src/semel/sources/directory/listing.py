"""The files of ``input.path`` that are to be read, and their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.core.patterns import compiled
from semel.core.quoting import PATH, named
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.found import Found
from semel.sources.directory.places import Places
from semel.sources.directory.removal import ASIDE

_ASIDE_S = 60
"""Seconds after which a file that is still aside counts as left behind."""

_ORDERS: Mapping[str, Callable[[Found], Any]] = {
    "Name": lambda found: found.name,
    "Length": lambda found: found.size,
    "LastModified": lambda found: found.modified_ms,
}


class Listing:
    """Chooses among the files of a place."""

    def __init__(
        self, places: Places, place: str, config: DirectoryConfig, warn: Callable[[str], None]
    ) -> None:
        self._places = places
        self._place = place
        self._config = config
        self._warn = warn
        self._aside: dict[str, float] = {}
        """When files that are about to be deleted were first seen."""
        self._pattern = compiled(config.pattern)

    def files(self) -> list[Found] | None:
        """The files that the configuration names; None if the place does not exist."""
        listed = self._places.files(self._place, recursive=self._config.recursive)
        if listed is None:
            return None
        self._report([found.name for found in listed if _is_aside(found)])
        return [found for found in listed if not _is_aside(found) and self._takes(found)]

    def ready(self, listed: Sequence[Found]) -> list[Found]:
        """Those that are old enough to be read, in the order in which they are read."""
        config, now = self._config, time.time() * 1000
        found = [f for f in listed if not 0 <= now - f.modified_ms < config.minimum_age_ms]
        for attribute in reversed(config.sort):
            by = attribute.removesuffix("Asc").removesuffix("Desc")
            found.sort(key=_ORDERS[by], reverse=attribute.endswith("Desc"))
        return found

    def _takes(self, found: Found) -> bool:
        own_name = found.name.rpartition("/")[2]
        if own_name.endswith(self._config.processing):
            return False
        return self._pattern.fullmatch(own_name)

    def _report(self, aside: Sequence[str]) -> None:
        """Warn of files that stay aside: normally, a file is there only for an instant."""
        now = time.monotonic()
        self._aside = {name: self._aside.get(name, now) for name in aside}
        for name, since in self._aside.items():
            if now - since >= _ASIDE_S:
                self._warn(
                    f"file {named(name, PATH)} was left in {self._place} by a crash or an error. "
                    "semel ignores it: before you delete it, check that its records were read"
                )


def _is_aside(found: Found) -> bool:
    """Whether a file is about to be deleted. Only local files are renamed first."""
    return bool(found.changed) and found.name.rpartition("/")[2].startswith(ASIDE)
