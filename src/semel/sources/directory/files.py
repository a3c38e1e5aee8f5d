"""The offsets of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semel.sources.directory.places import Found

FILE_NAME, OFFSET = "fileName", "offset"
"""The names of kafka-connect-spooldir in the source partition and offset."""
_POSITION, _STATE = "position", "state"
DONE, BROKEN = "done", "broken"
_VERSION = ("size", "modified", "etag")


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a file was read: the number of records and, for formats in bytes, the position in its
    content."""

    records: int = 0
    position: int = 0
    state: str = ""

    def offset(self, found: Found) -> dict[str, Any]:
        """As a source offset."""
        offset: dict[str, Any] = {OFFSET: self.records, **found.version}
        if self.position:
            offset[_POSITION] = self.position
        if self.state:
            offset[_STATE] = self.state
        return offset


def reached(offset: Mapping[str, Any]) -> Reached:
    """Read an offset.

    Raises:
        ValueError: it makes no sense.
    """
    for name in (OFFSET, _POSITION):
        given = offset.get(name, 0)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ValueError(f"{name} must be a whole number of 0 or more")
    if OFFSET not in offset:
        raise ValueError(f"{OFFSET} is missing: the number of records that were read")
    state = offset.get(_STATE, "")
    if state not in ("", DONE, BROKEN):
        raise ValueError(f"{_STATE} must be {DONE} or {BROKEN}")
    return Reached(offset[OFFSET], offset.get(_POSITION, 0), state)


def is_of(offset: Mapping[str, Any], found: Found) -> bool:
    """Whether an offset belongs to this very file. Offsets that spooldir stored do not say."""
    given = {n: offset[n] for n in _VERSION if n in offset}
    return not given or given == found.version
