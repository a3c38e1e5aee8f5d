"""The offsets of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semel.sources.directory.found import Found
from semel.sources.directory.places import Places

FILE_NAME, OFFSET = "fileName", "offset"
"""The names of kafka-connect-spooldir in the source partition and offset."""
_POSITION, _STATE = "position", "state"
_CHANGED, _CHECKSUM = "changed", "checksum"
DONE, BROKEN = "done", "broken"
_VERSION = ("size", "modified", "etag")


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a file was read: the number of records and, for formats with byte positions, the
    position in its content; once its end was reached, also the checksum of the file."""

    records: int = 0
    position: int = 0
    state: str = ""
    checksum: int | None = None

    def offset(self, found: Found) -> dict[str, Any]:
        """As a source offset."""
        offset: dict[str, Any] = {OFFSET: self.records, **found.version}
        if self.position:
            offset[_POSITION] = self.position
        if self.state:
            offset[_STATE] = self.state
        if found.changed:
            offset[_CHANGED] = found.changed
        if self.checksum is not None:
            offset[_CHECKSUM] = self.checksum
        return offset


def reached(offset: Mapping[str, Any]) -> Reached:
    """Read an offset.

    Raises:
        ValueError: it makes no sense.
    """
    for name in (OFFSET, _POSITION, _CHANGED, _CHECKSUM):
        given = offset.get(name, 0)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ValueError(f"{name} must be a whole number of 0 or more")
    if OFFSET not in offset:
        raise ValueError(f"{OFFSET} is missing: the number of records that were read")
    state = offset.get(_STATE, "")
    if state not in ("", DONE, BROKEN):
        raise ValueError(f"{_STATE} must be {DONE} or {BROKEN}")
    return Reached(offset[OFFSET], offset.get(_POSITION, 0), state, offset.get(_CHECKSUM))


def is_of(offset: Mapping[str, Any], found: Found) -> bool:
    """Whether an offset belongs to a file of this size and time, wherever it is now. Offsets stored
    by spooldir hold neither, so they fit any file."""
    given = {n: offset[n] for n in _VERSION if n in offset}
    return not given or given == found.version


class Versions:
    """Distinguishes a file from another one that took its name in the same place, even with the
    same size and time (``cp -p``)."""

    def __init__(self, places: Places, place: str) -> None:
        self._places = places
        self._place = place
        self._known: dict[str, int] = {}
        """The times of change, by name, of files whose content is known to be the same."""
        self._inodes: dict[tuple[str, int], int] = {}
        """The inodes of the files that this process reads, by name and time of change."""

    def begin(self, found: Found) -> None:
        """Remember which file is read."""
        self._inodes[found.name, found.changed] = found.inode

    def same(self, offset: Mapping[str, Any], found: Found, *, unread: bool = True) -> bool:
        """Whether an offset belongs to this very file. What the kernel records as a change may have
        been ``chmod`` or a copy to another disk, so the content decides then; for a partly read
        file, the inode decides, as long as this process lives. ``unread`` is the answer if the
        content cannot be read."""
        if not is_of(offset, found):
            return False
        changed = offset.get(_CHANGED, found.changed)
        if found.changed in (changed, self._known.get(found.name)):
            return True
        if _CHECKSUM not in offset:  # it is partly read
            return self._inodes.get((found.name, changed), found.inode) == found.inode
        checksum = self._places.checksum(self._place, found.name)
        if checksum is None:
            return unread
        if checksum != offset[_CHECKSUM]:
            return False
        self._known[found.name] = found.changed
        return True
