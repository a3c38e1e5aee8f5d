"""Finds files that were read, wherever they are now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from semel.core.errors import ServiceError
from semel.core.quoting import PATH, named
from semel.sources.base import SourceOffset
from semel.sources.directory import files
from semel.sources.directory.found import Found
from semel.sources.directory.places import Places


class Kept:
    """Looks in all places of a connector, and lists each once."""

    def __init__(self, connector: str, places: Places, paths: Mapping[str, str]) -> None:
        self._connector = connector
        self._places = places
        self._paths = paths
        self._known: dict[str, list[Found]] = {}

    def find(self, name: str, offset: SourceOffset) -> tuple[str, Found]:
        """The place of a file, and the file.

        Raises:
            ServiceError: it is gone.
        """
        for _ in range(2):
            for place, found in self._everywhere(name):
                if files.is_of(offset, found):
                    return place, found
            self.forget()  # it may have come since
        raise self.gone(name, offset)

    def forget(self) -> None:
        """List the places again next time."""
        self._known.clear()

    def gone(self, name: str, offset: SourceOffset) -> ServiceError:
        """The error for a file that is not found."""
        return ServiceError(
            f"connector {self._connector}: file {named(name, PATH)} ({told(offset)}) is gone, so "
            "its records cannot be read again. An audit needs cleanup.policy=none, move or "
            "movebydate"
        )

    def _everywhere(self, name: str) -> Iterator[tuple[str, Found]]:
        """The files that may be the one of this name, moved or renamed since."""
        wanted = re.compile(rf"(.*/)?{re.escape(name)}(\.\d+)?")
        for place, path in self._paths.items():
            if path and place not in self._known:
                self._known[place] = self._places.files(place, recursive=True) or []
            for found in self._known.get(place, ()):
                if wanted.fullmatch(found.name):
                    yield place, found


def told(version: Mapping[str, Any]) -> str:
    """A version of a file in words."""
    names = ("size", "modified", "changed", "etag")
    return ", ".join(f"{n} {version[n]}" for n in names if n in version)
